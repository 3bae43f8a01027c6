// The gradients of a linear map's parameters by the products of panel_kernels.h.
#pragma once

#include "backend/cpu/half_products.h"
#include "backend/cpu/thread_pool.h"
#include "backend/operations.h"

namespace scaletrain::cpu {

// d_weight[O,I] += d_output[N,O]^T · input[N,I] and, if there is one, d_bias[O] += the sums of d_output over N, all
// summed over N in order: the bits do not depend on the number of threads. The engine has panels and shared memory. S:
// float or Bf16.
template <class S>
void add_weight_gradient(ThreadPool& pool, const Engine<S>& engine, const LinearBackwardWeight& op);

// The bias's part of it alone, if there is one, for weights that are multiplied otherwise. Any S.
template <class S>
void add_bias_gradient(ThreadPool& pool, const TypedKernels<S>& kernels, const LinearBackwardWeight& op);

}  // namespace scaletrain::cpu
