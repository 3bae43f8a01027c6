#include "data/tokens/text_notes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/json.h"
#include "base/text.h"

namespace scaletrain {
namespace {

constexpr std::size_t kPlacesKept = 3;
constexpr std::size_t kHeadBytes = 4096;
// Among what is odd: each told in a line of its own, since it is text as it should be.
constexpr const char* kJsonLines = "whose first lines are JSON objects";
constexpr const char* kEmptyRecords = "without a character";

struct Magic {
  std::string_view bytes;
  std::string_view what;
};
// What files begin with that people take for text by their names.
constexpr std::array<Magic, 16> kMagics = {{{"\x7f"
                                             "ELF",
                                             "a program"},
                                            {"PK\x03\x04", "a zip archive"},
                                            {"%PDF-", "a PDF"},
                                            {"\x1f\x8b", "gzip without .gz"},
                                            {"\x28\xb5\x2f\xfd", "Zstandard without .zst"},
                                            {"\xfd"
                                             "7zXZ",
                                             "xz"},
                                            {"BZh", "bzip2"},
                                            {"7z\xbc\xaf", "a 7-Zip archive"},
                                            {"Rar!", "a RAR archive"},
                                            {"\x89PNG", "an image"},
                                            {"\xff\xd8\xff", "an image"},
                                            {"GIF8", "an image"},
                                            {"PAR1", "Parquet"},
                                            {"\x89HDF", "HDF5"},
                                            {"SQLite format 3", "a database"},
                                            {"\x93NUMPY", "a NumPy array"}}};

// Half of the bytes of Western text in UTF-16 are zero, always the same of two.
bool looks_like_utf16(std::string_view head) {
  if (head.starts_with("\xff\xfe") || head.starts_with("\xfe\xff")) return true;
  std::array<std::size_t, 2> zeros{};
  for (std::size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == '\0' ? 1 : 0;
  const auto [less, more] = std::minmax(zeros[0], zeros[1]);
  return head.size() >= 8 && more * 4 > head.size() && less * 16 <= more;
}

// What the first byte of a character says of its length; 1 where it says nothing.
std::size_t length_by_first_byte(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
}

// Where a character begins that the end of the text cuts; the size if none does.
std::size_t cut_character(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const char c = text[text.size() - back];
    if ((static_cast<unsigned char>(c) & 0xc0u) == 0x80u) continue;
    return length_by_first_byte(c) > back ? text.size() - back : text.size();
  }
  return text.size();
}

void keep_place(std::vector<std::string>& first, const std::string& place) {
  if (first.size() < kPlacesKept && std::find(first.begin(), first.end(), place) == first.end()) first.push_back(place);
}

nlohmann::json places_json(std::uint64_t count, const std::vector<std::string>& first) {
  return {{"count", count}, {"first", first}};
}

}  // namespace

std::string jsonl_remedy_of(std::string_view type) {
  return fmt::format("{0} jsonl reads a document of each line, {0} text says that text is meant", type);
}

void TextNotes::note(Kinds& kinds, const std::string& kind, const std::string& place) {
  Places& places = kinds[kind];
  ++places.count;
  keep_place(places.first, place);
}

void TextNotes::note_all(Kinds& kinds, const Kinds& later) {
  for (const auto& [kind, more] : later) {
    Places& places = kinds[kind];
    places.count += more.count;
    for (const std::string& place : more.first) keep_place(places.first, place);
  }
}

void TextNotes::add_skipped(const BadRecordError& record) {
  note(skipped_, record.reason(), record.what());
}

void TextNotes::add_odd(const std::string& what, const std::string& place) {
  note(odd_, what, place);
}

void TextNotes::add_json_lines(const std::string& place) {
  note(odd_, kJsonLines, place);
}

void TextNotes::add_empty_record(const std::string& file) {
  note(odd_, kEmptyRecords, file);
}

void TextNotes::add(const TextNotes& later) {
  note_all(skipped_, later.skipped_);
  note_all(odd_, later.odd_);
}

std::uint64_t TextNotes::num_skipped() const {
  return std::accumulate(skipped_.begin(), skipped_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& kind) { return sum + kind.second.count; });
}

std::vector<std::string> TextNotes::lines(const std::string& name, const std::string& jsonl_remedy) const {
  const auto some = [](const Places& places) {
    return fmt::format("{}{}", fmt::join(places.first, "; "), places.count > places.first.size() ? "; ..." : "");
  };
  const auto list = [&some](const Kinds& kinds) {
    std::vector<std::string> parts;
    for (const auto& [kind, places] : kinds)
      parts.push_back(fmt::format("{} {} ({})", grouped_digits(places.count), kind, some(places)));
    return fmt::format("{}", fmt::join(parts, ", "));
  };
  Kinds odd = odd_;
  const auto json_lines = odd.extract(kJsonLines);
  const auto empty_records = odd.extract(kEmptyRecords);
  std::vector<std::string> lines;
  if (!skipped_.empty()) {
    lines.push_back(fmt::format("{}: {} {} skipped: {}", name, grouped_count(num_skipped(), "bad record"),
                                num_skipped() == 1 ? "was" : "were", list(skipped_)));
  }
  if (!odd.empty())
    lines.push_back(fmt::format("notice: {}: not all of it looks like text in UTF-8: {}", name, list(odd)));
  if (!empty_records.empty()) {
    const Places& places = empty_records.mapped();
    const bool is_one = places.count == 1;
    lines.push_back(fmt::format("notice: {}: {} no text and {} ({})", name,
                                grouped_count(places.count, "record") + (is_one ? " holds" : " hold"),
                                is_one ? "is no document" : "are no documents", fmt::join(places.first, ", ")));
  }
  if (!json_lines.empty() && !jsonl_remedy.empty()) {
    const Places& places = json_lines.mapped();
    const bool is_one = places.count == 1;
    lines.push_back(fmt::format("notice: {}: {} read as text, but {} first lines are JSON objects ({}): {}", name,
                                is_one ? "a file is" : grouped_count(places.count, "file") + " are",
                                is_one ? "its" : "their", some(places), jsonl_remedy));
  }
  return lines;
}

nlohmann::json TextNotes::to_json() const {
  nlohmann::json object = {{"skipped", nlohmann::json::object()}, {"odd", nlohmann::json::object()}};
  for (const auto& [kind, places] : skipped_) object["skipped"][kind] = places_json(places.count, places.first);
  for (const auto& [kind, places] : odd_) object["odd"][kind] = places_json(places.count, places.first);
  return object;
}

TextNotes TextNotes::from_json(const nlohmann::json& value, const std::string& where) {
  TextNotes notes;
  for (const auto& [name, kinds] : {std::pair("skipped", &notes.skipped_), std::pair("odd", &notes.odd_)}) {
    const nlohmann::json& object = json_member(value, name, where);
    if (!object.is_object()) throw InputError(fmt::format("{}: {} is no object", where, name));
    for (const auto& [kind, places] : object.items()) {
      Places& read = (*kinds)[kind];
      read.count = json_unsigned(places, "count", where);
      for (const nlohmann::json& place : json_member(places, "first", where)) {
        if (!place.is_string()) throw InputError(fmt::format("{}: a place is no string", where));
        read.first.push_back(place.get<std::string>());
      }
    }
  }
  return notes;
}

OddTextScan::OddTextScan(std::string name, std::uint64_t offset)
    : name_(std::move(name)),
      offset_(offset),
      begins_later_(offset > 0),
      has_head_(offset > 0),
      may_begin_within_character_(offset > 0) {}

void OddTextScan::take(std::string_view piece) {
  if (!has_head_) {
    head_ += piece.substr(0, kHeadBytes - head_.size());
    if (head_.size() == kHeadBytes) judge_head();
  }
  if (!begins_later_) lines_.take(piece);
  if (!nul_) {
    const std::size_t at = piece.find('\0');
    if (at != std::string_view::npos) nul_ = offset_ + at;
  }
  std::uint64_t begin = offset_;
  offset_ += piece.size();
  if (invalid_ || piece.empty()) return;
  if (std::exchange(may_begin_within_character_, false)) {
    std::size_t rest = 0;
    while (rest < std::min<std::size_t>(3, piece.size()) && (static_cast<unsigned char>(piece[rest]) & 0xc0u) == 0x80u)
      ++rest;
    piece.remove_prefix(rest);
    begin += rest;
  }
  if (!unfinished_.empty()) {
    // A character that lies in two pieces, or in more of a byte each.
    const std::size_t before = unfinished_.size();
    const std::size_t missing = length_by_first_byte(unfinished_[0]) - before;
    unfinished_ += piece.substr(0, missing);
    if (piece.size() < missing) return;
    if (first_invalid_utf8(unfinished_)) invalid_ = begin - before;
    unfinished_.clear();
    piece.remove_prefix(missing);
    if (invalid_) return;
    const std::size_t cut = cut_character(piece);
    if (const auto at = first_invalid_utf8(piece.substr(0, cut))) invalid_ = begin + missing + *at;
    unfinished_ = piece.substr(cut);
    return;
  }
  const std::size_t cut = cut_character(piece);
  if (const auto at = first_invalid_utf8(piece.substr(0, cut))) invalid_ = begin + *at;
  unfinished_ = piece.substr(cut);
}

nlohmann::json OddTextScan::state() const {
  nlohmann::json state = {{"looks_like", looks_like_}};
  if (has_byte_order_mark_) state["byte_order_mark"] = true;
  if (nul_) state["nul"] = *nul_;
  if (invalid_) state["invalid"] = *invalid_;
  if (has_json_lines_ || lines_.objects(false) > 0) state["json_lines"] = true;
  return state;
}

void OddTextScan::restore(const nlohmann::json& state, const std::string& where) {
  looks_like_ = json_string(state, "looks_like", where);
  if (state.contains("nul")) nul_ = json_unsigned(state, "nul", where);
  if (state.contains("invalid")) invalid_ = json_unsigned(state, "invalid", where);
  has_json_lines_ = state.value("json_lines", false);
  has_byte_order_mark_ = state.value("byte_order_mark", false);
}

void OddTextScan::judge_head() {
  has_head_ = true;
  for (const Magic& magic : kMagics)
    if (head_.starts_with(magic.bytes)) looks_like_ = magic.what;
  if (looks_like_.empty() && looks_like_utf16(head_)) looks_like_ = "UTF-16";
  has_byte_order_mark_ = head_.starts_with("\xef\xbb\xbf");
  head_.clear();
}

void OddTextScan::finish(TextNotes& notes) {
  if (!has_head_) judge_head();
  if (!invalid_ && !unfinished_.empty()) invalid_ = offset_ - unfinished_.size();
  if (!looks_like_.empty()) {
    notes.add_odd("that looks like " + looks_like_, name_);
  } else {
    if (invalid_) notes.add_odd("that is no UTF-8", fmt::format("{} at byte {}", name_, *invalid_));
    if (has_byte_order_mark_) notes.add_odd("that begins with a byte order mark, which is read as text", name_);
    if (nul_) notes.add_odd("that holds NUL", fmt::format("{} at byte {}", name_, *nul_));
    if (has_json_lines_ || lines_.objects(true) > 0) notes.add_json_lines(name_);
  }
}

}  // namespace scaletrain
