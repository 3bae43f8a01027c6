// YAML text as a tree whose every node knows its place. Stricter than YAML: no anchors, aliases, tags, merge keys,
// directives, duplicate keys, keys that are not text, or second documents; a quoted text ends on the line it begins on.
// Bounded: 1 MiB, 64 levels, 100,000 values, each checked before memory of that size is taken.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/diagnostics.h"

namespace scaletrain {

constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;
constexpr int kMaxYamlDepth = 64;
constexpr int kMaxYamlTokens = 100000;  // yaml-cpp queues a whole flow list before it returns the first token

struct YamlEntry;

struct YamlNode {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  Place place;
  std::string text;                // scalar
  bool is_quoted = false;          // scalar: stood in quotes, so it is text and nothing else
  bool is_broken = false;          // reported already; whoever reads the value stays silent
  std::vector<YamlNode> items;     // list
  std::vector<YamlEntry> entries;  // map, in the order of the file, keys unique
};

struct YamlEntry {
  std::string key;
  Place key_place;
  YamlNode value;
};

// The value under a key of a map, or null.
const YamlNode* find_child(const YamlNode& node, std::string_view key);

// The tree of a text, or nothing if something was added to `diagnostics`. Never throws for what the text holds.
std::optional<YamlNode> parse_yaml(std::string_view text, int source, Diagnostics& diagnostics);

// The wall before the parser: a lexical pass in linear time and constant memory. Returns where the innermost bracket
// that is never closed was opened, if any, for a better place than the parser's. Adds to `diagnostics` what must not be
// parsed.
struct YamlScan {
  bool is_clean = true;
  std::optional<Place> open_bracket;
};
YamlScan scan_yaml(std::string_view text, int source, Diagnostics& diagnostics);

}  // namespace scaletrain
