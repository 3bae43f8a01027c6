#include "data/tokens/text_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace scaletrain {
namespace {

constexpr std::uint64_t kTextPieceBytes = 1u << 20;
constexpr std::uint64_t kMaxLineBytes = 64u << 20;

// All bytes of a file, in order, piece by piece.
template <class Use>
void for_each_piece(const std::filesystem::path& path, Hasher& hasher, Use use) {
  const FileReader reader(path);
  std::vector<char> piece(static_cast<std::size_t>(std::min(kTextPieceBytes, reader.size())));
  for (std::uint64_t offset = 0; offset < reader.size(); offset += piece.size()) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), reader.size() - offset)));
    reader.read_at(offset, std::as_writable_bytes(part));
    hasher.update(std::as_bytes(part));
    use(std::string_view(part.data(), part.size()));
  }
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// Passes text on to the sink, but ends the document at each line that is the separator.
class SeparatorFilter {
 public:
  SeparatorFilter(std::string_view separator, DocumentSink& sink) : separator_(separator), sink_(sink) {}

  void text(std::string_view piece) {
    while (!piece.empty()) {
      const std::size_t newline = piece.find('\n');
      const std::string_view part = piece.substr(0, newline == std::string_view::npos ? piece.size() : newline + 1);
      piece.remove_prefix(part.size());
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
    sink_.end_document();
  }

 private:
  void end_line() {
    if (!passing_) {
      std::string_view content = line_;
      if (content.ends_with('\n')) content.remove_suffix(1);
      if (content.ends_with('\r') && content != separator_) content.remove_suffix(1);
      if (content == separator_ && !line_.empty()) {
        sink_.end_document();
      } else {
        sink_.text(line_);
      }
    }
    line_.clear();
    passing_ = false;
  }

  std::string_view separator_;
  DocumentSink& sink_;
  std::string line_;      // the part of the current line that was held back
  bool passing_ = false;  // the current line is no separator; its beginning was passed on
};

class JsonLines {
 public:
  JsonLines(const TextFile& file, const std::string& field, DocumentSink& sink)
      : file_(file.path.string()), field_(field), sink_(sink) {}

  void text(std::string_view piece) {
    while (!piece.empty()) {
      const std::size_t newline = piece.find('\n');
      const std::string_view part = piece.substr(0, newline);
      if (line_.size() + part.size() > kMaxLineBytes) {
        throw InputError(fmt::format("{}:{}: the line is longer than {} bytes", file_, number_, kMaxLineBytes));
      }
      line_ += part;
      if (newline == std::string_view::npos) return;
      end_line();
      piece.remove_prefix(newline + 1);
    }
  }

  void finish() { end_line(); }

 private:
  void end_line() {
    if (!is_blank(line_)) {
      const std::string where = fmt::format("{}:{}", file_, number_);
      const nlohmann::json value = parse_json(line_, where, {.depth = 64, .bytes = kMaxLineBytes});
      if (!value.is_object())
        throw InputError(fmt::format("{}: each line is a JSON object with the key \"{}\"", where, field_));
      sink_.text(json_string(value, field_, where));
      sink_.end_document();
    }
    line_.clear();
    ++number_;
  }

  std::string file_;
  const std::string& field_;
  DocumentSink& sink_;
  std::string line_;
  std::int64_t number_ = 1;
};

}  // namespace

void read_documents(const TextFile& file, const TextSource& source, DocumentSink& sink, Hasher& hasher) {
  if (file.kind == TextKind::jsonl) {
    JsonLines lines(file, source.field, sink);
    for_each_piece(file.path, hasher, [&](std::string_view piece) { lines.text(piece); });
    lines.finish();
  } else if (source.separator) {
    SeparatorFilter filter(*source.separator, sink);
    for_each_piece(file.path, hasher, [&](std::string_view piece) { filter.text(piece); });
    filter.finish();
  } else {
    for_each_piece(file.path, hasher, [&](std::string_view piece) { sink.text(piece); });
    sink.end_document();
  }
}

}  // namespace scaletrain
