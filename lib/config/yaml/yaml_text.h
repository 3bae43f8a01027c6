// Text as a YAML scalar that parse_yaml reads back.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain {

// Plain where no reader could take it for anything but this text, else in double quotes. "${" is written "$${", so that
// it survives the expansion of environment variables. One line, also inside a flow list.
std::string yaml_scalar(std::string_view text);

}  // namespace scaletrain
