// Internal to optim: the optimizers, each in the file of its name, and the walk over the store's ranges that they
// share.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/mirrored_buffer.h"
#include "optim/optimizer.h"
#include "optim/update_spans.h"

namespace scaletrain {

std::unique_ptr<Optimizer> make_adafactor(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_lion(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_lamb(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_lars(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_ademamix(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_muon(const OptimizerConfig& config);

// What every optimizer keeps for the kernels of a step: the step scalars in memory of the device, and the spans, which
// kernels that run later still read.
class RangeOptimizer : public Optimizer {
 public:
  RangeOptimizer(const OptimizerConfig& config, std::vector<std::string> state_names)
      : config_(config), state_names_(std::move(state_names)) {}

  std::span<const std::string> state_names() const final { return state_names_; }
  void prepare(Backend& backend, const ParamStore& store) override;
  void step(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) final;

 protected:
  // One range, or a piece of one, with the spans and the scalars for its operation.
  struct Piece {
    const OptimizerRange& range;
    std::span<const UpdateSpan> spans;
    ConstView step;
  };
  using Update = std::function<void(const Piece& piece)>;

  const OptimizerConfig& config() const { return config_; }
  // Updates all that this rank has. `step` is what make_step_scalars made of it.
  virtual void update_all(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) = 0;
  // What is shown of a range, and how.
  struct Pass {
    double weight_decay = 0;
    std::span<const double> factors{};
    ParameterChoice is_chosen{};  // empty: all
    bool is_last = true;          // as ParamStore::update_ranges
  };
  // Shows `update` every piece. The spans' weight decay is the parameter's part of `weight_decay` where it decays, and
  // their factor on the rate the parameter's, times factors[parameter] where there are any. The scalars are those of
  // set_scalars. Parameters that joined later (Parameter::joins_after) are pieces of their own, with bias corrections
  // of their own; those that are yet to join are none.
  void for_pieces(Stream& stream, ParamStore& store, const Pass& pass, const Update& update);
  // The step along the direction that is in the gradients' place, plain SGD's; and AdamW's, of states 0 and 1.
  static void follow_direction(Backend& backend, Stream& stream, const Piece& piece);
  void run_adamw(Backend& backend, Stream& stream, const Piece& piece) const;
  // Issues the multiplication of what is in the gradients' place of the chosen parameters, each by a factor of its own,
  // by its index in the table.
  void scale_gradients(Backend& backend, Stream& stream, ParamStore& store, const ParameterChoice& is_chosen,
                       const std::function<double(int parameter)>& factor_of);
  // Numbers of updates behind which parameters join, ascending, of those that have joined.
  std::vector<std::int64_t> joined(const ParamStore& store) const;
  // For the pieces that follow. At most twice a step.
  void set_scalars(Stream& stream, const ParamStore& store, const StepScalars& step);

 private:
  OptimizerConfig config_;
  std::vector<std::string> state_names_;
  std::vector<std::vector<UpdateSpan>> spans_;
  std::vector<std::int64_t> joinings_;     // Parameter::joins_after as they occur, ascending
  std::optional<MirroredBuffer> scalars_;  // of the newest step, for each time that they are set and each joining
  std::size_t num_set_ = 0;
};

// Each element is updated by itself, in one operation a piece.
class ElementwiseOptimizer : public RangeOptimizer {
 public:
  using RangeOptimizer::RangeOptimizer;

 private:
  void update_all(Backend& backend, Stream& stream, ParamStore& store, const StepScalars& step) final;
  virtual void update(Backend& backend, Stream& stream, const Piece& piece) = 0;
};

}  // namespace scaletrain
