// Properties of every generated schedule, against the published formulas.
#include "parallel/schedule/schedule.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/keys/keys.h"
#include "parallel/schedule/simulate.h"
#include "support/sanitizers.h"

using namespace scaletrain;

namespace {

constexpr std::int64_t max_stages = 16;
constexpr std::int64_t max_micro_batches = 64;

// Plain builds replay every shape. Sanitizers, which are some twenty times slower, see small shapes, where the borders
// lie, and a part of the others: they look for errors of memory, and the same code builds all.
bool is_replayed(std::int64_t stages, std::int64_t micro_batches) {
  return !is_sanitized || (stages <= 4 && micro_batches <= 6) || (stages * 67 + micro_batches) % 23 == 0;
}

struct ScheduleCase {
  ScheduleKind kind;
  std::int64_t stages;
  std::int64_t micro_batches;
  std::int64_t chunks;
  std::string text() const { return fmt::format("{} P={} M={} V={}", to_text(kind), stages, micro_batches, chunks); }
};

// The idle time per stage that the literature gives, where it gives one; nothing outside the stated domain.
std::optional<double> bubble_formula(const ScheduleCase& c, const ScheduleCosts& costs) {
  const double backward = costs.backward_input + costs.backward_weight;
  const double others = static_cast<double>(c.stages - 1);
  switch (c.kind) {
    case ScheduleKind::gpipe:
    case ScheduleKind::one_f_one_b:
      return others * (costs.forward + backward);
    case ScheduleKind::interleaved:  // costs are per chunk: the division by the number of chunks is in them
      if (c.micro_batches % c.stages != 0) return std::nullopt;
      return others * (costs.forward + backward);
    case ScheduleKind::zb_h1:
      if (c.micro_batches < 2 * c.stages) return std::nullopt;
      if (costs.backward_weight > std::min(costs.forward, costs.backward_input)) return std::nullopt;
      return others * (costs.forward + costs.backward_input - costs.backward_weight);
  }
  return std::nullopt;
}

// No schedule can be faster: the last stage starts after P-1 forwards and has all its work to do; the first stage ends
// with the last micro-batch's way back.
double critical_path(const ScheduleCase& c, const ScheduleCosts& costs) {
  const double work =
      static_cast<double>(c.micro_batches * c.chunks) * (costs.forward + costs.backward_input + costs.backward_weight);
  const double last_stage = static_cast<double>(c.stages - 1) * costs.forward + work;
  const double chain =
      static_cast<double>(c.stages * c.chunks) * (costs.forward + costs.backward_input) + costs.backward_weight;
  return std::max(last_stage, chain);
}

// Costs inside and outside the domain of zb-h1's formula, small integers so that every sum is exact.
constexpr ScheduleCosts all_costs[] = {
    {.forward = 1, .backward_input = 1, .backward_weight = 1},
    {.forward = 2, .backward_input = 3, .backward_weight = 1},
    {.forward = 4, .backward_input = 3, .backward_weight = 2},
    {.forward = 3, .backward_input = 2, .backward_weight = 5},
};

struct Replay {
  ScheduleCase shape;
  ScheduleCosts costs;
  Simulation simulation;
};

// Every kind and shape, replayed with queued transfers and with blocking ones; the costs take turns.
struct Replays {
  std::vector<Replay> queued;
  std::vector<Replay> blocking;
};

const Replays& replays() {
  static const Replays all = [] {
    Replays out;
    const auto add = [&](const ScheduleCase& c) {
      const Schedule schedule = make_schedule(c.kind, c.stages, c.micro_batches, c.chunks);
      const ScheduleCosts& costs =
          all_costs[static_cast<std::size_t>(c.stages + c.micro_batches) % std::size(all_costs)];
      out.queued.push_back({c, costs, simulate(schedule, costs)});
      out.blocking.push_back({c, costs, simulate(schedule, costs, TransferModel::blocking)});
    };
    for (std::int64_t stages = 1; stages <= max_stages; ++stages) {
      for (std::int64_t micro_batches = 1; micro_batches <= max_micro_batches; ++micro_batches) {
        if (!is_replayed(stages, micro_batches)) continue;
        for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
          add({kind, stages, micro_batches, 1});
        for (std::int64_t chunks = 1; chunks <= 4; ++chunks)
          add({ScheduleKind::interleaved, stages, micro_batches, chunks});
      }
    }
    return out;
  }();
  return all;
}

}  // namespace

TEST_CASE("every schedule of every kind runs to its end with queued and with blocking transfers") {
  if (!is_sanitized) CHECK(replays().queued.size() == 7 * max_stages * max_micro_batches);
  for (const auto* part : {&replays().queued, &replays().blocking}) {
    for (const Replay& replay : *part) {
      if (!replay.simulation.completed) FAIL_CHECK(replay.shape.text() << ": " << replay.simulation.problem);
    }
  }
}

TEST_CASE("peaks of saved micro-batches are those of the literature on every stage") {
  for (const Replay& replay : replays().queued) {
    const ScheduleCase& c = replay.shape;
    for (std::int64_t stage = 0; stage < c.stages; ++stage) {
      const StageSimulation& found = replay.simulation.stages[static_cast<std::size_t>(stage)];
      std::int64_t high = std::min(c.stages - stage, c.micro_batches);  // 1F1B, and ZB-H1 which keeps its memory
      std::int64_t low = high;
      if (c.kind == ScheduleKind::gpipe) low = high = c.micro_batches;
      if (c.kind == ScheduleKind::interleaved && c.chunks > 1) {
        // Narayanan et al.: the warm-up's forwards and the one in flight.
        high = std::min((c.stages - stage - 1) * 2 + (c.chunks - 1) * c.stages + 1, c.micro_batches * c.chunks);
        low = c.micro_batches % c.stages == 0 ? high : 1;
      }
      if (found.peak_saved < low || found.peak_saved > high)
        FAIL_CHECK(c.text() << " stage " << stage << ": " << found.peak_saved << " saved, not " << low << ".." << high);
      const std::int64_t weight_limit = c.kind == ScheduleKind::zb_h1 ? c.stages : 0;
      if (found.peak_weight_work > weight_limit)
        FAIL_CHECK(c.text() << " stage " << stage << ": " << found.peak_weight_work << " weight works");
    }
  }
}

TEST_CASE("zb-h1 defers one more weight work on every later stage, up to the number of stages") {
  const Simulation simulation = simulate(make_schedule(ScheduleKind::zb_h1, 4, 16, 1), {});
  for (std::int64_t stage = 0; stage < 4; ++stage)
    CHECK(simulation.stages[static_cast<std::size_t>(stage)].peak_weight_work == stage + 1);
}

TEST_CASE("the bubble is the literature's inside its domain and never below the critical path outside it") {
  std::int64_t compared = 0;
  for (const Replay& replay : replays().queued) {
    const ScheduleCase& c = replay.shape;
    const ScheduleCosts& costs = replay.costs;
    const double work = static_cast<double>(c.micro_batches * c.chunks) *
                        (costs.forward + costs.backward_input + costs.backward_weight);
    const double idle = replay.simulation.makespan - work;
    const auto formula = bubble_formula(c, costs);
    if (formula && idle != *formula)
      FAIL_CHECK(c.text() << " with F " << costs.forward << ", Bi " << costs.backward_input << ", W "
                          << costs.backward_weight << ": idle " << idle << ", not " << *formula);
    if (replay.simulation.makespan < critical_path(c, costs)) FAIL_CHECK(c.text() << ": below the critical path");
    // The share of the whole that the simulation reports says the same.
    const double share = 1.0 - work / replay.simulation.makespan;
    if (std::abs(replay.simulation.bubble - share) > 1e-12)
      FAIL_CHECK(c.text() << ": share " << replay.simulation.bubble);
    compared += formula.has_value() ? 1 : 0;
  }
  CHECK(compared > (is_sanitized ? 150 : 3000));
}

TEST_CASE("one stage's schedule is its part of the whole") {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
    const std::int64_t chunks = kind == ScheduleKind::interleaved ? 2 : 1;
    const Schedule whole = make_schedule(kind, 4, 6, chunks);
    for (std::int64_t stage = 0; stage < 4; ++stage)
      CHECK(make_stage_schedule(kind, 4, 6, chunks, Stage(stage)) == whole.steps[static_cast<std::size_t>(stage)]);
  }
}

TEST_CASE("one rank has brackets, reduction and update but no transfer") {
  const Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 1, 2, 1);
  CHECK(to_text(schedule) ==
        "1f1b, 1 stages, 2 micro-batches, 1 chunks per stage\n"
        "stage 0\n"
        "acquire | F0 | release\n"
        "acquire | B0 | release\n"
        "acquire | F1 | release\n"
        "acquire | B1 | release\n"
        "reduce\n"
        "step\n");
}

TEST_CASE("tied gradients are reduced by the first and the last stage, after the data axis and before the update") {
  const Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 3, 4, 1);
  for (const std::size_t stage : {0U, 2U}) {
    const auto& steps = schedule.steps[stage];
    REQUIRE(steps.size() > 3);
    CHECK(steps[steps.size() - 3].front().op == Opcode::reduce_gradients);
    CHECK(steps[steps.size() - 2].front().op == Opcode::reduce_tied);
    CHECK(steps[steps.size() - 1].front().op == Opcode::optimizer_step);
  }
  for (const ScheduleStep& step : schedule.steps[1]) CHECK(step.front().op != Opcode::reduce_tied);
}

TEST_CASE("evaluation schedules run to their end with any number of micro-batches") {
  for (std::int64_t stages = 1; stages <= 8; ++stages) {
    for (std::int64_t micro_batches = 1; micro_batches <= 20; ++micro_batches) {
      for (std::int64_t chunks = 1; chunks <= 3; ++chunks) {
        Schedule schedule{.kind = ScheduleKind::interleaved,
                          .stages = stages,
                          .micro_batches = micro_batches,
                          .chunks = chunks,
                          .steps = {}};
        for (std::int64_t stage = 0; stage < stages; ++stage)
          schedule.steps.push_back(make_evaluation_schedule(stages, micro_batches, chunks, Stage(stage)));
        for (const TransferModel model : {TransferModel::queued, TransferModel::blocking}) {
          const Simulation simulation = simulate(schedule, {}, model);
          if (!simulation.completed)
            FAIL_CHECK("P=" << stages << " M=" << micro_batches << " V=" << chunks << ": " << simulation.problem);
        }
      }
    }
  }
}

TEST_CASE("chunks without an interleaved schedule are refused by name") {
  CHECK_THROWS_WITH_AS(make_schedule(ScheduleKind::one_f_one_b, 2, 4, 2),
                       "parallel.chunks: 2 chunks per stage, but parallel.schedule is 1f1b, which has one; set "
                       "parallel.schedule: interleaved or parallel.chunks: 1",
                       UserError);
}
