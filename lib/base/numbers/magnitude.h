// Numbers of which people want the size, not the digits.
#pragma once

#include <string>

namespace scaletrain {

// In three digits: "812", "124M", "15.0T", what is less than a hundred with as many of a fraction as there are:
// "0.0351"; from a quadrillion on "3.15e+23". "unknown" for what is no count.
std::string short_count(double value);

}  // namespace scaletrain
