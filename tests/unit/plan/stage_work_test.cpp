// Work of stages and its effect on the bubble, against sums by hand and the model's published FLOP count.
#include "plan/stage_work.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "plan_helpers.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

PhasePlan phase_of(const Config& config) {
  return make_run_plan(config, 61, std::nullopt).phases.front();
}

}  // namespace

TEST_CASE("stages weigh what their blocks and the head compute") {
  Config config = planned_config();
  config.parallel.pipeline = 2;
  config.parallel.stage_layers = std::vector<std::int64_t>{4, 2};
  const StageWork work = stage_work(phase_of(config));
  // Query and output 24 x 24, key and value 12 x 24 each, ffn 2 x 24 x 40; attention 24 x 7 tokens; head 61 x 24.
  const double matrices = 2 * 576.0 + 2 * 288 + 2 * 960;
  const double attention = 24 * 7;
  const double block = 3 * (matrices + attention);
  const double head = 3 * 61.0 * 24;
  const double mean = (6 * block + head) / 2;
  CHECK(work.stages[0] == Near(4 * block / mean));
  CHECK(work.stages[1] == Near((2 * block + head) / mean));
  CHECK(work.head_share == Near(head / (2 * block + head)));
  // In units of the mean forward, which is that of three blocks: the head is computed in the backward.
  const double unit = 3 * (matrices + attention);
  CHECK(work.chunks[0].forward == Near(4 * (matrices + attention) / unit));
  CHECK(work.chunks[1].forward == Near(2 * (matrices + attention) / unit));
  CHECK(work.chunks[0].backward_input == Near(4 * (matrices + 2 * attention) / unit));
  CHECK(work.chunks[1].backward_input == Near((2 * (matrices + 2 * attention) + 2 * 61 * 24) / unit));
  CHECK(work.chunks[1].backward_weight == Near((2 * matrices + 61 * 24) / unit));
  config.parallel.schedule = ScheduleKind::zb_h1;  // both parts compute the logits
  CHECK(stage_work(phase_of(config)).chunks[1].backward_weight == Near((2 * matrices + 2 * 61 * 24) / unit));
}

TEST_CASE("the work of all stages is the model's, whatever the chunks and whether the embedding is tied") {
  Config config = preset_config("gpt2-124m");
  SUBCASE("tied") {}
  SUBCASE("untied") {
    config.model.tie_embeddings = false;
  }
  config.train.global_batch = 8;
  config.train.micro_batch = 1;
  config.parallel.pipeline = 2;
  config.parallel.chunks = 3;
  config.parallel.schedule = ScheduleKind::interleaved;
  const PhasePlan phase = make_run_plan(config, 50257, std::nullopt).phases.front();
  const StageWork work = stage_work(phase);
  REQUIRE(work.chunks.size() == 6);
  CHECK(std::accumulate(work.stages.begin(), work.stages.end(), 0.0) == Near(2.0));
  double forward = 0.0;
  double total = 0.0;
  for (const WorkCosts& costs : work.chunks) {
    forward += costs.forward;
    total += costs.total();
  }
  CHECK(forward == Near(6.0));
  // 6N + 6LCT, of which the head's three products are no forward; norms and biases are a thousandth.
  const double head = 6.0 * 50257 * 768;
  const double flops = model_flops_per_token(phase.model);
  CHECK(total / forward == Near(3 * flops / (flops - head)).epsilon(2e-3));
  CHECK(work.stages[0] == Near(work.chunks[0].total() / total * 2 + work.chunks[2].total() / total * 2 +
                               work.chunks[4].total() / total * 2));
}

TEST_CASE("frozen layers have no weight part, and those before the first that trains no backward") {
  Config config = planned_config();
  config.parallel.pipeline = 2;
  config.parallel.stage_layers = std::vector<std::int64_t>{4, 2};
  // As above: matrices of a block, and its attention.
  const double matrices = 2 * 576.0 + 2 * 288 + 2 * 960;
  const double attention = 24 * 7;
  const double head = 61 * 24;
  const double unit = 3 * (matrices + attention);  // of the mean chunk's forward
  config.model.tie_embeddings = false;
  config.finetune.freeze = {"embedding.*", "blocks.0.*", "blocks.1.*", "blocks.3.*", "blocks.5.ffn.*"};
  for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::full}) {
    config.train.recompute = recompute;
    const double again = recompute == RecomputeKind::full ? matrices + attention - 960 : 0.0;
    const StageWork work = stage_work(phase_of(config));
    CHECK(work.chunks[0].forward == Near(4 * (matrices + attention) / unit));
    CHECK(work.chunks[0].backward_input == Near(2 * (matrices + 2 * attention + again) / unit));
    CHECK(work.chunks[0].backward_weight == Near(matrices / unit));
    CHECK(work.chunks[1].backward_input == Near((2 * (matrices + 2 * attention + again) + 2 * head) / unit));
    CHECK(work.chunks[1].backward_weight == Near((2 * matrices - 2 * 960 + head) / unit));
  }
  // All of a stage.
  config.finetune.freeze = {"embedding.*", "blocks.0.*", "blocks.1.*", "blocks.2.*", "blocks.3.*"};
  const StageWork work = stage_work(phase_of(config));
  CHECK(work.chunks[0].total() == Near(work.chunks[0].forward));
  CHECK(work.stages[0] < work.stages[1]);
}

TEST_CASE("full recomputation adds a block's forward without its last product to the input part, selective nothing") {
  Config config = planned_config();
  config.parallel.pipeline = 2;
  config.parallel.stage_layers = std::vector<std::int64_t>{4, 2};
  const StageWork none = stage_work(phase_of(config));
  CHECK(none.recomputed == 0.0);
  config.train.recompute = RecomputeKind::selective;
  const StageWork selective = stage_work(phase_of(config));
  CHECK(selective.recomputed == 0.0);
  CHECK(selective.stages == none.stages);
  config.train.recompute = RecomputeKind::full;
  const StageWork full = stage_work(phase_of(config));
  // As above: matrices and attention of a block, of which 24 x 40 are not computed again.
  const double forward = 2 * 576.0 + 2 * 288 + 2 * 960 + 24 * 7;
  const double again = forward - 960;
  const double unit = 3 * forward;
  CHECK(full.chunks[0].backward_input - none.chunks[0].backward_input == Near(4 * again / unit));
  CHECK(full.chunks[1].backward_input - none.chunks[1].backward_input == Near(2 * again / unit));
  for (std::size_t chunk = 0; chunk < 2; ++chunk) {
    CHECK(full.chunks[chunk].forward == none.chunks[chunk].forward);
    CHECK(full.chunks[chunk].backward_weight == none.chunks[chunk].backward_weight);
  }
  CHECK(full.recomputed == Near(6 * again / (6 * 3 * forward + 3 * 61.0 * 24)));
}

TEST_CASE("no other stages have a smaller largest work than those that the plan chooses") {
  Config config = planned_config();
  config.parallel.pipeline = 3;
  const auto largest_work = [&](std::optional<std::vector<std::int64_t>> stage_layers) {
    config.parallel.stage_layers = std::move(stage_layers);
    const StageWork work = stage_work(make_run_plan(config, *config.model.vocab, std::nullopt).phases.front());
    return *std::max_element(work.stages.begin(), work.stages.end());  // of the mean, which is the same for all
  };
  for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
    for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::full})
      for (std::int64_t vocab = 61; vocab < 1000; vocab += 20) {  // a head of 0.4 blocks to one of more than all
        CAPTURE(to_text(schedule));
        CAPTURE(to_text(recompute));
        CAPTURE(vocab);
        config.parallel.schedule = schedule;
        config.train.recompute = recompute;
        config.model.vocab = vocab;
        const std::int64_t layers = config.model.layers;
        double least = std::numeric_limits<double>::infinity();
        for (std::int64_t first = 0; first < layers; ++first)
          for (std::int64_t second = 1; first + second <= layers; ++second)
            least = std::min(least, largest_work({{first, second, layers - first - second}}));
        CHECK(largest_work(std::nullopt) == Near(least).epsilon(1e-12));
      }
}

TEST_CASE("a slow stage makes the others wait in the replay") {
  // GPipe of two stages and M micro-batches, the second twice as slow: it starts after one forward of the first, works
  // without a pause for 6M, and the first ends a backward later: 1 + 6M + 2. Idle: 2 * (6M + 3) - 3M - 6M.
  const std::vector<WorkCosts> costs = {{1, 1, 1}, {2, 2, 2}};
  const Schedule schedule = make_schedule(ScheduleKind::gpipe, 2, 4, 1);
  const Simulation simulation = simulate(schedule, {.of_chunks = costs});
  REQUIRE(simulation.completed);
  CHECK(simulation.makespan == Near(27.0));
  CHECK(simulation.bubble == Near(18.0 / 54.0));
  CHECK(simulation.stages[0].busy == Near(12.0));
  CHECK(simulation.stages[1].busy == Near(24.0));
}
