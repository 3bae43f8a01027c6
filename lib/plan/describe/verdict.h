// Whether a plan fits into the memory there is, and if not, which settings would make it fit: found by planning again
// with each of them. Internal to plan, but for MemoryBudget.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/describe/stage_survey.h"
#include "plan/hosts.h"
#include "plan/run_plan.h"

namespace scaletrain {

// What a plan is judged against.
struct MemoryBudget {
  enum class Kind {
    device,  // each rank has a device of its own, or a part of one
    host,    // the ranks of a host share its memory
  };
  Kind kind = Kind::host;
  std::string name;          // "an H100 SXM 80 GB", "this machine"
  std::uint64_t memory = 0;  // bytes, of one
  // FLOP/s of one device, or of one host's processors together, as they were measured for this; 0: not known.
  double peak_flops = 0;
  // Bytes/s each way, both at once, between a device and its host's memory; 0: not known.
  double host_link = 0;
  bool is_shared = false;  // ranks have parts of devices: more ranks would have smaller ones
};

// What a plan needs where it needs most.
struct PlanNeeds {
  std::uint64_t rank = 0;       // on the device of the rank that needs most
  std::int64_t stage = 0;       // which that rank is of
  std::uint64_t rank_host = 0;  // and in host memory beside it
  std::uint64_t host = 0;       // of all ranks of the host that needs most, wherever it lies
};
// of_manifest: see manifest_memory().
PlanNeeds needs_of(const Mesh& mesh, const std::vector<StageSurvey>& stages, std::int64_t ranks_per_host,
                   std::uint64_t of_manifest);

struct NearSetting {
  std::string text;  // "train.micro_batch: 2"
  std::uint64_t bytes = 0;
  std::uint64_t of_host = 0;  // that a rank of a device needs beside, where that is what the setting puts in its place
  bool is_supported = true;
};

struct Verdict {
  MemoryBudget budget;
  PlanNeeds needs;
  std::int64_t ranks_per_host = 1;
  std::uint64_t bytes = 0;  // of the needs, what the budget is for
  bool fits = false;
  // Where it does not fit: each of these alone would make it, the smallest change of each key.
  std::vector<NearSetting> fitting;
  // Where none does: these together, added up from the one that saves most; bytes: with those before it.
  std::vector<NearSetting> together;
  bool fits_together = false;
};

struct VerdictQuestion {
  const Config& config;
  const PhasePlan& phase;
  const std::vector<StageSurvey>& stages;
  std::int64_t ranks_per_host = 1;
  bool all_on_one_host = false;
  bool is_world_given = false;  // as in DescribeOptions
  bool goes_on = false;         // from a checkpoint: what a resume may not change is not offered
  std::size_t backend_workspace = 0;
  std::uint64_t of_manifest = 0;  // of the plan at hand, and about that of others: to count their pieces takes long
};
Verdict judge(const VerdictQuestion& question, const MemoryBudget& budget);

}  // namespace scaletrain
