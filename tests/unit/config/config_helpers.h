// Shorthands of the config tests.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/load.h"
#include "support/text.h"

namespace scaletrain {

// What every config needs: a source and a length.
inline const std::string kLeast = "data: {train: [{path: corpus.txt}]}\ntrain: {steps: 200}\n";

inline EnvironmentLookup environment_of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

inline LoadedConfig load_text(std::string_view text, const std::vector<std::string>& overrides = {},
                              std::map<std::string, std::string> variables = {}, const LoadOptions& options = {}) {
  return parse_config(text, "c.yaml", "/base", overrides, environment_of(std::move(variables)), options);
}

// The report of a config that is refused, or "accepted".
inline std::string errors_of(std::string_view text, const std::vector<std::string>& overrides = {},
                             std::map<std::string, std::string> variables = {}) {
  const std::string errors = message_of<UserError>([&] { load_text(text, overrides, std::move(variables)); });
  return errors.empty() ? "accepted" : errors;
}

// The report for kLeast with overrides, without the "--set" lines' heads.
inline std::string override_errors(const std::vector<std::string>& overrides) {
  return errors_of(kLeast, overrides);
}

inline std::size_t line_count(std::string_view text) {
  std::size_t count = 1;
  for (const char c : text) count += c == '\n' ? 1 : 0;
  return count;
}

}  // namespace scaletrain
