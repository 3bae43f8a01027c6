// The three kinds of unit. Internal to nn: the Transformer makes them.
#pragma once

#include <memory>

#include "nn/unit.h"

namespace scaletrain {

// spec: the whole model's.
std::unique_ptr<Unit> make_embedding(const ModelSpec& spec, const TensorPart& part);
std::unique_ptr<Unit> make_block(const ModelSpec& spec, const TensorPart& part, std::int64_t layer,
                                 RecomputeKind recompute, const ScratchRows& scratch_rows,
                                 const AttentionWorkspace& attention_workspace);
std::unique_ptr<Unit> make_head(const ModelSpec& spec, const TensorPart& part, RecomputeKind recompute,
                                const ScratchRows& scratch_rows);

}  // namespace scaletrain
