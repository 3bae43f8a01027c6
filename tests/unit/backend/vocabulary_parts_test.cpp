// Softmax cross-entropy of a vocabulary in parts against that of the whole.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "parity.h"
#include "support/numbers.h"

using namespace scaletrain;
using namespace scaletrain::parity;

namespace {

struct Problem {
  std::int64_t rows = 0, vocabulary = 0;
  Values logits;
  Ids targets;
};

Problem problem(std::int64_t rows, std::int64_t vocabulary) {
  Problem p{rows, vocabulary, normal("parts", rows * vocabulary, 0.5, 3.0), random_ids("targets", rows, vocabulary)};
  for (std::size_t n = 2; n < p.targets.size(); n += 4) p.targets[n] = -1;
  return p;
}

struct Result {
  std::vector<double> losses;  // one per rank
  Values gradient;             // of all logits
};

Result whole(Device& device, const Problem& p, double d_scale) {
  Result result{{0.0}, {}};
  const View logits = device.put(p.logits, {p.rows, p.vocabulary});
  device.run(CrossEntropy{.logits = logits,
                          .targets = device.put_ids(p.targets, {p.rows}),
                          .d_scale = d_scale,
                          .loss_sum = number_at(result.losses[0])});
  result.gradient = Device::get(logits);
  return result;
}

// As `degree` ranks do it, rank r with the classes that the table gives it: the last ones may have fewer, or none.
Result in_parts(Device& device, const Problem& p, std::int64_t degree, double d_scale) {
  const std::int64_t per_rank = ceil_div(p.vocabulary, degree);
  struct Rank {
    std::int64_t first, count;
    View logits;
  };
  std::vector<Rank> ranks;
  Values statistics;
  const View targets = device.put_ids(p.targets, {p.rows});
  for (std::int64_t r = 0; r < degree; ++r) {
    const std::int64_t first = std::min(r * per_rank, p.vocabulary);
    const std::int64_t count = std::min(per_rank, p.vocabulary - first);
    Values part;
    for (std::int64_t n = 0; n < p.rows; ++n)
      part.insert(part.end(), p.logits.begin() + n * p.vocabulary + first,
                  p.logits.begin() + n * p.vocabulary + first + count);
    ranks.push_back({first, count, device.put(part, {p.rows, count})});
    const View own = device.put(Values(static_cast<std::size_t>(p.rows * 3)), {p.rows, 3});
    device.run(SoftmaxStatistics{.logits = ranks.back().logits,
                                 .targets = targets,
                                 .first_class = first,
                                 .vocabulary = p.vocabulary,
                                 .statistics = own});
    const Values values = Device::get(own);
    statistics.insert(statistics.end(), values.begin(), values.end());
  }
  const View all = device.put(statistics, {degree, p.rows, 3});
  Result result{std::vector<double>(static_cast<std::size_t>(degree), 0.0),
                Values(static_cast<std::size_t>(p.rows * p.vocabulary), -7.0)};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Rank& rank = ranks[r];
    device.run(CrossEntropyParts{.logits = rank.logits,
                                 .targets = targets,
                                 .first_class = rank.first,
                                 .vocabulary = p.vocabulary,
                                 .statistics = all,
                                 .d_scale = d_scale,
                                 .loss_sum = number_at(result.losses[r])});
    const Values part = Device::get(rank.logits);
    for (std::int64_t n = 0; n < p.rows; ++n)
      std::copy_n(part.begin() + n * rank.count, rank.count, result.gradient.begin() + n * p.vocabulary + rank.first);
  }
  return result;
}

void for_each_backend(const std::function<void(Backend&)>& use) {
  use(*make_reference_backend(DType::f64));
  use(*make_reference_backend(DType::f32));
  use(*make_cpu_backend({.threads = 2, .instruction_set = "portable"}));
  use(*make_cpu_backend({.threads = 3, .instruction_set = "auto"}));
}

}  // namespace

TEST_CASE("cross_entropy_of_a_vocabulary_in_parts_is_that_of_the_whole") {
  for_each_backend([](Backend& backend) {
    CAPTURE(backend.description());
    Device device(backend);
    // 1e-6 is a few roundings of f32; the statistics of f64 have none.
    const double tolerance = backend.compute_type() == DType::f64 ? 1e-14 : 1e-6;
    for (const std::int64_t vocabulary : {1, 3, 13, 67, 1031}) {
      const Problem p = problem(29, vocabulary);
      const Result expected = whole(device, p, 0.75);
      for (const std::int64_t degree : {1, 2, 3, 4, 8}) {
        CAPTURE(vocabulary);
        CAPTURE(degree);
        const Result found = in_parts(device, p, degree, 0.75);
        for (const double loss : found.losses) {
          CHECK(loss == found.losses[0]);  // the same bits on every rank
          CHECK(std::fabs(loss - expected.losses[0]) <= tolerance * std::max(1.0, expected.losses[0]));
        }
        double largest = 0;
        for (std::size_t i = 0; i < found.gradient.size(); ++i)
          largest = std::max(largest, std::fabs(found.gradient[i] - expected.gradient[i]));
        CHECK(largest <= tolerance);
        CHECK(in_parts(device, p, degree, 0.0).gradient == p.logits);  // without a gradient logits stay
      }
    }
    CHECK(device.guards_intact());
  });
}

TEST_CASE("probabilities_of_all_parts_sum_to_one_also_with_parts_that_have_no_classes") {
  const auto backend = make_cpu_backend({.threads = 1});
  Device device(*backend);
  const Problem p = problem(11, 5);
  const Result found = in_parts(device, p, 8, 1.0);  // three ranks have none
  for (std::int64_t n = 0; n < p.rows; ++n) {
    double sum = 0;
    for (std::int64_t v = 0; v < p.vocabulary; ++v) sum += found.gradient[static_cast<std::size_t>(n * 5 + v)];
    CHECK(std::fabs(sum) <= 1e-6);  // softmax minus one, or a masked row's zeros
  }
}

TEST_CASE("a_target_or_id_beyond_the_vocabulary_is_refused_whatever_part_a_rank_has") {
  for_each_backend([](Backend& backend) {
    Device device(backend);
    const View logits = device.put(Values(4), {2, 2});
    const View statistics = device.put(Values(6), {2, 3});
    double loss = 0;
    for (const std::int32_t wrong : {-2, 9}) {
      const View targets = device.put_ids({0, wrong}, {2});
      CHECK_THROWS_AS(
          device.run(SoftmaxStatistics{
              .logits = logits, .targets = targets, .first_class = 4, .vocabulary = 9, .statistics = statistics}),
          BugError);
      CHECK_THROWS_AS(device.run(CrossEntropyParts{.logits = logits,
                                                   .targets = targets,
                                                   .first_class = 4,
                                                   .vocabulary = 9,
                                                   .statistics = statistics.reshape({1, 2, 3}),
                                                   .d_scale = 1.0,
                                                   .loss_sum = number_at(loss)}),
                      BugError);
    }
    const View table = device.put(Values(6), {3, 2});
    for (const std::int32_t wrong : {-1, 9}) {
      const View ids = device.put_ids({4, wrong}, {2});
      CHECK_THROWS_AS(device.run(EmbeddingForward{.table = table,
                                                  .position_table = {},
                                                  .ids = ids,
                                                  .positions = {},
                                                  .output = logits,
                                                  .first_id = 3,
                                                  .vocabulary = 9}),
                      BugError);
      CHECK_THROWS_AS(device.run(EmbeddingBackward{.d_output = logits,
                                                   .ids = ids,
                                                   .positions = {},
                                                   .d_table = table,
                                                   .d_position_table = {},
                                                   .first_id = 3,
                                                   .vocabulary = 9}),
                      BugError);
    }
  });
}

TEST_CASE("maps_without_inputs_give_the_bias_and_maps_without_outputs_give_zero") {
  for_each_backend([](Backend& backend) {
    CAPTURE(backend.description());
    Device device(backend);
    for (const std::int64_t rows : {1, 5, 33}) {
      const Values sevens(static_cast<std::size_t>(rows * 3), 7.0);
      const View output = device.put(sevens, {rows, 3});
      device.run(LinearForward{.weight = device.put_weight({}, {3, 0}, false),
                               .bias = device.put({1, 2, 3}, {3}),
                               .input = device.put({}, {rows, 0}),
                               .addend = {},
                               .output = output});
      const View zeros = device.put(sevens, {rows, 3});
      device.run(LinearForward{.weight = device.put_weight({}, {3, 0}, false),
                               .bias = {},
                               .input = device.put({}, {rows, 0}),
                               .addend = {},
                               .output = zeros});
      const View d_input = device.put(sevens, {rows, 3});
      device.run(LinearBackwardInput{
          .weight = device.put_weight({}, {0, 3}, false), .d_output = device.put({}, {rows, 0}), .d_input = d_input});
      const View d_bias = device.put({10, 20, 30}, {3});
      device.run(LinearBackwardWeight{.input = device.put({}, {rows, 0}),
                                      .d_output = output,
                                      .d_weight = device.put({}, {3, 0}),
                                      .d_bias = d_bias});
      const Values sums = Device::get(d_bias);
      for (std::int64_t i = 0; i < rows * 3; ++i) {
        const auto at = static_cast<std::size_t>(i);
        CHECK(Device::get(output)[at] == static_cast<double>(i % 3 + 1));
        CHECK(Device::get(zeros)[at] == 0.0);
        CHECK(Device::get(d_input)[at] == 0.0);
      }
      for (std::size_t o = 0; o < 3; ++o) CHECK(sums[o] == static_cast<double>(o + 1) * static_cast<double>(10 + rows));
    }
    CHECK(device.guards_intact());
  });
}
