// One micro-batch in the caller's memory: samples one after the other, as the model reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace scaletrain {

// Each has samples · context elements, but for what a line says; all but positions may be empty instead: not wanted.
struct BatchTensors {
  std::span<std::int32_t> ids;
  std::span<std::int32_t> targets;    // -1: masked
  std::span<std::int32_t> positions;  // within the sample or, with document_start, within the token's document
  // Where in the sample the token's document begins; empty: documents are not told apart.
  std::span<std::int32_t> document_start = {};
  std::span<std::int64_t> samples = {};  // an element for each sample: its number; -1 where there is none
};

// Reads one sample: (index, inputs, targets, document starts), as TrainingData and ValidationSet do.
using SampleReader =
    std::function<void(std::int64_t, std::span<std::int32_t>, std::span<std::int32_t>, std::vector<std::int32_t>&)>;

// Fills the tensors with the given samples; a micro-batch with fewer samples than it has room for (the last of a
// validation set) is filled up with masked rows of token 0, each one document. Reads nothing where only positions are
// wanted. Returns the number of unmasked targets, 0 where they are not wanted.
std::int64_t fill_batch(std::span<const std::int64_t> samples, std::int64_t context, const SampleReader& read,
                        const BatchTensors& batch);

}  // namespace scaletrain
