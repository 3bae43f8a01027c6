#include "data/tokens/token_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "data/corpus/corpus_reader.h"
#include "data/instructions/instruction_cache.h"
#include "data/tokens/cache_format.h"
#include "data/tokens/packed_file.h"
#include "data/tokens/text_notes.h"
#include "data/tokens/token_formats.h"
#include "data/tokens/token_type.h"

namespace scaletrain {
namespace {

// Changes when the same text would be cut or tokenised otherwise by a newer program.
constexpr std::uint64_t kTextRules = 1;

constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::string_view kEndsSuffix = ".tmp.ends";

void tell(const Reporter& report, const std::string& message) {
  if (report) report(message);
}

// Changes when documents would fall to other parts. Where all are read, nothing stands in its place.
constexpr std::uint64_t kDividingRules = 0x7370'6c69'7400'0001;
// Of records, which are divided by what they say.
constexpr std::uint64_t kRecordDividingRules = 0x7370'6c69'7400'0011;

// Changes when other records would be skipped. Where none is, nothing stands in its place.
constexpr std::uint64_t kSkippingRules = 0x736b697000000001;

bool has_records(const TextSource& source) {
  return std::any_of(source.files.begin(), source.files.end(),
                     [](const TextFile& file) { return file.kind != TextKind::text; });
}

// Text has no bad records.
bool skips_records(const TextSource& source) {
  return source.on_bad_record == BadRecordPolicy::skip && has_records(source);
}

// Everything that decides the content of the cache.
std::uint64_t cache_key(const TextSource& source, const Tokenizer& tokenizer,
                        const std::vector<FileContent>& contents) {
  std::vector<std::uint64_t> numbers = {kTextRules, tokenizer.hash(), has_records(source) ? hash_text(source.field) : 0,
                                        source.separator ? 1u : 0u,
                                        source.separator ? hash_text(*source.separator) : 0};
  if (skips_records(source)) numbers.push_back(kSkippingRules);
  if (source.instructions) numbers.push_back(source.instructions->hash());
  if (source.part) {
    const std::uint64_t rules = source.instructions ? kRecordDividingRules : kDividingRules;
    numbers.push_back(rules ^ std::uint64_t{source.part->is_held_out});
    numbers.push_back(std::bit_cast<std::uint64_t>(source.part->held_out));
  }
  for (std::size_t i = 0; i < contents.size(); ++i) {
    // Of a file that is not compressed it is what it always was.
    const auto compression = static_cast<std::uint64_t>(source.files[i].compression);
    numbers.push_back(static_cast<std::uint64_t>(source.files[i].kind) | compression << 8);
    numbers.push_back(contents[i].hash);
  }
  return hash_bytes(std::as_bytes(std::span(numbers)));
}

enum class LockResult { held, taken_by_other, unsupported };

LockResult try_lock(const FileDescriptor& file) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return LockResult::held;
  return errno == EWOULDBLOCK || errno == EINTR ? LockResult::taken_by_other : LockResult::unsupported;
}

// A file under a temporary name, locked while its builder lives and removed with the builder unless it was renamed.
template <class Writer>
class TemporaryCache {
 public:
  // arguments: of the writer, behind its path.
  template <class... Arguments>
  TemporaryCache(const std::filesystem::path& folder, const std::string& stem, Arguments... arguments) {
    // A cleaner may see the file before it is locked and remove it; then another name is tried.
    constexpr int attempts = 100;
    for (int i = 0; i < attempts; ++i) {
      path_ = folder / ("." + stem + "." + random_id() + std::string(kTemporarySuffix));
      writer_ = std::make_unique<Writer>(path_, arguments...);
      lock_ = FileDescriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
      if (lock_) {
        const LockResult result = try_lock(lock_);
        struct stat status {};
        const bool linked = ::fstat(lock_.get(), &status) == 0 && status.st_nlink > 0;
        if (linked && result != LockResult::taken_by_other) return;
      }
      remove();
    }
    throw InputError(
        fmt::format("{}: {} temporary files in a row vanished while they were built", folder.string(), attempts));
  }
  ~TemporaryCache() { remove(); }
  TemporaryCache(const TemporaryCache&) = delete;
  TemporaryCache& operator=(const TemporaryCache&) = delete;

  Writer& writer() { return *writer_; }
  void rename_to(const std::filesystem::path& path) {
    rename_durably(path_, path);
    path_.clear();
  }

 private:
  void remove() {
    writer_.reset();
    if (!path_.empty()) ::unlink(path_.c_str());
    path_.clear();
  }

  std::filesystem::path path_;
  std::unique_ptr<Writer> writer_;
  FileDescriptor lock_;
};

// Removes a temporary file that no living builder holds. The lock is kept until the names are gone: a builder that has
// just made the file takes it afterwards and sees that it is linked no more.
void remove_if_abandoned(const std::filesystem::path& temporary) {
  const FileDescriptor file(::open(temporary.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file || try_lock(file) != LockResult::held) return;
  ::unlink(temporary.c_str());
  ::unlink((temporary.string() + ".ends").c_str());
}

void remove_leftovers(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(".")) continue;
    if (name.ends_with(kEndsSuffix)) {
      // Goes with its token file; alone it is left over.
      auto tokens = entry->path();
      tokens.replace_extension();
      std::error_code ignored;
      if (!std::filesystem::exists(tokens, ignored) && !ignored) ::unlink(entry->path().c_str());
    } else if (name.ends_with(kTemporarySuffix)) {
      remove_if_abandoned(entry->path());
    }
  }
}

// Where what there is to tell of a file of tokenised text lies.
std::filesystem::path notes_path(const std::filesystem::path& tokens) {
  auto path = tokens;
  return path.replace_extension(".notes");
}

TextNotes read_notes(const std::filesystem::path& path) {
  return TextNotes::from_json(read_json_file(path), path.string());
}

// Before the tokens: where they are, all that is to be told of them is there.
void write_notes(const TextNotes& notes, const TextSource& source, const std::filesystem::path& path) {
  if (notes.empty() && !skips_records(source)) return;
  write_file_durably(notes_path(path), notes.to_json().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void build_instructions(const CacheRequest& request, std::uint64_t key, const std::filesystem::path& path) {
  const TextSource& source = request.source;
  const Tokenizer& tokenizer = request.tokenizer;
  TemporaryCache<PackedWriter> temporary(path.parent_path(), path.stem().string(), tokenizer.vocab_size(),
                                         source.instructions->context);
  PackedCounts told;
  std::uint64_t bytes = 0;
  for (const FileContent& content : request.contents) bytes += content.bytes;
  const TextNotes notes = write_instructions({.source = source,
                                              .tokenizer = tokenizer,
                                              .contents = request.contents,
                                              .threads = request.threads,
                                              .read =
                                                  [&](std::uint64_t read) {
                                                    if (request.progress) request.progress(request.name, read, bytes);
                                                  }},
                                             temporary.writer(), told);
  temporary.writer().finish(told, key, tokenizer.hash());
  write_notes(notes, source, path);
  temporary.rename_to(path);
}

// Which parts of documents there are, and the one that is read.
CorpusRules rules_of(const TextSource& source, const Tokenizer& tokenizer) {
  if (!source.part) return {.source = source, .tokenizer = tokenizer};
  return {.source = source,
          .tokenizer = tokenizer,
          .shares = {1.0 - source.part->held_out, source.part->held_out},
          .only = source.part->is_held_out ? 1u : 0u};
}

void build(const CacheRequest& request, std::uint64_t key, const std::filesystem::path& path) {
  const TextSource& source = request.source;
  const Tokenizer& tokenizer = request.tokenizer;
  if (source.instructions) return build_instructions(request, key, path);
  TemporaryCache<CacheWriter> temporary(path.parent_path(), path.stem().string(), tokenizer.vocab_size());
  CacheWriter& writer = temporary.writer();
  TextNotes notes;
  std::vector<CorpusPiece> pieces;  // all files, each from its beginning to its end
  for (std::size_t i = 0; i < source.files.size(); ++i) pieces.push_back({i, {}});
  std::uint64_t bytes = 0;
  for (const FileContent& content : request.contents) bytes += content.bytes;
  const CorpusRules rules = rules_of(source, tokenizer);
  const CorpusPlace from = first_place(pieces);
  tokenise_corpus({.rules = rules,
                   .pieces = pieces,
                   .from = from,
                   .threads = request.threads,
                   .write =
                       [&](CorpusBatch& batch) {
                         std::size_t begin = 0;
                         for (const CorpusBatch::Run& run : batch.runs) {
                           writer.append(std::span(batch.tokens).subspan(begin, run.end - begin));
                           if (run.ends_document) writer.end_document();
                           begin = run.end;
                         }
                         // Of the part that is read beside the held-out one all is told.
                         if (!rules.only || *rules.only == 0) notes.add(batch.notes);
                         if (request.progress) request.progress(request.name, batch.bytes_read, bytes);
                       },
                   .file_read =
                       [&](std::size_t file, std::uint64_t hash) {
                         if (hash == request.contents[file].hash) return;
                         throw InputError(source.files[file].path.string() +
                                          ": the file changed while it was read; start again when it is complete");
                       }});
  writer.finish(key, tokenizer.hash());
  write_notes(notes, source, path);
  temporary.rename_to(path);
}

// By its header.
std::unique_ptr<TokenFile> open_cache_of(const TextSource& source, const std::filesystem::path& path,
                                         MappedFile::Keeping keeping) {
  if (source.instructions) return std::make_unique<PackedFile>(path, keeping);
  return open_cache_file(path, keeping);
}

// The cache of one source in one folder.
class CachePlace {
 public:
  explicit CachePlace(const CacheRequest& request)
      : request_(request),
        source_(request.source),
        contents_(request.contents),
        tokenizer_(request.tokenizer),
        record_(request.record),
        report_(request.report),
        name_(request.name),
        key_(cache_key(request.source, request.tokenizer, request.contents)) {}

  // Nothing: there is none, or none that is whole.
  std::unique_ptr<TokenFile> find_in(const std::filesystem::path& folder) const {
    const std::filesystem::path path = path_in(folder);
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) return nullptr;
    try {
      auto file = open_verified(path, MappedFile::Keeping::is_reopened);
      if (file->identity() == (key_ ^ tokenizer_.hash())) {
        tell_all(path, *file);
        return file;
      }
      tell(report_, fmt::format("{}: the cache belongs to other text; it is built again", path.string()));
    } catch (const InputError& error) {
      tell(report_, fmt::format("damaged cache, it is built again: {}", error.what()));
    }
    return nullptr;
  }

  std::unique_ptr<TokenFile> build_in(const std::filesystem::path& folder,
                                      MappedFile::Keeping keeping = MappedFile::Keeping::is_reopened) const {
    remove_leftovers(folder);
    const std::filesystem::path path = path_in(folder);
    std::uint64_t bytes = 0;
    for (const FileContent& content : contents_) bytes += content.bytes;
    tell(report_, fmt::format("tokenising {} ({}) into {}", bytes_text(bytes), counted(source_.files.size(), "file"),
                              path.string()));
    build(request_, key_, path);
    auto file = open_verified(path, keeping);
    tell_all(path, *file);
    return file;
  }

  // A file that stays open outlives its name.
  std::unique_ptr<TokenFile> build_without_trace() const {
    std::error_code ignored;
    std::filesystem::path temporary = std::filesystem::temp_directory_path(ignored);
    if (temporary.empty()) temporary = "/tmp";
    std::string name = (temporary / "scaletrain-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw_file_error(name, "creating the folder for tokenised text", errno);
    const FolderRemoval removal{name};
    return build_in(name, MappedFile::Keeping::stays_open);
  }

 private:
  struct FolderRemoval {
    std::filesystem::path folder;
    ~FolderRemoval() {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
    }
  };

  // InputError: notes are missing, or damaged.
  void tell_all(const std::filesystem::path& tokens, const TokenFile& file) const {
    const std::string name = name_.empty() ? source_.files.front().path.string() : name_;
    if (source_.instructions)
      for (const std::string& line : packed_lines(name, dynamic_cast<const PackedFile&>(file), *source_.instructions))
        tell(report_, line);
    const std::filesystem::path path = notes_path(tokens);
    if (!skips_records(source_) && !path_exists(path)) return;
    for (const std::string& line : read_notes(path).lines(name, request_.jsonl_remedy)) tell(report_, line);
  }

  std::unique_ptr<TokenFile> open_verified(const std::filesystem::path& path, MappedFile::Keeping keeping) const {
    auto file = open_cache_of(source_, path, keeping);
    record_.hash_of(ContentKind::cache, {&path, 1}, file->bytes_to_verify(), [&file] {
      file->verify();
      return file->identity();
    });
    return file;
  }

  std::filesystem::path path_in(const std::filesystem::path& folder) const {
    return folder / (to_hex(key_) + std::string(token_cache_extension));
  }

  const CacheRequest& request_;
  const TextSource& source_;
  const std::vector<FileContent>& contents_;
  const Tokenizer& tokenizer_;
  ContentRecord& record_;
  const Reporter& report_;
  std::string name_;
  std::uint64_t key_;
};

}  // namespace

std::vector<std::filesystem::path> cache_folders(const std::optional<std::string>& configured) {
  std::vector<std::filesystem::path> folders;
  if (configured) folders.emplace_back(*configured);
  if (const char* folder = std::getenv("SCALETRAIN_CACHE"); folder != nullptr && *folder != '\0')
    folders.emplace_back(folder);
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    folders.push_back(std::filesystem::path(home) / ".cache" / "scaletrain");
  return folders;
}

std::filesystem::path cache_folder(const std::optional<std::string>& configured) {
  std::vector<std::filesystem::path> folders = cache_folders(configured);
  if (!folders.empty()) return std::move(folders.front());
  throw UserError("data.cache: no folder for tokenised text: give this key, or set SCALETRAIN_CACHE or HOME");
}

FileContent sampled_content_of(const std::filesystem::path& path) {
  const MappedFile file(path);
  return {path, file.size(), sampled_identity(file)};
}

std::vector<FileContent> contents_of(const TextSource& source, ContentRecord& record) {
  std::vector<FileContent> contents;
  for (const TextFile& file : source.files) {
    const std::span<const std::filesystem::path> path(&file.path, 1);
    const std::uint64_t bytes = stamp_of(file.path).bytes;
    const std::uint64_t hash = record.hash_of(ContentKind::bytes, path, bytes, [path] { return hash_of_files(path); });
    contents.push_back({file.path, bytes, hash});
  }
  return contents;
}

std::uint64_t text_identity(const TextSource& source, std::size_t file, const FileContent& content,
                            const Tokenizer& tokenizer) {
  const TextFile& alone = source.files[file];
  const bool is_text = alone.kind == TextKind::text;
  return cache_key({{alone},
                    source.field,
                    is_text ? source.separator : std::nullopt,
                    source.on_bad_record,
                    source.instructions,
                    source.part},
                   tokenizer, {content});
}

std::unique_ptr<TokenFile> open_verified_cache(const std::filesystem::path& path, std::uint64_t identity) {
  try {
    auto file = open_token_file(path, FileCheck::header);
    return file->identity() == identity ? std::move(file) : nullptr;
  } catch (const InputError&) {
    return nullptr;
  }
}

std::unique_ptr<TokenFile> open_token_cache(const CacheRequest& request, const std::filesystem::path& folder) {
  const CachePlace place(request);
  if (auto found = place.find_in(folder)) return found;
  try {
    create_folders(folder);
  } catch (const InputError& error) {
    throw InputError(fmt::format(
        "{} (tokenised text is kept there; data.cache or SCALETRAIN_CACHE name another folder)", error.what()));
  }
  return place.build_in(folder);
}

std::unique_ptr<TokenFile> open_token_cache_anywhere(const CacheRequest& request,
                                                     const std::vector<std::filesystem::path>& folders) {
  const CachePlace place(request);
  for (const auto& folder : folders)
    if (auto found = place.find_in(folder)) return found;
  for (const auto& folder : folders) {
    try {
      create_folders(folder);
    } catch (const InputError& error) {
      tell(request.report, fmt::format("tokenised text is not kept in {}: {}", folder.string(), error.what()));
      continue;
    }
    try {
      return place.build_in(folder);
    } catch (const FileAccessError& error) {
      // Text that cannot be read is refused by the last attempt too.
      tell(request.report, fmt::format("tokenised text is not kept in {}: {}", folder.string(), error.what()));
    }
  }
  return place.build_without_trace();
}

}  // namespace scaletrain
