// Words of a command line that a message tells to type.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain {

// As a shell takes it: in quotes where it must be.
std::string shell_word(std::string_view text);

}  // namespace scaletrain
