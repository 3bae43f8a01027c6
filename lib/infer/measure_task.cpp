#include "infer/measure_task.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "backend/mirrored_buffer.h"
#include "base/error.h"
#include "data/batch.h"
#include "infer/evaluate.h"
#include "infer/stage_memory.h"

namespace scaletrain {

std::vector<double> measure_rows(LoadedModel& model, const ChoiceTask& task, std::int64_t micro_batch,
                                 const std::function<void(std::int64_t done, std::int64_t all)>& progress) {
  SCALETRAIN_CHECK_LT(0, micro_batch);
  const std::int64_t all = task.num_rows();
  const std::int64_t samples = std::min(micro_batch, all);
  // Rows of about one length together: what a batch computes is as long as its longest.
  std::vector<std::int64_t> order(static_cast<std::size_t>(all));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&task](std::int64_t a, std::int64_t b) { return task.row_tokens(a) > task.row_tokens(b); });
  std::vector<double> log_likelihoods(order.size(), 0.0);
  const MirroredBuffer losses(model.backend(), static_cast<std::size_t>(samples) * sizeof(double));
  const SampleReader read = [&task](std::int64_t row, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                                    std::vector<std::int32_t>&) { task.read_row(row, inputs, targets); };
  std::optional<StageMemory> memory;
  std::optional<HostBatch> host;
  if (progress) progress(0, all);
  for (std::int64_t first = 0; first < all; first += samples) {
    const std::int64_t count = std::min(samples, all - first);
    const auto rows = std::span(order).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    const BatchShape shape{samples, task.row_tokens(rows.front())};
    if (!memory || memory->shape() != shape) {
      memory.reset();
      memory.emplace(model.backend(), make_forward_plan(model.transformer(), shape, model.backend().compute_type()));
      host.emplace(model.backend(), memory->plan());
    }
    const BatchBuffer buffer = memory->batch(0);
    fill_batch(rows, shape.tokens, read, host->tensors());
    host->copy_to(model.backend(), model.stream(), buffer);
    auto* const sums = losses.host(0, DType::f64, {samples}).as<double>();
    std::fill_n(sums, samples, 0.0);
    losses.to_device(model.stream());
    forward_all(model, *memory,
                {.shape = shape,
                 .mode = Mode::evaluate,
                 .ids = buffer.ids,
                 .targets = buffer.targets,
                 .positions = buffer.positions,
                 .document_start = {},
                 .loss_gradient = 0.0,
                 .loss_sum = {},
                 .sample_losses = losses.device(0, DType::f64, {samples})});
    losses.to_host(model.stream());
    model.stream().synchronize();
    for (std::size_t i = 0; i < rows.size(); ++i) log_likelihoods[static_cast<std::size_t>(rows[i])] = -sums[i];
    if (progress) progress(first + count, all);
  }
  return log_likelihoods;
}

}  // namespace scaletrain
