// The instructions of one optimizer step, as data. The executor is a loop over them; check prints them; simulate()
// replays them. There is no second, hand-written schedule anywhere.
//
// Virtual stage s of P·V lies on physical stage s mod P as its chunk s div P. Activations go from virtual stage s to
// s+1, gradients back; a transfer names the chunk of its own side. Where both virtual stages lie on one physical stage
// (P = 1, V > 1) the result is handed over in place and no transfer appears.
//
// A step is either work of one kind in order (acquire, forward, release; or one reduction ...) or transfers only, all
// posted together by one batched call. Between two stages transfers of one direction are posted in the same order on
// both sides.
//
// Sources: GPipe (Huang et al. 2019), 1F1B (PipeDream-Flush, Narayanan et al. 2021), interleaved 1F1B (Megatron-LM,
// 2021), ZB-H1 (Qi et al. 2023).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/numbers/strong.h"
#include "config/config.h"

namespace scaletrain {

enum class Opcode {
  forward,
  backward,  // input and weight parts together
  backward_input,
  backward_weight,
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient,
  acquire,  // parameters of the chunk
  release,
  reduce_gradients,  // over the data axis
  reduce_tied,       // over the stages that hold a tied tensor
  optimizer_step,
};
std::string_view to_text(Opcode op);
bool is_transfer(Opcode op);
bool is_send(Opcode op);
bool is_activation(Opcode op);  // of transfers; else it is a gradient's

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
  std::int64_t stages = 1;                       // P, physical
  std::int64_t micro_batches = 1;                // M
  std::int64_t chunks = 1;                       // V, model chunks per stage
  std::int64_t lowest_backward = 0;              // as make_schedule() was told
  std::vector<std::vector<ScheduleStep>> steps;  // [stage][step]
};

// The schedule of every stage. interleaved orders the work as if M were padded to a multiple of P; the micro-batches
// that do not exist get no instruction. Weight-gradient work needs no parameters, so backward_weight is not bracketed.
// reduce_tied appears on the first and the last of several stages. Chunks other than 1 belong to interleaved alone
// (UserError naming parallel.chunks).
//
// lowest_backward: the first virtual stage that has something to train. No gradient goes below it. The backward of
// those below stays in its place and does nothing but give up what the forward has kept, so that the order of the work
// is the same whatever is trained.
Schedule make_schedule(ScheduleKind kind, std::int64_t stages, std::int64_t micro_batches, std::int64_t chunks,
                       std::int64_t lowest_backward = 0);
// One stage's part, without building the others: what a worker and `check` of a large world use.
std::vector<ScheduleStep> make_stage_schedule(ScheduleKind kind, std::int64_t stages, std::int64_t micro_batches,
                                              std::int64_t chunks, Stage stage, std::int64_t lowest_backward = 0);

// Forward passes only, for evaluation: micro-batches stream through the stages, in the forward order of interleaved.
std::vector<ScheduleStep> make_evaluation_schedule(std::int64_t stages, std::int64_t micro_batches, std::int64_t chunks,
                                                   Stage stage);

// "F0" forward, "B0" backward, "I0" backward_input, "W0" backward_weight of micro-batch 0 ("F0c1": of chunk 1); "send
// a0>1": activation of micro-batch 0 to stage 1, "receive g0<1": its gradient from stage 1; "reduce", "reduce tied" ...
std::string to_text(const Instruction& instruction, std::int64_t chunks);
// One line per step: "acquire | F0 | release", stages side by side under headings: for golden files and check.
std::string to_text(const Schedule& schedule);

}  // namespace scaletrain
