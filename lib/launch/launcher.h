// What this process is: started by hand (then it becomes the agent of its host), already one of many, started by a
// launcher that gives one process per rank (then it is a worker), or one of several agents, one per node. Read from the
// environment alone.
//
//   by hand           SCALETRAIN_NODE, SCALETRAIN_NODES [SCALETRAIN_JOB]: one agent per node, whatever starts them
//   torchrun          RANK, WORLD_SIZE, LOCAL_RANK [LOCAL_WORLD_SIZE]
//   PyTorchJob        RANK, WORLD_SIZE, MASTER_ADDR: one rank per host
//   Open MPI          OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   MPICH, Intel MPI  PMI_RANK, PMI_SIZE [MPI_LOCALRANKID, MPI_LOCALNRANKS]
//   SLURM (srun)      SLURM_STEP_ID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), SLURM_PROCID, SLURM_LOCALID
//                     [SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID]: several tasks in the step. As many tasks as nodes
//                     (SLURM_STEP_NUM_NODES, or SLURM_NNODES) are agents. A batch script has no step.
//
// The first kind that is complete wins, in this order; SLURM fills in what PMI leaves open. If none is complete, a kind
// that is there in part is a UserError that names its variables; so is one that says what cannot be (a rank not below
// the world). A world of one is no launcher: the process is an agent.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace scaletrain {

struct LauncherPlace {
  std::string launcher{};    // "SCALETRAIN_NODE", "torchrun", "Open MPI", "MPI (PMI)", "SLURM"
  bool is_per_node = false;  // an agent: rank and world count nodes
  std::int64_t rank = 0;
  std::int64_t world = 1;
  std::int64_t local_rank = 0;
  std::int64_t local_world = 1;
  // What tells this start from others of the same run folder: a job id with its restart count; empty where the launcher
  // has none.
  std::string job{};
};

// variable: the environment's value or nothing. An empty value counts as none.
std::optional<LauncherPlace> detect_launcher(
    const std::function<std::optional<std::string>(const std::string&)>& variable);
std::optional<LauncherPlace> detect_launcher();  // of this process

// Variables that a child must not inherit, so that a worker started by an agent does not take itself for a launcher's.
std::vector<std::string> launcher_variables();

}  // namespace scaletrain
