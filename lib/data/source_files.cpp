#include "data/source_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <span>
#include <string_view>
#include <system_error>

#include "base/file.h"
#include "base/glob.h"
#include "base/hash.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "data/corpus/corpus_build.h"
#include "data/parquet/parquet_file.h"
#include "data/tokens/json_lines.h"
#include "data/tokens/packed_file.h"
#include "data/tokens/text_notes.h"
#include "data/tokens/text_stream.h"

namespace scaletrain {

namespace fs = std::filesystem;

bool is_gone(const fs::path& file) {
  std::error_code ignored;
  return fs::symlink_status(file, ignored).type() == fs::file_type::not_found;
}

namespace {

// Not a key of a config.
bool is_of_command(const SourceSpec& spec) {
  return spec.key.find('.') == std::string::npos;
}

// Read as text these would train a model on compressed or binary noise.
constexpr std::array<std::string_view, 24> kNotText = {
    ".gz",  ".xz",  ".bz2", ".zst", ".lz4",  ".zip", ".7z",  ".tar",         ".tgz", ".tzst", ".arrow", ".feather",
    ".npy", ".npz", ".pt",  ".pth", ".ckpt", ".h5",  ".pdf", ".safetensors", ".png", ".jpg",  ".rar",   ".so"};

void require_parquet(const fs::path& path, const SourceSpec& spec) {
  if (has_parquet_module()) return;
  throw UserError(
      fmt::format("{}: {} is Parquet, and this program was built without what reads it: build it with "
                  "-DSCALETRAIN_PARQUET=ON, or write the file as JSONL: python3 -c 'import pandas; "
                  "pandas.read_parquet(\"{}\").to_json(\"{}.jsonl\", orient=\"records\", lines=True, "
                  "force_ascii=False)'",
                  path_key(spec), path.string(), path.filename().string(), path.stem().string()));
}

bool is_named_json(const fs::path& path) {
  return uncompressed_name(path).extension() == ".json";
}

bool begins_with_array(const fs::path& path) {
  if (compression_of(path) != Compression::none) return false;
  std::array<char, 64> head{};
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), head.size());
  std::string_view text(head.data(), static_cast<std::size_t>(file.gcount()));
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '[';
}

FileKind kind_of(const fs::path& path, const SourceSpec& spec) {
  switch (spec.type) {
    case SourceKind::text:
      return FileKind::text;
    case SourceKind::jsonl:
      return FileKind::jsonl;
    case SourceKind::parquet:
      require_parquet(path, spec);
      return FileKind::parquet;
    case SourceKind::tokens:
      return FileKind::tokens;
    case SourceKind::automatic:
      break;
  }
  const bool is_compressed = compression_of(path) != Compression::none;
  const std::string extension = uncompressed_name(path).extension().string();
  if (extension == ".jsonl" || extension == ".ndjson") return FileKind::jsonl;
  if (extension == ".parquet") {
    if (is_compressed)
      throw UserError(fmt::format("{}: {}: Parquet is read where it lies, not compressed again; unpack it",
                                  path_key(spec), path.string()));
    require_parquet(path, spec);
    return FileKind::parquet;
  }
  if (std::find(kNotText.begin(), kNotText.end(), extension) != kNotText.end() || is_named_json(path)) {
    const bool is_argument = is_of_command(spec);
    if (is_named_json(path) && begins_with_array(path))
      throw UserError(
          fmt::format("{}: {} is an array of JSON, and records stand in lines: jq -c '.[]' {} > {} makes them{}",
                      is_argument ? path_key(spec) : spec.key + ".type", path.string(), shell_word(path.string()),
                      shell_word(fs::path(path).replace_extension(".jsonl").string()),
                      is_argument ? "" : "; or name with a pattern the files that are meant"));
    throw UserError(fmt::format("{}: {} looks like no text, JSONL or token file; unpack or convert it{}",
                                is_argument ? path_key(spec) : spec.key + ".type", path.string(),
                                is_argument
                                    ? "; lines of JSON under such a name are read with --type jsonl"
                                    : ", or name its type (lines of JSON: jsonl), or with a pattern the files that are "
                                      "meant"));
  }
  if (is_compressed && (extension == ".bin" || extension == ".idx"))
    throw UserError(fmt::format("{}: {}: token files are read where they lie, not compressed; unpack it",
                                path_key(spec), path.string()));
  return !is_compressed && looks_like_token_file(path) ? FileKind::tokens : FileKind::text;
}

// A folder, wherever its path leads.
struct FolderId {
  dev_t device = 0;
  ino_t inode = 0;
  auto operator<=>(const FolderId&) const = default;
};

FolderId id_of(const fs::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) throw_file_error(folder, "looking at the folder", errno);
  return {status.st_dev, status.st_ino};
}

struct FoundEntries {
  std::vector<fs::path> files;
  std::vector<fs::path> others;  // pipes, sockets, devices
  std::vector<fs::path> loops;   // folders that are read under another name, or that they are in
};

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with(".");
}

bool is_among(const SourceFiles& only, const SourceSpec& spec, const fs::path& file) {
  return std::binary_search(only.names.begin(), only.names.end(), hash_text(name_in_source(spec.path, file)));
}

// Lists what is below a folder, without what is hidden. A file that is meant to be there and is not must not be left
// out unseen: a link that leads to nothing is an InputError. Not so where it came too late to be read: then it counts
// as a file.
class FileWalk {
 public:
  FileWalk(const SourceSpec& spec, const SourceFiles* only, const std::function<bool()>& is_over)
      : spec_(spec), only_(only), is_over_(is_over) {}

  void take_all(const fs::path& folder) {
    look_into(
        folder, [](const fs::path&) { return true; }, &FileWalk::take_all, false, true);
  }

  // What matches the names of a pattern from `first` on.
  void take_matching(const fs::path& folder, std::span<const std::string> names) {
    const std::string& name = names.front();
    const bool is_last = names.size() == 1;
    if (name == "**") {
      if (is_last) return take_all(folder);
      take_matching(folder, names.subspan(1));
      return look_into(
          folder, [](const fs::path&) { return false; },
          [names](FileWalk& walk, const fs::path& below) { walk.take_matching(below, names); });
    }
    look_into(
        folder, [&](const fs::path& file) { return is_last && matches_name(name, file.filename().string()); },
        [&](FileWalk& walk, const fs::path& below) {
          if (!is_last && matches_name(name, below.filename().string())) walk.take_matching(below, names.subspan(1));
        },
        name.starts_with("."));
  }

  FoundEntries finish() {
    // A pattern may find one twice.
    for (auto* const paths : {&entries_.files, &entries_.others, &entries_.loops}) {
      std::sort(paths->begin(), paths->end(), is_before);
      paths->erase(std::unique(paths->begin(), paths->end()), paths->end());
    }
    return std::move(entries_);
  }

  static bool is_before(const fs::path& a, const fs::path& b) { return a.native() < b.native(); }

 private:
  template <class Wants, class Enter>
  void look_into(const fs::path& folder, Wants wants, Enter enter, bool with_hidden = false, bool takes_all = false) {
    if (!inside_.empty() && is_gone(folder)) return;
    const FolderId id = id_of(folder);
    const bool is_inside = std::find(inside_.begin(), inside_.end(), id) != inside_.end();
    // All below a folder is the same under each of its names.
    if (is_inside || (takes_all && !taken_.insert(id).second)) {
      entries_.loops.push_back(folder);
      return;
    }
    inside_.push_back(id);
    std::vector<std::pair<bool, fs::path>> folders;  // whether it is a link; links come last
    std::error_code error;
    fs::directory_iterator entry(folder, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      if (is_over_ && is_over_()) break;
      if (!with_hidden && is_hidden(entry->path())) continue;
      std::error_code problem;
      const fs::file_status status = entry->status(problem);
      if (fs::is_directory(status)) {
        folders.emplace_back(entry->is_symlink(problem), entry->path());
      } else if (wants(entry->path())) {
        take(*entry, status);
      }
    }
    if (error)
      throw FileAccessError(fmt::format("{}: reading the folder failed: {}", folder.string(), error.message()));
    // In an order of their own, so that of a folder's names the same one is read everywhere.
    std::sort(folders.begin(), folders.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? b.first : is_before(a.second, b.second);
    });
    for (const auto& [is_link, below] : folders) {
      if (is_over_ && is_over_()) break;
      std::invoke(enter, *this, below);
    }
    inside_.pop_back();
  }

  void take(const fs::directory_entry& entry, const fs::file_status& status) {
    if (fs::is_regular_file(status)) {
      entries_.files.push_back(entry.path());
    } else if (fs::exists(status)) {
      entries_.others.push_back(entry.path());
    } else if (is_gone(entry.path())) {
      return;
    } else if (only_ != nullptr && !is_among(*only_, spec_, entry.path())) {
      entries_.files.push_back(entry.path());
    } else {
      std::error_code problem;
      throw InputError(fmt::format(
          "{}: {}; mend or remove it", entry.path().string(),
          fs::is_symlink(entry.symlink_status(problem)) ? "a link that leads to no file" : "it cannot be looked at"));
    }
  }

  const SourceSpec& spec_;
  const SourceFiles* only_;
  const std::function<bool()>& is_over_;
  std::vector<FolderId> inside_;  // the folders on the way here
  std::set<FolderId> taken_;      // those of which all is read
  FoundEntries entries_;
};

constexpr std::string_view kSplitKey = ".split";

}  // namespace

std::string name_in_source(const std::string& source, const fs::path& file) {
  const fs::path folder = has_wildcards(source) && !is_folder(source) ? parse_pattern(source).folder : fs::path(source);
  return file.lexically_relative(folder).generic_string();
}

TextFile text_file(const FoundFile& file) {
  SCALETRAIN_CHECK(file.kind != FileKind::tokens);
  if (file.kind == FileKind::parquet) return {file.path, TextKind::parquet, Compression::none};
  return {file.path, file.kind == FileKind::jsonl ? TextKind::jsonl : TextKind::text, compression_of(file.path)};
}

bool is_option(const SourceSpec& spec) {
  return spec.key.starts_with("--");
}

std::string path_key(const SourceSpec& spec) {
  if (spec.part && spec.part->is_held_out && spec.key.ends_with(kSplitKey))
    return spec.key.substr(0, spec.key.size() - kSplitKey.size()) + ".path";
  if (!is_of_command(spec)) return spec.key + ".path";
  return spec.key.starts_with("--") ? spec.key + " PATH" : spec.key;
}

std::string jsonl_remedy(const SourceSpec& spec) {
  if (spec.type != SourceKind::automatic) return {};
  if (is_option(spec)) return "a document of each line is read under a name that ends with .jsonl";
  return jsonl_remedy_of(is_of_command(spec) ? "--type" : "type:");
}

SourceSpec training_spec(const SourceConfig& source, std::size_t index) {
  SourceSpec spec{
      fmt::format("data.train.{}", index), source.path, source.type, source.field, source.separator, source.records};
  if (source.split) spec.part = {.held_out = source.split->validation, .is_held_out = false};
  return spec;
}

std::string split_key(const SourceSpec& spec) {
  return spec.key.ends_with(kSplitKey) ? spec.key : spec.key + std::string(kSplitKey);
}

namespace {

// Shards hold what the file that they were merged to holds.
void leave_out_merged(const SourceSpec& spec, std::vector<fs::path>& files, const Reporter& report) {
  const std::vector<fs::path> shards = shards_beside_merged(files);
  if (shards.empty()) return;
  std::erase_if(files,
                [&](const fs::path& file) { return std::find(shards.begin(), shards.end(), file) != shards.end(); });
  if (report)
    report(fmt::format("{}: {} and {} more like it were merged to a file that lies beside them, and are not read again",
                       path_key(spec), shards.front().string(), shards.size() - 1));
}

// Leaves those that the source may be read from.
void leave_only(const SourceFiles& only, const SourceSpec& spec, std::vector<fs::path>& files, const Reporter& report) {
  std::size_t left_out = 0;
  std::erase_if(files, [&](const fs::path& file) {
    if (is_among(only, spec, file)) return false;
    // Others of this name are not read by any start (kinds_of).
    if (spec.type != SourceKind::automatic || !is_named_json(file)) ++left_out;
    return true;
  });
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

namespace {

// What a path of a config stands for, if it is no file by itself.
FoundEntries entries_of(const SourceSpec& spec, bool is_pattern, const SourceFiles* only,
                        const std::function<bool()>& is_over) {
  FileWalk walk(spec, only, is_over);
  if (!is_pattern) {
    walk.take_all(spec.path);
    return walk.finish();
  }
  const PathPattern pattern = parse_pattern(spec.path);
  const fs::path folder = pattern.folder.empty() ? "." : pattern.folder;
  if (!is_folder(folder))
    throw UserError(fmt::format("{}: {}: there is no folder {}", path_key(spec), spec.path, folder.string()));
  walk.take_matching(folder, pattern.names);
  return walk.finish();
}

// What a folder is for, told by a name or by what the file begins with; text under any name is not that, nor what lies
// beside data of every kind.
bool is_certain(const FoundFile& file) {
  constexpr std::array<std::string_view, 5> beside = {"readme", "license", "licence", "notice", "copying"};
  const fs::path name = uncompressed_name(file.path);
  std::string stem = name.stem().string();
  for (char& letter : stem)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  const bool is_beside = std::find(beside.begin(), beside.end(), stem) != beside.end();
  return file.kind != FileKind::text || (name.extension() == ".txt" && !is_beside);
}

// JSON that belongs to data (meta.json) and is none itself.
void report_passed_over(const SourceSpec& spec, const std::vector<fs::path>& files, const Reporter& report) {
  if (files.empty() || !report) return;
  const bool is_one = files.size() == 1;
  report(fmt::format("{}: {}{} {} JSON, but no lines of JSON, beside files that are read, and {} not read",
                     path_key(spec), files.front().string(),
                     is_one ? std::string() : fmt::format(" and {} more like it", files.size() - 1),
                     is_one ? "is" : "are", is_one ? "is" : "are"));
}

// The kinds of those that are read.
std::vector<FoundFile> kinds_of(const std::vector<fs::path>& files, const SourceSpec& spec,
                                const std::function<bool()>& is_over, std::vector<RefusedFile>* refused,
                                const Reporter& report) {
  std::vector<FoundFile> found;
  found.reserve(files.size());
  std::vector<fs::path> json;  // by the name; judged by what is beside it
  std::vector<fs::path> passed_over;
  UnreadableFiles unreadable;
  const auto take = [&](const fs::path& file) {
    unreadable.look_at(file, [&] {
      try {
        found.push_back({file, kind_of(file, spec)});
      } catch (const UserError& error) {
        if (refused == nullptr) throw;
        refused->push_back({file, error.what()});
      }
    });
  };
  for (const fs::path& file : files) {
    if (is_over && is_over()) break;
    if (spec.type == SourceKind::automatic && is_named_json(file)) {
      json.push_back(file);
    } else {
      take(file);
    }
  }
  // What may be data nobody may leave out, whatever its name.
  const bool has_others = std::any_of(found.begin(), found.end(), is_certain);
  for (const fs::path& file : json) {
    if (is_over && is_over()) break;
    bool is_data = !has_others;
    if (has_others) unreadable.look_at(file, [&] { is_data = may_hold_records(file, spec.field); });
    if (is_data) {
      take(file);
    } else {
      passed_over.push_back(file);
    }
  }
  unreadable.refuse();
  report_passed_over(spec, passed_over, report);
  return found;
}

}  // namespace

std::vector<FoundFile> find_files(const SourceSpec& spec, const Reporter& report, const SourceFiles* only,
                                  const std::function<bool()>& is_over, std::vector<RefusedFile>* refused) {
  const fs::path path = spec.path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_regular_file(status)) return {{path, kind_of(path, spec)}};
  if (!fs::status_known(status))
    throw InputError(fmt::format("{}: {}: it cannot be looked at: {}", path_key(spec), spec.path, error.message()));
  const bool is_pattern = !fs::exists(status) && has_wildcards(spec.path);
  if (!fs::is_directory(status) && !is_pattern) {
    if (!fs::exists(status) && fs::is_regular_file(fs::path(spec.path + ".idx"), error)) {
      return {{path, FileKind::tokens}};
    }
    throw UserError(fmt::format("{}: {}: {}", path_key(spec), spec.path,
                                fs::exists(status) ? "neither a file nor a folder" : "no such file or folder"));
  }
  const FoundEntries entries = entries_of(spec, is_pattern, only, is_over);
  const std::vector<fs::path>& files = entries.files;
  const auto comes_with_its_bin = [&files](const fs::path& file) {
    auto bin = file;
    if (file.extension() == ".json" && file.stem().extension() == ".build") {
      bin.replace_extension();  // what `data build` says of tokens
    } else if (file.extension() != ".idx") {
      return false;
    }
    bin.replace_extension(".bin");
    return std::binary_search(files.begin(), files.end(), bin, FileWalk::is_before);
  };
  std::vector<fs::path> read;
  std::copy_if(files.begin(), files.end(), std::back_inserter(read),
               [&](const fs::path& file) { return !comes_with_its_bin(file); });
  leave_out_merged(spec, read, report);
  if (only != nullptr) leave_only(*only, spec, read, report);
  std::vector<FoundFile> found = kinds_of(read, spec, is_over, refused, report);
  if ((is_over && is_over()) || (refused != nullptr && !refused->empty())) return found;
  for (const fs::path& other : entries.others) {
    if (report)
      report(fmt::format("{}: {} is neither a file nor a folder and is not read", path_key(spec), other.string()));
  }
  for (const fs::path& loop : entries.loops) {
    if (report)
      report(fmt::format("{}: {} leads to a folder that is read under another name, and is not read again",
                         path_key(spec), loop.string()));
  }
  if (!found.empty()) return found;
  throw InputError(
      is_pattern ? fmt::format("{}: {}: no file matches; * stands for a part of a name, ** for any number of folders",
                               path_key(spec), spec.path)
                 : fmt::format(
                       "{}: {}: the folder holds no file; put text, JSONL or token files into it, or name another path",
                       path_key(spec), spec.path));
}

std::vector<fs::path> list_files(const std::string& path) {
  if (is_plain_file(path)) return {path};
  if (!is_folder(path) && !has_wildcards(path)) return {path + ".bin"};
  const SourceSpec spec{.key = "", .path = path, .type = SourceKind::automatic, .field = {}, .separator = {}};
  return entries_of(spec, !is_folder(path), nullptr, {}).files;
}

namespace {

std::string_view remedy_of_records(const SourceSpec& spec, FileKind kind) {
  if (kind == FileKind::parquet) return "write its rows as such lines, and name that file";
  if (kind == FileKind::tokens) return "name such files alone";
  return is_option(spec) ? "if it holds such lines, have its name end with .jsonl"
                         : "name such files alone, or say type: jsonl";
}

}  // namespace

void check_keys_are_used(const SourceSpec& spec, const std::vector<FoundFile>& files) {
  const auto tokens =
      std::find_if(files.begin(), files.end(), [](const FoundFile& file) { return file.kind == FileKind::tokens; });
  if (spec.part && tokens != files.end()) {
    throw UserError(
        fmt::format("{}: {} holds tokens, and documents are held out of text: build its tokens with `scaletrain data "
                    "build --split 99,1`, and name the parts in data.train and data.validation",
                    split_key(spec), tokens->path.string()));
  }
  const auto none_is = [&](FileKind kind) {
    return std::none_of(files.begin(), files.end(), [kind](const FoundFile& file) { return file.kind == kind; });
  };
  if (spec.records != RecordKind::text) {
    for (const FoundFile& file : files)
      if (file.kind != FileKind::jsonl)
        throw UserError(fmt::format("{}: {} is {}, and records: {} are lines of JSONL; {}", path_key(spec),
                                    file.path.string(),
                                    file.kind == FileKind::text      ? "text"
                                    : file.kind == FileKind::parquet ? "Parquet"
                                                                     : "a token file",
                                    to_text(spec.records), remedy_of_records(spec, file.kind)));
  }
  if (spec.separator && none_is(FileKind::text)) {
    throw UserError(fmt::format("{}.separator: no file of {} is text, so nothing would use it; remove the key",
                                spec.key, spec.path));
  }
  if (spec.separator && spec.separator->find('\n') != std::string::npos)
    throw UserError(fmt::format("{}.separator: one line is expected, without its end", spec.key));
  if (spec.field != SourceConfig().field && none_is(FileKind::jsonl) && none_is(FileKind::parquet)) {
    throw UserError(fmt::format("{}.field: no file of {} is JSONL or Parquet, so nothing would use it; remove the key",
                                spec.key, spec.path));
  }
}

void check_options_are_used(const std::optional<std::string>& separator, const std::string& field,
                            const std::vector<FoundFile>& files) {
  const auto has = [&](FileKind kind) {
    return std::any_of(files.begin(), files.end(), [kind](const FoundFile& file) { return file.kind == kind; });
  };
  if (separator && !has(FileKind::text))
    throw UserError("--separator: no source is text, so nothing would use it; remove the option");
  if (separator && separator->find('\n') != std::string::npos)
    throw UserError("--separator: one line is expected, without its end");
  if (field != SourceConfig().field && !has(FileKind::jsonl) && !has(FileKind::parquet))
    throw UserError("--field: no source is JSONL or Parquet, so nothing would use it; remove the option");
}

std::unique_ptr<TokenFile> open_source_tokens(const SourceSpec& spec, const FoundFile& file) {
  auto tokens = open_token_file(file.path, FileCheck::header);
  if (const auto* packed = dynamic_cast<const PackedFile*>(tokens.get()))
    throw UserError(
        fmt::format("{}: {} are packed instructions for a context of {}, which a run makes for itself; name "
                    "the JSONL that they were made of",
                    path_key(spec), file.path.string(), packed->context()));
  return tokens;
}

void check_tokenizer(const SourceSpec& spec, const TokenFile& file, const Tokenizer& tokenizer,
                     const std::function<bool()>& refuses, const Reporter& report) {
  const auto other = other_tokenizer(file.path(), tokenizer);
  if (!other) return;
  if (other->is_certain && refuses())
    throw UserError(
        fmt::format("{}: {}; name its tokenizer, or build the file again; where its ids are meant as they "
                    "are, take the record beside it away",
                    path_key(spec), other->text));
  if (report) report(fmt::format("notice: {}: {}", path_key(spec), other->text));
}

UserError text_refusal(const SourceSpec& spec, const FoundFile& file, const std::string& tokenizer) {
  return UserError(fmt::format(
      "{}: {} is text, but the tokenizer ({}) reads token files only{}", path_key(spec), file.path.string(), tokenizer,
      spec.key.starts_with("--")
          ? "; for a Hugging Face folder, --tokenizer bytes reads text as bytes, --tokenizer bpe or "
            "sentencepiece by its tokenizer"
          : "; name token files, or set data.tokenizer.type: bytes, bpe or sentencepiece"));
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
