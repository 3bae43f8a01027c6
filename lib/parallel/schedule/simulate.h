// Replays a schedule on all stages with given costs, sends as rendezvous (a send completes only when its receive is
// posted), and either proves that it runs to its end or says which instructions wait for each other.
//
// The model of a stage: its compute runs the steps in order and waits only for what an instruction reads; its transfers
// form one in-order queue beside the compute. A step of transfers enters the queue when the compute reaches it, is
// posted when the step before it in the queue has completed, and completes when every peer has posted the other side.
// This is how batched point-to-point calls behave on one communicator, and nothing is buffered. With
// TransferModel::blocking the compute also stands still until the step has completed: the worst an executor may do.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace scaletrain {

// Time of one micro-batch through one chunk. backward is input + weight.
struct WorkCosts {
  double forward = 1.0;
  double backward_input = 1.0;
  double backward_weight = 1.0;
  double total() const { return forward + backward_input + backward_weight; }
};

struct ScheduleCosts {
  double forward = 1.0;
  double backward_input = 1.0;
  double backward_weight = 1.0;
  double transfer = 0.0;
  // Where chunks differ: by virtual stage, in place of the first three. The caller's, for as long as the replay takes.
  std::span<const WorkCosts> of_chunks{};
};

struct StageSimulation {
  std::int64_t peak_saved = 0;        // forward results held at once (micro-batches times chunks)
  std::int64_t peak_weight_work = 0;  // backward_input results awaiting their weight part
  double busy = 0.0;
};

struct Simulation {
  bool completed = false;
  std::string problem;  // empty if completed: the deadlock or the broken rule, with stage, step and instruction
  double makespan = 0.0;
  double bubble = 0.0;  // 1 - busy time / (stages * makespan)
  std::vector<StageSimulation> stages;
};

// Checks on the way: everything used was produced before, each saved result is consumed exactly once, every micro-batch
// passes every chunk once in each direction, parameters are acquired around every use, gradients are reduced after the
// last backward, and nothing is left at the end. A schedule without any backward is an evaluation: forward results are
// freed at once and nothing is reduced.
enum class TransferModel { queued, blocking };
Simulation simulate(const Schedule& schedule, const ScheduleCosts& costs,
                    TransferModel transfers = TransferModel::queued);

// When a stage's compute does what: forward, backward and its parts.
struct WorkInterval {
  Instruction instruction;
  double start = 0.0;
  double end = 0.0;
};

// The replay with queued transfers as a timetable: [stage] in order of time. A schedule that does not complete is a
// bug.
struct Timetable {
  Simulation simulation;
  std::vector<std::vector<WorkInterval>> work;
};
Timetable make_timetable(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace scaletrain
