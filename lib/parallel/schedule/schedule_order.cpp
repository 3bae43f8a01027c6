#include "parallel/schedule/schedule_order.h"

#include <algorithm>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

void append(std::vector<Work>& order, Opcode op, std::int64_t micro_batch, std::int64_t chunk = 0) {
  order.push_back({.op = op, .chunk = chunk, .micro_batch = micro_batch});
}

std::vector<Work> gpipe_order(const ScheduleShape& shape) {
  std::vector<Work> order;
  for (std::int64_t m = 0; m < shape.micro_batches; ++m) append(order, Opcode::forward, m);
  for (std::int64_t m = 0; m < shape.micro_batches; ++m) append(order, Opcode::backward, m);
  return order;
}

std::vector<Work> one_f_one_b_order(const ScheduleShape& shape, std::int64_t stage) {
  const std::int64_t total = shape.micro_batches;
  const std::int64_t warm_up = std::min(shape.stages - stage - 1, total);
  std::vector<Work> order;
  for (std::int64_t m = 0; m < warm_up; ++m) append(order, Opcode::forward, m);
  for (std::int64_t m = warm_up; m < total; ++m) {
    append(order, Opcode::forward, m);
    append(order, Opcode::backward, m - warm_up);
  }
  for (std::int64_t m = total - warm_up; m < total; ++m) append(order, Opcode::backward, m);
  return order;
}

// 1F1B over the input parts. Stage i lags i weight parts behind: what later stages need at once comes first, and the
// weight parts left over fill the time in which 1F1B would wait for gradients.
std::vector<Work> zb_h1_order(const ScheduleShape& shape, std::int64_t stage) {
  const std::int64_t total = shape.micro_batches;
  const std::int64_t warm_up = std::min(shape.stages - stage - 1, total);
  const std::int64_t lag = stage;
  std::vector<Work> order;
  std::int64_t next_weight = 0;
  for (std::int64_t m = 0; m < warm_up; ++m) append(order, Opcode::forward, m);
  for (std::int64_t m = 0; m < total; ++m) {
    if (m + warm_up < total) append(order, Opcode::forward, m + warm_up);
    append(order, Opcode::backward_input, m);
    if (m >= lag) append(order, Opcode::backward_weight, next_weight++);
  }
  while (next_weight < total) append(order, Opcode::backward_weight, next_weight++);
  return order;
}

// The k-th forward (or, with reversed chunks, backward) of a stage: groups of P micro-batches pass chunk after chunk.
Work interleaved_work(const ScheduleShape& shape, Opcode op, std::int64_t k) {
  const std::int64_t group = shape.stages * shape.chunks;
  const std::int64_t chunk = k % group / shape.stages;
  return {.op = op,
          .chunk = op == Opcode::forward ? chunk : shape.chunks - 1 - chunk,
          .micro_batch = k / group * shape.stages + k % shape.stages};
}

std::vector<Work> interleaved_order(const ScheduleShape& shape, std::int64_t stage) {
  const std::int64_t total = round_up(shape.micro_batches, shape.stages) * shape.chunks;
  const std::int64_t warm_up = std::min((shape.stages - stage - 1) * 2 + (shape.chunks - 1) * shape.stages, total);
  std::vector<Work> order;
  const auto add = [&](Opcode op, std::int64_t k) {
    const Work work = interleaved_work(shape, op, k);
    if (work.micro_batch < shape.micro_batches) order.push_back(work);
  };
  for (std::int64_t k = 0; k < warm_up; ++k) add(Opcode::forward, k);
  for (std::int64_t k = warm_up; k < total; ++k) {
    add(Opcode::forward, k);
    add(Opcode::backward, k - warm_up);
  }
  for (std::int64_t k = total - warm_up; k < total; ++k) add(Opcode::backward, k);
  return order;
}

std::vector<Work> evaluation_order(const ScheduleShape& shape) {
  std::vector<Work> order;
  const std::int64_t total = round_up(shape.micro_batches, shape.stages) * shape.chunks;
  for (std::int64_t k = 0; k < total; ++k) {
    const Work work = interleaved_work(shape, Opcode::forward, k);
    if (work.micro_batch < shape.micro_batches) order.push_back(work);
  }
  return order;
}

std::int64_t unit_time(Opcode op) {
  return op == Opcode::backward ? 2 : 1;
}

}  // namespace

std::vector<Work> work_order(const ScheduleShape& shape, std::int64_t stage) {
  if (shape.forward_only) return evaluation_order(shape);
  switch (shape.kind) {
    case ScheduleKind::gpipe:
      return gpipe_order(shape);
    case ScheduleKind::one_f_one_b:
      return one_f_one_b_order(shape, stage);
    case ScheduleKind::interleaved:
      return shape.chunks == 1 ? one_f_one_b_order(shape, stage) : interleaved_order(shape, stage);
    case ScheduleKind::zb_h1:
      return zb_h1_order(shape, stage);
  }
  SCALETRAIN_CHECK(false);
}

Timeline ideal_timeline(const ScheduleShape& shape, const std::vector<std::vector<Work>>& orders) {
  const auto cells = static_cast<std::size_t>(checked_mul(shape.virtual_stages(), shape.micro_batches));
  const auto num_stages = static_cast<std::size_t>(shape.stages);
  Timeline timeline;
  timeline.start.resize(num_stages);
  timeline.activation.assign(cells, -1);
  timeline.gradient.assign(cells, -1);
  std::vector<std::int64_t> clock(num_stages, 0);
  const auto cell = [&](std::int64_t virtual_stage, std::int64_t micro_batch) {
    return static_cast<std::size_t>(virtual_stage * shape.micro_batches + micro_batch);
  };
  // When the input of a piece of work exists; -1: not known yet. A stage's own results precede it by its order.
  const auto ready = [&](const Work& work, std::int64_t virtual_stage) -> std::int64_t {
    if (work.op == Opcode::forward)
      return virtual_stage == 0 ? 0 : timeline.activation[cell(virtual_stage - 1, work.micro_batch)];
    if (work.op == Opcode::backward_weight || virtual_stage == shape.virtual_stages() - 1) return 0;
    return timeline.gradient[cell(virtual_stage + 1, work.micro_batch)];
  };
  for (bool advanced = true; advanced;) {
    advanced = false;
    for (std::size_t stage = 0; stage < num_stages; ++stage) {
      std::vector<std::int64_t>& start = timeline.start[stage];
      while (start.size() < orders[stage].size()) {
        const Work& work = orders[stage][start.size()];
        const std::int64_t virtual_stage = work.chunk * shape.stages + static_cast<std::int64_t>(stage);
        const std::int64_t input = ready(work, virtual_stage);
        if (input < 0) break;
        start.push_back(std::max(clock[stage], input));
        clock[stage] = start.back() + unit_time(work.op);
        if (work.op == Opcode::forward) {
          timeline.activation[cell(virtual_stage, work.micro_batch)] = clock[stage];
        } else if (work.op != Opcode::backward_weight) {
          timeline.gradient[cell(virtual_stage, work.micro_batch)] = clock[stage];
        }
        advanced = true;
      }
    }
  }
  for (std::size_t stage = 0; stage < num_stages; ++stage)
    SCALETRAIN_CHECK_EQ(timeline.start[stage].size(), orders[stage].size());
  return timeline;
}

}  // namespace scaletrain
