// Whether boxes tile a tensor: cover every element, and none twice. Pure arithmetic.
#pragma once

#include <span>
#include <string>

#include "parallel/param_table.h"
#include "tensor/shape.h"

namespace scaletrain {

// Empty if the boxes, which lie inside the shape, tile it; else what is wrong, for people. Takes O(n log n) for boxes
// that straight cuts through the whole tensor, then through each part, and so on, divide, as a save's do: first among
// tensor ranks, then in ranges of whole rows, then within a row. Any few hundred boxes are compared pair by pair; of
// more than that, others than those are refused, so that nobody's manifest makes this take long.
std::string tiling_problem(std::span<const Box* const> boxes, const Shape& shape);

}  // namespace scaletrain
