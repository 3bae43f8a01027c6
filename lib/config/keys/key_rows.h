// How rows of the key table are written: a row's helper names the kind of value, FIELD names the member. Internal to
// the files that hold the table.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "config/keys/key_codecs.h"
#include "config/keys/key_table.h"
#include "config/keys/unsupported.h"

namespace scaletrain::key_rows {

inline constexpr auto freely = ResumeRule::freely;
inline constexpr auto with_notice = ResumeRule::with_notice;
inline constexpr auto never = ResumeRule::never;

// Large enough for any model or cluster, small enough that products of two or three of them stay below 2^63.
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxFfn = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxContext = std::int64_t{1} << 28;
inline constexpr std::int64_t kMaxVocab = (std::int64_t{1} << 31) - 1;  // token ids are 32-bit integers
inline constexpr std::int64_t kMaxBatch = std::int64_t{1} << 30;
inline constexpr double kMostEpochs = 1e6;  // leaves room for what they are multiplied with
inline constexpr std::int64_t kMaxDegree = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 62;

struct Words {
  std::string path;
  std::string unit;
  std::string meaning;
  ResumeRule resume = freely;
  std::string fallback = {};  // where the default is no constant
};

// A generic member accessor: const in, const out.
#define FIELD(member) ([](auto& record) -> auto& { return record.member; })

template <class Record, class Codec, class Field>
Key<Record> row(Words words, Codec codec, Field field) {
  Key<Record> key;
  if (words.fallback.empty()) {
    const Record fresh{};
    words.fallback = codec.text(field(fresh));
  }
  key.info = {words.path, codec.type(), words.unit, words.fallback, words.meaning, words.resume};
  if constexpr (requires { codec.not_yet; }) codec.not_yet = unsupported_values_of(words.path);
  if constexpr (requires { codec.codec.not_yet; }) codec.codec.not_yet = unsupported_values_of(words.path);
  key.read = [codec, field](const YamlNode& node, const std::string& path, Record& record, ReadContext& context) {
    const std::string problem = codec.parse(node, field(record));
    if (problem.empty()) return;
    const std::string later = node.kind == YamlNode::Kind::scalar ? unsupported_word(path, node.text) : std::string();
    context.refuse(node.place, path, later.empty() ? problem : later);
  };
  key.write = [codec, field](const Record& record) { return codec.text(field(record)); };
  key.copy = [field](const Record& from, Record& to) { field(to) = field(from); };
  return key;
}

// Rows of the whole config.
template <class Codec, class Field>
Key<Config> top(Words words, Codec codec, Field field) {
  return row<Config>(std::move(words), std::move(codec), std::move(field));
}

template <class Codec>
OptionalCodec<Codec> optional(Codec codec, std::string_view word = {}) {
  if constexpr (requires { codec.besides; }) codec.besides = word;
  return {std::move(codec), word};
}

inline IntegerCodec at_least(std::int64_t least, std::int64_t most = kMaxCount) {
  return {least, most};
}
inline NumberCodec positive(double most = 1e12) {
  return {0.0, most, Bounds::open_below};
}
inline TextCodec path_text() {
  return {TextRule::path};
}

// Whether an item of a list stands in the config: of validation sets those that a source holds out do not.
template <class Item>
bool is_written(const Item&) {
  return true;
}
inline bool is_written(const ValidationConfig& set) {
  return !set.held_out_of;
}

// A list of records that have a table of their own.
template <class Item, class Field>
Key<Config> list_row(const Words& words, const std::string& type, const KeyTable<Item>& table, Field field) {
  Key<Config> key;
  key.info = {words.path, type, words.unit, words.fallback, words.meaning, words.resume};
  key.read = [&table, field](const YamlNode& node, const std::string& path, Config& config, ReadContext& context) {
    if (node.kind == YamlNode::Kind::null) return;
    if (node.kind != YamlNode::Kind::list)
      return context.refuse(node.place, path,
                            "expected a list, found " + describe(node) + list_hint(table, node, path));
    auto& items = field(config);
    items.clear();
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const std::string item_path = fmt::format("{}.{}", path, i);
      context.given[item_path] = node.items[i].place;
      read_record(table, node.items[i], item_path, items.emplace_back(), context);
    }
  };
  key.write_items = [&table, field](const Config& config) {
    std::vector<std::string> out;
    for (const Item& item : field(config))
      if (is_written(item)) out.push_back(write_record(table, item));
    return out;
  };
  key.write = [write_items = key.write_items](const Config& config) {
    std::string out = "[";
    for (const std::string& item : write_items(config)) out += (out.size() > 1 ? ", " : "") + item;
    return out + "]";
  };
  return key;
}

// An optional section: null, or a mapping with a table of its own.
template <class Item, class Record = Config, class Field>
Key<Record> section_row(const Words& words, const KeyTable<Item>& table, Field field) {
  Key<Record> key;
  key.info = {words.path, "mapping or null", words.unit, "null", words.meaning, words.resume};
  key.read = [&table, field](const YamlNode& node, const std::string& path, Record& config, ReadContext& context) {
    field(config).reset();
    if (node.kind == YamlNode::Kind::null) return;
    Item item{};
    read_record(table, node, path, item, context);
    field(config) = std::move(item);
  };
  key.write = [&table, field](const Record& config) {
    const auto& item = field(config);
    return item ? write_record(table, *item) : std::string("null");
  };
  return key;
}

// The sections that have a file of their own.
void add_model(KeyTable<Config>& table);
void add_data(KeyTable<Config>& table);
void add_phases(KeyTable<Config>& table);
Key<Config> global_batch_row();
Key<Config> batch_auto_row();

}  // namespace scaletrain::key_rows
