// Micro-batches: what is read of a sample, and what for.
#include "data/batch.h"

#include <doctest/doctest.h>

#include <vector>

using namespace scaletrain;

namespace {

constexpr std::int64_t context = 3;

// Sample s: inputs 10 s + 0 1 2, targets one more, the last one masked.
struct CountingReader {
  void operator()(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                  std::vector<std::int32_t>& starts) {
    for (std::int32_t i = 0; i < context; ++i) {
      inputs[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(10 * sample) + i;
      targets[static_cast<std::size_t>(i)] = i + 1 == context ? -1 : inputs[static_cast<std::size_t>(i)] + 1;
    }
    starts = {0};
    ++*reads;
  }
  int* reads;
};

using Tensor = std::vector<std::int32_t>;

}  // namespace

TEST_CASE("what_is_wanted_of_a_batch_is_the_same_whether_the_rest_is_wanted_or_not") {
  const std::vector<std::int64_t> samples = {4, 1};
  const Tensor ids = {40, 41, 42, 10, 11, 12, 0, 0, 0};
  const Tensor targets = {41, 42, -1, 11, 12, -1, -1, -1, -1};
  const Tensor positions = {0, 1, 2, 0, 1, 2, 0, 1, 2};
  for (const bool wants_ids : {true, false}) {
    for (const bool wants_targets : {true, false}) {
      CAPTURE(wants_ids);
      CAPTURE(wants_targets);
      Tensor own_ids(wants_ids ? 9 : 0, 77);
      Tensor own_targets(wants_targets ? 9 : 0, 77);
      Tensor own_positions(9, 77);
      int reads = 0;
      const std::int64_t unmasked =
          fill_batch(samples, context, CountingReader{&reads}, {own_ids, own_targets, own_positions});
      CHECK(unmasked == (wants_targets ? 4 : 0));
      CHECK(own_ids == (wants_ids ? ids : Tensor()));
      CHECK(own_targets == (wants_targets ? targets : Tensor()));
      CHECK(own_positions == positions);
      CHECK(reads == (wants_ids || wants_targets ? 2 : 0));
    }
  }
}

TEST_CASE("positions_begin_again_with_each_document_where_documents_are_told_apart") {
  constexpr std::int64_t length = 6;
  const std::vector<std::vector<std::int32_t>> starts_of = {{0}, {0, 2, 3}, {0, 5}};
  const SampleReader read = [&](std::int64_t sample, std::span<std::int32_t>, std::span<std::int32_t>,
                                std::vector<std::int32_t>& starts) {
    starts = starts_of[static_cast<std::size_t>(sample)];
  };
  // One more row than there are samples.
  Tensor positions(4 * length, 77);
  Tensor document_start(4 * length, 77);
  fill_batch(std::vector<std::int64_t>{0, 1, 2}, length, read,
             {.ids = {}, .targets = {}, .positions = positions, .document_start = document_start});
  CHECK(positions == Tensor{0, 1, 2, 3, 4, 5, 0, 1, 0, 0, 1, 2, 0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5});
  CHECK(document_start == Tensor{0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 3, 3, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0});
}
