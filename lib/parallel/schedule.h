// The instructions of one optimizer step, as data. The executor is a loop over them; check prints them; simulate() replays
// them. There is no second, hand-written schedule anywhere.
//
// Sources: GPipe (Huang et al. 2019), 1F1B (PipeDream-Flush, Narayanan et al. 2021), interleaved 1F1B (Megatron-LM, 2021), ZB-H1
// (Qi et al. 2023).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/strong.h"
#include "config/config.h"

namespace scaletrain {

enum class Opcode {
  forward,
  backward,          // input and weight parts together
  backward_input,
  backward_weight,
  recompute,
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient,
  acquire,           // parameters of the chunk
  release,
  reduce_gradients,  // over the data axis
  reduce_tied,       // over the holders of a tied tensor
  optimizer_step,
  snapshot,          // copy of the state for a save
};
std::string_view to_text(Opcode op);

// chunk: which of this stage's model chunks (0 unless interleaved); micro_batch and peer where the opcode has one.
struct Instruction {
  Opcode op = Opcode::forward;
  std::int64_t chunk = 0;
  std::optional<MicroBatch> micro_batch;
  std::optional<Stage> peer;  // the physical stage on the other side of a transfer
  bool operator==(const Instruction&) const = default;
};

// Instructions whose transfers are posted together.
using ScheduleStep = std::vector<Instruction>;

struct Schedule {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  std::int64_t stages = 1;         // P, physical
  std::int64_t micro_batches = 1;  // M
  std::int64_t chunks = 1;         // V, model chunks per stage
  std::vector<std::vector<ScheduleStep>> steps;  // [stage][step]
};

// The schedule of every stage. interleaved pads M to a multiple of P with empty micro-batches.
Schedule make_schedule(ScheduleKind kind, std::int64_t stages, std::int64_t micro_batches, std::int64_t chunks);
// One stage's part, without building the others: what a worker and `check` of a large world use.
std::vector<ScheduleStep> make_stage_schedule(ScheduleKind kind, std::int64_t stages, std::int64_t micro_batches,
                                              std::int64_t chunks, Stage stage);

// Forward passes only, for evaluation: micro-batches stream through the stages.
std::vector<ScheduleStep> make_evaluation_schedule(std::int64_t stages, std::int64_t micro_batches, std::int64_t chunks,
                                                   Stage stage);

// One line per step: "F0 | send a0>1", stages side by side under headings: for golden files and check.
std::string to_text(const Schedule& schedule);

}  // namespace scaletrain
