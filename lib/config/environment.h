// ${NAME} in the values of a config.
#pragma once

#include "config/diagnostics.h"
#include "config/load.h"
#include "config/yaml/yaml_tree.h"

namespace scaletrain {

// Replaces ${NAME} in every scalar value (not in keys) by the environment's value, once: what comes out is not expanded
// again. $${ stands for a literal ${. An unset variable, a bad name and a missing } are errors. A plain value made by
// expansion may be a number or null like any other; one that stood in quotes may be too, since inside [ ] and { } the
// quotes are needed.
void expand_environment(YamlNode& node, const EnvironmentLookup& environment, Diagnostics& diagnostics);

}  // namespace scaletrain
