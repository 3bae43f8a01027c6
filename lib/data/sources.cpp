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

// Of contents and order.
std::uint64_t parts_identity(const std::vector<std::unique_ptr<TokenFile>>& parts) {
  std::vector<std::uint64_t> numbers;
  for (const auto& part : parts) {
    numbers.push_back(static_cast<std::uint64_t>(part->num_tokens()));
    numbers.push_back(part->identity());
  }
  return hash_bytes(std::as_bytes(std::span(numbers)));
}

// Of Megatron's pair the tokens. Zero if it cannot be told: the file is open, and its identity known.
std::uint64_t size_of(const fs::path& path) {
  for (const fs::path& file : {path, fs::path(path.string() + ".bin")}) {
    std::error_code error;
    const auto size = fs::file_size(file, error);
    if (!error) return size;
  }
  return 0;
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

}  // namespace

OpenedSource open_source(const SourceSpec& spec, const Tokenizer& tokenizer, const std::optional<std::string>& cache,
                         const DataOptions& options) {
  const std::vector<FoundFile> files = find_files(spec, options.report);
  check_keys_are_used(spec, files);
  TextSource text{.files = {}, .field = spec.field, .separator = spec.separator};
  std::size_t text_place = 0;  // the cache stands where the first text file stood
  OpenedSource source{.parts = {}, .content = {}};
  source.content.key = spec.key;
  source.content.path = spec.path;
  std::vector<std::unique_ptr<TokenFile>>& parts = source.parts;
  for (const FoundFile& file : files) {
    if (file.kind == FileKind::tokens) {
      parts.push_back(open_token_file(file.path));
      source.content.files.push_back({file.path, size_of(file.path), parts.back()->identity()});
      continue;
    }
    if (!tokenizer.reads_text()) {
      throw UserError(fmt::format(
          "{}: {} is text, but the tokenizer ({}) reads token files only{}", path_key(spec), file.path.string(),
          tokenizer.description(),
          spec.key.starts_with("--") ? "; for a Hugging Face folder, --tokenizer bytes reads text as bytes" : ""));
    }
    if (text.files.empty()) text_place = parts.size();
    text.files.push_back({file.path, file.kind == FileKind::jsonl ? TextKind::jsonl : TextKind::text});
  }
  if (!text.files.empty()) {
    const std::vector<FileContent> contents = contents_of(text);
    source.content.files.insert(source.content.files.end(), contents.begin(), contents.end());
    parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(text_place),
                 options.caches_anywhere
                     ? open_token_cache_anywhere(text, contents, tokenizer, cache_folders(cache), options.report)
                     : open_token_cache(text, contents, tokenizer, cache_folder(cache), options.report));
  }
  std::erase_if(parts, [](const auto& part) { return part->num_tokens() == 0; });
  if (parts.empty())
    throw InputError(fmt::format("{}: {}: there is nothing to read: no document", spec.key, spec.path));
  for (const auto& part : parts) source.content.tokens = checked_add(source.content.tokens, part->num_tokens());
  source.content.identity = parts_identity(parts);
  return source;
}

}  // namespace scaletrain
