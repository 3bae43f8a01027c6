// Inference one token after the other, with the keys and values of the past kept: for generation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nn/transformer.h"

namespace scaletrain {

// The keys and values of a batch of sequences, each of at most `context` tokens and at a length of its own. Of a layer
// with a window those that it sees are kept, and some hundreds more. Uses the backend and store it was made with; not
// thread-safe.
//
// A sequence's logits do not depend on which others are in the batch, to the bit on the reference and the cpu backend:
// products of few rows are computed row by row there, and a step never multiplies more rows at once. They do depend on
// how its tokens are cut into calls of append() and step(), by rounding.
class Decoder {
 public:
  // std::bad_alloc where the memory for the batch's keys and values, cache_bytes(), is not to be had.
  Decoder(const Transformer& model, Backend& backend, Stream& stream, ParamStore& store, std::int64_t context,
          std::int64_t sequences = 1);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  static std::size_t cache_bytes(const ModelSpec& spec, DType compute, std::int64_t context, std::int64_t sequences);

  // Appends tokens (each in [0, V)) to a sequence and returns the logits [V] that follow the last one, valid until the
  // next call. More tokens than the context holds is a bug of the caller.
  std::span<const float> append(std::int64_t sequence, std::span<const std::int32_t> tokens);
  std::span<const float> append(std::span<const std::int32_t> tokens) { return append(0, tokens); }

  // One token more for each of some sequences, which differ. Returns the logits [n,V] that follow, in their order,
  // valid until the next call.
  struct Step {
    std::int64_t sequence = 0;
    std::int32_t token = 0;
  };
  std::span<const float> step(std::span<const Step> steps);

  // `to` becomes what `from` is.
  void copy_sequence(std::int64_t from, std::int64_t to);
  // Forgets all but the first `length` tokens of a sequence, and returns how many are left: all of these, or none where
  // windows have let go of what the tokens behind them would see. The last 256 can always be forgotten.
  std::int64_t truncate(std::int64_t sequence, std::int64_t length);
  void reset(std::int64_t sequence = 0) { truncate(sequence, 0); }
  std::int64_t length(std::int64_t sequence = 0) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
