#include "data/source_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <system_error>

#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

namespace scaletrain {

namespace fs = std::filesystem;

bool is_gone(const fs::path& file) {
  std::error_code ignored;
  return fs::symlink_status(file, ignored).type() == fs::file_type::not_found;
}

namespace {

// Read as text these would train a model on compressed or binary noise.
constexpr std::array<std::string_view, 24> kNotText = {
    ".gz",  ".xz",  ".bz2", ".zst", ".lz4",  ".zip", ".7z",  ".tar",         ".tgz", ".parquet", ".arrow", ".feather",
    ".npy", ".npz", ".pt",  ".pth", ".ckpt", ".h5",  ".pdf", ".safetensors", ".png", ".jpg",     ".rar",   ".so"};

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

bool is_among(const SourceFiles& only, const fs::path& file) {
  return std::binary_search(only.names.begin(), only.names.end(), hash_text(file.filename().string()));
}

// In no order, without what is hidden. A file that is meant to be there and is not must not be left out unseen: a link
// that leads to nothing is an InputError. Not so where it came too late to be read: then it counts as a file.
FolderEntries read_folder(const fs::path& folder, const SourceFiles* only, const std::function<bool()>& is_over) {
  FolderEntries entries;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (is_over && is_over()) break;
    if (entry->path().filename().string().starts_with(".")) continue;
    std::error_code problem;
    const fs::file_status status = entry->status(problem);
    if (fs::is_regular_file(status)) {
      entries.files.push_back(entry->path());
    } else if (fs::is_directory(status)) {
      ++entries.folders;
    } else if (fs::exists(status)) {
      entries.others.push_back(entry->path());
    } else if (is_gone(entry->path())) {
      continue;
    } else if (only != nullptr && !is_among(*only, entry->path())) {
      entries.files.push_back(entry->path());
    } else {
      throw InputError(fmt::format(
          "{}: {}; mend or remove it", entry->path().string(),
          fs::is_symlink(entry->symlink_status(problem)) ? "a link that leads to no file" : "it cannot be looked at"));
    }
  }
  if (error) throw FileAccessError(fmt::format("{}: reading the folder failed: {}", folder.string(), error.message()));
  std::sort(entries.others.begin(), entries.others.end());
  return entries;
}

}  // namespace

std::string path_key(const SourceSpec& spec) {
  return spec.key + (spec.key.starts_with("--") ? " PATH" : ".path");
}

namespace {

// Leaves those that the source may be read from.
void leave_only(const SourceFiles& only, const SourceSpec& spec, std::vector<fs::path>& files, const Reporter& report) {
  const std::size_t left_out = std::erase_if(files, [&only](const fs::path& file) { return !is_among(only, file); });
  if (left_out == 0 || !report) return;
  report(fmt::format("{}: {} came to {} after the run was started, and {} not read; the next start reads {}",
                     path_key(spec), counted(left_out, "file"), spec.path, left_out == 1 ? "is" : "are",
                     left_out == 1 ? "it" : "them"));
}

}  // namespace

void UnreadableFiles::add(const fs::path& file, const std::string& problem, bool is_refused_access) {
  constexpr std::size_t most_named = 3;
  if (is_gone(file)) return;
  if (first_.empty()) {
    first_ = problem;
    is_refused_access_ = is_refused_access;
    return;
  }
  ++num_others_;
  if (others_.size() < most_named) others_.push_back(file.filename().string());
}

void UnreadableFiles::refuse() const {
  if (first_.empty()) return;
  std::string text = first_;
  if (num_others_ > 0) {
    text += fmt::format("; and {} of this folder cannot be read: {}{}", counted(num_others_, "more file"),
                        fmt::join(others_, ", "), num_others_ > others_.size() ? " ..." : "");
  }
  if (is_refused_access_) throw FileAccessError(text);
  throw InputError(text);
}

std::vector<FoundFile> find_files(const SourceSpec& spec, const Reporter& report, const SourceFiles* only,
                                  const std::function<bool()>& is_over) {
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
  FolderEntries entries = read_folder(path, only, is_over);
  std::vector<fs::path>& files = entries.files;
  const auto is_before = [](const fs::path& a, const fs::path& b) {
    return a.filename().string() < b.filename().string();
  };
  std::sort(files.begin(), files.end(), is_before);
  const auto comes_with_its_bin = [&files, &is_before](const fs::path& file) {
    if (file.extension() != ".idx") return false;
    auto bin = file;
    bin.replace_extension(".bin");
    return std::binary_search(files.begin(), files.end(), bin, is_before);
  };
  std::vector<fs::path> read;
  std::copy_if(files.begin(), files.end(), std::back_inserter(read),
               [&](const fs::path& file) { return !comes_with_its_bin(file); });
  if (only != nullptr) leave_only(*only, spec, read, report);
  std::vector<FoundFile> found;
  found.reserve(read.size());
  UnreadableFiles unreadable;
  for (const fs::path& file : read) {
    if (is_over && is_over()) break;
    unreadable.look_at(file, [&] { found.push_back({file, kind_of(file, spec)}); });
  }
  unreadable.refuse();
  if (is_over && is_over()) return found;
  if (entries.folders > 0 && report) {
    report(fmt::format("{}: {} of {} {} not read; name each as a source of its own", path_key(spec),
                       counted(entries.folders, "sub-folder"), spec.path, entries.folders == 1 ? "is" : "are"));
  }
  for (const fs::path& other : entries.others) {
    if (report)
      report(fmt::format("{}: {} is neither a file nor a folder and is not read", path_key(spec), other.string()));
  }
  if (found.empty())
    throw InputError(
        fmt::format("{}: {}: the folder holds no file{}; put text, JSONL or token files into it, or name another path",
                    path_key(spec), spec.path, entries.folders > 0 ? " (sub-folders are not read)" : ""));
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

UserError text_refusal(const SourceSpec& spec, const FoundFile& file, const std::string& tokenizer) {
  return UserError(fmt::format(
      "{}: {} is text, but the tokenizer ({}) reads token files only{}", path_key(spec), file.path.string(), tokenizer,
      spec.key.starts_with("--")
          ? "; for a Hugging Face folder, --tokenizer bytes reads text as bytes, --tokenizer bpe by its tokenizer.json"
          : "; name token files, or set data.tokenizer.type: bytes or bpe"));
}

UserError hidden_documents_refusal(const SourceSpec& spec, const DocumentsConfig& documents, const TokenFile& file) {
  const bool within = documents.attention == DocumentAttention::within;
  return UserError(
      fmt::format("data.documents.{} needs to know where documents end, and {} of {} ({}) does not "
                  "say: name the token that ends a document in data.tokenizer.end_of_document, give a file that has "
                  "an index of its documents (Megatron's .bin and .idx), or set {}",
                  within ? "attention: within" : "loss_across: false", file.path().string(), spec.key, file.format(),
                  within ? "attention to across" : "loss_across to true"));
}

}  // namespace scaletrain
