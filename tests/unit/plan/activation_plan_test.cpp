#include "plan/activation_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan_helpers.h"
#include "tensor/buffer.h"

using namespace scaletrain;

namespace {

struct ScheduleCase {
  ScheduleKind kind;
  std::int64_t stages;
  std::int64_t micro_batches;
  std::int64_t chunks;
};

std::vector<ScheduleCase> schedule_cases() {
  std::vector<ScheduleCase> cases;
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1})
    for (const std::int64_t stages : {1, 2, 3})
      for (const std::int64_t micro_batches : {1, 2, 3, 8})
        cases.push_back({kind, stages, micro_batches, kind == ScheduleKind::interleaved ? 2 : 1});
  return cases;
}

std::vector<ArenaRange> all_ranges(const ActivationPlan& plan) {
  std::vector<ArenaRange> ranges(std::begin(plan.gradients), std::end(plan.gradients));
  ranges.insert(ranges.end(), plan.inputs.begin(), plan.inputs.end());
  ranges.insert(ranges.end(), plan.gradient_inputs.begin(), plan.gradient_inputs.end());
  ranges.insert(ranges.end(), plan.gradient_outputs.begin(), plan.gradient_outputs.end());
  ranges.insert(ranges.end(), plan.batches.begin(), plan.batches.end());
  ranges.insert(ranges.end(), plan.work.begin(), plan.work.end());
  ranges.push_back(plan.scratch);
  for (const auto& buffer : plan.buffers)
    for (const UnitBuffers& unit : buffer) {
      ranges.push_back(unit.saved);
      ranges.push_back(unit.output);
    }
  return ranges;
}

// Every range starts aligned and ends before the next one starts; the last ends where the arena does.
void check_disjoint(const ActivationPlan& plan) {
  std::vector<ArenaRange> ranges = all_ranges(plan);
  std::erase_if(ranges, [](const ArenaRange& range) { return range.bytes == 0; });
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::size_t end = 0;
  for (const ArenaRange& range : ranges) {
    CHECK(range.offset % buffer_alignment == 0);
    CHECK(range.offset >= end);
    end = range.offset + range.bytes;
  }
  CHECK(end <= plan.arena_bytes);
  std::size_t sum = 0;
  for (const ArenaRange& range : ranges) sum += range.bytes;
  CHECK(sum == plan.arena_bytes);  // no gaps either
}

}  // namespace

TEST_CASE("the ranges of every stage's plan are aligned, disjoint and fill the arena") {
  for (const ScheduleCase& c : schedule_cases()) {
    Config config = planned_config();
    config.parallel.schedule = c.kind;
    config.parallel.pipeline = c.stages;
    config.parallel.chunks = c.chunks;
    config.train.global_batch = 3 * c.micro_batches;
    const RunPlan run = make_run_plan(config, 61, std::nullopt);
    const PhasePlan& phase = run.phases.front();
    for (std::int64_t stage = 0; stage < c.stages; ++stage) {
      const Rank rank = phase.mesh.rank_of({0, 0, stage});
      const ScheduleDepth depth = schedule_depth(phase.schedule(rank));
      const ActivationPlan plan = phase.activations(rank);
      REQUIRE(plan.chunks.size() == static_cast<std::size_t>(c.chunks));
      CHECK(plan.buffers.size() == static_cast<std::size_t>(plan.num_buffers));
      CHECK(plan.batches.size() == plan.buffers.size());
      CHECK(plan.inputs.size() == static_cast<std::size_t>(depth.inputs));
      CHECK(plan.gradient_inputs.size() == static_cast<std::size_t>(depth.gradients_received));
      CHECK(plan.gradient_outputs.size() == static_cast<std::size_t>(depth.gradients_sent));
      // The model's first virtual stage makes its input from the ids, and sends no gradient; the last receives none.
      CHECK(plan.inputs.empty() == (stage == 0 && c.chunks == 1));
      CHECK(plan.gradient_inputs.empty() == (stage + 1 == c.stages && c.chunks == 1));
      CHECK(plan.gradient_outputs.empty() == (c.stages == 1 || (stage == 0 && c.chunks == 1)));
      if (c.chunks == 1) {
        CHECK(plan.num_buffers == depth.in_flight);
        const std::vector<int>& units = plan.chunks[0];
        const Transformer model = phase.transformer(rank);
        CHECK(plan.work.size() == static_cast<std::size_t>(depth.weight_work) * units.size());
        for (std::size_t i = 0; i < plan.work.size(); ++i) {
          const Unit& unit = *model.units()[static_cast<std::size_t>(units[i % units.size()])];
          CHECK(plan.work[i].bytes == align_up(unit.memory(phase.micro_batch, DType::f32).work));
        }
      }
      check_disjoint(plan);
      for (std::size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
        const std::int64_t chunk = plan.chunk_of_buffer[buffer];
        const std::vector<int>& units = plan.chunks[static_cast<std::size_t>(chunk)];
        CHECK(units == phase.units_of_chunk(stage, chunk));
        REQUIRE(plan.buffers[buffer].size() == units.size());
        // Only the head has no output.
        for (std::size_t i = 0; i < units.size(); ++i)
          CHECK((plan.buffers[buffer][i].output.bytes == 0) == (units[i] == 7));
      }
      // As many buffers of each chunk as its own forwards and backwards ever leave open.
      for (std::int64_t chunk = 0; chunk < c.chunks; ++chunk) {
        std::int64_t open = 0;
        std::int64_t most = 0;
        for (const ScheduleStep& step : phase.schedule(rank))
          for (const Instruction& i : step) {
            if (i.chunk != chunk) continue;
            if (i.op == Opcode::forward) most = std::max(most, ++open);
            if (i.op == Opcode::backward || i.op == Opcode::backward_weight) --open;
          }
        CHECK(open == 0);
        CHECK(std::count(plan.chunk_of_buffer.begin(), plan.chunk_of_buffer.end(), chunk) == most);
      }
    }
  }
}

TEST_CASE("every region is as large as its unit asks for") {
  const RunPlan run = make_run_plan(planned_config(), 61, std::nullopt);
  const PhasePlan& phase = run.phases.front();
  const Transformer model(phase.model);
  const ActivationPlan plan = phase.activations(Rank(0));
  const std::size_t hidden_bytes = 3 * 7 * 24 * 4;
  for (std::size_t i = 0; i < plan.chunks[0].size(); ++i) {
    const UnitMemory memory = model.units()[i]->memory(phase.micro_batch, DType::f32);
    CHECK(plan.buffers[0][i].saved.bytes == align_up(memory.saved));
    CHECK(plan.scratch.bytes >= memory.scratch);
    if (i + 1 < plan.chunks[0].size()) CHECK(plan.buffers[0][i].output.bytes == align_up(hidden_bytes));
  }
  CHECK(plan.gradients[0].bytes == align_up(hidden_bytes));
  CHECK(plan.batches[0].bytes == 3 * align_up(3 * 7 * 4));
}

TEST_CASE(
    "starts of documents take a number for each token of a batch, on every stage, and no memory is lent for scores") {
  Config config = planned_config();
  config.precision.compute = Precision::bf16;
  const auto phase_of = [&](DocumentAttention attention) {
    config.data.documents.attention = attention;
    PhasePlan phase = make_run_plan(config, 61, std::nullopt).phases.front();
    phase.attention_workspace = {.keeps_scores = true};
    return phase;
  };
  const PhasePlan across = phase_of(DocumentAttention::across);
  const PhasePlan within = phase_of(DocumentAttention::within);
  for (std::int64_t rank = 0; rank < across.mesh.world(); ++rank) {
    const ActivationPlan plan = within.activations(Rank(rank));
    CHECK(plan.batches[0].bytes == 4 * align_up(3 * 7 * 4));
    CHECK(3 * plan.batch_bytes == 4 * across.activations(Rank(rank)).batch_bytes);
    CHECK(plan.scratch.bytes < across.activations(Rank(rank)).scratch.bytes);
  }
  CHECK(make_forward_plan(Transformer(within.model), within.micro_batch, DType::f32, within.document_attention)
            .batches[0]
            .bytes == 4 * align_up(3 * 7 * 4));
}

TEST_CASE("a plan for evaluation keeps one saved region and lets neighbours never share an output") {
  const RunPlan run = make_run_plan(planned_config(), 61, std::nullopt);
  const PhasePlan& phase = run.phases.front();
  const Transformer model(phase.model);
  const ActivationPlan plan = make_forward_plan(model, phase.micro_batch, DType::f32);
  REQUIRE(plan.buffers.size() == 1);
  REQUIRE(plan.buffers[0].size() == 8);
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(plan.buffers[0][i].saved.offset == plan.buffers[0][0].saved.offset);
    CHECK(plan.buffers[0][i].saved.bytes >= model.units()[i]->memory(phase.micro_batch, DType::f32).saved);
    if (i > 0) CHECK(plan.buffers[0][i].output.offset != plan.buffers[0][i - 1].output.offset);
  }
  CHECK(plan.buffers[0][7].output.bytes == 0);
  CHECK(plan.arena_bytes < phase.activations(Rank(0)).arena_bytes / 2);
  const std::vector<ArenaRange> ranges = {plan.batches[0], plan.buffers[0][0].saved, plan.buffers[0][0].output,
                                          plan.buffers[0][1].output, plan.scratch};
  std::size_t end = 0;
  for (const ArenaRange& range : ranges) {
    CHECK(range.offset == end);
    end += range.bytes;
  }
  CHECK(end == plan.arena_bytes);
}

TEST_CASE("layers before the first that trains keep nothing of a micro-batch but what leaves them") {
  Config config = planned_config();
  config.parallel.data = 1;
  config.parallel.tensor = 1;
  config.parallel.pipeline = 1;
  config.finetune.freeze = {"embedding.*", "blocks.0.*", "blocks.1.*", "blocks.2.*"};
  const PhasePlan phase = make_run_plan(config, 61, std::nullopt).phases.front();
  const int first = 4;
  REQUIRE(phase.table.first_trained_unit() == first);
  const Transformer model = phase.transformer(Rank(0));
  // Several micro-batches in flight, as a stage before others has.
  const ScheduleDepth depth{.saved = 3, .in_flight = 3, .in_flight_of_chunk = {3}};
  const ActivationPlan plan = phase.activations(Rank(0), depth);
  REQUIRE(plan.buffers.size() == 3);
  std::size_t kept = 0;
  for (std::size_t buffer = 0; buffer < 3; ++buffer) {
    for (int unit = 0; unit < 8; ++unit) {
      CAPTURE(unit);
      const UnitBuffers& of = plan.buffers[buffer][static_cast<std::size_t>(unit)];
      const UnitBuffers& of_first = plan.buffers[0][static_cast<std::size_t>(unit)];
      const std::size_t asked =
          model.units()[static_cast<std::size_t>(unit)]->memory(phase.micro_batch, DType::f32).saved;
      CHECK(of.saved.bytes >= asked);
      const bool is_shared = unit < first;
      if (asked > 0) CHECK((of.saved.offset == plan.buffers[0][1].saved.offset) == is_shared);
      if (!is_shared) kept += of.saved.bytes;
      // What the first that trains reads stays; else neighbours alone must not share.
      if (buffer > 0 && unit < 7) CHECK((of.output.offset == of_first.output.offset) == (unit < first - 1));
      if (unit > 0) CHECK(of.output.offset != plan.buffers[buffer][static_cast<std::size_t>(unit) - 1].output.offset);
    }
  }
  CHECK(plan.saved_bytes == kept + plan.buffers[0][1].saved.bytes);
}
