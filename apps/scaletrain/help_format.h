// How --help looks: options and their meanings in two columns, no line longer than help_width.
#pragma once

#include <memory>

namespace CLI {
class FormatterBase;
}

namespace scaletrain {

inline constexpr unsigned help_width = 80;  // columns, which any terminal has

std::shared_ptr<CLI::FormatterBase> make_help_format();

}  // namespace scaletrain
