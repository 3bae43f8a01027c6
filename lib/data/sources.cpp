#include "data/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

enum class FileKind { text, jsonl, tokens };

struct FoundFile {
  fs::path path;
  FileKind kind = FileKind::text;
};

// Read as text these would train a model on compressed or binary noise.
constexpr std::array<std::string_view, 24> kNotText = {
    ".gz",  ".xz",  ".bz2", ".zst", ".lz4",  ".zip", ".7z",  ".tar",         ".tgz", ".parquet", ".arrow", ".feather",
    ".npy", ".npz", ".pt",  ".pth", ".ckpt", ".h5",  ".pdf", ".safetensors", ".png", ".jpg",     ".rar",   ".so"};

// What names the path in messages: a key of the config or an option of the command line.
std::string path_key(const SourceSpec& spec) {
  return spec.key + (spec.key.starts_with("--") ? " PATH" : ".path");
}

FileKind kind_of(const fs::path& path, const SourceSpec& spec) {
  switch (spec.type) {
    case SourceKind::text:
      return FileKind::text;
    case SourceKind::jsonl:
      return FileKind::jsonl;
    case SourceKind::tokens:
      return FileKind::tokens;
    case SourceKind::automatic:
      break;
  }
  const std::string extension = path.extension().string();
  if (extension == ".jsonl" || extension == ".ndjson") return FileKind::jsonl;
  if (std::find(kNotText.begin(), kNotText.end(), extension) != kNotText.end() || extension == ".json") {
    const bool is_option = spec.key.starts_with("--");
    throw UserError(fmt::format("{}: {} looks like no text, JSONL or token file; unpack or convert it{}",
                                is_option ? path_key(spec) : spec.key + ".type", path.string(),
                                is_option ? "" : ", or name its type"));
  }
  return looks_like_token_file(path) ? FileKind::tokens : FileKind::text;
}

struct FolderEntries {
  std::vector<fs::path> files;
  std::vector<fs::path> others;  // pipes, sockets, devices
  std::size_t folders = 0;
};

// In no order, without what is hidden. A file that is meant to be there and is not must not be left out unseen: a link
// that leads to nothing is an InputError.
FolderEntries read_folder(const fs::path& folder) {
  FolderEntries entries;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().filename().string().starts_with(".")) continue;
    std::error_code problem;
    const fs::file_status status = entry->status(problem);
    if (fs::is_regular_file(status)) {
      entries.files.push_back(entry->path());
    } else if (fs::is_directory(status)) {
      ++entries.folders;
    } else if (fs::exists(status)) {
      entries.others.push_back(entry->path());
    } else {
      throw InputError(fmt::format(
          "{}: {}; mend or remove it", entry->path().string(),
          fs::is_symlink(entry->symlink_status(problem)) ? "a link that leads to no file" : "it cannot be looked at"));
    }
  }
  if (error) throw InputError(fmt::format("{}: reading the folder failed: {}", folder.string(), error.message()));
  std::sort(entries.others.begin(), entries.others.end());
  return entries;
}

std::vector<FoundFile> find_files(const SourceSpec& spec, const Reporter& report) {
  const fs::path path = spec.path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_regular_file(status)) return {{path, kind_of(path, spec)}};
  if (!fs::status_known(status))
    throw InputError(fmt::format("{}: {}: it cannot be looked at: {}", path_key(spec), spec.path, error.message()));
  if (!fs::is_directory(status)) {
    if (!fs::exists(status) && fs::is_regular_file(fs::path(spec.path + ".idx"), error)) {
      return {{path, FileKind::tokens}};
    }
    throw UserError(fmt::format("{}: {}: {}", path_key(spec), spec.path,
                                fs::exists(status) ? "neither a file nor a folder" : "no such file or folder"));
  }
  FolderEntries entries = read_folder(path);
  std::vector<fs::path>& files = entries.files;
  const auto is_before = [](const fs::path& a, const fs::path& b) {
    return a.filename().string() < b.filename().string();
  };
  std::sort(files.begin(), files.end(), is_before);
  std::vector<FoundFile> found;
  for (fs::path& file : files) {
    if (file.extension() == ".idx") {
      auto bin = file;
      bin.replace_extension(".bin");
      if (std::binary_search(files.begin(), files.end(), bin, is_before)) continue;  // comes with its .bin
    }
    found.push_back({file, kind_of(file, spec)});
  }
  if (entries.folders > 0 && report) {
    report(fmt::format("{}: {} sub-folder{} of {} {} not read; name each as a source of its own", path_key(spec),
                       entries.folders, entries.folders == 1 ? "" : "s", spec.path,
                       entries.folders == 1 ? "is" : "are"));
  }
  for (const fs::path& other : entries.others) {
    if (report)
      report(fmt::format("{}: {} is neither a file nor a folder and is not read", path_key(spec), other.string()));
  }
  if (found.empty()) throw UserError(fmt::format("{}: {}: the folder holds no file", path_key(spec), spec.path));
  return found;
}

void check_keys_are_used(const SourceSpec& spec, const std::vector<FoundFile>& files) {
  const auto none_is = [&](FileKind kind) {
    return std::none_of(files.begin(), files.end(), [kind](const FoundFile& file) { return file.kind == kind; });
  };
  if (spec.separator && none_is(FileKind::text)) {
    throw UserError(fmt::format("{}.separator: no file of {} is text, so nothing would use it; remove the key",
                                spec.key, spec.path));
  }
  if (spec.separator && (spec.separator->empty() || spec.separator->find('\n') != std::string::npos)) {
    throw UserError(fmt::format("{}.separator: one line that is not empty is expected", spec.key));
  }
  if (spec.field != SourceConfig().field && none_is(FileKind::jsonl)) {
    throw UserError(
        fmt::format("{}.field: no file of {} is JSONL, so nothing would use it; remove the key", spec.key, spec.path));
  }
}

// Changes when the files of a source would be laid end to end otherwise, and so its samples be others. Before there was
// such a number each file had samples of its own.
constexpr std::uint64_t kJoiningRules = 1;

// Changes when the parts of a source that grew would be cut or mixed otherwise.
constexpr std::uint64_t kGrowingRules = 1;

// All files that the source is read from, in order.
std::vector<fs::path> paths_of(const std::vector<FoundFile>& files,
                               const std::vector<std::unique_ptr<TokenFile>>& tokens) {
  std::vector<fs::path> paths;
  for (const FoundFile& file : files)
    if (file.kind != FileKind::tokens) paths.push_back(file.path);
  for (const auto& file : tokens) {
    if (!file) continue;
    const std::vector<fs::path> more = file->files();
    paths.insert(paths.end(), more.begin(), more.end());
  }
  return paths;
}

class OpenFoundSource final : public FoundSource {
 public:
  OpenFoundSource(SourceSpec spec, const Tokenizer& tokenizer, const DataConfig& config, const DataOptions& options)
      : spec_(std::move(spec)),
        tokenizer_(tokenizer),
        config_(config),
        options_(options),
        files_(find_files(spec_, options.report)) {
    check_keys_are_used(spec_, files_);
    for (const FoundFile& file : files_) {
      if (file.kind != FileKind::tokens && !tokenizer_.reads_text()) refuse_text(file);
      token_files_.push_back(file.kind == FileKind::tokens ? open_token_file(file.path, FileCheck::header) : nullptr);
    }
    content_.key = spec_.key;
    content_.path = spec_.path;
    content_.stamps = stamps_hash(paths_of(files_, token_files_));
    if (!take_known()) verify();
  }

  const std::vector<std::uint64_t>& files() const override { return content_.holds; }

  OpenedSource open(const std::vector<std::vector<std::size_t>>& parts) override {
    if (!record_ && !open_known_texts(parts)) verify();
    if (record_) open_texts(parts);
    std::vector<std::uint64_t> identities;
    std::vector<OpenedPart> opened;
    content_.tokens = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) opened.push_back(open_part(parts[i], i, identities));
    if (content_.tokens == 0)
      throw InputError(fmt::format("{}: {}: there is nothing to read: no document", spec_.key, spec_.path));
    if (record_) {
      if (identities.size() > 1) identities.push_back(kGrowingRules);
      content_.identity = identities.size() == 1 ? identities[0] : hash_bytes(std::as_bytes(std::span(identities)));
    }
    return {std::move(opened), std::move(content_)};
  }

 private:
  [[noreturn]] void refuse_text(const FoundFile& file) const {
    throw UserError(fmt::format(
        "{}: {} is text, but the tokenizer ({}) reads token files only{}", path_key(spec_), file.path.string(),
        tokenizer_.description(),
        spec_.key.starts_with("--") ? "; for a Hugging Face folder, --tokenizer bytes reads text as bytes" : ""));
  }

  void refuse_hidden_documents(const JoinedTokens& tokens) const {
    const TokenFile* file = tokens.first_without_index();
    if (config_.documents.loss_across || tokenizer_.end_of_document() || file == nullptr) return;
    throw UserError(
        fmt::format("data.documents.loss_across: false needs to know where documents end, and {} of {} ({}) does not "
                    "say: name the token that ends a document in data.tokenizer.end_of_document, give a file that has "
                    "an index of its documents (Megatron's .bin and .idx), or set loss_across to true",
                    file->path().string(), spec_.key, file->format()));
  }

  // Without reading: another process of this host has, and the files are the same ones. False if it has not.
  bool take_known() {
    const auto known = std::find_if(options_.known.begin(), options_.known.end(), [this](const SourceContent& content) {
      return content.key == spec_.key && content.path == spec_.path && content.stamps == content_.stamps &&
             content.holds.size() == files_.size();
    });
    if (known == options_.known.end()) return false;
    content_ = *known;
    return true;
  }

  // Reads what has to be read, which is then known by record_.
  void verify() {
    std::vector<fs::path> folders = cache_folders(config_.cache);
    if (!options_.caches_anywhere && !folders.empty()) folders.resize(1);
    record_.emplace(ContentRecord::Options{
        .source = spec_.path, .folders = std::move(folders), .check = config_.verify, .report = options_.report});
    content_.holds.assign(files_.size(), 0);
    content_.files.clear();
    content_.has_all_files = true;
    identities_.assign(files_.size(), 0);
    texts_.assign(files_.size(), {});
    verify_tokens();
    verify_text();
    record_->save();  // what comes now may take hours
  }

  void verify_tokens() {
    Hasher all_bytes;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (!token_files_[i]) continue;
      TokenFile& tokens = *token_files_[i];
      const std::vector<fs::path> paths = tokens.files();
      identities_[i] = record_->hash_of(ContentKind::tokens, paths, tokens.bytes_to_verify(), [&tokens] {
        tokens.verify();
        return tokens.identity();
      });
      const std::array<std::uint64_t, 2> numbers = {static_cast<std::uint64_t>(tokens.num_tokens()), identities_[i]};
      content_.holds[i] = hash_bytes(std::as_bytes(std::span(numbers)));
      FileContent content{files_[i].path, stamp_of(paths.front()).bytes, identities_[i]};
      if (config_.verify == DataCheck::all) {
        std::uint64_t bytes = 0;
        for (const fs::path& file : paths) bytes += stamp_of(file).bytes;
        content.hash = record_->hash_of(ContentKind::bytes, paths, bytes, [&paths] { return hash_of_files(paths); });
        all_bytes.update(std::as_bytes(std::span(&content.hash, 1)));
        content_.all_bytes = all_bytes.digest();
      }
      content_.files.push_back(std::move(content));
    }
  }

  void verify_text() {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < files_.size(); ++i)
      if (!token_files_[i]) places.push_back(i);
    if (places.empty()) return;
    const TextSource text = text_of(places);
    const std::vector<FileContent> contents = contents_of(text, *record_);
    for (std::size_t k = 0; k < places.size(); ++k) {
      texts_[places[k]] = contents[k];
      content_.holds[places[k]] = text_identity(text, k, contents[k], tokenizer_);
    }
    content_.files.insert(content_.files.end(), contents.begin(), contents.end());
  }

  TextSource text_of(const std::vector<std::size_t>& places) const {
    TextSource text{.files = {}, .field = spec_.field, .separator = spec_.separator};
    for (const std::size_t i : places)
      if (!token_files_[i])
        text.files.push_back({files_[i].path, files_[i].kind == FileKind::jsonl ? TextKind::jsonl : TextKind::text});
    return text;
  }

  // False if one is not there as the other process has left it.
  bool open_known_texts(const std::vector<std::vector<std::size_t>>& parts) {
    caches_.clear();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      caches_.emplace_back();
      if (text_of(parts[i]).files.empty()) continue;
      if (content_.caches.size() == parts.size())
        caches_[i] = open_verified_cache(content_.caches[i].path, content_.caches[i].identity);
      if (!caches_[i]) return false;
    }
    return true;
  }

  void open_texts(const std::vector<std::vector<std::size_t>>& parts) {
    caches_.clear();
    content_.caches.clear();
    for (const std::vector<std::size_t>& part : parts) {
      caches_.emplace_back();
      content_.caches.emplace_back();
      const TextSource text = text_of(part);
      if (text.files.empty()) continue;
      std::vector<FileContent> contents;
      for (const std::size_t i : part)
        if (!token_files_[i]) contents.push_back(texts_[i]);
      const CacheRequest request{text, contents, tokenizer_, *record_, options_.report};
      caches_.back() = options_.caches_anywhere ? open_token_cache_anywhere(request, cache_folders(config_.cache))
                                                : open_token_cache(request, cache_folder(config_.cache));
      content_.caches.back() = {caches_.back()->path().string(), caches_.back()->identity()};
    }
    record_->save();
  }

  // In order: the token files, and the cache of all text where the first text file stands.
  OpenedPart open_part(const std::vector<std::size_t>& places, std::size_t part,
                       std::vector<std::uint64_t>& identities) {
    OpenedPart opened;
    std::vector<std::uint64_t> numbers;  // of contents and order
    std::vector<std::unique_ptr<TokenFile>> files;
    const auto add = [&](std::unique_ptr<TokenFile> file, std::uint64_t identity) {
      if (file->num_tokens() == 0) return;
      content_.tokens = checked_add(content_.tokens, file->num_tokens());
      numbers.push_back(static_cast<std::uint64_t>(file->num_tokens()));
      numbers.push_back(identity);
      files.push_back(std::move(file));
    };
    for (const std::size_t i : places) {
      opened.files.push_back(content_.holds[i]);
      if (token_files_[i]) {
        add(std::move(token_files_[i]), record_ ? identities_[i] : 0);
      } else if (caches_[part]) {
        add(std::move(caches_[part]), content_.caches[part].identity);
      }
    }
    if (numbers.size() > 2) numbers.push_back(kJoiningRules);
    identities.push_back(hash_bytes(std::as_bytes(std::span(numbers))));
    if (files.empty()) return opened;
    opened.tokens = std::make_unique<JoinedTokens>(std::move(files));
    refuse_hidden_documents(*opened.tokens);
    return opened;
  }

  SourceSpec spec_;
  const Tokenizer& tokenizer_;
  const DataConfig& config_;
  const DataOptions& options_;
  std::vector<FoundFile> files_;
  std::vector<std::unique_ptr<TokenFile>> token_files_;  // of each file; nothing: it is text
  SourceContent content_;
  // Only where this process has read the files itself; then also, of each file:
  std::optional<ContentRecord> record_;
  std::vector<std::uint64_t> identities_;  // TokenFile::identity()
  std::vector<FileContent> texts_;
  std::vector<std::unique_ptr<TokenFile>> caches_;  // of each part
};

}  // namespace

std::unique_ptr<FoundSource> find_source(const SourceSpec& spec, const Tokenizer& tokenizer, const DataConfig& config,
                                         const DataOptions& options) {
  return std::make_unique<OpenFoundSource>(spec, tokenizer, config, options);
}

}  // namespace scaletrain
