// Text without white space around it, as Python's str.strip() and str.rstrip() see it: what templates and harnesses in
// Python do to text that a model is then given.
#pragma once

#include <string_view>

namespace scaletrain {

// Any bytes; what is no UTF-8 is no white space.
std::string_view python_strip(std::string_view text);
std::string_view python_rstrip(std::string_view text);

}  // namespace scaletrain
