// Where every activation of one pipeline stage lies: offsets into one arena, the same at every step. Pure values.
//
// Held per in-flight micro-batch and chunk (an activation buffer): each unit's saved region, each unit's output (the
// next unit's input), the micro-batch's ids, targets, positions and documents. From pools: what arrives from the
// virtual stage before (until the backward has used it), gradients that arrive, gradients on their way out. Held once:
// two gradient buffers that units hand to each other, work regions from backward_input to backward_weight, scratch (in
// which units compute again what they do not save). How many of each: counted by walking the stage's schedule. Receives
// are posted ahead (order_of_execution): that takes a buffer of a pool, a hidden bundle; the buffer, many times larger,
// is taken only by the forward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/transformer.h"
#include "parallel/schedule/execution.h"

namespace scaletrain {

struct ArenaRange {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

// Regions of one unit in one buffer.
struct UnitBuffers {
  ArenaRange saved;
  ArenaRange output;  // empty for the head
};

struct ActivationPlan {
  BatchShape shape;
  Shape bundle;  // of every hidden bundle, as this rank holds it
  std::int64_t num_buffers = 0;
  std::vector<std::vector<int>> chunks;           // [chunk] the units of each of the stage's model chunks, in order
  std::vector<std::int64_t> chunk_of_buffer;      // [buffer] ascending: a buffer serves micro-batches of one chunk
  std::vector<std::vector<UnitBuffers>> buffers;  // [buffer][index into the chunk's units]
  // [buffer] ids, targets, positions and, where attention stays within documents, their starts: an i32 per token each
  std::vector<ArenaRange> batches;
  DocumentAttention document_attention = DocumentAttention::across;
  bool has_samples = false;  // batches end with the numbers of their samples, an i64 each: of a model with dropout
  // Hidden bundles of the virtual stage before, from the posted receive until the backward (an evaluation: the forward)
  // has used them; none on a stage that holds the model's first chunk only.
  std::vector<ArenaRange> inputs;
  ArenaRange gradients[2];
  std::vector<ArenaRange> gradient_inputs;   // received output-gradients; none where nothing is received
  std::vector<ArenaRange> gradient_outputs;  // input-gradients until they are sent
  // For each weight work held at once a region for each unit of a chunk, in order, as large as the largest unit's in
  // that place of any chunk; none where the schedule does not split the backward.
  std::vector<ArenaRange> work;
  ArenaRange scratch;
  std::size_t arena_bytes = 0;
  // By purpose, for the memory plan.
  std::size_t saved_bytes = 0;
  std::size_t boundary_bytes = 0;
  std::size_t batch_bytes = 0;
  std::size_t work_total_bytes = 0;
};

// `chunks`: the model's units, as the stage's chunks hold them. A chunk has as many buffers as it ever has
// micro-batches in flight, at least one.
//
// first_trained: no backward goes through the units before that one, so that nothing is kept of them: they share one
// saved region, and hand their outputs on through two by turns, but for what the first trained unit or the next stage
// gets.
ActivationPlan make_activation_plan(const Transformer& model, std::vector<std::vector<int>> chunks,
                                    const BatchShape& shape, DType compute, const ScheduleDepth& depth,
                                    DocumentAttention document_attention = DocumentAttention::across,
                                    int first_trained = 0);

// For a model that is only evaluated, on one stage: nothing is kept for a backward, so all units share one saved region
// and hand their outputs on through two by turns. No gradients, no work; one buffer.
ActivationPlan make_forward_plan(const Transformer& model, const BatchShape& shape, DType compute,
                                 DocumentAttention document_attention = DocumentAttention::across);

// How many i32 a token of a micro-batch takes.
std::int64_t num_batch_tensors(DocumentAttention document_attention);

}  // namespace scaletrain
