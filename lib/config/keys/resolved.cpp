// A Config as YAML.
#include <string>
#include <vector>

#include "base/text.h"
#include "config/keys/key_table.h"
#include "config/load.h"

namespace scaletrain {

std::string resolved_yaml(const Config& config) {
  std::string out;
  std::vector<std::string> open;  // the sections that the last line stood in
  for (const Key<Config>& key : config_table()) {
    const std::vector<std::string> names = split_text(key.info.path, '.');
    std::size_t common = 0;
    while (common < open.size() && common + 1 < names.size() && open[common] == names[common]) ++common;
    open.resize(common);
    for (; open.size() + 1 < names.size(); open.push_back(names[open.size()]))
      out += std::string(2 * open.size(), ' ') + names[open.size()] + ":\n";
    const std::string indent(2 * open.size(), ' ');
    const std::vector<std::string> items = key.write_items ? key.write_items(config) : std::vector<std::string>();
    if (items.empty()) {
      out += indent + names.back() + ": " + key.write(config) + "\n";
      continue;
    }
    out += indent + names.back() + ":\n";
    for (const std::string& item : items) out.append(indent).append("  - ").append(item).append("\n");
  }
  return out;
}

}  // namespace scaletrain
