// Who has started this process, and which of how many it is: the only one (started by hand), one of several with a node
// each, or one of many with a rank each. Read from the environment alone.
//
//   by hand           SCALETRAIN_NODE, SCALETRAIN_NODES [SCALETRAIN_JOB]: one process per node, whatever starts them
//   torchrun          RANK, WORLD_SIZE, LOCAL_RANK [LOCAL_WORLD_SIZE]
//   PyTorchJob        RANK, WORLD_SIZE, MASTER_ADDR: one rank per host
//   Open MPI          OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   MPICH, Intel MPI  PMI_RANK, PMI_SIZE [MPI_LOCALRANKID, MPI_LOCALNRANKS]
//   SLURM (srun)      SLURM_STEP_ID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), SLURM_PROCID, SLURM_LOCALID
//                     [SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID]: several tasks in the step. As many tasks as nodes
//                     (SLURM_STEP_NUM_NODES, or SLURM_NNODES) have a node each. A batch script has no step.
//
// The first kind that is complete wins, in this order; SLURM fills in what PMI leaves open. If none is complete, a kind
// that is there in part is a UserError that names its variables; so is one that says what cannot be (a rank not below
// the world). A world of one is no launcher: the process is as one that was started by hand.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace scaletrain {

// The place of this process among the `world` that were started together.
struct LauncherPlace {
  std::string launcher{};    // "SCALETRAIN_NODE", "torchrun", "Open MPI", "MPI (PMI)", "SLURM"; empty: by hand
  bool is_per_node = false;  // places are nodes, with as many ranks as the config says; else each is one rank
  std::int64_t rank = 0;
  std::int64_t world = 1;
  std::int64_t local_rank = 0;
  std::int64_t local_world = 1;
  bool knows_local_world = true;  // else local_world is the least that it can be
  // What tells this start from others of the same run folder: a job id with its restart count; empty where the launcher
  // has none.
  std::string job{};

  bool is_alone() const { return world == 1; }
  // What a place is for people, "node" or "rank", and which this one is: "rank 3".
  const char* kind() const { return is_per_node ? "node" : "rank"; }
  std::string name() const { return name_of(rank); }
  std::string name_of(std::int64_t place) const { return std::string(kind()) + " " + std::to_string(place); }
};
// Started by hand, alone on its host.
inline LauncherPlace lone_place() {
  return {.is_per_node = true};
}

// variable: the environment's value or nothing. An empty value counts as none.
std::optional<LauncherPlace> detect_launcher(
    const std::function<std::optional<std::string>(const std::string&)>& variable);
std::optional<LauncherPlace> detect_launcher();  // of this process

// Variables that a child must not inherit, so that it does not take itself for one that the launcher has started.
std::vector<std::string> launcher_variables();

}  // namespace scaletrain
