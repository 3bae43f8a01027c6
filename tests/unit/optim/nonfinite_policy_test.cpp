#include "optim/nonfinite_policy.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "base/error.h"

using namespace scaletrain;

TEST_CASE("as many non-finite steps in a row as allowed are skipped, one more is divergence") {
  NonfiniteState state;
  for (int step = 1; step <= 3; ++step) state = after_step(state, SkipReason::nonfinite_loss, 3, Step(step));
  CHECK(state == NonfiniteState{.consecutive = 3, .total = 3});
  try {
    after_step(state, SkipReason::nonfinite_gradient, 3, Step(4));
    FAIL("no error");
  } catch (const DivergedError& error) {
    const std::string text = error.what();
    CHECK(text.find("step 4") != std::string::npos);
    CHECK(text.find("train.nonfinite.skip allows 3") != std::string::npos);
  }
  CHECK_THROWS_AS(after_step({}, SkipReason::nonfinite_gradient, 0, Step(1)), DivergedError);
}

TEST_CASE("gradients that overflow under a fixed loss scale are blamed on it first, a loss is not") {
  const auto text_of = [](SkipReason reason, std::optional<double> scale) {
    try {
      after_step({}, reason, 0, Step(1), scale);
    } catch (const DivergedError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string scaled = text_of(SkipReason::nonfinite_gradient, 65536.0);
  CHECK(scaled.find(". Lower precision.loss_scale, which is 65536, or take dynamic; else lower train.optimizer") !=
        std::string::npos);
  for (const std::string& other :
       {text_of(SkipReason::nonfinite_gradient, std::nullopt), text_of(SkipReason::nonfinite_loss, 65536.0)}) {
    CHECK(other.find(". Lower train.optimizer.learning_rate") != std::string::npos);
    CHECK(other.find("loss_scale") == std::string::npos);
  }
}

TEST_CASE("a finite step ends the row, a step without tokens leaves it, and the total stays") {
  NonfiniteState state = after_step({}, SkipReason::nonfinite_gradient, 5, Step(1));
  state = after_step(state, SkipReason::no_tokens, 5, Step(2));
  CHECK(state == NonfiniteState{.consecutive = 1, .total = 1});
  state = after_step(state, SkipReason::none, 5, Step(3));
  CHECK(state == NonfiniteState{.consecutive = 0, .total = 1});
}

TEST_CASE("an overflow that a smaller loss scale answers is no step of the row and does not end it") {
  const NonfiniteState state = after_step({}, SkipReason::nonfinite_loss, 1, Step(1));
  CHECK(after_step(state, SkipReason::overflow, 1, Step(2)) == state);
  CHECK(after_step({}, SkipReason::overflow, 0, Step(1)) == NonfiniteState());
}

TEST_CASE("a spike is finite and ends the row") {
  const NonfiniteState state = after_step({}, SkipReason::nonfinite_loss, 5, Step(1));
  CHECK(after_step(state, SkipReason::spike, 5, Step(2)) == NonfiniteState{.consecutive = 0, .total = 1});
}
