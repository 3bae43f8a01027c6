// The simulator must refuse what cannot run: each schedule here has one planted error.
#include "parallel/schedule/simulate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "support/near.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

using Steps = std::vector<ScheduleStep>;

Schedule two_stages() {
  return make_schedule(ScheduleKind::one_f_one_b, 2, 3, 1);
}

// Removes the n-th instruction of this opcode from a stage.
void drop(Schedule& schedule, std::size_t stage, Opcode op, int n = 0) {
  for (ScheduleStep& step : schedule.steps[stage]) {
    for (std::size_t index = 0; index < step.size(); ++index) {
      if (step[index].op != op || n-- != 0) continue;
      step.erase(step.begin() + static_cast<std::ptrdiff_t>(index));
      return;
    }
  }
  FAIL("no such instruction");
}

std::size_t step_of(const Schedule& schedule, std::size_t stage, Opcode op, int n = 0) {
  const Steps& steps = schedule.steps[stage];
  for (std::size_t index = 0; index < steps.size(); ++index) {
    for (const Instruction& instruction : steps[index]) {
      if (instruction.op == op && n-- == 0) return index;
    }
  }
  FAIL("no such instruction");
  return 0;
}

void repeat(Schedule& schedule, std::size_t stage, Opcode op) {
  const std::size_t at = step_of(schedule, stage, op);
  Steps& steps = schedule.steps[stage];
  const ScheduleStep copy = steps[at];
  steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(at), copy);
}

std::string problem_of(const Schedule& schedule) {
  const Simulation simulation = simulate(schedule, {});
  CHECK_FALSE(simulation.completed);
  return simulation.problem;
}

}  // namespace

TEST_CASE("the unharmed schedule completes, with its times by hand") {
  const Simulation simulation =
      simulate(two_stages(), {.forward = 1, .backward_input = 1, .backward_weight = 1, .transfer = 0});
  CHECK(simulation.problem.empty());
  REQUIRE(simulation.completed);
  CHECK(simulation.makespan == 12);  // 3 micro-batches of 3 and a bubble of (2 - 1) * 3
  CHECK(simulation.bubble == Near(0.25));
  CHECK(simulation.stages[0].busy == 9);
}

TEST_CASE("transfers cost time on the way of the first and the last micro-batch") {
  // One micro-batch: F, transfer, F, B, transfer, B.
  const Simulation simulation = simulate(make_schedule(ScheduleKind::gpipe, 2, 1, 1),
                                         {.forward = 1, .backward_input = 1, .backward_weight = 1, .transfer = 10});
  CHECK(simulation.makespan == 1 + 10 + 1 + 2 + 10 + 2);
}

TEST_CASE("a dropped receive is refused and the unanswered send is named") {
  Schedule schedule = two_stages();
  drop(schedule, 1, Opcode::receive_activation, 2);
  CHECK(contains(problem_of(schedule), "send a2>1: nobody receives it"));
}

TEST_CASE("a dropped send is refused") {
  Schedule schedule = two_stages();
  drop(schedule, 1, Opcode::send_gradient, 2);
  CHECK(contains(problem_of(schedule), "receive g2<1: nothing is sent to it"));
}

TEST_CASE("two stages that both send before they receive are found to wait for each other") {
  Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 2, 2, 1);
  Steps& first = schedule.steps[0];
  const std::size_t both = step_of(schedule, 0, Opcode::send_activation, 1);
  REQUIRE(first[both].size() == 2);  // a1 and g0, posted together
  if (first[both][0].op != Opcode::send_activation) std::swap(first[both][0], first[both][1]);
  first.insert(first.begin() + static_cast<std::ptrdiff_t>(both) + 1, ScheduleStep{first[both][1]});
  first[both].pop_back();
  CHECK(simulate(schedule, {}).completed);  // the other side still receives a1 before it sends g0
  Steps& second = schedule.steps[1];
  const std::size_t received = step_of(schedule, 1, Opcode::receive_activation, 1);
  const ScheduleStep late = second[received];
  REQUIRE(late.size() == 1);
  second.erase(second.begin() + static_cast<std::ptrdiff_t>(received));
  second.insert(second.begin() + static_cast<std::ptrdiff_t>(step_of(schedule, 1, Opcode::send_gradient)) + 1, late);
  const std::string problem = problem_of(schedule);
  CHECK(contains(problem, "deadlock"));
  CHECK(contains(problem, "send a1>1"));
  CHECK(contains(problem, "send g0>0"));
}

TEST_CASE("messages in another order on the two sides are refused") {
  Schedule schedule = make_schedule(ScheduleKind::gpipe, 2, 2, 1);
  Steps& steps = schedule.steps[1];
  std::swap(steps[step_of(schedule, 1, Opcode::receive_activation, 0)],
            steps[step_of(schedule, 1, Opcode::receive_activation, 1)]);
  CHECK(contains(problem_of(schedule), "is not what the other side takes"));
}

TEST_CASE("a saved result that is consumed twice is refused") {
  Schedule schedule = two_stages();
  repeat(schedule, 0, Opcode::backward);
  CHECK(contains(problem_of(schedule), "its saved result was freed before"));
}

TEST_CASE("weight work that is done twice is refused") {
  Schedule schedule = make_schedule(ScheduleKind::zb_h1, 2, 3, 1);
  repeat(schedule, 0, Opcode::backward_weight);
  CHECK(contains(problem_of(schedule), "its weight work was done before"));
}

TEST_CASE("a release too many and a release too few are refused") {
  Schedule twice = two_stages();
  twice.steps[0][0].push_back({.op = Opcode::release, .chunk = 0, .micro_batch = {}, .peer = {}});
  CHECK(contains(problem_of(twice), "parameters were released before"));
  Schedule never = two_stages();
  drop(never, 1, Opcode::release, 3);
  CHECK(contains(problem_of(never), "parameters are still acquired"));
}

TEST_CASE("use of parameters that are not acquired is refused") {
  Schedule schedule = two_stages();
  drop(schedule, 0, Opcode::acquire, 0);
  CHECK(contains(problem_of(schedule), "parameters are not acquired"));
}

TEST_CASE("a forward before its input was received is refused") {
  Schedule schedule = two_stages();
  Steps& steps = schedule.steps[1];
  std::swap(steps[0], steps[1]);
  CHECK(contains(problem_of(schedule), "its input has not been received"));
}

TEST_CASE("a backward or weight part that is missing is refused") {
  Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 1, 2, 1);
  drop(schedule, 0, Opcode::backward, 1);
  CHECK(contains(problem_of(schedule), "not every backward of the chunk is done"));
  Schedule zero_bubble = make_schedule(ScheduleKind::zb_h1, 1, 2, 1);
  drop(zero_bubble, 0, Opcode::backward_weight, 1);
  CHECK(contains(problem_of(zero_bubble), "not every backward of the chunk is done"));
}

TEST_CASE("an update before the reduction and a missing reduction are refused") {
  Schedule early = make_schedule(ScheduleKind::one_f_one_b, 1, 2, 1);
  std::swap(early.steps[0][4], early.steps[0][5]);
  CHECK(contains(problem_of(early), "gradients have not been reduced"));
  Schedule never = make_schedule(ScheduleKind::one_f_one_b, 1, 2, 1);
  never.steps[0].pop_back();
  CHECK(contains(problem_of(never), "the update was never made"));
}

TEST_CASE("a gradient reduced after the tied one is refused") {
  Schedule schedule = two_stages();
  Steps& steps = schedule.steps[0];
  std::swap(steps[steps.size() - 2], steps[steps.size() - 3]);
  CHECK(contains(problem_of(schedule), "tied gradients are reduced once"));
}

TEST_CASE("no gradient goes below the first virtual stage that trains, and every schedule runs without it") {
  const auto count = [](const Schedule& schedule, Opcode op) {
    std::int64_t found = 0;
    for (const auto& stage : schedule.steps)
      for (const ScheduleStep& step : stage)
        found += std::count_if(step.begin(), step.end(), [op](const Instruction& at) { return at.op == op; });
    return found;
  };
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
    for (const std::int64_t stages : {1, 2, 3, 4}) {
      for (const std::int64_t micro_batches : {1, 3, 4, 9}) {
        const std::int64_t chunks = kind == ScheduleKind::interleaved ? 2 : 1;
        const std::int64_t last = stages * chunks - 1;
        const Schedule all = make_schedule(kind, stages, micro_batches, chunks);
        for (std::int64_t lowest = 0; lowest <= last; ++lowest) {
          CAPTURE(static_cast<int>(kind));
          CAPTURE(stages);
          CAPTURE(micro_batches);
          CAPTURE(lowest);
          const Schedule schedule = make_schedule(kind, stages, micro_batches, chunks, lowest);
          std::vector<WorkCosts> costs(static_cast<std::size_t>(last + 1));
          for (std::int64_t below = 0; below < lowest; ++below)
            costs[static_cast<std::size_t>(below)] = {.forward = 1, .backward_input = 0, .backward_weight = 0};
          for (const TransferModel transfers : {TransferModel::queued, TransferModel::blocking})
            CHECK(simulate(schedule, {.of_chunks = costs}, transfers).problem == "");
          CHECK(simulate(schedule, {.of_chunks = costs}).makespan <= simulate(all, {.of_chunks = costs}).makespan);
          const std::int64_t sent = stages == 1 ? 0 : (last - lowest) * micro_batches;
          CHECK(count(schedule, Opcode::send_gradient) == sent);
          CHECK(count(schedule, Opcode::receive_gradient) == sent);
          CHECK(count(schedule, Opcode::send_activation) == count(all, Opcode::send_activation));
          for (std::int64_t stage = 0; stage < stages; ++stage)
            CHECK(make_stage_schedule(kind, stages, micro_batches, chunks, Stage(stage), lowest) ==
                  schedule.steps[static_cast<std::size_t>(stage)]);
        }
      }
    }
  }
}

TEST_CASE("a gradient that a stage with something to train is not sent is refused") {
  Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 3, 3, 1, 1);
  schedule.lowest_backward = 0;
  CHECK(contains(problem_of(schedule), "its gradient has not been received"));
}
