// A plan for people and for programs: what `scaletrain check` prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/describe/verdict.h"
#include "plan/hosts.h"
#include "plan/run_plan.h"

namespace scaletrain {

struct PlanDescription {
  std::string text;
  std::string json;  // one object, with the same facts
  // Not empty where the ranks of this machine need more memory than it has: what `run` would say, in one line.
  std::string refusal;
  // Not empty where the plan does not fit its budget: "does not fit: the rank needs ...".
  std::string misfit;
  // Not empty where the epoch caps of data.train leave fewer samples than the run takes, by the sizes of the sources:
  // one line that begins with the key of the first cap.
  std::string shortage;
  bool is_clearly_short = false;  // so much fewer that no estimate is as wrong: `run` would refuse it
};

// Of a training source, without its files being opened.
struct SourceSize {
  std::uint64_t tokens = 0;
  std::string basis;  // where the number is from: "2 bytes a token"
};

// What a run that goes on has behind it.
struct RunSoFar {
  std::int64_t step = 0;
  std::int64_t last_step = 0;
  std::vector<double> epochs_read{};  // by place in data.train
  std::int64_t tokens = 0;            // that it has trained on
};

// What PhasePlan::num_steps is: of a run in epochs an estimate by the sizes of its files or, where these tell nothing,
// one step, and the run is not told.
enum class StepCount { exact, estimated, unknown };

struct DescribeOptions {
  std::size_t backend_workspace = 0;  // of one rank
  bool all_on_one_host = true;        // as `run` starts them without a launcher, if launch.ranks_per_node allows it
  bool is_world_given = false;        // by whoever asks: higher degrees then take replicas, where their number is auto
  std::optional<std::uint64_t> machine_memory{};  // of that one host; nothing: unknown
  bool instructions = false;                      // list every instruction of every stage
  // The text: ranks, groups, traffic, timeline and the meaning of words too. The JSON has all of it always.
  bool verbose = false;
  std::optional<MemoryBudget> budget{};              // what to judge the plan against; nothing: it is not judged
  std::vector<std::optional<SourceSize>> sources{};  // by place in data.train; nothing: not known
  // Where a start would go on, which the sources and their caps are told from; nothing: it begins.
  std::optional<RunSoFar> so_far{};
  StepCount step_count = StepCount::exact;
  std::int64_t task_choices = 0;  // of all evaluate.tasks: texts that each evaluation reads
};

// Size and time are bounded whatever the world: ranks are shown by pattern, long charts lose their middle.
PlanDescription describe_plan(const Config& config, const RunPlan& plan, const DescribeOptions& options);

}  // namespace scaletrain
