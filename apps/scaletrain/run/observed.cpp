#include "observed.h"

#include <fmt/format.h>

#include <algorithm>

namespace scaletrain {

HangPlace place_of(std::int64_t rank, const Observed& observed) {
  const auto wait = observed.collectives.wait();
  HangPlace place{
      .text = fmt::format("rank {}, step {}: in {}", rank, observed.step.load(std::memory_order_relaxed),
                          wait ? fmt::format("{} since {:.1f} s", wait->text, wait->seconds) : "no collective")};
  if (wait) place.collective = wait->text;
  return place;
}

bool PaceMeter::entered(std::int64_t step, bool waiting) {
  const double waited = status_.waited_seconds();
  const bool is_step = is_measuring_ && !waiting && step == step_ + 1;
  if (is_step) {
    ++pace_.steps;
    pace_.busy_seconds += std::max(0.0, seconds_since(since_) - (waited - waited_));
  }
  is_measuring_ = !waiting;
  step_ = step;
  waited_ = waited;
  since_ = monotonic_now();
  return is_step;
}

}  // namespace scaletrain
