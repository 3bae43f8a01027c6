#include "data/tokens/json_lines.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "data/tokens/text_stream.h"

namespace scaletrain {
namespace {

constexpr int kMostLines = 2;
constexpr std::size_t kMostBytes = 1u << 20;
constexpr const char* kBlanks = " \t\r";

bool has_only_blanks(std::string_view line) {
  return line.find_first_not_of(kBlanks) == std::string_view::npos;
}

// A line of prose is given up by its first character.
bool may_be_object(std::string_view line) {
  return has_only_blanks(line) || line[line.find_first_not_of(kBlanks)] == '{';
}

bool is_object(std::string_view line) {
  return !has_only_blanks(line) && may_be_object(line) && nlohmann::json::accept(line);
}

// Of one that is too long to be looked at as a whole.
bool begins_object(std::string_view line) {
  const std::size_t brace = line.find('{');
  const std::size_t next = line.find_first_not_of(kBlanks, brace + 1);
  return next != std::string_view::npos && line[next] == '"';
}

}  // namespace

int json_lines_at_beginning(const std::filesystem::path& file) {
  constexpr std::size_t piece_bytes = 64u << 10;
  constexpr std::size_t most_bytes = 4u << 20;
  TextStream stream(file, compression_of(file));
  JsonLinesScan scan;
  std::vector<char> piece(piece_bytes);
  for (std::size_t read = 0; read < most_bytes && !scan.is_over();) {
    const std::size_t size = stream.read(piece);
    if (size == 0) return scan.objects(true);
    scan.take({piece.data(), size});
    read += size;
  }
  return scan.objects(false);
}

bool may_hold_records(const std::filesystem::path& file, const std::string& field) {
  constexpr std::size_t most_bytes = 4u << 20;
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  constexpr const char* blanks = " \t\r\n";
  TextStream stream(file, compression_of(file));
  std::vector<char> beginning(most_bytes);
  std::size_t size = 0;
  for (std::size_t read = 1; read > 0 && size < most_bytes; size += read)
    read = stream.read({beginning.data() + size, most_bytes - size});
  const auto from = [](std::string_view text, std::size_t place) {
    return place == std::string_view::npos ? std::string_view() : text.substr(place);
  };
  std::string_view text(beginning.data(), size);
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  text = from(text, text.find_first_not_of(blanks));
  if (text.starts_with('[')) return from(text, text.find_first_not_of(blanks, 1)).starts_with('{');
  if (!text.starts_with('{')) return false;
  const std::size_t newline = text.find('\n');
  if (newline == std::string_view::npos && size == most_bytes) return true;
  std::string_view line = text.substr(0, newline);
  line = line.substr(0, line.find_last_not_of(blanks) + 1);
  if (!line.ends_with('}')) return false;  // an object over several lines
  if (newline != std::string_view::npos && from(text, text.find_first_not_of(blanks, newline)).starts_with('{'))
    return true;
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  return object.is_object() && (object.contains(field) || object.contains("messages") || object.contains("prompt"));
}

void JsonLinesScan::take(std::string_view piece) {
  while (!piece.empty() && !is_over_) {
    const std::size_t newline = piece.find('\n');
    const std::string_view part = piece.substr(0, newline);
    line_ += part.substr(0, kMostBytes - line_.size());
    if (!may_be_object(line_)) return end_scan(0);
    if (line_.size() == kMostBytes) return end_scan(begins_object(line_) ? objects_ + 1 : 0);
    if (newline == std::string_view::npos) return;
    end_line();
    piece.remove_prefix(newline + 1);
  }
}

int JsonLinesScan::objects(bool is_whole) const {
  if (is_over_ || !is_whole || has_only_blanks(line_)) return objects_;
  return is_object(line_) ? objects_ + 1 : 0;
}

void JsonLinesScan::end_line() {
  if (!has_only_blanks(line_)) {
    if (!is_object(line_)) return end_scan(0);
    ++objects_;
  }
  line_.clear();
  if (objects_ == kMostLines) end_scan(objects_);
}

void JsonLinesScan::end_scan(int objects) {
  objects_ = objects;
  is_over_ = true;
  line_ = {};
}

}  // namespace scaletrain
