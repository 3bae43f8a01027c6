#include "config/batch_ramp.h"

#include <doctest/doctest.h>

#include <vector>

using namespace scaletrain;

namespace {

TrainConfig ramp(std::int64_t from, std::int64_t by, std::int64_t steps, std::int64_t global_batch) {
  TrainConfig train;
  train.global_batch = global_batch;
  train.batch_ramp = BatchRampConfig{.from = from, .by = by, .steps = steps};
  return train;
}

std::vector<std::int64_t> batches(const TrainConfig& train, std::int64_t count) {
  std::vector<std::int64_t> out;
  for (std::int64_t step = 0; step < count; ++step) out.push_back(batch_of_step(train, step));
  return out;
}

}  // namespace

TEST_CASE("a batch grows at even distances and is whole behind the ramp") {
  CHECK(batches(ramp(2, 2, 6, 8), 8) == std::vector<std::int64_t>{2, 2, 4, 4, 6, 6, 8, 8});
  CHECK(batches(ramp(1, 3, 5, 7), 7) == std::vector<std::int64_t>{1, 1, 1, 4, 4, 7, 7});
  CHECK(batches(ramp(4, 4, 1, 8), 3) == std::vector<std::int64_t>{4, 8, 8});
  TrainConfig none;
  none.global_batch = 5;
  CHECK(batches(none, 2) == std::vector<std::int64_t>{5, 5});
}

TEST_CASE("sums of samples and the steps that reach them are those of the steps one by one") {
  for (const TrainConfig& train : {ramp(2, 2, 6, 8), ramp(1, 3, 5, 7), ramp(3, 1, 11, 8), TrainConfig()}) {
    for (std::int64_t first = 0; first < 14; ++first) {
      std::int64_t sum = 0;
      for (std::int64_t count = 0; count < 14; ++count) {
        CAPTURE(first);
        CAPTURE(count);
        CHECK(samples_from(train, first, count) == sum);
        CHECK(steps_to_samples(train, first, sum) == count);
        if (sum > 0)
          CHECK(steps_to_samples(train, first, sum - 1) ==
                (batch_of_step(train, first + count - 1) == 1 ? count - 1 : count));
        sum += batch_of_step(train, first + count);
      }
    }
  }
}

TEST_CASE("stretches of a ramp have its steps in their order, those of one batch together") {
  const auto stretches = [](const TrainConfig& train, std::int64_t step, std::int64_t count) {
    std::vector<std::vector<std::int64_t>> found;
    for (const BatchStretch& stretch : batch_stretches(train, step, count))
      found.push_back({stretch.steps, stretch.batch});
    return found;
  };
  using Expected = std::vector<std::vector<std::int64_t>>;
  CHECK(stretches(ramp(1, 3, 5, 7), 0, 9) == Expected{{3, 1}, {2, 4}, {4, 7}});
  CHECK(stretches(ramp(1, 3, 5, 7), 2, 2) == Expected{{1, 1}, {1, 4}});
  CHECK(stretches(ramp(1, 3, 5, 7), 0, 0).empty());
  CHECK(stretches(ramp(1, 3, 5, 7), 8, 2) == Expected{{2, 7}});
}
