// Tokens to train on where their values do not matter: to measure time or memory.
#pragma once

#include <cstdint>
#include <numeric>

#include "base/numbers/philox.h"
#include "support/philox_below.h"
#include "train/step/stage_executor.h"

namespace scaletrain {

// Kernels run at the same speed whatever the tokens are: uniform ones, from a counter.
class RandomTokens final : public MicroBatchSource {
 public:
  RandomTokens(std::int64_t vocab, std::int64_t context)
      : vocab_(static_cast<std::uint64_t>(vocab)), context_(static_cast<std::size_t>(context)) {}

  Filled fill(MicroBatch, const BatchTensors& tensors) override {
    const PhiloxKey key = philox_key(1, "bench");
    for (std::int32_t& id : tensors.ids) id = static_cast<std::int32_t>(philox_below(key, counter_++, vocab_));
    for (std::int32_t& id : tensors.targets) id = static_cast<std::int32_t>(philox_below(key, counter_++, vocab_));
    for (std::size_t i = 0; i < tensors.positions.size(); ++i)
      tensors.positions[i] = static_cast<std::int32_t>(i % context_);
    std::iota(tensors.samples.begin(), tensors.samples.end(), std::int64_t{0});
    return {static_cast<std::int64_t>(tensors.targets.size())};
  }

 private:
  std::uint64_t vocab_;
  std::size_t context_;
  std::uint64_t counter_ = 0;
};

}  // namespace scaletrain
