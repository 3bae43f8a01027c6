// Internal to lib/data: the documents of text and JSONL files, in pieces and bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "data/tokens/text_notes.h"
#include "data/tokens/token_cache.h"

namespace scaletrain {

// A line of JSONL that is longer is no record: it would have to be held whole.
inline constexpr std::uint64_t kMaxLineBytes = 64u << 20;

class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  // The next bytes of the current document.
  virtual void text(std::string_view piece) = 0;
  // The current document is complete; it may be empty. next: where in the file's text what follows begins.
  virtual void end_document(std::uint64_t next) = 0;
};

// Where a line stands.
struct LinePlace {
  std::uint64_t offset = 0;  // of its first byte in the file's text
  std::int64_t number = 0;   // from 1 on; 0: not known, since the lines before were not read
};

// "file:17", or "file at byte 1234"; of Parquet "file, row 17".
std::string line_text(const TextFile& file, const LinePlace& place);

class LineSink {
 public:
  virtual ~LineSink() = default;
  // One that is not blank, without its end.
  virtual void line(std::string_view text, const LinePlace& place) = 0;
  // What belongs to one that is longer than kMaxLineBytes was passed over.
  virtual void too_long(const LinePlace& place, std::uint64_t size) = 0;
};

// What is read of a file's text: the lines whose first bytes lie in it, or one document's rest.
struct TextRange {
  std::uint64_t begin = 0;
  std::uint64_t end = std::numeric_limits<std::uint64_t>::max();
  std::int64_t line = 1;  // number of the first of the lines, if known
};

// Who else wants to know of what is read.
struct ReadingHooks {
  Hasher* hasher = nullptr;                // takes all bytes of the file
  std::uint64_t* file_position = nullptr;  // how many of them were read
};

// JSONL: its lines, not parsed.
void read_lines(const TextFile& file, const TextRange& range, LineSink& sink, const ReadingHooks& hooks = {});
// The object that a line is. `said`: what more a refusal says of it. BadRecordError: it is none.
nlohmann::json object_of_line(std::string_view line, const std::string& where, const std::string& said = {});
// The document of a line. BadRecordError: it has none.
std::string document_of_line(std::string_view line, const std::string& field, const std::string& where);
BadRecordError too_long_line(const std::string& where);
// A bad record that is not to be skipped, with what to do.
[[noreturn]] void throw_bad_record(const BadRecordError& error, const TextSource& source,
                                   std::string_view noun = "line");
// Its bytes are not those that were hashed before.
[[noreturn]] void throw_changed_file(const std::filesystem::path& file);
// What a record's text is told for: NUL, which JSON lets be in one, at `where`, and that there is none.
void note_odd_document(std::string_view document, const TextFile& file, const std::string& where, TextNotes& notes);

// Parquet: the column source.field, from that row on, in which a null is a bad record: it is skipped or thrown, as
// source.on_bad_record says. place.offset is the row, place.number that from 1 on.
using UseRow = std::function<void(std::string_view text, const LinePlace& place)>;
void read_rows(const TextFile& file, const TextSource& source, std::int64_t first, const UseRow& use, TextNotes& notes,
               const ReadingHooks& hooks = {});

// Text: its documents, from `begin` on: where a document begins or, without a separator, anywhere.
void read_text(const TextFile& file, const TextSource& source, std::uint64_t begin, DocumentSink& sink,
               OddTextScan& scan, const ReadingHooks& hooks = {});

// Feeds all documents of the file to the sink, in bounded memory, and all its bytes to the hasher. Bad records are
// skipped or thrown, as source.on_bad_record says.
void read_documents(const TextFile& file, const TextSource& source, DocumentSink& sink, Hasher& hasher,
                    TextNotes& notes);

}  // namespace scaletrain
