#include "config/keys/key_codecs.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "config/keys/number_text.h"
#include "config/yaml/yaml_text.h"

namespace scaletrain {

namespace {

constexpr std::size_t kMaxTextBytes = 4096;  // the longest path that Linux takes

bool is_plain(const YamlNode& node) {
  return node.kind == YamlNode::Kind::scalar && !node.is_quoted;
}

std::string expected(std::string_view what, const YamlNode& node) {
  const bool is_quoted_number =
      node.kind == YamlNode::Kind::scalar && node.is_quoted && (parse_number(node.text) || parse_duration(node.text));
  return fmt::format("expected {}, found {}{}", what, describe(node),
                     is_quoted_number ? " in quotes; remove the quotes" : "");
}

char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
char to_upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

bool is_word_of(const YamlNode& node, std::initializer_list<std::string_view> words) {
  if (!is_plain(node)) return false;
  std::string lower = node.text.substr(0, 16);
  std::transform(lower.begin(), lower.end(), lower.begin(), to_lower);
  return std::find(words.begin(), words.end(), lower) != words.end();
}

// Numbers as other programs write them: 1_000, 1,000, 10k, 4ki.
template <class Parse>
std::string number_hint(const YamlNode& node, Parse parse) {
  if (node.kind != YamlNode::Kind::scalar || node.text.size() > 40) return {};
  std::string ours;
  for (const char c : node.text) {
    if (c != '_' && c != ',' && c != '\'') ours += c;
  }
  const std::size_t letter = ours.find_last_of("0123456789") + 1;
  if (letter < ours.size()) ours[letter] = to_upper(ours[letter]);
  return ours != node.text && parse(ours) ? "; write " + ours : "";
}

std::string out_of_range(std::string_view found, std::string_view allowed) {
  return fmt::format("{} is out of range; expected {}", found, allowed);
}

// The text of a scalar that a key takes as text; empty problem if it is fine.
std::string check_text(const YamlNode& node, TextRule rule) {
  if (node.kind != YamlNode::Kind::scalar) return expected("text", node);
  if (node.text.empty() && rule != TextRule::may_be_empty) return "expected text, found empty text";
  if (node.text.size() > kMaxTextBytes)
    return fmt::format("{} bytes of text; at most {} are allowed", node.text.size(), kMaxTextBytes);
  if (first_invalid_utf8(node.text)) return "text that is not valid UTF-8 after its escapes";
  for (const char c : node.text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && byte != '\t') || byte == 0x7F)
      return fmt::format("a control byte 0x{:02x} (a line break, perhaps) in text that is one line", byte);
  }
  if (rule == TextRule::plain_name && !is_plain_file_name(node.text))
    return fmt::format("expected a plain name without '/', found {}", describe(node));
  return {};
}

// The choice that people know by another name, or by one a slip away.
std::optional<std::string> meant_choice(const std::string& text, std::span<const std::string> choices) {
  using Name = std::pair<std::string_view, std::string_view>;  // theirs, ours
  constexpr std::array<Name, 21> names = {{{"zero-bubble", "zb-h1"},
                                           {"zero-bubble-h1", "zb-h1"},
                                           {"zerobubble", "zb-h1"},
                                           {"zb", "zb-h1"},
                                           {"zb1", "zb-h1"},
                                           {"pipedream", "1f1b"},
                                           {"pipedream-flush", "1f1b"},
                                           {"dapple", "1f1b"},
                                           {"vpp", "interleaved"},
                                           {"virtual-pipeline", "interleaved"},
                                           {"bfloat16", "bf16"},
                                           {"float16", "fp16"},
                                           {"half", "fp16"},
                                           {"f16", "fp16"},
                                           {"float32", "fp32"},
                                           {"float", "fp32"},
                                           {"f32", "fp32"},
                                           {"gpu", "cuda"},
                                           {"silu", "swiglu"},
                                           {"adam", "adamw"},
                                           {"rotary", "rope"}}};
  std::string plain = text.substr(0, 40);
  std::transform(plain.begin(), plain.end(), plain.begin(), [](char c) { return c == '_' ? '-' : to_lower(c); });
  const auto known = std::find_if(names.begin(), names.end(), [&plain, choices](const Name& name) {
    return name.first == plain && std::find(choices.begin(), choices.end(), name.second) != choices.end();
  });
  return known == names.end() ? nearest_word(text, choices) : std::string(known->second);
}

}  // namespace

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "nothing (null)";
    case YamlNode::Kind::list:
      return "a list";
    case YamlNode::Kind::map:
      return "a mapping";
    case YamlNode::Kind::scalar:
      break;
  }
  if (!node.is_quoted && parse_number(node.text)) return "the number " + node.text.substr(0, 80);
  return "text " + quoted(node.text);
}

std::string IntegerCodec::parse(const YamlNode& node, std::int64_t& value) const {
  const auto number = is_plain(node) ? parse_integer(node.text) : std::nullopt;
  if (!number) return expected("an integer", node) + number_hint(node, parse_integer);
  if (*number < least || *number > most) {
    return out_of_range(node.text,
                        *number < least ? fmt::format("at least {}", least) : fmt::format("at most {}", most));
  }
  value = *number;
  return {};
}

std::string SeedCodec::parse(const YamlNode& node, std::uint64_t& value) const {
  if (is_plain(node)) {
    const std::string& text = node.text;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool has_leading_zero = text.size() > 1 && text[0] == '0';
    if (error == std::errc() && end == text.data() + text.size() && !has_leading_zero) return {};
  }
  return expected("an integer from 0 to 18446744073709551615", node);
}

std::string NumberCodec::parse(const YamlNode& node, double& value) const {
  const auto number = is_plain(node) ? parse_number(node.text) : std::nullopt;
  if (!number) return expected("a number", node) + number_hint(node, parse_number);
  const bool is_low = *number < least || (bounds == Bounds::open_below && *number <= least);
  const bool is_high = *number > most || (bounds == Bounds::open_above && *number >= most);
  if (is_low)
    return out_of_range(node.text.substr(0, 80),
                        fmt::format("{} {}", bounds == Bounds::open_below ? "more than" : "at least", least));
  if (is_high)
    return out_of_range(node.text.substr(0, 80),
                        fmt::format("{} {}", bounds == Bounds::open_above ? "less than" : "at most", most));
  value = *number;
  return {};
}

std::string NumberCodec::text(double value) const {
  return number_text(value);
}

std::string ShareCodec::parse(const YamlNode& node, double& value) const {
  YamlNode number = node;
  const bool is_percent = node.kind == YamlNode::Kind::scalar && !node.is_quoted && node.text.ends_with('%');
  if (is_percent) number.text.resize(number.text.find_last_not_of(" \t", number.text.size() - 2) + 1);
  double read = 0.0;
  const std::string problem = NumberCodec().parse(number, read);
  if (is_percent) read /= 100.0;
  if (!problem.empty() || !(read > 0.0 && read < 1.0))
    return "expected a share between nothing and all, such as 1% or 0.01, found " + describe(node);
  value = read;
  return {};
}

std::string ShareCodec::text(double value) const {
  return NumberCodec().text(value);
}

std::string DurationCodec::parse(const YamlNode& node, double& value) const {
  const auto seconds = is_plain(node) ? parse_duration(node.text) : std::nullopt;
  if (!seconds) return expected("a time such as 90s, 30m or 2h", node);
  if (*seconds <= 0) return out_of_range(node.text.substr(0, 80), "more than 0s");
  value = *seconds;
  return {};
}

std::string DurationCodec::text(double value) const {
  return number_text(value) + "s";
}

std::string BoolCodec::parse(const YamlNode& node, bool& value) const {
  if (is_plain(node) && (node.text == "true" || node.text == "false")) {
    value = node.text == "true";
    return {};
  }
  const bool is_yes = is_word_of(node, {"yes", "y", "on", "true", "1"});
  const bool is_no = is_word_of(node, {"no", "n", "off", "false", "0"});
  return expected("true or false", node) + (is_yes ? "; write true" : is_no ? "; write false" : "");
}

std::string nothing_hint(const YamlNode& node, std::string_view nothing) {
  const bool is_meant = is_word_of(node, {"none", "null", "nil", "nothing", "no", "off", "false", "never"}) ||
                        (nothing != "null" && is_word_of(node, {"auto", "automatic", "default", "dynamic"}));
  if (is_meant) return fmt::format("; write {}", nothing);
  const std::array<std::string, 1> words{std::string(nothing)};
  const bool is_near =
      nothing != "null" && node.kind == YamlNode::Kind::scalar && meant_choice(node.text, words).has_value();
  return is_near ? fmt::format("; did you mean {}?", nothing) : "";
}

std::string TextCodec::parse(const YamlNode& node, std::string& value) const {
  std::string problem = check_text(node, rule);
  if (problem.empty()) value = node.text;
  return problem;
}

std::string TextCodec::text(const std::string& value) const {
  return yaml_scalar(value);
}

std::string parse_choice(const YamlNode& node, const Choices& choices, std::size_t& index) {
  const auto is_supported = [&choices](const std::string& word) {
    return std::find(choices.not_yet.begin(), choices.not_yet.end(), word) == choices.not_yet.end();
  };
  std::string offered(choices.besides);
  for (const std::string& word : choices.words)
    if (is_supported(word)) offered += (offered.empty() ? "" : ", ") + word;
  if (node.kind != YamlNode::Kind::scalar) return expected(fmt::format("one of {}", offered), node);
  for (std::size_t i = 0; i < choices.words.size(); ++i) {
    if (node.text == choices.words[i]) {
      index = i;
      return {};
    }
  }
  std::string problem = expected(fmt::format("one of {}", offered), node);
  const auto nearest = meant_choice(node.text, choices.words);
  if (!nearest) return problem;
  return problem +
         (is_supported(*nearest) ? "; did you mean " + *nearest + "?" : "; " + *nearest + " is not supported yet");
}

std::string PresetCodec::parse(const YamlNode& node, std::string& value) const {
  std::size_t index = 0;
  std::string problem = parse_choice(node, {.words = model_preset_names()}, index);
  if (problem.empty()) value = model_preset_names()[index];
  return problem;
}

std::string PresetCodec::text(const std::string& value) const {
  return yaml_scalar(value);
}

std::string PresetCodec::type() const {
  std::string out = "one of: ";
  for (const std::string& name : model_preset_names()) out += (out.size() > 8 ? " | " : "") + name;
  return out;
}

std::string IntegerListCodec::parse(const YamlNode& node, std::vector<std::int64_t>& value) const {
  if (node.kind != YamlNode::Kind::list) return expected("a list of integers", node);
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const std::string problem = IntegerCodec{least, most}.parse(node.items[i], out.emplace_back());
    if (!problem.empty()) return fmt::format("item {}: {}", i, problem);
  }
  value = std::move(out);
  return {};
}

std::string IntegerListCodec::text(const std::vector<std::int64_t>& value) const {
  std::string out = "[";
  for (const std::int64_t item : value) out += (out.size() > 1 ? ", " : "") + std::to_string(item);
  return out + "]";
}

namespace {

std::string check_pattern(std::string_view text) {
  const bool is_one = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '*' || c == '?';
  });
  if (is_one) return {};
  return fmt::format(
      "{} is no pattern over names of parameters, which have letters, digits, dots and underscores; * "
      "stands for any characters and ? for one",
      quoted(text));
}

}  // namespace

std::string PatternListCodec::parse(const YamlNode& node, std::vector<std::string>& value) const {
  if (node.kind != YamlNode::Kind::list) return expected("a list of patterns such as [blocks.0.*]", node);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    std::string problem = TextCodec{TextRule::line}.parse(node.items[i], out.emplace_back());
    if (problem.empty()) problem = check_pattern(out.back());
    if (!problem.empty()) return fmt::format("item {}: {}", i, problem);
  }
  value = std::move(out);
  return {};
}

std::string NameListCodec::parse(const YamlNode& node, std::vector<std::string>& value) const {
  if (node.kind != YamlNode::Kind::list || node.items.empty())
    return expected("a list of names such as [q_proj, v_proj]", node);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    std::string problem = TextCodec{TextRule::line}.parse(node.items[i], out.emplace_back());
    const std::string& name = out.back();
    const auto is_of_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-'; };
    if (problem.empty() && (name.empty() || !std::all_of(name.begin(), name.end(), is_of_name)))
      problem = fmt::format("expected a name of letters, digits, '_', '.' and '-', found {}", quoted(name));
    if (!problem.empty()) return fmt::format("item {}: {}", i, problem);
    if (std::find(out.begin(), out.end() - 1, name) != out.end() - 1)
      return fmt::format("item {}: {} is there twice", i, quoted(name));
  }
  value = std::move(out);
  return {};
}

std::string FactorsCodec::parse(const YamlNode& node, Factors& value) const {
  if (node.kind != YamlNode::Kind::map) return expected("a mapping such as {blocks.0.*: 0.1}", node);
  Factors out;
  for (const YamlEntry& entry : node.entries) {
    if (std::string problem = check_pattern(entry.key); !problem.empty()) return problem;
    double factor = 0;
    const std::string problem = NumberCodec{0.0, most, bounds}.parse(entry.value, factor);
    if (!problem.empty()) return fmt::format("{}: {}", entry.key, problem);
    out.emplace_back(entry.key, factor);
  }
  value = std::move(out);
  return {};
}

std::string FactorsCodec::text(const Factors& value) const {
  std::string out = "{";
  for (const auto& [name, factor] : value)
    out +=
        fmt::format("{}{}: {}", out.size() > 1 ? ", " : "", TextCodec{TextRule::line}.text(name), number_text(factor));
  return out + "}";
}

std::string WeightsCodec::parse(const YamlNode& node, Weights& value) const {
  value.clear();
  if (node.kind == YamlNode::Kind::null) return {};
  if (node.kind != YamlNode::Kind::map) return expected("a mapping such as {web: 0.7, code: 0.3}", node);
  if (node.entries.empty()) return "is empty: name the sources that are read, or leave it out";
  Weights out;
  for (const YamlEntry& entry : node.entries) {
    double weight = 0;
    const std::string problem = NumberCodec{0.0, 1e12, Bounds::open_below}.parse(entry.value, weight);
    if (!problem.empty()) return fmt::format("{}: {}", entry.key, problem);
    out.emplace_back(entry.key, weight);
  }
  value = std::move(out);
  return {};
}

std::string WeightsCodec::text(const Weights& value) const {
  return value.empty() ? "null" : FactorsCodec{}.text(value);
}

std::string PatternListCodec::text(const std::vector<std::string>& value) const {
  std::string out = "[";
  for (const std::string& item : value) out += (out.size() > 1 ? ", " : "") + TextCodec{TextRule::line}.text(item);
  return out + "]";
}

}  // namespace scaletrain
