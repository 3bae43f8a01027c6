#include "meant_folder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "config/config.h"
#include "config/diagnostics.h"
#include "config/environment.h"
#include "config/load.h"
#include "config/overrides.h"
#include "config/yaml/yaml_tree.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& config) {
  try {
    return read_text_file(config, kMaxConfigBytes);
  } catch (const InputError&) {
    return {};
  }
}

// The lines of the top-level section `run:`, whatever stands around them.
std::string run_section(std::string_view text) {
  std::string section;
  bool is_inside = false;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const bool is_top = !line.empty() && line.front() != ' ' && line.front() != '#' && line.front() != '\r';
    if (is_top) is_inside = line.starts_with("run:");
    if (is_inside) section.append(line).push_back('\n');
  }
  return section;
}

std::optional<std::string> readable(const YamlNode* node) {
  if (node == nullptr || node->kind != YamlNode::Kind::scalar || node->is_broken || node->text.empty() ||
      node->text.find("${") != std::string::npos)
    return std::nullopt;
  return node->text;
}

}  // namespace

std::optional<fs::path> meant_run_folder(const fs::path& config, const std::vector<std::string>& overrides) {
  Diagnostics ignored(config.string(), overrides);
  const std::string text = text_of(config);
  bool is_named = false;  // whether what is not written has its default
  std::optional<YamlNode> root = parse_yaml(text, 0, ignored);
  if (root && root->kind == YamlNode::Kind::map) {
    is_named = true;
  } else if (const std::string section = run_section(text); !section.empty()) {
    root = parse_yaml(section, 0, ignored);
    is_named = root && root->kind == YamlNode::Kind::map;
  }
  if (!root || root->kind != YamlNode::Kind::map) {
    root.emplace();
    root->kind = YamlNode::Kind::map;
  }
  apply_overrides(*root, overrides, ignored);
  expand_environment(*root, process_environment, ignored);
  const YamlNode* run = find_child(*root, "run");
  const YamlNode* directory = run == nullptr ? nullptr : find_child(*run, "directory");
  std::error_code error;
  if (directory != nullptr && directory->kind != YamlNode::Kind::null) {
    const auto written = readable(directory);
    if (!written) return std::nullopt;
    fs::path folder = fs::absolute(*written, error);
    return error ? std::nullopt : std::optional(std::move(folder));
  }
  const YamlNode* name_node = run == nullptr ? nullptr : find_child(*run, "name");
  const auto name = name_node == nullptr && is_named ? std::optional(RunConfig{}.name) : readable(name_node);
  if (!name || !is_plain_file_name(*name)) return std::nullopt;
  fs::path folder = fs::absolute(fs::path("runs") / *name, error);
  return error ? std::nullopt : std::optional(std::move(folder));
}

}  // namespace scaletrain
