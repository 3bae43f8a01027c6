// The element types of the reference: T is the compute type.
#pragma once

#include <type_traits>

#include "tensor/dtype.h"

namespace scaletrain::reference {

// Statistics, gradients of parameters, masters and optimizer state: f32 under every compute type but f64.
template <class T>
using Master = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace scaletrain::reference
