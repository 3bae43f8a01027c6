// Attention in blocks of queries and keys: scores never exist as a whole, only one block of them per thread (Dao 2023,
// "FlashAttention-2").
#pragma once

#include <cstddef>

#include "backend/cpu/half_products.h"
#include "backend/cpu/thread_pool.h"
#include "backend/operations.h"

namespace scaletrain::cpu {

// Scratch that one thread needs for either direction, of f32: the engine's has pool.size() pieces of it.
std::size_t attention_scratch_bytes();

void attention_forward(ThreadPool& pool, const Engine<float>& engine, const AttentionForward& op);
void attention_backward(ThreadPool& pool, const Engine<float>& engine, const AttentionBackward& op);

// Halves: Bf16 or F16. Probabilities and the gradients of scores are rounded to bf16 where the processor multiplies it.
// The engine's scratch has pieces of half_scratch_bytes. Heads of more than 1024 elements are a bug of the caller.
template <class S>
void attention_forward(ThreadPool& pool, const Engine<S>& engine, const AttentionForward& op);
template <class S>
void attention_backward(ThreadPool& pool, const Engine<S>& engine, const AttentionBackward& op);

}  // namespace scaletrain::cpu
