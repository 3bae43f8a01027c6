#include "config/environment.h"

#include <fmt/core.h>

#include <cstdlib>
#include <string>

#include "base/text.h"

namespace scaletrain {

namespace {

constexpr std::size_t kMaxExpandedBytes = 65536;  // no value needs more, and no memory is lost to a thousand ${X}${X}

bool is_name(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  for (const char c : name) {
    const bool is_fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!is_fine) return false;
  }
  return true;
}

// Returns an error message, or empty.
std::string expand_text(YamlNode& node, const EnvironmentLookup& environment) {
  const std::string_view text = node.text;
  std::string out;
  bool has_variable = false;
  for (std::size_t i = 0; i < text.size();) {
    if (text.substr(i).starts_with("$${")) {
      out += "${";
      i += 3;
      continue;
    }
    if (!text.substr(i).starts_with("${")) {
      out += text[i++];
      continue;
    }
    const std::size_t close = text.find('}', i);
    if (close == std::string_view::npos) return "${ without }; a variable is written ${NAME}, a literal ${ as $${";
    const std::string name(text.substr(i + 2, close - i - 2));
    if (!is_name(name))
      return fmt::format("{} is no name of an environment variable; only ${{NAME}} is known", quoted(name));
    const auto value = environment(name);
    if (!value) return fmt::format("environment variable {} is not set; set it or write the value out", quoted(name));
    out += *value;
    if (out.size() > kMaxExpandedBytes)
      return fmt::format("longer than {} bytes after ${{{}}} is put in", kMaxExpandedBytes, name);
    has_variable = true;
    i = close + 1;
  }
  if (first_invalid_utf8(out)) return "not valid UTF-8 after environment variables are put in";
  node.text = std::move(out);
  if (has_variable) {
    node.is_quoted = false;
    if (node.text == "null" || node.text == "~") node.kind = YamlNode::Kind::null;
  }
  return {};
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
  if (value == nullptr) return std::nullopt;
  return value;
}

void expand_environment(YamlNode& node, const EnvironmentLookup& environment, Diagnostics& diagnostics) {
  if (node.kind == YamlNode::Kind::scalar && node.text.find("${") != std::string::npos) {
    const std::string problem = expand_text(node, environment);
    if (!problem.empty()) {
      diagnostics.add(node.place, problem);
      node.is_broken = true;
    }
  }
  for (YamlNode& item : node.items) expand_environment(item, environment, diagnostics);
  for (YamlEntry& entry : node.entries) expand_environment(entry.value, environment, diagnostics);
}

}  // namespace scaletrain
