// Norms of whole tensors, which LAMB, LARS, Adafactor and Muon measure their steps by: of the master weights (not
// Muon), and of what is in the gradients' place. Of a tensor that ranks hold in parts, or several times, it is that of
// the tensor: every element once, as in the norm of the gradient (gradient_norm.h), by the same sums over the ranges
// that the layout gives each data rank whatever the ZeRO stage, and then over the ranks. All ranks get the same bits;
// the bits are those of a layout's tensor and data degree, and another layout's differ by rounding.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/mirrored_buffer.h"
#include "optim/update_spans.h"
#include "store/param_store.h"

namespace scaletrain {

// A choice of parameters, LAMB's and LARS's: what does not decay steps without a ratio of norms.
inline bool decays(const Parameter& parameter) {
  return parameter.decays;
}

// gradients: of_weights() is 0 for all.
enum class MeasuredNorms { weights_and_gradients, gradients };

class TensorNorms {
 public:
  // Of the chosen parameters among those that are trained; without a choice of all. Both must outlive it.
  TensorNorms(Backend& backend, const ParamStore& store, const ParameterChoice& is_measured = {},
              MeasuredNorms norms = MeasuredNorms::weights_and_gradients);

  // Numbers that measure() sums over all ranks.
  static std::int64_t num_summed(const ParamTable& table);

  // Issues the sums of what the stream then finds, and their way to the host.
  void issue(Stream& stream);
  // Sums over the ranks what was issued since the measurement before, for which the caller has waited; where nothing
  // was, issues it and waits for the stream: a wait of the host. And calls that all ranks make.
  void measure(Stream& stream);
  // Of the newest measurement, by the parameter's index in the table; of those that are not measured 0.
  double of_weights(int parameter) const;
  double of_gradient(int parameter) const;

 private:
  // Ranges of a flat buffer, as they lie in it.
  struct Counted {
    View values;
    std::vector<ElementSpan> spans;
    std::size_t first_sum = 0;
  };
  void count(StateKind kind, const std::vector<ParamRange>& ranges);

  Backend& backend_;
  const ParamStore& store_;
  std::vector<Counted> counted_;
  std::vector<std::size_t> sum_of_;  // by range, weights first: index into totals_
  MirroredBuffer sums_;
  std::vector<double> totals_;  // of the weights of each parameter, then of their gradients
  bool is_issued_ = false;
};

}  // namespace scaletrain
