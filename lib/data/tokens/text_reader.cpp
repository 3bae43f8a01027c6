#include "data/tokens/text_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/instructions/instruction_record.h"
#include "data/parquet/parquet_file.h"
#include "data/tokens/content_record.h"
#include "data/tokens/json_record.h"

namespace scaletrain {
namespace {

constexpr std::uint64_t kTextPieceBytes = 1u << 20;

// The text of a file from an offset on, piece by piece, until `use` returns false.
template <class Use>
void for_each_piece(const TextFile& file, std::uint64_t begin, const ReadingHooks& hooks, Use use) {
  TextStream stream(file.path, file.compression, hooks.hasher);
  if (begin > 0) stream.skip_to(begin);
  std::vector<char> piece(static_cast<std::size_t>(
      file.compression == Compression::none ? std::clamp<std::uint64_t>(stream.file_size(), 1, kTextPieceBytes)
                                            : kTextPieceBytes));
  while (const std::size_t size = stream.read(piece)) {
    if (hooks.file_position != nullptr) *hooks.file_position = stream.file_position();
    if (!use(std::string_view(piece.data(), size))) return;
  }
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// Passes text on to the sink, but ends the document at each line that is the separator.
class SeparatorFilter {
 public:
  SeparatorFilter(std::string_view separator, std::uint64_t begin, DocumentSink& sink)
      : separator_(separator), sink_(sink), read_(begin) {}

  void text(std::string_view piece) {
    while (!piece.empty()) {
      const std::size_t newline = piece.find('\n');
      const std::string_view part = piece.substr(0, newline == std::string_view::npos ? piece.size() : newline + 1);
      piece.remove_prefix(part.size());
      read_ += part.size();
      if (passing_) {
        sink_.text(part);
      } else {
        line_ += part;
      }
      if (part.back() == '\n') {
        end_line();
      } else if (!passing_ && line_.size() > separator_.size() + 1) {
        // Too long to be a separator with its carriage return: no need to hold it back.
        sink_.text(line_);
        line_.clear();
        passing_ = true;
      }
    }
  }

  void finish() {
    end_line();
    sink_.end_document(read_);
  }

 private:
  void end_line() {
    if (!passing_) {
      std::string_view content = line_;
      if (content.ends_with('\n')) content.remove_suffix(1);
      if (content.ends_with('\r') && content != separator_) content.remove_suffix(1);
      if (content == separator_ && !line_.empty()) {
        sink_.end_document(read_);
      } else {
        sink_.text(line_);
      }
    }
    line_.clear();
    passing_ = false;
  }

  std::string_view separator_;
  DocumentSink& sink_;
  std::uint64_t read_;    // up to where in the file's text
  std::string line_;      // the part of the current line that was held back
  bool passing_ = false;  // the current line is no separator; its beginning was passed on
};

class LineReader {
 public:
  LineReader(const TextRange& range, LineSink& sink)
      : end_(range.end), place_{range.begin, range.line}, is_cut_(range.begin > 0), sink_(sink) {
    // From the byte before on: it tells whether a line begins there.
    if (is_cut_) --place_.offset;
  }

  // False: what follows is not asked for.
  bool text(std::string_view piece) {
    while (!piece.empty()) {
      const std::size_t newline = piece.find('\n');
      const std::string_view part = piece.substr(0, newline);
      take(part);
      if (newline == std::string_view::npos) return true;
      end_line(1);
      if (place_.offset >= end_) return false;
      piece.remove_prefix(newline + 1);
    }
    return true;
  }

  void finish() {
    if (place_.offset < end_) end_line(0);
  }

 private:
  void take(std::string_view part) {
    size_ += part.size();
    if (size_ > kMaxLineBytes) {
      line_.clear();
    } else if (!is_cut_) {
      line_ += part;
    }
  }

  void end_line(std::uint64_t ending) {
    if (!is_cut_) {
      if (size_ > kMaxLineBytes) {
        sink_.too_long(place_, size_);
      } else if (!is_blank(line_)) {
        sink_.line(line_, place_);
      }
      if (place_.number > 0) ++place_.number;
    }
    place_.offset += size_ + ending;
    is_cut_ = false;
    size_ = 0;
    line_.clear();
  }

  std::uint64_t end_;
  LinePlace place_;
  bool is_cut_;  // the current line began before the range
  LineSink& sink_;
  std::uint64_t size_ = 0;
  std::string line_;
};

// Documents of lines, one after the other.
class ParsedLines final : public LineSink {
 public:
  ParsedLines(const TextFile& file, const TextSource& source, DocumentSink& sink, TextNotes& notes)
      : file_(file), source_(source), sink_(sink), notes_(notes) {}

  void line(std::string_view text, const LinePlace& place) override {
    const std::string where = line_text(file_, place);
    try {
      const std::string document = document_of_line(text, source_.field, where);
      note_odd_document(document, file_, where, notes_);
      sink_.text(document);
    } catch (const BadRecordError& error) {
      pass_over(error);
      return;
    }
    sink_.end_document(place.offset + text.size() + 1);
  }

  void too_long(const LinePlace& place, std::uint64_t) override { pass_over(too_long_line(line_text(file_, place))); }

 private:
  void pass_over(const BadRecordError& error) {
    if (source_.on_bad_record == BadRecordPolicy::fail) throw_bad_record(error, source_);
    notes_.add_skipped(error);
  }

  const TextFile& file_;
  const TextSource& source_;
  DocumentSink& sink_;
  TextNotes& notes_;
};

// "; there are "id", "body"", for a line that has another field than the one that was asked for.
std::string fields_text(const nlohmann::json& object) {
  constexpr std::size_t most = 12;
  if (object.empty()) return "; the line has no field at all";
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items())
    if (names.size() < most) names.push_back(quoted(name, 40));
  const std::optional<RecordKind> instructions = instructions_of(object);
  return fmt::format("; the line has {}{}: {}", fmt::join(names, ", "), object.size() > most ? " ..." : "",
                     instructions ? instruction_uses(*instructions) : "name one of them as the field");
}

}  // namespace

void note_odd_document(std::string_view document, const TextFile& file, const std::string& where, TextNotes& notes) {
  if (document.empty()) notes.add_empty_record(file.path.string());
  if (document.find('\0') != std::string_view::npos) notes.add_odd("that holds NUL", where);
}

std::string line_text(const TextFile& file, const LinePlace& place) {
  if (file.kind == TextKind::parquet) return fmt::format("{}, row {}", file.path.string(), place.number);
  return place.number > 0 ? fmt::format("{}:{}", file.path.string(), place.number)
                          : fmt::format("{} at byte {}", file.path.string(), place.offset);
}

void throw_bad_record(const BadRecordError& error, const TextSource& source, std::string_view noun) {
  throw BadRecordError(
      error.reason(),
      fmt::format("{}; mend the {}, or {}", error.what(), noun,
                  source.skip_setting.empty() ? "take it out"
                                              : fmt::format("have such {}s left out ({})", noun, source.skip_setting)));
}

void throw_changed_file(const std::filesystem::path& file) {
  throw InputError(file.string() + ": the file changed while it was read; start again when it is complete");
}

BadRecordError too_long_line(const std::string& where) {
  return {"too long", fmt::format("{}: the line is longer than {} bytes", where, kMaxLineBytes)};
}

nlohmann::json object_of_line(std::string_view line, const std::string& where, const std::string& said) {
  // A file that is one array, in a line or in many.
  const std::size_t first = line.find_first_not_of(" \t");
  const std::string remedy = first != std::string_view::npos && line[first] == '['
                                 ? "; jq -c '.[]' makes such lines of a file that is an array"
                                 : "";
  nlohmann::json value;
  try {
    value = parse_json(line, where, {.depth = 64, .bytes = kMaxLineBytes});
  } catch (const InputError& error) {
    throw BadRecordError("not valid JSON", error.what() + remedy);
  }
  if (!value.is_object())
    throw BadRecordError("no JSON object", fmt::format("{}: each line is a JSON object{}{}", where, said, remedy));
  return value;
}

std::string document_of_line(std::string_view line, const std::string& field, const std::string& where) {
  std::string document;
  if (find_string_member(line, field, document)) return document;
  const nlohmann::json value = object_of_line(line, where, " with the key " + quoted(field));
  const auto found = value.find(field);
  if (found == value.end())
    throw BadRecordError("without the field " + quoted(field),
                         fmt::format("{}: the key {} is missing{}", where, quoted(field), fields_text(value)));
  if (!found->is_string()) {
    throw BadRecordError("no text in the field " + quoted(field),
                         fmt::format("{}: {} is {}, expected a string", where, quoted(field), found->type_name()));
  }
  return found->get<std::string>();
}

void read_lines(const TextFile& file, const TextRange& range, LineSink& sink, const ReadingHooks& hooks) {
  LineReader lines(range, sink);
  for_each_piece(file, range.begin > 0 ? range.begin - 1 : 0, hooks,
                 [&](std::string_view piece) { return lines.text(piece); });
  lines.finish();
}

void read_rows(const TextFile& file, const TextSource& source, std::int64_t first, const UseRow& use, TextNotes& notes,
               const ReadingHooks& hooks) {
  const FileStamp stamp = stamp_of(file.path);
  // The library reads the file in an order of its own.
  if (hooks.hasher != nullptr) for_each_piece(file, 0, {.hasher = hooks.hasher}, [](std::string_view) { return true; });
  const std::unique_ptr<ParquetColumn> column = open_parquet(file.path, source.field);
  const auto rows = static_cast<double>(column->num_rows());
  const auto bytes = static_cast<double>(stamp.bytes);
  column->read(first, [&](std::int64_t row, bool is_null, std::string_view text) {
    const LinePlace place{static_cast<std::uint64_t>(row), row + 1};
    if (hooks.file_position != nullptr)
      *hooks.file_position = static_cast<std::uint64_t>(bytes * static_cast<double>(row + 1) / rows);
    if (!is_null) {
      use(text, place);
      return true;
    }
    const BadRecordError error(
        "null in the column " + quoted(source.field),
        fmt::format("{}: {} is null, expected text", line_text(file, place), quoted(source.field)));
    if (source.on_bad_record == BadRecordPolicy::fail) throw_bad_record(error, source, "row");
    notes.add_skipped(error);
    return true;
  });
  // What was hashed is what was read.
  if (stamp_of(file.path) != stamp) throw_changed_file(file.path);
}

void read_text(const TextFile& file, const TextSource& source, std::uint64_t begin, DocumentSink& sink,
               OddTextScan& scan, const ReadingHooks& hooks) {
  if (source.separator) {
    SeparatorFilter filter(*source.separator, begin, sink);
    for_each_piece(file, begin, hooks, [&](std::string_view piece) {
      scan.take(piece);
      filter.text(piece);
      return true;
    });
    return filter.finish();
  }
  std::uint64_t end = begin;
  for_each_piece(file, begin, hooks, [&](std::string_view piece) {
    scan.take(piece);
    sink.text(piece);
    end += piece.size();
    return true;
  });
  sink.end_document(end);
}

void read_documents(const TextFile& file, const TextSource& source, DocumentSink& sink, Hasher& hasher,
                    TextNotes& notes) {
  if (file.kind == TextKind::text) {
    OddTextScan scan(file.path.string());
    read_text(file, source, 0, sink, scan, {.hasher = &hasher});
    return scan.finish(notes);
  }
  if (file.kind == TextKind::parquet) {
    return read_rows(file, source, 0,
                     [&](std::string_view text, const LinePlace& place) {
                       note_odd_document(text, file, line_text(file, place), notes);
                       sink.text(text);
                       sink.end_document(place.offset + 1);
                     },
                     notes, {.hasher = &hasher});
  }
  ParsedLines lines(file, source, sink, notes);
  read_lines(file, {}, lines, {.hasher = &hasher});
}

}  // namespace scaletrain
