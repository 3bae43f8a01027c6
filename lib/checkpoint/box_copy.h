// Boxes of row-major tensors: intersection, and the contiguous stretches that two boxes share. Pure arithmetic.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "parallel/param_table.h"
#include "tensor/shape.h"

namespace scaletrain {

// [0, shape) in every dim.
Box whole_box(const Shape& shape);
Shape shape_of_box(const Box& box);
std::string to_text(const Box& box);                       // "[0:4, 8:16]"
bool meet(const Box& a, const Box& b);                     // whether they share an element
std::optional<Box> intersect(const Box& a, const Box& b);  // nothing if they share no element

// Calls visit(source_element, target_element, count) for every stretch of `part` that is contiguous in both of the
// row-major boxes `source` and `target`, which contain it. Source elements ascend.
using RunVisitor = std::function<void(std::int64_t source, std::int64_t target, std::int64_t count)>;
void for_each_run(const Box& source, const Box& target, const Box& part, const RunVisitor& visit);

}  // namespace scaletrain
