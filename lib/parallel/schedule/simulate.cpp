#include "parallel/schedule/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

// What became of one micro-batch in one virtual stage. Times: -1 until the thing exists.
struct Cell {
  double forward_end = -1;
  double backward_end = -1;  // of the input part
  bool is_saved = false;
  bool has_weight_work = false;
  bool weight_done = false;
  bool activation_posted = false;  // the receive of its input stands before
  bool gradient_posted = false;
  double activation_received = -1;
  double gradient_received = -1;
  bool activation_sent = false;
  bool gradient_sent = false;
};

// One transfer between two virtual stages, seen from both sides. Index: receiving cell; one table per direction.
struct Meeting {
  double send_posted = -1;
  double receive_posted = -1;
};

struct QueuedStep {
  std::size_t step = 0;
  double entered = 0;  // when the compute reached it
};

struct StageState {
  std::size_t step = 0;  // the compute's place
  std::size_t instruction = 0;
  double clock = 0;  // of the compute
  std::vector<QueuedStep> queue;
  std::size_t head = 0;  // first step of the queue that has not completed
  bool head_is_posted = false;
  double queue_clock = 0;  // when the step before the head completed
  std::vector<std::int64_t> acquired;
  std::vector<bool> reduced;
  std::int64_t saved = 0;
  std::int64_t weight_work = 0;
  bool tied_reduced = false;
  bool updated = false;
};

// Thrown inside the simulation only; becomes Simulation::problem.
struct BrokenRule {
  std::string text;
};

class Simulator {
 public:
  // intervals: filled with each stage's work if not null.
  Simulator(const Schedule& schedule, const ScheduleCosts& costs, TransferModel model,
            std::vector<std::vector<WorkInterval>>* intervals = nullptr);
  Simulation run();

 private:
  enum class Progress { none, some };

  std::int64_t virtual_of(std::size_t stage, const Instruction& instruction) const;
  Cell& cell(std::int64_t virtual_stage, std::int64_t micro_batch);
  // The receiving cell of a transfer.
  std::size_t receiver_of(std::size_t stage, const Instruction& instruction) const;
  void require(bool condition, std::size_t stage, std::string_view rule) const;
  std::string place_text(std::size_t stage, std::size_t step, std::size_t instruction) const;

  void check_message_order() const;
  Progress advance_compute(std::size_t stage);
  Progress advance_queue(std::size_t stage);
  bool execute(std::size_t stage, const Instruction& instruction);  // false: its input has not arrived yet
  bool execute_forward(std::size_t stage, const Instruction& instruction);
  bool execute_backward(std::size_t stage, const Instruction& instruction);
  void execute_weight(std::size_t stage, const Instruction& instruction);
  void execute_closing(std::size_t stage, const Instruction& instruction);
  void enter_transfer(std::size_t stage, const Instruction& instruction);
  void compute(std::size_t stage, const Instruction& instruction, double cost);
  WorkCosts costs_of(std::int64_t virtual_stage) const;
  void post_head(std::size_t stage);
  std::optional<double> head_completion(std::size_t stage) const;
  void check_end();
  std::string deadlock_text() const;

  const Schedule& schedule_;
  const ScheduleCosts& costs_;
  TransferModel model_;
  std::vector<std::vector<WorkInterval>>* intervals_;
  std::int64_t virtual_stages_;
  bool trains_ = false;
  std::vector<Cell> cells_;
  std::vector<Meeting> activations_;
  std::vector<Meeting> gradients_;
  std::vector<StageState> states_;
  Simulation result_;
};

Simulator::Simulator(const Schedule& schedule, const ScheduleCosts& costs, TransferModel model,
                     std::vector<std::vector<WorkInterval>>* intervals)
    : schedule_(schedule),
      costs_(costs),
      model_(model),
      intervals_(intervals),
      virtual_stages_(schedule.stages * schedule.chunks) {
  if (intervals_ != nullptr) intervals_->resize(schedule.steps.size());
  SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(schedule.steps.size()), schedule.stages);
  SCALETRAIN_CHECK(costs.of_chunks.empty() || std::ssize(costs.of_chunks) == virtual_stages_);
  const auto num_cells = static_cast<std::size_t>(virtual_stages_ * schedule.micro_batches);
  cells_.resize(num_cells);
  activations_.resize(num_cells);
  gradients_.resize(num_cells);
  states_.resize(schedule.steps.size());
  result_.stages.resize(schedule.steps.size());
  for (StageState& state : states_) {
    state.acquired.assign(static_cast<std::size_t>(schedule.chunks), 0);
    state.reduced.assign(static_cast<std::size_t>(schedule.chunks), false);
  }
  for (const auto& steps : schedule.steps) {
    for (const ScheduleStep& step : steps) {
      for (const Instruction& instruction : step)
        trains_ = trains_ || instruction.op == Opcode::backward || instruction.op == Opcode::backward_input;
    }
  }
}

std::int64_t Simulator::virtual_of(std::size_t stage, const Instruction& instruction) const {
  return instruction.chunk * schedule_.stages + static_cast<std::int64_t>(stage);
}

Cell& Simulator::cell(std::int64_t virtual_stage, std::int64_t micro_batch) {
  return cells_[static_cast<std::size_t>(virtual_stage * schedule_.micro_batches + micro_batch)];
}

std::size_t Simulator::receiver_of(std::size_t stage, const Instruction& instruction) const {
  std::int64_t receiver = virtual_of(stage, instruction);
  if (instruction.op == Opcode::send_activation) ++receiver;
  if (instruction.op == Opcode::send_gradient) --receiver;
  return static_cast<std::size_t>(receiver * schedule_.micro_batches + instruction.micro_batch->value());
}

std::string Simulator::place_text(std::size_t stage, std::size_t step, std::size_t instruction) const {
  const Instruction& at = schedule_.steps[stage][step][instruction];
  return fmt::format("stage {}, step {}, {}", stage, step, to_text(at, schedule_.chunks));
}

void Simulator::require(bool condition, std::size_t stage, std::string_view rule) const {
  if (condition) return;
  const StageState& state = states_[stage];
  throw BrokenRule{fmt::format("{}: {}", place_text(stage, state.step, state.instruction), rule)};
}

// Messages between two stages carry no labels: the n-th one sent is the n-th one received.
void Simulator::check_message_order() const {
  struct Message {
    bool activation;
    std::size_t receiver;
    std::size_t stage, step, index;  // where it stands
    bool matches(const Message& other) const { return activation == other.activation && receiver == other.receiver; }
  };
  struct Link {
    std::vector<Message> sent, received;
  };
  const std::size_t num_stages = schedule_.steps.size();
  std::vector<Link> links(num_stages * num_stages);
  for (std::size_t stage = 0; stage < num_stages; ++stage) {
    for (std::size_t step = 0; step < schedule_.steps[stage].size(); ++step) {
      for (std::size_t index = 0; index < schedule_.steps[stage][step].size(); ++index) {
        const Instruction& at = schedule_.steps[stage][step][index];
        if (!is_transfer(at.op) || !at.peer || !at.micro_batch) continue;
        const auto peer = static_cast<std::size_t>(at.peer->value());
        if (peer >= num_stages) throw BrokenRule{place_text(stage, step, index) + ": there is no such stage"};
        const Message message{is_activation(at.op), receiver_of(stage, at), stage, step, index};
        if (is_send(at.op)) {
          links[stage * num_stages + peer].sent.push_back(message);
        } else {
          links[peer * num_stages + stage].received.push_back(message);
        }
      }
    }
  }
  const auto text = [&](const Message& message) { return place_text(message.stage, message.step, message.index); };
  for (const Link& link : links) {
    const std::size_t both = std::min(link.sent.size(), link.received.size());
    for (std::size_t n = 0; n < both; ++n) {
      if (!link.sent[n].matches(link.received[n]))
        throw BrokenRule{fmt::format("{} is not what the other side takes at that place: {}", text(link.sent[n]),
                                     text(link.received[n]))};
    }
    if (link.sent.size() > both) throw BrokenRule{text(link.sent[both]) + ": nobody receives it"};
    if (link.received.size() > both) throw BrokenRule{text(link.received[both]) + ": nothing is sent to it"};
  }
}

WorkCosts Simulator::costs_of(std::int64_t virtual_stage) const {
  if (!costs_.of_chunks.empty()) return costs_.of_chunks[static_cast<std::size_t>(virtual_stage)];
  return {costs_.forward, costs_.backward_input, costs_.backward_weight};
}

void Simulator::compute(std::size_t stage, const Instruction& instruction, double cost) {
  StageState& state = states_[stage];
  if (intervals_ != nullptr) (*intervals_)[stage].push_back({instruction, state.clock, state.clock + cost});
  state.clock += cost;
  result_.stages[stage].busy += cost;
}

bool Simulator::execute_forward(std::size_t stage, const Instruction& instruction) {
  const std::int64_t own = virtual_of(stage, instruction);
  const std::int64_t m = instruction.micro_batch->value();
  StageState& state = states_[stage];
  Cell& here = cell(own, m);
  require(state.acquired[static_cast<std::size_t>(instruction.chunk)] > 0, stage, "parameters are not acquired");
  require(here.forward_end < 0, stage, "this micro-batch has passed this chunk already");
  if (own > 0 && schedule_.stages == 1) {
    require(cell(own - 1, m).forward_end >= 0, stage, "its input has not been computed");
  } else if (own > 0) {
    require(here.activation_posted, stage, "its input has not been received");
    if (here.activation_received < 0) return false;
    state.clock = std::max(state.clock, here.activation_received);
  }
  compute(stage, instruction, costs_of(own).forward);
  here.forward_end = state.clock;
  StageSimulation& out = result_.stages[stage];
  if (!trains_) return true;
  here.is_saved = true;
  out.peak_saved = std::max(out.peak_saved, ++state.saved);
  return true;
}

bool Simulator::execute_backward(std::size_t stage, const Instruction& instruction) {
  const std::int64_t own = virtual_of(stage, instruction);
  const std::int64_t m = instruction.micro_batch->value();
  StageState& state = states_[stage];
  Cell& here = cell(own, m);
  require(state.acquired[static_cast<std::size_t>(instruction.chunk)] > 0, stage, "parameters are not acquired");
  require(here.is_saved, stage, here.forward_end < 0 ? "no forward came before" : "its saved result was freed before");
  const bool takes_gradient = own < virtual_stages_ - 1 && own >= schedule_.lowest_backward;
  if (takes_gradient && schedule_.stages == 1) {
    require(cell(own + 1, m).backward_end >= 0, stage, "its gradient has not been computed");
  } else if (takes_gradient) {
    require(here.gradient_posted, stage, "its gradient has not been received");
    if (here.gradient_received < 0) return false;
    state.clock = std::max(state.clock, here.gradient_received);
  }
  const bool is_whole = instruction.op == Opcode::backward;
  const WorkCosts costs = costs_of(own);
  compute(stage, instruction, costs.backward_input + (is_whole ? costs.backward_weight : 0.0));
  here.backward_end = state.clock;
  here.is_saved = false;
  --state.saved;
  StageSimulation& out = result_.stages[stage];
  if (is_whole) {
    here.weight_done = true;
  } else {
    here.has_weight_work = true;
    out.peak_weight_work = std::max(out.peak_weight_work, ++state.weight_work);
  }
  return true;
}

void Simulator::execute_weight(std::size_t stage, const Instruction& instruction) {
  Cell& here = cell(virtual_of(stage, instruction), instruction.micro_batch->value());
  StageState& state = states_[stage];
  require(here.has_weight_work, stage, here.weight_done ? "its weight work was done before" : "no weight work is held");
  here.has_weight_work = false;
  here.weight_done = true;
  --state.weight_work;
  compute(stage, instruction, costs_of(virtual_of(stage, instruction)).backward_weight);
}

// Reductions and the update.
void Simulator::execute_closing(std::size_t stage, const Instruction& instruction) {
  StageState& state = states_[stage];
  const bool all_reduced = std::find(state.reduced.begin(), state.reduced.end(), false) == state.reduced.end();
  switch (instruction.op) {
    case Opcode::reduce_gradients: {
      require(!state.reduced[static_cast<std::size_t>(instruction.chunk)], stage, "gradients were reduced before");
      for (std::int64_t m = 0; m < schedule_.micro_batches; ++m)
        require(cell(virtual_of(stage, instruction), m).weight_done, stage, "not every backward of the chunk is done");
      state.reduced[static_cast<std::size_t>(instruction.chunk)] = true;
      return;
    }
    case Opcode::reduce_tied:
      require(all_reduced && !state.tied_reduced && !state.updated, stage,
              "tied gradients are reduced once, after all others and before the update");
      state.tied_reduced = true;
      return;
    case Opcode::optimizer_step:
      require(all_reduced, stage, "gradients have not been reduced");
      require(!state.updated, stage, "the update was made before");
      state.updated = true;
      return;
    default:
      return;
  }
}

bool Simulator::execute(std::size_t stage, const Instruction& instruction) {
  StageState& state = states_[stage];
  require(instruction.chunk >= 0 && instruction.chunk < schedule_.chunks, stage, "there is no such chunk");
  if (instruction.micro_batch) {
    const std::int64_t m = instruction.micro_batch->value();
    require(m >= 0 && m < schedule_.micro_batches, stage, "there is no such micro-batch");
  }
  switch (instruction.op) {
    case Opcode::forward:
    case Opcode::backward:
    case Opcode::backward_input:
    case Opcode::backward_weight:
      require(instruction.micro_batch.has_value(), stage, "it names no micro-batch");
      require(!state.updated, stage, "it comes after the update");
      break;
    default:
      break;
  }
  std::int64_t& acquired = state.acquired[static_cast<std::size_t>(instruction.chunk)];
  switch (instruction.op) {
    case Opcode::forward:
      return execute_forward(stage, instruction);
    case Opcode::backward:
    case Opcode::backward_input:
      return execute_backward(stage, instruction);
    case Opcode::backward_weight:
      execute_weight(stage, instruction);
      return true;
    case Opcode::acquire:
      ++acquired;
      return true;
    case Opcode::release:
      require(acquired > 0, stage, "parameters were released before");
      --acquired;
      return true;
    default:
      execute_closing(stage, instruction);
      return true;
  }
}

// A transfer's own rules, when the compute reaches it.
void Simulator::enter_transfer(std::size_t stage, const Instruction& instruction) {
  require(instruction.micro_batch.has_value() && instruction.peer.has_value(), stage,
          "it names no micro-batch or peer");
  require(instruction.chunk >= 0 && instruction.chunk < schedule_.chunks, stage, "there is no such chunk");
  const std::int64_t m = instruction.micro_batch->value();
  require(m >= 0 && m < schedule_.micro_batches, stage, "there is no such micro-batch");
  const std::int64_t own = virtual_of(stage, instruction);
  const bool is_downward = instruction.op == Opcode::send_activation || instruction.op == Opcode::receive_gradient;
  const std::int64_t other = is_downward ? own + 1 : own - 1;
  require(other >= 0 && other < virtual_stages_, stage, "there is no virtual stage on the other side");
  require(other % schedule_.stages == instruction.peer->value(), stage, "the peer is not the stage on the other side");
  Cell& here = cell(own, m);
  switch (instruction.op) {
    case Opcode::send_activation:
      require(here.forward_end >= 0 && !here.activation_sent, stage, "there is no result to send");
      here.activation_sent = true;
      return;
    case Opcode::send_gradient:
      require(here.backward_end >= 0 && !here.gradient_sent, stage, "there is no result to send");
      here.gradient_sent = true;
      return;
    case Opcode::receive_activation:
      require(!here.activation_posted, stage, "it was received before");
      here.activation_posted = true;
      return;
    default:
      require(!here.gradient_posted, stage, "it was received before");
      here.gradient_posted = true;
  }
}

Simulator::Progress Simulator::advance_compute(std::size_t stage) {
  StageState& state = states_[stage];
  const std::vector<ScheduleStep>& steps = schedule_.steps[stage];
  Progress progress = Progress::none;
  while (state.step < steps.size()) {
    const ScheduleStep& step = steps[state.step];
    if (model_ == TransferModel::blocking && state.head < state.queue.size()) return progress;
    if (state.instruction == step.size()) {
      ++state.step;
      state.instruction = 0;
      continue;
    }
    if (is_transfer(step[state.instruction].op)) {
      require(state.instruction == 0, stage, "transfers and other work share a step");
      for (; state.instruction < step.size(); ++state.instruction) {
        require(is_transfer(step[state.instruction].op), stage, "transfers and other work share a step");
        enter_transfer(stage, step[state.instruction]);
      }
      state.queue.push_back({state.step, state.clock});
      ++state.step;
      state.instruction = 0;
    } else {
      if (!execute(stage, step[state.instruction])) return progress;
      ++state.instruction;
    }
    progress = Progress::some;
  }
  return progress;
}

void Simulator::post_head(std::size_t stage) {
  StageState& state = states_[stage];
  const QueuedStep& head = state.queue[state.head];
  const double time = std::max(head.entered, state.queue_clock);
  for (const Instruction& instruction : schedule_.steps[stage][head.step]) {
    Meeting& meeting = (is_activation(instruction.op) ? activations_ : gradients_)[receiver_of(stage, instruction)];
    (is_send(instruction.op) ? meeting.send_posted : meeting.receive_posted) = time;
    if (meeting.send_posted < 0 || meeting.receive_posted < 0) continue;
    Cell& receiver = cells_[receiver_of(stage, instruction)];
    (is_activation(instruction.op) ? receiver.activation_received : receiver.gradient_received) =
        std::max(meeting.send_posted, meeting.receive_posted) + costs_.transfer;
  }
  state.head_is_posted = true;
}

// When every transfer of the head is through, if all other sides have been posted.
std::optional<double> Simulator::head_completion(std::size_t stage) const {
  const StageState& state = states_[stage];
  double completion = 0;
  for (const Instruction& instruction : schedule_.steps[stage][state.queue[state.head].step]) {
    const Cell& receiver = cells_[receiver_of(stage, instruction)];
    const double received = is_activation(instruction.op) ? receiver.activation_received : receiver.gradient_received;
    if (received < 0) return std::nullopt;
    completion = std::max(completion, received);
  }
  return completion;
}

Simulator::Progress Simulator::advance_queue(std::size_t stage) {
  StageState& state = states_[stage];
  Progress progress = Progress::none;
  while (state.head < state.queue.size()) {
    if (!state.head_is_posted) {
      post_head(stage);
      progress = Progress::some;
    }
    const std::optional<double> completion = head_completion(stage);
    if (!completion) return progress;
    state.queue_clock = *completion;
    if (model_ == TransferModel::blocking) state.clock = std::max(state.clock, *completion);
    ++state.head;
    state.head_is_posted = false;
    progress = Progress::some;
  }
  return progress;
}

void Simulator::check_end() {
  for (std::size_t stage = 0; stage < states_.size(); ++stage) {
    const StageState& state = states_[stage];
    for (std::int64_t chunk = 0; chunk < schedule_.chunks; ++chunk) {
      const std::int64_t own = chunk * schedule_.stages + static_cast<std::int64_t>(stage);
      const auto left = [&](bool condition, std::string_view what) {
        if (condition) return;
        throw BrokenRule{fmt::format("stage {}, chunk {}, at the end: {}", stage, chunk, what)};
      };
      left(state.acquired[static_cast<std::size_t>(chunk)] == 0, "parameters are still acquired");
      left(!trains_ || state.reduced[static_cast<std::size_t>(chunk)], "gradients were never reduced");
      for (std::int64_t m = 0; m < schedule_.micro_batches; ++m) {
        const Cell& here = cell(own, m);
        left(here.forward_end >= 0, "a micro-batch never went forward");
        left(!trains_ || here.backward_end >= 0, "a micro-batch never went backward");
        left(!trains_ || here.weight_done, "a micro-batch never had its weight part");
      }
    }
    if (trains_ && !state.updated)
      throw BrokenRule{fmt::format("stage {}, at the end: the update was never made", stage)};
  }
}

std::string Simulator::deadlock_text() const {
  std::string text = "deadlock:";
  for (std::size_t stage = 0; stage < states_.size(); ++stage) {
    const StageState& state = states_[stage];
    const bool has_compute = state.step < schedule_.steps[stage].size();
    const bool has_queue = state.head < state.queue.size();
    if (has_queue) {
      const std::size_t step = state.queue[state.head].step;
      std::string waiting;
      for (const Instruction& instruction : schedule_.steps[stage][step]) {
        const Cell& receiver = cells_[receiver_of(stage, instruction)];
        if ((is_activation(instruction.op) ? receiver.activation_received : receiver.gradient_received) >= 0) continue;
        waiting += (waiting.empty() ? "" : ", ") + to_text(instruction, schedule_.chunks);
      }
      text += fmt::format(" stage {}, step {} waits for the other side of {};", stage, step, waiting);
    } else if (has_compute) {
      text += fmt::format(" {} waits for its input;", place_text(stage, state.step, state.instruction));
    }
  }
  text.pop_back();
  return text;
}

Simulation Simulator::run() {
  try {
    check_message_order();
    for (bool advanced = true; advanced;) {
      advanced = false;
      for (std::size_t stage = 0; stage < states_.size(); ++stage) {
        advanced |= advance_compute(stage) == Progress::some;
        advanced |= advance_queue(stage) == Progress::some;
      }
    }
    for (std::size_t stage = 0; stage < states_.size(); ++stage) {
      const StageState& state = states_[stage];
      if (state.step < schedule_.steps[stage].size() || state.head < state.queue.size())
        throw BrokenRule{deadlock_text()};
    }
    check_end();
  } catch (const BrokenRule& broken) {
    result_.problem = broken.text;
    return result_;
  }
  double busy = 0;
  for (std::size_t stage = 0; stage < states_.size(); ++stage) {
    busy += result_.stages[stage].busy;
    result_.makespan = std::max({result_.makespan, states_[stage].clock, states_[stage].queue_clock});
  }
  if (result_.makespan > 0) result_.bubble = 1.0 - busy / (static_cast<double>(schedule_.stages) * result_.makespan);
  result_.completed = true;
  return result_;
}

}  // namespace

Simulation simulate(const Schedule& schedule, const ScheduleCosts& costs, TransferModel transfers) {
  return Simulator(schedule, costs, transfers).run();
}

Timetable make_timetable(const Schedule& schedule, const ScheduleCosts& costs) {
  Timetable timetable;
  timetable.simulation = Simulator(schedule, costs, TransferModel::queued, &timetable.work).run();
  if (!timetable.simulation.completed) throw BugError(timetable.simulation.problem);
  return timetable;
}

}  // namespace scaletrain
