// The arithmetic of the reductions: several operands into one, each element in the order of the operands. Internal to
// the communicators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace scaletrain {

// output[i] = (operands[0][i] + operands[1][i]) + operands[2][i] ..., in the type itself (f32, f64, i64) or, for
// halves, in f32 and rounded once; likewise the maximum. The output may be one of the operands.
void reduce_in_order(DType dtype, ReduceOp op, std::span<const std::byte* const> operands, std::byte* output,
                     std::int64_t count);

}  // namespace scaletrain
