#include "optim/spike_policy.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"

using namespace scaletrain;

namespace {

SpikeConfig config_of(std::int64_t window, double zscore) {
  SpikeConfig config;
  config.window = window;
  config.zscore = zscore;
  return config;
}

SpikeState after_losses(const SpikeConfig& config, SpikeState state, std::int64_t first_step,
                        const std::vector<double>& losses) {
  for (const double loss : losses) state = after_loss(config, state, Step(first_step++), loss);
  return state;
}

}  // namespace

TEST_CASE("the_level_is_mean_and_population_deviation_of_the_window") {
  // Mean 5; squared distances 9+1+1+1+0+0+4+16 = 32, by 8: 4; deviation 2.
  const SpikeConfig config = config_of(8, 3.0);
  const SpikeState state = after_losses(config, {}, 1, {2, 4, 4, 4, 5, 5, 7, 9});
  const auto level = loss_level(config, state);
  REQUIRE(level.has_value());
  CHECK(level->mean == 5.0);
  CHECK(level->deviation == 2.0);
  CHECK(level->limit == 11.0);
  CHECK(level->score(11.0) == 3.0);
  CHECK(level->score(15.0) == 5.0);
  CHECK(level->score(1.0) == -2.0);
}

TEST_CASE("there_is_no_verdict_before_the_window_is_full") {
  const SpikeConfig config = config_of(4, 2.0);
  SpikeState state;
  for (const double loss : {1.0, 100.0, 1.0}) {
    CHECK_FALSE(loss_level(config, state).has_value());
    state = after_loss(config, state, Step(1), loss);
  }
  CHECK(state.row == 0);
  CHECK_FALSE(loss_level(config, state).has_value());
  CHECK(loss_level(config, after_loss(config, state, Step(4), 1.0)).has_value());
}

TEST_CASE("a_loss_at_the_limit_is_none_and_one_above_it_is_a_spike") {
  const SpikeConfig config = config_of(8, 3.0);
  const SpikeState state = after_losses(config, {}, 1, {2, 4, 4, 4, 5, 5, 7, 9});
  const SpikeState at = after_loss(config, state, Step(9), 11.0);
  CHECK(at.row == 0);
  CHECK(at.losses == std::vector<double>{4, 4, 4, 5, 5, 7, 9, 11});
  const SpikeState above = after_loss(config, state, Step(9), std::nextafter(11.0, 12.0));
  CHECK(above.row == 1);
  CHECK(above.losses == state.losses);  // its own loss stays out
}

TEST_CASE("only_jumps_upward_count") {
  const SpikeConfig config = config_of(4, 1.0);
  const SpikeState state = after_losses(config, {}, 1, {5, 5.1, 5, 5.1});
  CHECK(after_loss(config, state, Step(5), 0.1).row == 0);
  CHECK(after_loss(config, state, Step(5), 0.1).losses == std::vector<double>{5.1, 5, 5.1, 0.1});
}

TEST_CASE("a_loss_at_rest_has_a_floor_under_its_deviation") {
  const SpikeConfig config = config_of(3, 6.0);
  const SpikeState state = after_losses(config, {}, 1, {2, 2, 2});
  const auto level = loss_level(config, state);
  REQUIRE(level.has_value());
  CHECK(level->deviation == 2e-3);
  CHECK(after_loss(config, state, Step(4), 2.0119).row == 0);
  CHECK(after_loss(config, state, Step(4), 2.0121).row == 1);
  // Of all zeros too, the score is a number.
  const SpikeState zeros = after_losses(config, {}, 1, {0, 0, 0});
  CHECK(std::isfinite(loss_level(config, zeros)->score(1.0)));
  CHECK(after_loss(config, zeros, Step(4), 1.0).row == 1);
  CHECK(after_loss(config, zeros, Step(4), 0.0).row == 0);
}

TEST_CASE("a_row_of_spikes_ends_with_the_first_other_loss") {
  const SpikeConfig config = config_of(4, 2.0);
  SpikeState state = after_losses(config, {}, 1, {5, 6, 5, 6, 50, 60});
  CHECK(state.row == 2);
  state = after_loss(config, state, Step(7), 5);
  CHECK(state.row == 0);
  CHECK(state.losses == std::vector<double>{6, 5, 6, 5});
}

TEST_CASE("as_many_spikes_in_a_row_as_the_window_has_steps_are_a_new_level") {
  const SpikeConfig config = config_of(3, 2.0);
  SpikeState state = after_losses(config, {}, 1, {5, 6, 5, 50, 60});
  CHECK(state.row == 2);
  state = after_loss(config, state, Step(6), 55);
  CHECK(state.row == 0);
  CHECK(state.losses.empty());
  // Which is measured against itself then.
  state = after_losses(config, state, 7, {50, 60, 55});
  CHECK(loss_level(config, state)->mean == 55.0);
  CHECK(after_loss(config, state, Step(10), 60).row == 0);
}

TEST_CASE("a_window_that_a_resume_changes_is_cut_to_its_newest_losses_or_filled_up") {
  const SpikeState state = after_losses(config_of(4, 2.0), {}, 1, {9, 1, 2, 3});
  const SpikeConfig smaller = config_of(2, 2.0);
  CHECK(loss_level(smaller, state)->mean == 2.5);
  CHECK(after_loss(smaller, state, Step(5), 2.5).losses == std::vector<double>{3, 2.5});
  const SpikeConfig larger = config_of(5, 2.0);
  CHECK_FALSE(loss_level(larger, state).has_value());
  CHECK(loss_level(larger, after_loss(larger, state, Step(5), 5))->mean == 4.0);
}

TEST_CASE("rollbacks_without_progress_are_counted_and_the_fourth_in_a_row_is_divergence") {
  const SpikeConfig config = config_of(2, 2.0);
  const SpikeState restored = after_losses(config, {}, 1, {5, 6});
  SpikeState state = restored;
  // Spikes at steps 20, 15 and 20: none beyond the furthest.
  const std::vector<std::int64_t> steps = {20, 15, 20};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    state = after_rollback(state, restored, Step(steps[i]));
    CHECK(state.rollbacks == static_cast<std::int64_t>(i) + 1);
    CHECK(state.furthest == 20);
    CHECK(state.losses == restored.losses);
    // Steps up to the furthest spike are no progress.
    state = after_losses(config, state, 3, {5, 6});
    CHECK(after_loss(config, state, Step(20), 5).rollbacks == state.rollbacks);
  }
  std::string text;
  try {
    require_rollback(state, Step(20));
  } catch (const DivergedError& error) {
    text = error.what();
  }
  CHECK(text.find("step 20") != std::string::npos);
  CHECK(text.find("train.spike") != std::string::npos);
  CHECK_THROWS_AS(after_rollback(state, restored, Step(20)), DivergedError);
  // One step beyond forgives them all.
  const SpikeState beyond = after_loss(config, state, Step(21), 5);
  CHECK(beyond.rollbacks == 0);
  CHECK(after_rollback(beyond, restored, Step(30)).rollbacks == 1);
  // A spike there is none.
  CHECK(after_loss(config, state, Step(21), 500).rollbacks == most_rollbacks);
}

TEST_CASE("a_state_taken_in_the_middle_gives_the_same_verdicts") {
  const SpikeConfig config = config_of(5, 2.5);
  std::vector<double> losses;
  losses.reserve(60);
  for (int i = 0; i < 60; ++i) losses.push_back(4.0 / (1 + 0.05 * i) + 0.3 * std::sin(1.7 * i) + (i % 13 == 9 ? 5 : 0));
  std::vector<SpikeState> all(1);
  all.reserve(losses.size() + 1);
  for (std::size_t i = 0; i < losses.size(); ++i)
    all.push_back(after_loss(config, all.back(), Step(static_cast<std::int64_t>(i) + 1), losses[i]));
  int spikes = 0;
  for (const SpikeState& state : all) spikes += state.row > 0 ? 1 : 0;
  CHECK(spikes >= 3);
  for (std::size_t from = 0; from < all.size(); from += 7) {
    const SpikeState copy = all[from];
    CHECK(after_losses(config, copy, static_cast<std::int64_t>(from) + 1,
                       {losses.begin() + static_cast<std::ptrdiff_t>(from), losses.end()}) == all.back());
  }
}

TEST_CASE("a_loss_that_is_not_finite_is_no_question_for_this_policy") {
  CHECK_THROWS_AS(after_loss(config_of(2, 2.0), {}, Step(1), std::numeric_limits<double>::infinity()), BugError);
}
