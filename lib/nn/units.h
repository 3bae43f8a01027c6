// The three kinds of unit. Internal to nn: the Transformer makes them.
#pragma once

#include <memory>

#include "nn/unit.h"

namespace scaletrain {

std::unique_ptr<Unit> make_embedding(const ModelSpec& spec);
std::unique_ptr<Unit> make_block(const ModelSpec& spec, std::int64_t layer);
std::unique_ptr<Unit> make_head(const ModelSpec& spec);

}  // namespace scaletrain
