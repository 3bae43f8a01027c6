#include "data/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
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
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.filename().string() < b.filename().string(); });
  std::vector<FoundFile> found;
  for (fs::path& file : files) {
    if (file.extension() == ".idx") {
      auto bin = file;
      bin.replace_extension(".bin");
      if (std::find(files.begin(), files.end(), bin) != files.end()) continue;  // comes with its .bin
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

// Of one token file, or of the cache of all text.
struct OpenedPart {
  fs::path path;
  std::unique_ptr<TokenFile> file;
  std::uint64_t identity = 0;  // TokenFile::identity(); not known of what another process has read
};

TextSource text_of(const std::vector<FoundFile>& files, const SourceSpec& spec) {
  TextSource text{.files = {}, .field = spec.field, .separator = spec.separator};
  for (const FoundFile& file : files)
    if (file.kind != FileKind::tokens)
      text.files.push_back({file.path, file.kind == FileKind::jsonl ? TextKind::jsonl : TextKind::text});
  return text;
}

// All files that the source is read from, in order.
std::vector<fs::path> paths_of(const std::vector<FoundFile>& files, const std::vector<OpenedPart>& tokens) {
  std::vector<fs::path> paths;
  for (const FoundFile& file : files)
    if (file.kind != FileKind::tokens) paths.push_back(file.path);
  for (const OpenedPart& part : tokens) {
    const std::vector<fs::path> more = part.file->files();
    paths.insert(paths.end(), more.begin(), more.end());
  }
  return paths;
}

class SourceOpener {
 public:
  SourceOpener(const SourceSpec& spec, const Tokenizer& tokenizer, const DataConfig& config, const DataOptions& options)
      : spec_(spec),
        tokenizer_(tokenizer),
        config_(config),
        options_(options),
        files_(find_files(spec, options.report)),
        text_(text_of(files_, spec)) {}

  OpenedSource open() {
    check_keys_are_used(spec_, files_);
    for (const FoundFile& file : files_) {
      if (file.kind != FileKind::tokens && !tokenizer_.reads_text()) refuse_text(file);
      if (file.kind == FileKind::tokens) parts_.push_back({file.path, open_token_file(file.path, FileCheck::header)});
    }
    content_.key = spec_.key;
    content_.path = spec_.path;
    content_.stamps = stamps_hash(paths_of(files_, parts_));
    if (!open_known()) verify();
    std::vector<std::unique_ptr<TokenFile>> files;
    for (OpenedPart& part : parts_)
      if (part.file->num_tokens() > 0) files.push_back(std::move(part.file));
    auto tokens = std::make_unique<JoinedTokens>(std::move(files));
    refuse_hidden_documents(*tokens);
    return {std::move(tokens), std::move(content_)};
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

  // The cache of all text stands where the first text file stood.
  void add_text(std::unique_ptr<TokenFile> cache) {
    const auto first =
        std::find_if(files_.begin(), files_.end(), [](const auto& file) { return file.kind != FileKind::tokens; });
    const std::uint64_t identity = cache->identity();
    content_.cache = cache->path().string();
    content_.cache_identity = identity;
    parts_.insert(parts_.begin() + (first - files_.begin()), {cache->path(), std::move(cache), identity});
  }

  // Without reading: another process of this host has, and the files are the same ones. False if it has not.
  bool open_known() {
    const auto known = std::find_if(options_.known.begin(), options_.known.end(), [this](const SourceContent& content) {
      return content.key == spec_.key && content.path == spec_.path && content.stamps == content_.stamps;
    });
    if (known == options_.known.end()) return false;
    if (!text_.files.empty()) {
      auto cache = open_verified_cache(known->cache, known->cache_identity);
      if (!cache) return false;
      add_text(std::move(cache));
    }
    content_ = *known;
    return true;
  }

  void verify() {
    std::vector<fs::path> folders = cache_folders(config_.cache);
    if (!options_.caches_anywhere && !folders.empty()) folders.resize(1);
    ContentRecord record(
        {.source = spec_.path, .folders = folders, .check = config_.verify, .report = options_.report});
    verify_tokens(record);
    if (!text_.files.empty()) {
      const std::vector<FileContent> contents = contents_of(text_, record);
      record.save();  // what comes now may take hours
      content_.files.insert(content_.files.end(), contents.begin(), contents.end());
      const CacheRequest request{text_, contents, tokenizer_, record, options_.report};
      add_text(options_.caches_anywhere ? open_token_cache_anywhere(request, folders)
                                        : open_token_cache(request, cache_folder(config_.cache)));
    }
    record.save();
    sum_up();
  }

  void verify_tokens(ContentRecord& record) {
    Hasher all_bytes;
    for (OpenedPart& part : parts_) {
      const std::vector<fs::path> files = part.file->files();
      part.identity = record.hash_of(ContentKind::tokens, files, part.file->bytes_to_verify(), [&part] {
        part.file->verify();
        return part.file->identity();
      });
      FileContent content{part.path, stamp_of(files.front()).bytes, part.identity};
      if (config_.verify == DataCheck::all) {
        std::uint64_t bytes = 0;
        for (const fs::path& file : files) bytes += stamp_of(file).bytes;
        content.hash = record.hash_of(ContentKind::bytes, files, bytes, [&files] { return hash_of_files(files); });
        all_bytes.update(std::as_bytes(std::span(&content.hash, 1)));
        content_.all_bytes = all_bytes.digest();
      }
      content_.files.push_back(std::move(content));
    }
  }

  void sum_up() {
    std::vector<std::uint64_t> numbers;  // of contents and order
    for (const OpenedPart& part : parts_) {
      const std::int64_t tokens = part.file->num_tokens();
      if (tokens == 0) continue;
      content_.tokens = checked_add(content_.tokens, tokens);
      numbers.push_back(static_cast<std::uint64_t>(tokens));
      numbers.push_back(part.identity);
    }
    if (numbers.empty())
      throw InputError(fmt::format("{}: {}: there is nothing to read: no document", spec_.key, spec_.path));
    if (numbers.size() > 2) numbers.push_back(kJoiningRules);
    content_.identity = hash_bytes(std::as_bytes(std::span(numbers)));
  }

  const SourceSpec& spec_;
  const Tokenizer& tokenizer_;
  const DataConfig& config_;
  const DataOptions& options_;
  std::vector<FoundFile> files_;
  TextSource text_;
  std::vector<OpenedPart> parts_;
  SourceContent content_;
};

}  // namespace

OpenedSource open_source(const SourceSpec& spec, const Tokenizer& tokenizer, const DataConfig& config,
                         const DataOptions& options) {
  return SourceOpener(spec, tokenizer, config, options).open();
}

}  // namespace scaletrain
