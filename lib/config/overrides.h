// --set key=value.
#pragma once

#include <string>
#include <vector>

#include "config/diagnostics.h"
#include "config/yaml/yaml_tree.h"

namespace scaletrain {

// Puts the overrides into the tree in their order, the later over the earlier. A key is a dotted path, list items by
// number from 0 (data.train.0.path or data.train[0].path). The value is YAML; a mapping goes key by key into a mapping
// that is there, anything else replaces. Whether the keys exist is for the reader of the tree to say.
void apply_overrides(YamlNode& root, const std::vector<std::string>& overrides, Diagnostics& diagnostics);

}  // namespace scaletrain
