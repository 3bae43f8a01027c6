// Attention in blocks of queries and keys: scores never exist as a whole, only one block of them per thread (Dao 2023,
// "FlashAttention-2").
#pragma once

#include <cstddef>

#include "backend/cpu/half_products.h"
#include "backend/cpu/thread_pool.h"
#include "backend/operations.h"

namespace scaletrain::cpu {

// Floats: by panels where the engine has them and more than a few queries read keys, else by products of oneDNN. The
// engine's scratch has pieces of tile_scratch_bytes<float>.
void attention_forward(ThreadPool& pool, const Engine<float>& engine, const AttentionForward& op);
void attention_backward(ThreadPool& pool, const Engine<float>& engine, const AttentionBackward& op);

// Halves: by panels, or with blocks of them turned into floats where the processor has none. Probabilities and the
// gradients of scores are rounded to S where panels are multiplied. Heads of more than 1024 halves are a bug of the
// caller.
template <class S>
void attention_forward(ThreadPool& pool, const Engine<S>& engine, const AttentionForward& op);
template <class S>
void attention_backward(ThreadPool& pool, const Engine<S>& engine, const AttentionBackward& op);

// Whether floats are computed that way too, by attention_forward<float> and attention_backward<float>.
bool has_tiles(const Engine<float>& engine, const AttentionShape& shape);

}  // namespace scaletrain::cpu
