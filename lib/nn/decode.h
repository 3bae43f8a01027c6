// Inference one token after the other, with the keys and values of the past kept: for generation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/transformer.h"

namespace scaletrain {

// The keys and values of one sequence, at most `context` tokens. Uses the backend and store it was made with; not
// thread-safe.
class Decoder {
 public:
  Decoder(const Transformer& model, Backend& backend, Stream& stream, ParamStore& store, std::int64_t context);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Appends tokens (each in [0, V)) and returns the logits [V] that follow the last one, valid until the next call.
  // More tokens than the context holds is a bug of the caller.
  std::span<const float> append(std::span<const std::int32_t> tokens);
  std::int64_t length() const;
  void reset();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
