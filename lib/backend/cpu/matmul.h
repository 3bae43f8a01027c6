// The linear map's three products, cut into tiles of the result that threads share.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/thread_pool.h"
#include "backend/operations.h"

namespace scaletrain::cpu {

// How many columns a thread takes at a time when columns are summed over rows: whole cache lines, and some items a
// thread. Each column is summed in row order, so the choice changes no bits.
std::int64_t column_share(std::int64_t columns, int threads);

void linear_forward(ThreadPool& pool, const Kernels& kernels, const LinearForward& op);
void linear_backward_input(ThreadPool& pool, const LinearBackwardInput& op);
void linear_backward_weight(ThreadPool& pool, const Kernels& kernels, const LinearBackwardWeight& op);

}  // namespace scaletrain::cpu
