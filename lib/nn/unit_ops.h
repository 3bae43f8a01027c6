// The backend's descriptors, filled from a unit's handles by the layer's local name ("ffn.up" finds "ffn.up.weight" and
// "ffn.up.bias"). Internal to nn: what the units and the decoder share. Refers to everything it is given; owns nothing.
#pragma once

#include <string_view>

#include "nn/unit.h"

namespace scaletrain {

// A norm's output with the statistics its backward needs.
struct NormTensors {
  View output;  // [N,C]
  View mean;    // [N]; absent for rmsnorm
  View rstd;    // [N]
};

// The type of norms' statistics and of log-sum-exp.
DType statistics_type(DType compute);
NormTensors carve_norm(RegionAllocator& region, const ModelSpec& spec, std::int64_t rows, DType compute);
ActivationType activation_type(const ModelSpec& spec);
// Elements [first, first + elements of shape) of a view, whatever the view's own shape.
View part(const View& whole, std::int64_t first, Shape shape);

class UnitOps {
 public:
  UnitOps(Backend& backend, Stream& stream, const ModelSpec& spec, const UnitWeights& weights,
          const UnitGradients* gradients);
  UnitOps(const UnitRun& run, const ModelSpec& spec)
      : UnitOps(run.backend, run.stream, spec, run.weights, run.gradients) {}

  template <class Operation>
  void run(const Operation& op) const {
    backend_.run(stream_, op);
  }

  void norm_forward(std::string_view layer, ConstView input, const NormTensors& norm) const;
  void norm_backward_input(std::string_view layer, ConstView d_output, ConstView input, const NormTensors& norm,
                           ConstView addend, View d_input) const;
  void norm_backward_weight(std::string_view layer, ConstView d_output, ConstView input, const NormTensors& norm) const;

  // output = input · weightᵀ + bias + addend
  void linear_forward(std::string_view layer, ConstView input, View output, ConstView addend = {}) const;
  void linear_backward_input(std::string_view layer, ConstView d_output, View d_input) const;
  void linear_backward_weight(std::string_view layer, ConstView input, ConstView d_output) const;

 private:
  const UnitGradients& gradients() const;

  Backend& backend_;
  Stream& stream_;
  const ModelSpec& spec_;
  const UnitWeights& weights_;
  const UnitGradients* gradients_;
};

}  // namespace scaletrain
