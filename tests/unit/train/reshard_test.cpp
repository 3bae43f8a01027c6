// A run that moves from layout to layout through its checkpoints, one step on each. With sanitizers each layout only
// takes over from the one before it and hands over to the next: all code of all pairs, not all pairs.
#include <numeric>

#include "ranks_run.h"
#include "support/sanitizers.h"

using namespace scaletrain;

namespace {

struct NamedLayout {
  int ranks;
  std::vector<std::string> overrides;
};

const std::vector<NamedLayout>& dozen() {
  static const std::vector<NamedLayout> layouts = {
      {1, {}},
      {2, {"parallel.data=2", "parallel.zero=0"}},
      {2, {"parallel.data=2", "parallel.zero=2"}},
      {4, {"parallel.data=4", "parallel.zero=3"}},
      {2, {"parallel.tensor=2", "parallel.zero=0"}},
      {4, {"parallel.tensor=4"}},
      {2, {"parallel.pipeline=2", "parallel.schedule=gpipe"}},
      {4, {"parallel.pipeline=4", "parallel.zero=0"}},
      {8, {"parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2"}},
      {4, {"parallel.data=2", "parallel.tensor=2", "parallel.zero=3", "parallel.sequence=true"}},
      {4, {"parallel.tensor=2", "parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=2"}},
      {4, {"parallel.data=2", "parallel.pipeline=2", "parallel.schedule=zb-h1", "parallel.zero=2"}},
  };
  return layouts;
}

// Every ordered pair of two layouts, each followed by the way back: i j i j' i ... for all j > i.
std::vector<std::size_t> tour(std::size_t first, std::size_t end) {
  std::vector<std::size_t> layouts;
  for (std::size_t i = first; i < end; ++i) {
    layouts.push_back(i);
    for (std::size_t j = i + 1; j < dozen().size(); ++j) layouts.insert(layouts.end(), {j, i});
  }
  return layouts;
}

void check_tour(const std::vector<std::size_t>& layouts) {
  const std::vector<std::string> overrides = {"model.layers=4",
                                              "model.heads=4",
                                              "model.kv_heads=2",
                                              "train.micro_batch=1",
                                              "train.optimizer.learning_rate=1e-3",
                                              "train.lr_schedule.warmup=10",
                                              "evaluate.every=0",
                                              "checkpoint.every=0",
                                              "checkpoint.keep=2",
                                              "train.steps=" + std::to_string(layouts.size())};
  RanksRun single;
  single.overrides_always = overrides;
  REQUIRE(single.run() == ExitCode::finished);
  RanksRun moved;
  moved.overrides_always = overrides;
  for (std::size_t step = 0; step < layouts.size(); ++step) {
    CAPTURE(step);
    const NamedLayout& layout = dozen()[layouts[step]];
    const bool last = step + 1 == layouts.size();
    if (layout.ranks == 1) {
      REQUIRE(moved.run(layout.overrides, last ? -1 : 1) == (last ? ExitCode::finished : ExitCode::interrupted));
      continue;
    }
    const std::vector<ExitCode> codes = moved.run_ranks(layout.ranks, layout.overrides, last ? -1 : 0, 1);
    REQUIRE(all_are(codes, last ? ExitCode::finished : ExitCode::interrupted));
  }
  check_same_losses(moved.metrics(), single.metrics());
  const auto last = static_cast<std::int64_t>(layouts.size());
  CHECK(Checkpoint(moved.checkpoint(last)).manifest().history ==
        Checkpoint(single.checkpoint(last)).manifest().history);
}

}  // namespace

// Three parts, so that none is longer than the fifty steps for which layouts are to agree.
TEST_CASE("every_layout_goes_on_where_any_other_stopped_and_back_first_part" * doctest::skip(is_sanitized)) {
  check_tour(tour(0, 2));
}
TEST_CASE("every_layout_goes_on_where_any_other_stopped_and_back_second_part" * doctest::skip(is_sanitized)) {
  check_tour(tour(2, 5));
}
TEST_CASE("every_layout_goes_on_where_any_other_stopped_and_back_third_part" * doctest::skip(is_sanitized)) {
  check_tour(tour(5, dozen().size()));
}

TEST_CASE("every_layout_goes_on_where_the_one_before_it_in_the_list_stopped" * doctest::skip(!is_sanitized)) {
  std::vector<std::size_t> ring(dozen().size() + 1);
  std::iota(ring.begin(), ring.end(), 0);
  ring.back() = 0;
  check_tour(ring);
}
