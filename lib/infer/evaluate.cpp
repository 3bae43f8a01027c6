#include "infer/evaluate.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "data/batch.h"
#include "plan/activation_plan.h"

namespace scaletrain {

namespace {

// One arena with the addresses that the plan fixed, and a micro-batch in it.
class ForwardMemory {
 public:
  ForwardMemory(Backend& backend, const Transformer& model, const BatchShape& shape)
      : plan_(make_activation_plan(model, all_units(model), shape, backend.compute_type(), {1, 0}, false)),
        arena_(backend.allocate(plan_.arena_bytes)),
        shape_(shape),
        hidden_(Shape{shape.rows(), model.spec().hidden}),
        compute_(backend.compute_type()) {}

  Region region(const ArenaRange& range) const { return {arena_.data() + range.offset, range.bytes}; }
  const ActivationPlan& plan() const { return plan_; }
  View hidden(const ArenaRange& range) const {
    return range.bytes == 0 ? View{} : arena_.view(range.offset, compute_, hidden_);
  }
  // Ids, targets and positions of the micro-batch.
  View batch_tensor(std::size_t index) const {
    const std::size_t bytes = plan_.batches[0].bytes / 3;
    return arena_.view(plan_.batches[0].offset + index * bytes, DType::i32, Shape{shape_.rows()});
  }

 private:
  static std::vector<int> all_units(const Transformer& model) {
    std::vector<int> units(model.units().size());
    std::iota(units.begin(), units.end(), 0);
    return units;
  }

  ActivationPlan plan_;
  Buffer arena_;
  BatchShape shape_;
  Shape hidden_;
  DType compute_;
};

std::span<std::int32_t> ints(const View& view) {
  return {view.as<std::int32_t>(), static_cast<std::size_t>(view.num_elements())};
}

void forward_all(LoadedModel& model, const ForwardMemory& memory, const BatchContext& batch) {
  const ActivationPlan& plan = memory.plan();
  View hidden;
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const Unit& unit = *model.transformer().units()[static_cast<std::size_t>(plan.units[i])];
    const UnitWeights& weights = model.store().acquire(model.stream(), unit.index());
    const UnitWeights* tied = unit.uses_tied_embedding() ? &model.store().acquire(model.stream(), 0) : nullptr;
    const View output = memory.hidden(plan.slots[0][i].output);
    const UnitRun run{.backend = model.backend(),
                      .stream = model.stream(),
                      .batch = batch,
                      .weights = weights,
                      .tied_weights = tied,
                      .scratch = memory.region(plan.scratch)};
    unit.forward(run, Bundle{hidden}, Bundle{output}, memory.region(plan.slots[0][i].saved));
    if (tied != nullptr) model.store().release(0);
    model.store().release(unit.index());
    hidden = output;
  }
}

}  // namespace

EvaluationResult evaluate_model(LoadedModel& model, const ValidationSet& set, std::int64_t num_samples,
                                std::int64_t micro_batch,
                                const std::function<void(std::int64_t done, std::int64_t all)>& progress) {
  const std::int64_t all = std::min(num_samples, set.num_samples());
  SCALETRAIN_CHECK_LT(0, micro_batch);
  if (all <= 0) throw InputError("validation set " + set.name() + " holds no sample");
  const BatchShape shape{std::min(micro_batch, all), set.context()};
  const ForwardMemory memory(model.backend(), model.transformer(), shape);
  double loss_sum = 0.0;
  EvaluationResult result;
  const BatchTensors tensors{ints(memory.batch_tensor(0)), ints(memory.batch_tensor(1)), ints(memory.batch_tensor(2))};
  const SampleReader read = [&set](std::int64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                                   std::vector<std::int32_t>& starts) { set.read_sample(index, inputs, targets, starts); };
  for (std::int64_t first = 0; first < all; first += shape.samples) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(std::min(shape.samples, all - first)));
    std::iota(samples.begin(), samples.end(), first);
    result.tokens += fill_batch(samples, shape.tokens, read, tensors);
    const BatchContext batch{.shape = shape,
                             .phase = Phase::evaluate,
                             .ids = memory.batch_tensor(0),
                             .targets = memory.batch_tensor(1),
                             .positions = memory.batch_tensor(2),
                             .document_start = {},
                             .first_sample = first,
                             .loss_gradient = 0.0,
                             .loss_sum = &loss_sum};
    forward_all(model, memory, batch);
    model.stream().synchronize();
    if (progress) progress(std::min(first + shape.samples, all), all);
  }
  if (result.tokens == 0) throw InputError("validation set " + set.name() + " holds no token with a loss");
  result.loss = loss_sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace scaletrain
