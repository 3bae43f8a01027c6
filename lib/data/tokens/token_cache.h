// Text and JSONL, tokenised once; of instructions (TextSource::instructions) also packed into samples (packed_file.h).
//
// The token file of a list of text files lies in the cache folder under a name that is a hash of everything that
// decides its content: the files' bytes, their kinds, field, separator, and the tokenizer. It is built under a
// temporary name, synced and renamed, so it is complete or absent; several builders may work at once, the last rename
// wins with equal content. Its checksums are verified when it is opened, unless it is known to be the one that was
// verified before (content_record.h); a damaged one is built again, and the reporter told. Temporary files whose
// builder is dead (it holds a lock on them while it lives) are removed.
//
// What there is to tell of the text (text_notes.h) lies beside it under the same name, and is told whenever the file is
// opened: records that were skipped, text that looks like none. A file from which records may have been skipped is
// built again where that is missing.
//
// Memory is bounded: files are read in pieces, a JSONL line may have 64 MiB. Text is taken as bytes, valid UTF-8 or
// not. Errors in the input are InputErrors that begin with "file:line", unless TextSource::on_bad_record skips them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/instructions/instruction_encoder.h"
#include "data/tokens/content_record.h"
#include "data/tokens/text_stream.h"
#include "data/tokens/token_file.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

enum class TextKind { text, jsonl, parquet };

struct TextFile {
  std::filesystem::path path;
  TextKind kind = TextKind::text;
  Compression compression = Compression::none;
};

// Documents are divided by a hash of what each begins with, as `data build --split` divides them: the same document is
// always on the same side.
struct DocumentPart {
  double held_out = 0.0;     // the share of the part that is held out
  bool is_held_out = false;  // which of the two is read
  bool operator==(const DocumentPart&) const = default;
};

struct TextSource {
  std::vector<TextFile> files;           // in this order
  std::string field = "text";            // JSONL: the member that is the document; Parquet: the column
  std::optional<std::string> separator;  // text: a line that ends a document
  BadRecordPolicy on_bad_record = BadRecordPolicy::fail;
  std::optional<InstructionRules> instructions{};  // all files are JSONL of such records; nothing: of text
  std::optional<DocumentPart> part{};              // of the documents; nothing: all
  // How whoever asks says that bad records are skipped; empty: there is no way. For messages.
  std::string_view skip_setting = "on_bad_record: skip";
};

// The same of the commands of `scaletrain data`.
inline constexpr std::string_view kSkipOption = "--on-bad-record skip";

inline constexpr std::string_view token_cache_extension = ".tokens";

// data.cache, else SCALETRAIN_CACHE, else ~/.cache/scaletrain. UserError if there is no home either.
std::filesystem::path cache_folder(const std::optional<std::string>& configured);
// All of these that there are, in this order; maybe none.
std::vector<std::filesystem::path> cache_folders(const std::optional<std::string>& configured);

// What a file holds, by which two hosts compare theirs: of text a hash of all its bytes, of token files
// TokenFile::identity().
struct FileContent {
  std::filesystem::path path;
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;
};

// By size and TokenFile::identity()'s checksum.
FileContent sampled_content_of(const std::filesystem::path& path);
// Reads all of the files that have changed since the record was made.
std::vector<FileContent> contents_of(const TextSource& source, ContentRecord& record);

// What one file of the source gives to train on: its content and what decides how it is cut and tokenised. The same
// wherever it stands and whatever stands beside it.
std::uint64_t text_identity(const TextSource& source, std::size_t file, const FileContent& content,
                            const Tokenizer& tokenizer);

// All of it outlives the call.
struct CacheRequest {
  const TextSource& source;
  const std::vector<FileContent>& contents;  // contents_of(source)
  const Tokenizer& tokenizer;
  ContentRecord& record;
  const Reporter& report;
  std::string name{};  // for messages: "data.train.0: data/web"
  int threads = 1;     // that tokenise; the bytes are the same for any number
  // Hears how much of the files is read: nothing of what is built already. May be empty.
  std::function<void(const std::string& name, std::uint64_t bytes, std::uint64_t all)> progress{};
  std::string jsonl_remedy{};  // how text that may be JSONL is read as such (text_notes.h); empty: it is meant as text
};

// Opens the cache of the source, building it if need be.
std::unique_ptr<TokenFile> open_token_cache(const CacheRequest& request, const std::filesystem::path& folder);
// The same in the first of the folders that has it or, if none has, that it can be written to; the reporter hears of
// those that it cannot. Where all of them fail: in a folder for temporary files, gone as soon as it is open.
std::unique_ptr<TokenFile> open_token_cache_anywhere(const CacheRequest& request,
                                                     const std::vector<std::filesystem::path>& folders);
// What another process has just verified; by its header. Nothing if there is no such file, or another one.
std::unique_ptr<TokenFile> open_verified_cache(const std::filesystem::path& path, std::uint64_t identity);

}  // namespace scaletrain
