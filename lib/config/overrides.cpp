#include "config/overrides.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "config/keys/keys.h"
#include "config/keys/number_text.h"

namespace scaletrain {

namespace {

// Every place inside an override is the override itself: a column in a shell word helps nobody.
void set_places(YamlNode& node, Place place) {
  node.place = place;
  for (YamlNode& item : node.items) set_places(item, place);
  for (YamlEntry& entry : node.entries) {
    entry.key_place = place;
    set_places(entry.value, place);
  }
}

void merge(YamlNode& target, YamlNode value) {
  if (target.kind != YamlNode::Kind::map || value.kind != YamlNode::Kind::map || value.entries.empty()) {
    target = std::move(value);
    return;
  }
  for (YamlEntry& entry : value.entries) {
    const auto found = std::find_if(target.entries.begin(), target.entries.end(),
                                    [&](const YamlEntry& present) { return present.key == entry.key; });
    if (found == target.entries.end()) {
      target.entries.push_back(std::move(entry));
    } else {
      found->key_place = entry.key_place;
      merge(found->value, std::move(entry.value));
    }
  }
}

// The child that a path component names, made if it is a new key. Returns nothing after reporting.
YamlNode* step_into(YamlNode& node, const std::string& name, const std::string& path, Place place,
                    Diagnostics& diagnostics) {
  if (node.kind == YamlNode::Kind::list) {
    const bool is_number = std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    const auto index = is_number ? parse_integer(name) : std::nullopt;
    if (!index || *index >= static_cast<std::int64_t>(node.items.size())) {
      diagnostics.add(place, fmt::format("{} has {}; {} is none of them (they count from 0)", path,
                                         counted(node.items.size(), "item"), quoted(name)));
      return nullptr;
    }
    return &node.items[static_cast<std::size_t>(*index)];
  }
  if (node.kind != YamlNode::Kind::map) {
    node = YamlNode();
    node.kind = YamlNode::Kind::map;
    node.place = place;
  }
  const auto found = std::find_if(node.entries.begin(), node.entries.end(),
                                  [&](const YamlEntry& present) { return present.key == name; });
  if (found != node.entries.end()) return &found->value;
  YamlNode fresh;
  fresh.place = place;
  node.entries.push_back({name, place, std::move(fresh)});
  return &node.entries.back().value;
}

// A list item in the notation of the messages, data.train.0.path, where it is written data.train[0].path.
std::string with_dotted_indices(std::string_view key) {
  std::string out;
  for (std::size_t i = 0; i < key.size(); ++i) {
    const std::size_t end = key.find_first_not_of("0123456789", i + 1);
    if (key[i] == '[' && i > 0 && end != std::string_view::npos && end > i + 1 && key[end] == ']') {
      out.append(".").append(key.substr(i + 1, end - i - 1));
      i = end;
    } else {
      out += key[i];
    }
  }
  return out;
}

void apply_override(YamlNode& root, const std::string& text, Place place, Diagnostics& diagnostics) {
  constexpr const char* example = "write it like --set train.steps=100";
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return diagnostics.add(place, fmt::format("no '=' after the key; {}", example));
  const std::string key = with_dotted_indices(std::string_view(text).substr(0, equals));
  const std::vector<std::string> names = split_text(key, '.');
  const bool has_empty = std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); });
  if (names.empty() || has_empty || names.size() > static_cast<std::size_t>(kMaxYamlDepth) || first_invalid_utf8(key))
    return diagnostics.add(place, fmt::format("{} is no key; {}", quoted(key), example));
  if (key.find("[]") != std::string::npos)
    return diagnostics.add(place,
                           fmt::format("{} names no item; write its number, as in data.train.0.path", quoted(key)));
  if (text.find_first_not_of(" \t", equals + 1) == std::string::npos)
    return diagnostics.add(
        place, fmt::format("nothing behind the '='; write a value (null: none, \"\": empty text), or leave {} out",
                           quoted(key)));

  Diagnostics inner("", {});
  auto value = parse_yaml(std::string_view(text).substr(equals + 1), 0, inner);
  if (!value || !inner.empty()) {
    const std::string report = inner.report();
    const std::size_t newline = report.find('\n');
    const std::string first = report.substr(0, newline);
    // ":1:5: message": the column counts in the value, not in the word the user typed.
    const std::size_t message = first.find(": ");
    return diagnostics.add(place, fmt::format("the value is not readable: {}", first.substr(message + 2)));
  }
  set_places(*value, place);
  YamlNode* node = &root;
  std::string path;
  for (const std::string& name : names) {
    node = step_into(*node, name, path, place, diagnostics);
    if (node == nullptr) return;
    path += (path.empty() ? "" : ".") + name;
  }
  if (is_ordered_mapping(path)) {
    *node = std::move(*value);
  } else {
    merge(*node, std::move(*value));
  }
}

}  // namespace

void apply_overrides(YamlNode& root, const std::vector<std::string>& overrides, Diagnostics& diagnostics) {
  for (std::size_t i = 0; i < overrides.size(); ++i)
    apply_override(root, overrides[i], {static_cast<int>(i) + 1, 1, 1}, diagnostics);
}

}  // namespace scaletrain
