// What is said about a plan, as values: the text and the JSON of describe.h are written from the same. Internal to
// plan.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/phases.h"
#include "parallel/schedule/simulate.h"
#include "plan/describe/describe.h"
#include "plan/describe/stage_survey.h"
#include "plan/describe/verdict.h"
#include "plan/hosts.h"
#include "plan/run_plan.h"
#include "plan/save_size.h"
#include "plan/stage_work.h"

namespace scaletrain {

struct StageFacts {
  std::int64_t stage = 0;
  std::string blocks;
  std::int64_t parameters = 0;  // held by the stage's first rank
  double work = 1.0;            // of a micro-batch, in units of the mean stage
  StageSurvey survey;
};

// Neighbouring stages that hold as much of the same: [first, last].
struct StageRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

struct GroupFact {
  GroupKind kind = GroupKind::tensor;
  std::int64_t size = 0;
  std::int64_t count = 0;
  Rank first{0}, second{0}, last{0};  // of the group of rank 0
  GroupReach reach = GroupReach::inside_host;
};

// Which stages a micro-batch takes longest in.
struct Balance {
  std::int64_t slowest = 0;  // the first of them
  std::int64_t as_slow = 0;  // so many more
  double ratio = 1.0;        // to the mean
  double least = 1.0;        // of the stage that works least
};

// What step time and days are told by.
inline constexpr double assumed_share_of_peak = 0.4;

// The whole run, but what it reads: that is from first_step on. As floating-point numbers: some are beyond 64 bits.
struct RunWork {
  double steps = 0;
  double samples = 0;
  double tokens = 0;
  double flops = 0;
  double first_step = 0;  // 0 and the whole run where nothing is left to do, too
  double steps_left = 0;
  double samples_left = 0;
  struct Epochs {
    std::string path;
    SourceSize size;
    double epochs = 0;  // that the run draws from it by its weight, up to its cap
  };
  std::vector<Epochs> epochs;               // of the sources whose size is known
  std::vector<std::string> uncounted_caps;  // paths of the sources that have a cap, and whose size is not known
  std::optional<double> allowed_samples{};  // by the epoch caps; nothing: as many as the run takes, or not known
  // Of a run that has phases. Its samples_left, and what caps allow, are then counted as if each were as long as the
  // longest.
  struct Phase {
    TrainingPhase phase;
    double tokens = 0;
    double flops = 0;
  };
  std::vector<Phase> phases{};
  double most_allowed = 0;  // the same, should the sources that were read hold other content by now
};

// At the assumed share of the budget's peak, while a device computes.
struct RunTime {
  std::int64_t devices = 0;  // or hosts, where the budget is a host's
  double recomputed = 0;     // what is computed again, beside all other work
  // Of the time of the stages, where each has devices of its own. The ranks of a host share its processors: what one
  // leaves idle another may take, and nothing is counted.
  double bubble = 0;
  double halves = 0;  // more, of all of that: steps in halves (log.gradient_noise), over all steps
  double seconds = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;
  // What passes through the device at each update with train.optimizer.offload, of the rank that takes longest to it,
  // and the seconds of it, which are part of a step's: nothing is computed meanwhile but the update. 0 seconds where
  // the rate of the link to the host is not known.
  UpdatePass update{};
  double update_seconds = 0;
  // Of each step, of the rank that takes longest to them, for the products of the optimizer (Muon's).
  double product_seconds = 0;
};

struct PlanFacts {
  const Config& config;
  const RunPlan& plan;
  const PhasePlan& phase;  // its first training phase
  const DescribeOptions& options;
  HostPlacement hosts;
  std::vector<StageFacts> stages;
  std::vector<GroupFact> groups;
  StageWork work;
  Balance balance;
  ShortStep short_step;  // which the replay is of
  StepReplay replay;
  SaveSize save;
  // Bytes of hosts' memory, of all ranks and of those of the host that needs most.
  std::uint64_t world_memory = 0;
  std::uint64_t host_memory = 0;
  bool refused = false;  // `run` on this machine would refuse for want of memory
  std::optional<Verdict> verdict{};
  RunWork work_of_run{};
  std::optional<RunTime> time{};
};

PlanFacts gather_facts(const Config& config, const RunPlan& plan, const DescribeOptions& options);

// All stages, in ranges of ones alike.
std::vector<StageRange> alike_stages(const PlanFacts& facts);
// "embedding, blocks 0-7", "blocks 8-119, 8 each"; model chunks apart by semicolons.
std::string contents_text(const PhasePlan& phase, const StageRange& stages);

const CommunicationVolume* find_volume(const StageFacts& stage, GroupKind kind, const std::string& purpose);
GroupReach reach_of(const PlanFacts& facts, GroupKind kind);
// "all-reduce"; a message between two ranks is "send".
std::string collective_name(CollectiveKind kind);
// "rank = tensor + 2 * (data + 2 * pipeline)"
std::string rank_pattern(const PhasePlan& phase);
// What a combination costs that another layout would not; a sentence each.
std::vector<std::string> cost_lines(const PlanFacts& facts);
// "stage 3 is the slowest, 1.31 x the mean (61 % of its work is the head) ..."; empty for one stage.
std::string balance_text(const PlanFacts& facts);
// What is known of hosts: "32 of 8 ranks (launch.ranks_per_node)".
std::string placement_text(const PlanFacts& facts);
// Sentences about the memory of hosts.
std::vector<std::string> host_memory_lines(const PlanFacts& facts);

// "1,000"; "about 1,000 (train.epochs 1.5, by the sizes of the files; a start counts)"; "counted at the start".
std::string steps_text(const PlanFacts& facts);

// Seconds of one of the run's phases; nothing where those of the run are not known.
std::optional<double> seconds_of_phase(const PlanFacts& facts, const RunWork::Phase& phase);

// How the text begins: whether it fits, what would make it fit, the work of the run and the time it takes.
std::string budget_text(const PlanFacts& facts);
// What the choices of evaluate.tasks cost each time, in steps of training: each is a sample as long as the context, of
// which the forward alone is computed, a third of what a step does with one.
double steps_of_tasks(const PlanFacts& facts);
std::string misfit_text(const PlanFacts& facts);
// Of PlanDescription, too.
bool is_clearly_short(const RunWork& work);
std::string shortage_text(const PlanFacts& facts);
// By the updates after which they join the training (Parameter::joins_after): how many do, each tensor once.
std::map<std::int64_t, std::int64_t> joining_parameters(const ParamTable& table);
// "key          value", the value's lines within the page.
std::string keyed_lines(std::string_view key, const std::string& value);
// Text that keyed_lines leaves on one line.
std::string unbroken(std::string text);

// The two forms.
std::string facts_text(const PlanFacts& facts);
std::string facts_json(const PlanFacts& facts);

}  // namespace scaletrain
