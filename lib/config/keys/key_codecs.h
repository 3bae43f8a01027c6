// How the kinds of values that keys hold are read, checked, named and written. A codec is a small value with
//   std::string parse(const YamlNode&, Value&) const   the refusal in words, or empty
//   std::string text(const Value&) const               as YAML, in flow style
//   std::string type() const                           for the schema
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config.h"
#include "config/keys/key_table.h"

namespace scaletrain {

// The enumerators of E with their names in a config, in the order of the schema.
template <class E>
using EnumNames = std::span<const std::pair<E, std::string_view>>;
template <class E>
EnumNames<E> enum_names();
template <>
EnumNames<DeviceKind> enum_names();
template <>
EnumNames<NormKind> enum_names();
template <>
EnumNames<ActivationKind> enum_names();
template <>
EnumNames<PositionKind> enum_names();
template <>
EnumNames<RopeScalingKind> enum_names();
template <>
EnumNames<GrowthOrder> enum_names();
template <>
EnumNames<InitKind> enum_names();
template <>
EnumNames<TokenizerKind> enum_names();
template <>
EnumNames<DocumentAttention> enum_names();
template <>
EnumNames<SourceKind> enum_names();
template <>
EnumNames<RecordKind> enum_names();
template <>
EnumNames<InstructionLoss> enum_names();
template <>
EnumNames<DataCheck> enum_names();
template <>
EnumNames<BadRecordPolicy> enum_names();
template <>
EnumNames<OptimizerKind> enum_names();
template <>
EnumNames<StepScale> enum_names();
template <>
EnumNames<LrScheduleKind> enum_names();
template <>
EnumNames<RecomputeKind> enum_names();
template <>
EnumNames<OffloadKind> enum_names();
template <>
EnumNames<OptimizerStateType> enum_names();
template <>
EnumNames<ZeroReduceKind> enum_names();
template <>
EnumNames<SpikeAction> enum_names();
template <>
EnumNames<ScheduleKind> enum_names();
template <>
EnumNames<Precision> enum_names();

struct IntegerCodec {
  std::int64_t least = 0;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::string parse(const YamlNode& node, std::int64_t& value) const;
  std::string text(std::int64_t value) const { return std::to_string(value); }
  std::string type() const { return "integer"; }
};

// All of 64 bits: negative numbers are refused, large ones are not.
struct SeedCodec {
  std::string parse(const YamlNode& node, std::uint64_t& value) const;
  std::string text(std::uint64_t value) const { return std::to_string(value); }
  std::string type() const { return "integer"; }
};

enum class Bounds { closed, open_below, open_above };

struct NumberCodec {
  double least = -std::numeric_limits<double>::max();
  double most = std::numeric_limits<double>::max();
  Bounds bounds = Bounds::closed;
  std::string parse(const YamlNode& node, double& value) const;
  std::string text(double value) const;
  std::string type() const { return "number"; }
};

// A share of a whole, between nothing and all of it: 0.01, or 1%.
struct ShareCodec {
  std::string parse(const YamlNode& node, double& value) const;
  std::string text(double value) const;
  std::string type() const { return "share"; }
};

// Seconds; the text needs its unit.
struct DurationCodec {
  std::string parse(const YamlNode& node, double& value) const;
  std::string text(double value) const;
  std::string type() const { return "time"; }
};

struct BoolCodec {
  std::string parse(const YamlNode& node, bool& value) const;
  std::string text(bool value) const { return value ? "true" : "false"; }
  std::string type() const { return "true | false"; }
};

enum class TextRule { path, plain_name, line, may_be_empty };

struct TextCodec {
  TextRule rule = TextRule::line;
  std::string parse(const YamlNode& node, std::string& value) const;
  std::string text(const std::string& value) const;
  std::string type() const { return rule == TextRule::path ? "path" : rule == TextRule::plain_name ? "name" : "text"; }
};

// One of a set of words.
struct Choices {
  std::span<const std::string> words;
  std::span<const std::string> not_yet{};  // of the words: they are read too, but a refusal does not offer them
  std::string_view besides{};  // another word that the key takes, which a refusal offers first; may be empty
};
std::string parse_choice(const YamlNode& node, const Choices& choices, std::size_t& index);

template <class E>
struct EnumCodec {
  std::vector<std::string> not_yet{};  // words that are not supported yet as values of the key: see unsupported.h
  std::string_view besides{};          // the key's word for nothing: see OptionalCodec
  std::string parse(const YamlNode& node, E& value) const {
    std::vector<std::string> words;
    for (const auto& entry : enum_names<E>()) words.emplace_back(entry.second);
    std::size_t index = 0;
    std::string problem = parse_choice(node, {.words = words, .not_yet = not_yet, .besides = besides}, index);
    if (problem.empty()) value = enum_names<E>()[index].first;
    return problem;
  }
  std::string text(E value) const { return std::string(to_text(value)); }
  std::string type() const {
    std::string out = "one of: ";
    for (const auto& entry : enum_names<E>()) out += (out.size() > 8 ? " | " : "") + std::string(entry.second);
    return out;
  }
};

struct PresetCodec {
  std::string parse(const YamlNode& node, std::string& value) const;
  std::string text(const std::string& value) const;
  std::string type() const;
};

struct IntegerListCodec {
  std::int64_t least = 1;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::string parse(const YamlNode& node, std::vector<std::int64_t>& value) const;
  std::string text(const std::vector<std::int64_t>& value) const;
  std::string type() const { return "list of integers"; }
};

// Patterns over names of parameters (nn/finetune.h), which have letters, digits, dots and underscores.
struct PatternListCodec {
  std::string parse(const YamlNode& node, std::vector<std::string>& value) const;
  std::string text(const std::vector<std::string>& value) const;
  std::string type() const { return "list of patterns"; }
};

// Names of a model's maps as its family has them (nn/lora.h): letters, digits, dots, underscores and hyphens.
struct NameListCodec {
  std::string parse(const YamlNode& node, std::vector<std::string>& value) const;
  std::string text(const std::vector<std::string>& value) const { return PatternListCodec().text(value); }
  std::string type() const { return "list of names"; }
};

// Such patterns with a factor each, in the order of the file.
struct FactorsCodec {
  double most = 1.0;
  Bounds bounds = Bounds::open_below;
  using Factors = std::vector<std::pair<std::string, double>>;
  std::string parse(const YamlNode& node, Factors& value) const;
  std::string text(const Factors& value) const;
  std::string type() const { return "mapping of patterns to numbers"; }
};

// Sources of data.train and their shares: {web: 0.7, code: 0.3}. Nothing (null) is empty.
struct WeightsCodec {
  using Weights = std::vector<std::pair<std::string, double>>;
  std::string parse(const YamlNode& node, Weights& value) const;
  std::string text(const Weights& value) const;
  std::string type() const { return "mapping of sources to numbers, or null"; }
};

// "; write null" where a scalar that was refused is a word by which people mean nothing (none, off ...), or leave the
// value to a program that finds one (auto, dynamic ...) where this key has a word for that; "; did you mean auto?"
// where it is nearly that word; else empty.
std::string nothing_hint(const YamlNode& node, std::string_view nothing);

// `null` always means nothing; `word` ("auto", "dynamic") does too where it is not empty.
template <class Codec>
struct OptionalCodec {
  Codec codec;
  std::string_view word;

  template <class Value>
  std::string parse(const YamlNode& node, std::optional<Value>& value) const {
    const bool is_word = !word.empty() && node.kind == YamlNode::Kind::scalar && !node.is_quoted && node.text == word;
    if (node.kind == YamlNode::Kind::null || is_word) {
      value.reset();
      return {};
    }
    Value inner{};
    std::string problem = codec.parse(node, inner);
    if (problem.empty()) value = std::move(inner);
    return problem.empty() ? problem : problem + nothing_hint(node, nothing());
  }
  template <class Value>
  std::string text(const std::optional<Value>& value) const {
    return value ? codec.text(*value) : nothing();
  }
  std::string type() const { return codec.type() + " or " + nothing(); }
  std::string nothing() const { return word.empty() ? "null" : std::string(word); }
};

}  // namespace scaletrain
