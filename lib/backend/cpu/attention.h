// Attention in blocks of queries and keys: scores never exist as a whole, only one block of them per thread (Dao 2023,
// "FlashAttention-2").
#pragma once

#include <cstddef>

#include "backend/cpu/kernels.h"
#include "backend/cpu/thread_pool.h"
#include "backend/operations.h"

namespace scaletrain::cpu {

// Scratch that one thread needs for either direction.
std::size_t attention_scratch_bytes();

// scratch: pool.size() pieces of attention_scratch_bytes(), one after the other, 64-byte aligned.
void attention_forward(ThreadPool& pool, const Kernels& kernels, std::byte* scratch, const AttentionForward& op);
void attention_backward(ThreadPool& pool, const Kernels& kernels, std::byte* scratch, const AttentionBackward& op);

}  // namespace scaletrain::cpu
