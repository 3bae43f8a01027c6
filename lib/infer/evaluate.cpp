#include "infer/evaluate.h"

#include <algorithm>
#include <array>
#include <numbers>
#include <numeric>
#include <span>
#include <vector>

#include "backend/mirrored_buffer.h"
#include "base/error.h"
#include "data/batch.h"
#include "infer/stage_memory.h"

namespace scaletrain {

void forward_all(LoadedModel& model, const StageMemory& memory, const BatchContext& batch) {
  const ActivationPlan& plan = memory.plan();
  const std::vector<int>& units = plan.chunks[0];
  Bundle input;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = *model.transformer().units()[static_cast<std::size_t>(units[i])];
    const UnitWeights& weights = model.store().acquire(model.stream(), unit.index());
    const Bundle output = memory.bundle(plan.buffers[0][i].output);
    const UnitRun run{.backend = model.backend(),
                      .stream = model.stream(),
                      .batch = batch,
                      .weights = weights,
                      .scratch = memory.region(plan.scratch)};
    unit.forward(run, input, output, memory.region(plan.buffers[0][i].saved));
    model.store().release(unit.index());
    input = output;
  }
}

std::optional<double> EvaluationResult::bits_per_byte() const {
  if (!bytes || *bytes == 0) return std::nullopt;
  return loss * static_cast<double>(tokens) / static_cast<double>(*bytes) / std::numbers::ln2;
}

std::optional<std::vector<std::int64_t>> bytes_of_tokens(const Tokenizer& tokenizer) {
  if (!tokenizer.reads_text()) return std::nullopt;
  std::vector<std::int64_t> bytes;
  bytes.reserve(static_cast<std::size_t>(tokenizer.vocab_size()));
  for (std::int32_t token = 0; token < tokenizer.vocab_size(); ++token)
    bytes.push_back(static_cast<std::int64_t>(tokenizer.decode(std::span(&token, 1)).size()));
  return bytes;
}

namespace {

// Nothing once a target has no text that is known. Behind what a document begins with a token may have less text than
// elsewhere: a space that the tokenizer put there.
void count_bytes(const Tokenizer& tokenizer, const BatchTensors& batch,
                 const std::optional<std::vector<std::int64_t>>& bytes, std::optional<std::int64_t>& sum) {
  const std::span<const std::int32_t> before = tokenizer.before_document();
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    const std::int32_t target = batch.targets[i];
    if (target == kMaskedTarget || !sum) continue;
    if (!bytes || target >= std::ssize(*bytes)) {
      sum.reset();  // a token file may have ids that the tokenizer lacks
    } else if (!before.empty() && batch.ids[i] == before.back()) {
      *sum += static_cast<std::int64_t>(tokenizer.decode(std::array{batch.ids[i], target}).size());
    } else {
      *sum += (*bytes)[static_cast<std::size_t>(target)];
    }
  }
}

}  // namespace

EvaluationResult evaluate_model(LoadedModel& model, const ValidationSet& set, std::int64_t num_samples,
                                std::int64_t micro_batch,
                                const std::function<void(std::int64_t done, std::int64_t all)>& progress) {
  const std::int64_t all = std::min(num_samples, set.num_samples());
  SCALETRAIN_CHECK_LT(0, micro_batch);
  SCALETRAIN_CHECK_LT(0, all);
  const BatchShape shape{std::min(micro_batch, all), set.context()};
  const DType compute = model.backend().compute_type();
  const StageMemory memory(model.backend(), make_forward_plan(model.transformer(), shape, compute, set.attention()));
  const BatchBuffer buffer = memory.batch(0);
  HostBatch host(model.backend(), memory.plan());
  const MirroredBuffer loss_sum(model.backend(), sizeof(double));
  EvaluationResult result;
  const SampleReader read = [&set](std::int64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                                   std::vector<std::int32_t>& starts) {
    set.read_sample(index, inputs, targets, starts);
  };
  const auto bytes = bytes_of_tokens(model.tokenizer());
  result.bytes = 0;
  if (progress) progress(0, all);
  for (std::int64_t first = 0; first < all; first += shape.samples) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(std::min(shape.samples, all - first)));
    std::iota(samples.begin(), samples.end(), first);
    result.tokens += fill_batch(samples, shape.tokens, read, host.tensors());
    count_bytes(model.tokenizer(), host.tensors(), bytes, result.bytes);
    host.copy_to(model.backend(), model.stream(), buffer);
    const BatchContext batch{.shape = shape,
                             .mode = Mode::evaluate,
                             .ids = buffer.ids,
                             .targets = buffer.targets,
                             .positions = buffer.positions,
                             .document_start = buffer.document_start,
                             .loss_gradient = 0.0,
                             .loss_sum = loss_sum.device(0, DType::f64, {1})};
    forward_all(model, memory, batch);
    loss_sum.to_host(model.stream());
    model.stream().synchronize();
    if (progress) progress(std::min(first + shape.samples, all), all);
  }
  if (result.tokens == 0) throw_no_target(set);
  result.loss = *loss_sum.host(0, DType::f64, {1}).as<double>() / static_cast<double>(result.tokens);
  return result;
}

}  // namespace scaletrain
