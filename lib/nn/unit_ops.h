// The backend's descriptors, filled from a unit's handles by the layer's local name ("ffn.up" finds "ffn.up.weight" and
// "ffn.up.bias"). Internal to nn: what the units and the decoder share. Refers to everything it is given; owns nothing.
#pragma once

#include <string_view>

#include "nn/adapters.h"
#include "nn/tensor_sums.h"
#include "nn/unit.h"

namespace scaletrain {

// A norm's output with the statistics its backward needs.
struct NormTensors {
  View output;  // [N,C]
  View mean;    // [N]; absent for rmsnorm
  View rstd;    // [N]
};

// Heads of a wider matrix as rows [N,D].
struct HeadRows {
  View values;  // of the logical shape
  RowLayout layout;
};

NormTensors carve_norm(RegionAllocator& region, const ModelSpec& spec, std::int64_t rows, DType compute);
ActivationType activation_type(const ModelSpec& spec);
// What token embeddings are multiplied by: sqrt(C) as the compute type has it.
double embedding_scale(const ModelSpec& spec, DType compute);
// Elements [first, first + elements of shape) of a view, whatever the view's own shape.
View part(const View& whole, std::int64_t first, Shape shape);

class UnitOps {
 public:
  // spec: the rank's part of the model.
  UnitOps(Backend& backend, Stream& stream, const ModelSpec& spec, const UnitWeights& weights,
          const UnitGradients* gradients, TensorSums sums = {});
  // Of a pass of a unit with this name, which must outlive it.
  UnitOps(const UnitRun& run, const ModelSpec& spec, const TensorPart& part, std::string_view unit)
      : UnitOps(run.backend, run.stream, spec, run.weights, run.gradients,
                TensorSums(run.tensor, run.stream, part, run.declared)) {
    batch_ = &run.batch;
    part_ = part;
    unit_ = unit;
  }

  const TensorSums& sums() const { return sums_; }
  // The same, for what the backward computes again.
  UnitOps recomputing() const {
    UnitOps ops = *this;
    ops.sums_ = sums_.recomputing();
    return ops;
  }

  // The same, whose maps have these adapters: the passes below are of both then. Refers to them.
  UnitOps with(const AdapterTensors& adapters) const {
    UnitOps ops = *this;
    ops.adapters_ = &adapters;
    return ops;
  }

  // Every operation of a unit goes through here: none runs where calls are declared.
  void run(const Operation& op) const {
    if (!sums_.declares()) backend_.run(stream_, op);
  }

  // What dropout drops in a place of the unit: nothing where nothing is trained, whatever the probability.
  DropoutMask dropped(std::string_view place, double probability) const;
  // output = dropout(input) + addend (optional), of rows between the parallel parts, [n,C]. The output may be either.
  void drop_rows(const DropoutMask& mask, ConstView input, ConstView addend, View output) const;

  void norm_forward(std::string_view layer, ConstView input, const NormTensors& norm) const;
  void norm_backward_input(std::string_view layer, ConstView d_output, ConstView input, const NormTensors& norm,
                           ConstView addend, View d_input) const;
  // This and what else adds gradients leaves out those of frozen parameters. What it asks of the tensor group is the
  // same whatever is frozen.
  void norm_backward_weight(std::string_view layer, ConstView d_output, ConstView input, const NormTensors& norm) const;

  // output = the RMS norm of the input + addend (optional). Its backward is that of a norm without an addend.
  void post_norm_forward(std::string_view layer, ConstView input, View output, View rstd, ConstView addend) const;

  // RMS norms over heads, which share a weight [D]. rstd: [N] of the forward. d_input may be d_output.
  void head_norm_forward(std::string_view layer, const HeadRows& input, const HeadRows& output, View rstd) const;
  void head_norm_backward_input(std::string_view layer, const HeadRows& d_output, const HeadRows& input, ConstView rstd,
                                const HeadRows& d_input) const;
  void head_norm_backward_weight(std::string_view layer, const HeadRows& d_output, const HeadRows& input,
                                 ConstView rstd) const;

  void linear_backward_input(std::string_view layer, ConstView d_output, View d_input) const;

  // Maps whose output features the tensor ranks divide. Inputs and their gradients are this rank's own rows;
  // `unsharded` is scratch [N,I] with sequence shards, and may be the same in all calls.
  void column_forward(std::string_view layer, View input, View output, View unsharded) const;
  // And activated = the model's activation of the output.
  void column_forward(std::string_view layer, View input, View output, View activated, View unsharded) const;
  void column_backward_input(std::string_view layer, ConstView d_output, View d_input, View unsharded) const;
  void column_backward_weight(std::string_view layer, View input, ConstView d_output, View unsharded) const;

  // Maps whose input features they divide. Output and addend are own rows; output = sum over ranks + bias + addend
  // (optional).
  void row_forward(std::string_view layer, ConstView input, View output, ConstView addend, View unsharded) const;
  // d_unsharded: sums().unsharded() of d_own, which gives the bias its gradient.
  void row_backward_weight(std::string_view layer, ConstView input, ConstView d_unsharded, ConstView d_own) const;

  // Of a layer's adapters; nothing where it has none (adapters.h). What the forward keeps, which the passes above make
  // themselves: for a pass that is not run again.
  void adapter_hidden(std::string_view layer, ConstView input) const;
  // Before the layer's backward passes, with all rows of d_output.
  void adapter_backward(std::string_view layer, ConstView d_output) const;

  // d_weight += d_output^T input, d_bias += the column sums of d_output; either may be empty.
  void linear_backward_weight(ConstView input, ConstView d_output, View d_weight, View d_bias) const;

 private:
  const UnitGradients& gradients() const;
  void scale_columns(ConstView input, std::int64_t input_stride, View output, std::int64_t output_stride,
                     double scale) const;
  // The addend of the layer's own product: the given one or, with adapters, what they add to it, in the output.
  ConstView adapter_forward(std::string_view layer, ConstView input, ConstView addend, View output) const;
  void add_adapter_input_gradient(std::string_view layer, View d_input) const;
  // With dropout each map's A has a product of its own, of what a mask of its own leaves of the input.
  bool drops_adapter_inputs() const { return bool(dropped("", spec_.lora.dropout)); }
  DropoutMask adapter_dropped(const AdaptedMap& map) const;
  void drop_inputs(const AdaptedLayer& layer, const DropoutMask& mask, std::int64_t first_row, ConstView input,
                   ConstView addend, View output) const;
  View d_hidden_of(const LayerAdapters& of, std::size_t map, std::int64_t row, std::int64_t rows) const;
  void adapter_backward_weight(std::string_view layer, ConstView input, ConstView d_output) const;

  Backend& backend_;
  Stream& stream_;
  const ModelSpec& spec_;
  const UnitWeights& weights_;
  const UnitGradients* gradients_;
  TensorSums sums_;
  const AdapterTensors* adapters_ = nullptr;
  const BatchContext* batch_ = nullptr;  // null: of decoding
  TensorPart part_;
  std::string_view unit_;
};

}  // namespace scaletrain
