// Internal to lib/data: what people should know of text that was read: records that were skipped, and text that may not
// be meant to be text. Kept beside the tokenised text, so that whoever uses it again is told again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/tokens/json_lines.h"

namespace scaletrain {

// A record that holds no document. `reason` is the same for all of its kind: "not valid JSON".
class BadRecordError : public InputError {
 public:
  BadRecordError(std::string reason, const std::string& message) : InputError(message), reason_(std::move(reason)) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

// How text under another name is read as JSONL, by a key or an option: "type:" or "--type".
std::string jsonl_remedy_of(std::string_view type);

class TextNotes {
 public:
  void add_skipped(const BadRecordError& record);
  // what: "no UTF-8"; place: "a.txt at byte 17".
  void add_odd(const std::string& what, const std::string& place);
  // A text whose first lines are JSON objects.
  void add_json_lines(const std::string& place);
  // A record whose text is empty: it is no document. Where in the file is not kept, since there may be many.
  void add_empty_record(const std::string& file);
  // Those of what was read after this.
  void add(const TextNotes& later);

  bool empty() const { return skipped_.empty() && odd_.empty(); }
  std::uint64_t num_skipped() const;
  // For people, at most one line each on what was skipped, on odd text, on empty records and on text that may be JSONL.
  // `name`: what was read. jsonl_remedy: how such text is read as JSONL; empty: it was said to be text, so nothing is
  // told of it.
  std::vector<std::string> lines(const std::string& name, const std::string& jsonl_remedy = {}) const;

  nlohmann::json to_json() const;
  // InputError that begins with `where`.
  static TextNotes from_json(const nlohmann::json& value, const std::string& where);
  bool operator==(const TextNotes&) const = default;

 private:
  struct Places {
    std::uint64_t count = 0;
    std::vector<std::string> first;  // a few, each once
    bool operator==(const Places&) const = default;
  };
  using Kinds = std::map<std::string, Places>;

  static void note(Kinds& kinds, const std::string& kind, const std::string& place);
  static void note_all(Kinds& kinds, const Kinds& later);

  Kinds skipped_;  // by reason
  Kinds odd_;
};

// Looks at a text as it is read, piece by piece.
class OddTextScan {
 public:
  // name: for messages. offset: of the first piece in the text.
  explicit OddTextScan(std::string name, std::uint64_t offset = 0);
  void take(std::string_view piece);
  void finish(TextNotes& notes);

  // What has been found so far, for one that goes on later from a place that this one has passed.
  nlohmann::json state() const;
  void restore(const nlohmann::json& state, const std::string& where);

 private:
  void judge_head();

  std::string name_;
  std::uint64_t offset_;
  bool begins_later_;  // not with the text
  bool has_head_;
  bool may_begin_within_character_;
  std::string head_;                  // the first bytes, until they are judged
  std::string looks_like_;            // "UTF-16", "a PDF"; empty: text
  bool has_byte_order_mark_ = false;  // of UTF-8
  JsonLinesScan lines_;               // takes the text where it is read from its beginning
  bool has_json_lines_ = false;       // where it is not: what was found before
  std::string unfinished_;            // the beginning of a character at the end of the last piece
  std::optional<std::uint64_t> nul_;  // offsets of the first ones
  std::optional<std::uint64_t> invalid_;
};

}  // namespace scaletrain
