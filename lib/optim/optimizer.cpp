#include "optim/optimizer.h"

#include <cstring>
#include <optional>
#include <vector>

#include "backend/mirrored_buffer.h"
#include "base/error.h"
#include "optim/update_spans.h"

namespace scaletrain {

namespace {

// The walk over the store's ranges that every element-wise optimizer shares.
class ElementwiseOptimizer : public Optimizer {
 public:
  ElementwiseOptimizer(const OptimizerConfig& config, std::vector<std::string> state_names)
      : config_(config), state_names_(std::move(state_names)) {}

  std::span<const std::string> state_names() const override { return state_names_; }

  void prepare(Backend& backend) override {
    if (!scalars_) scalars_.emplace(backend, sizeof(StepScalars));
  }
  void step(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) override {
    SCALETRAIN_CHECK(store.options().state_names == state_names_);
    spans_.clear();
    prepare(backend);
    std::memcpy(scalars_->host(0, DType::f64, {num_step_scalars}).as<double>(), &step, sizeof(step));
    scalars_->to_device(stream);
    const ConstView scalars = scalars_->device(0, DType::f64, {num_step_scalars});
    store.update_ranges(stream, [&](const OptimizerRange& range) {
      spans_.push_back(update_spans(store.layout(), store.table(),
                                    {.buffer = range.buffer, .first = range.first, .count = range.param.num_elements()},
                                    config_.weight_decay));
      update(backend, stream, range, spans_.back(), scalars);
    });
    store.updated(stream);
  }

 protected:
  const OptimizerConfig& config() const { return config_; }

 private:
  virtual void update(Backend& backend, Stream& stream, const OptimizerRange& range, std::span<const UpdateSpan> spans,
                      const ConstView& scalars) = 0;

  OptimizerConfig config_;
  std::vector<std::string> state_names_;
  // Members: kernels that run later still read them.
  std::vector<std::vector<UpdateSpan>> spans_;
  std::optional<MirroredBuffer> scalars_;  // of the newest step
};

class AdamW final : public ElementwiseOptimizer {
 public:
  explicit AdamW(const OptimizerConfig& config) : ElementwiseOptimizer(config, {"exp_avg", "exp_avg_sq"}) {}

 private:
  void update(Backend& backend, Stream& stream, const OptimizerRange& range, std::span<const UpdateSpan> spans,
              const ConstView& scalars) override {
    backend.run(stream, AdamWStep{.param = range.param,
                                  .first_moment = range.states[0],
                                  .second_moment = range.states[1],
                                  .gradient = range.gradient,
                                  .spans = spans,
                                  .beta1 = config().beta1,
                                  .beta2 = config().beta2,
                                  .epsilon = config().epsilon,
                                  .step = scalars,
                                  .compute_weights = range.compute});
  }
};

class Sgd final : public ElementwiseOptimizer {
 public:
  explicit Sgd(const OptimizerConfig& config) : ElementwiseOptimizer(config, {}) {}

 private:
  void update(Backend& backend, Stream& stream, const OptimizerRange& range, std::span<const UpdateSpan> spans,
              const ConstView& scalars) override {
    backend.run(stream, SgdStep{.param = range.param,
                                .gradient = range.gradient,
                                .spans = spans,
                                .step = scalars,
                                .compute_weights = range.compute});
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config) {
  switch (config.type) {
    case OptimizerKind::adamw:
      return std::make_unique<AdamW>(config);
    case OptimizerKind::sgd:
      return std::make_unique<Sgd>(config);
  }
  SCALETRAIN_CHECK(false);
}

}  // namespace scaletrain
