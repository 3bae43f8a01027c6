// What dropout drops in a model: shares, independence, and where it does not.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model_fixture.h"

using namespace scaletrain;

namespace {

constexpr double probability = 0.1;

// Which elements of a sample's matrix are kept, by the reference's own kernel.
std::vector<bool> kept_of(std::uint64_t seed, const std::string& site, std::int64_t sample, std::int64_t rows,
                          std::int64_t columns) {
  const auto backend = make_reference_backend(DType::f32);
  const auto stream = backend->make_stream();
  std::vector<float> values(static_cast<std::size_t>(rows * columns), 1.0F);
  const View view(values.data(), DType::f32, {rows, columns});
  const DropoutMask mask{
      .probability = probability, .key = philox_key(seed, site), .samples = ConstView(&sample, DType::i64, {1})};
  backend->run(*stream, Dropout{.input = view, .output = view, .mask = mask, .sample_rows = rows, .columns = columns});
  std::vector<bool> kept;
  for (const float value : values) {
    const bool is_kept = value != 0.0F;
    if (is_kept) CHECK(value == static_cast<float>(1.0 / (1.0 - probability)));
    kept.push_back(is_kept);
  }
  return kept;
}

double share_dropped(const std::vector<bool>& kept) {
  return static_cast<double>(std::count(kept.begin(), kept.end(), false)) / static_cast<double>(kept.size());
}

// Trains one micro-batch through a model's forward, and returns what leaves its last block.
std::vector<double> last_hidden(const ModelSpec& spec, Mode mode, std::uint64_t seed) {
  TestModel model(spec, make_reference_backend(DType::f64));
  model.randomise();
  TestBatch batch(spec, {2, 5});
  batch.seed = seed;
  ModelHarness harness(model, batch);
  if (mode == Mode::train)
    harness.train(BackwardForm::whole);
  else
    harness.evaluate();
  return to_doubles(harness.hidden());
}

}  // namespace

// Bounds are five standard deviations of a binomial distribution.
TEST_CASE("dropout_drops_the_share_it_is_told_and_masks_of_other_places_samples_and_seeds_are_independent") {
  constexpr std::int64_t rows = 300;
  constexpr std::int64_t columns = 301;
  constexpr double count = rows * columns;
  std::vector<std::vector<bool>> masks;
  for (const std::string site : {"dropout.embedding.output", "dropout.blocks.0.attention", "dropout.blocks.1.attention",
                                 "dropout.blocks.0.ffn", "dropout.blocks.0.attention.query.lora_a"})
    masks.push_back(kept_of(5, site, 7, rows, columns));
  masks.push_back(kept_of(5, "dropout.embedding.output", 8, rows, columns));
  masks.push_back(kept_of(5, "dropout.embedding.output", 7 + (std::int64_t{1} << 32), rows, columns));
  masks.push_back(kept_of(6, "dropout.embedding.output", 7, rows, columns));
  for (std::size_t a = 0; a < masks.size(); ++a) {
    CAPTURE(a);
    CHECK(std::abs(share_dropped(masks[a]) - probability) < 5 * std::sqrt(probability * (1 - probability) / count));
    for (std::size_t b = a + 1; b < masks.size(); ++b) {
      CAPTURE(b);
      double both = 0;
      for (std::size_t i = 0; i < masks[a].size(); ++i) both += !masks[a][i] && !masks[b][i] ? 1 : 0;
      const double expected = probability * probability;
      CHECK(std::abs(both / count - expected) < 5 * std::sqrt(expected * (1 - expected) / count));
    }
  }
  // Neighbours in a row, in a column, and four apart, in the next block.
  for (const std::size_t distance : {std::size_t{1}, std::size_t{4}, static_cast<std::size_t>(columns)}) {
    CAPTURE(distance);
    double both = 0;
    for (std::size_t i = distance; i < masks[0].size(); ++i) both += !masks[0][i] && !masks[0][i - distance] ? 1 : 0;
    const double expected = probability * probability;
    CHECK(std::abs(both / count - expected) < 5 * std::sqrt(expected * (1 - expected) / count) + 1.0 / rows / 50);
  }
}

TEST_CASE("dropout_is_of_training_alone_and_follows_the_seed") {
  for (const ModelSpec& plain : {tiny_gpt2(), tiny_gemma()}) {
    const ModelSpec dropping = with_dropout(plain);
    CHECK(last_hidden(dropping, Mode::evaluate, 3) == last_hidden(plain, Mode::evaluate, 3));
    const std::vector<double> trained = last_hidden(dropping, Mode::train, 3);
    CHECK(trained != last_hidden(plain, Mode::train, 3));
    CHECK(trained == last_hidden(dropping, Mode::train, 3));
    CHECK(trained != last_hidden(dropping, Mode::train, 4));
    for (double DropoutSpec::*part : {&DropoutSpec::embedding, &DropoutSpec::attention, &DropoutSpec::residual}) {
      ModelSpec one = plain;
      one.dropout.*part = 0.5;
      CHECK(last_hidden(one, Mode::train, 3) != last_hidden(plain, Mode::train, 3));
    }
  }
}
