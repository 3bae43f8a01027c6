// A loss as people read it.
#pragma once

#include <string>

namespace scaletrain {

// Four decimals; from 100,000 on, where a loss is no longer of a model that learns, four digits and a power of ten.
// "nan" whatever its sign bit is, which depends on what made it.
std::string loss_text(double loss);

}  // namespace scaletrain
