// Numbers of which people want the size, not the digits.
#pragma once

#include <string>

namespace scaletrain {

// A count in three digits: "812", "124M", "15.0T"; from a quadrillion on "3.15e+23". "unknown" for what is no count.
std::string short_count(double value);

}  // namespace scaletrain
