#include "nn/unit_ops.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace scaletrain {

namespace {

std::string weight_of(std::string_view layer) {
  return std::string(layer) + ".weight";
}
std::string bias_of(std::string_view layer) {
  return std::string(layer) + ".bias";
}

NormType norm_type(const ModelSpec& spec) {
  return spec.norm == NormKind::layernorm ? NormType::layernorm : NormType::rmsnorm;
}

}  // namespace

NormTensors carve_norm(RegionAllocator& region, const ModelSpec& spec, std::int64_t rows, DType compute) {
  NormTensors norm;
  norm.output = region.allocate(compute, {rows, spec.hidden});
  if (spec.norm == NormKind::layernorm) norm.mean = region.allocate(accumulator_type(compute), {rows});
  norm.rstd = region.allocate(accumulator_type(compute), {rows});
  return norm;
}

ActivationType activation_type(const ModelSpec& spec) {
  switch (spec.activation) {
    case ActivationKind::gelu_tanh:
      return ActivationType::gelu_tanh;
    case ActivationKind::swiglu:
      return ActivationType::swiglu;
    case ActivationKind::geglu:
      return ActivationType::geglu;
    case ActivationKind::gelu:
      break;
  }
  return ActivationType::gelu;
}

double embedding_scale(const ModelSpec& spec, DType compute) {
  const double exact = std::sqrt(static_cast<double>(spec.hidden));
  double rounded = 0.0;
  std::uint64_t place = 0;  // room for any type
  convert_floats(DType::f64, &exact, compute, &place, 1);
  convert_floats(compute, &place, DType::f64, &rounded, 1);
  return rounded;
}

View part(const View& whole, std::int64_t first, Shape shape) {
  SCALETRAIN_CHECK(first >= 0);
  SCALETRAIN_CHECK_LE(first + shape.num_elements(), whole.num_elements());
  const std::size_t offset = static_cast<std::size_t>(first) * size_of(whole.dtype());
  return {static_cast<std::byte*>(whole.data()) + offset, whole.dtype(), shape, whole.space()};
}

UnitOps::UnitOps(Backend& backend, Stream& stream, const ModelSpec& spec, const UnitWeights& weights,
                 const UnitGradients* gradients, TensorSums sums)
    : backend_(backend), stream_(stream), spec_(spec), weights_(weights), gradients_(gradients), sums_(sums) {}

const UnitGradients& UnitOps::gradients() const {
  SCALETRAIN_CHECK(gradients_ != nullptr);
  return *gradients_;
}

DropoutMask UnitOps::dropped(std::string_view place, double probability) const {
  if (batch_ == nullptr || batch_->mode != Mode::train || probability <= 0) return {};
  return {.probability = probability,
          .key = philox_key(batch_->seed, fmt::format("dropout.{}.{}", unit_, place)),
          .samples = batch_->samples};
}

void UnitOps::drop_rows(const DropoutMask& mask, ConstView input, ConstView addend, View output) const {
  run(Dropout{.input = input,
              .addend = addend,
              .output = output,
              .mask = mask,
              .sample_rows = batch_->shape.tokens,
              .first_row = first_own_row(part_, batch_->shape.rows()),
              .columns = spec_.hidden});
}

void UnitOps::norm_forward(std::string_view layer, ConstView input, const NormTensors& norm) const {
  run(NormForward{.type = norm_type(spec_),
                  .epsilon = spec_.norm_epsilon,
                  .input = input,
                  .weight = weights_.find(weight_of(layer)).values,
                  .bias = weights_.find(bias_of(layer)).values,
                  .output = norm.output,
                  .mean = norm.mean,
                  .rstd = norm.rstd,
                  .weight_offset = spec_.norm_weight_offset});
}

void UnitOps::norm_backward_input(std::string_view layer, ConstView d_output, ConstView input, const NormTensors& norm,
                                  ConstView addend, View d_input) const {
  run(NormBackwardInput{.type = norm_type(spec_),
                        .d_output = d_output,
                        .input = input,
                        .weight = weights_.find(weight_of(layer)).values,
                        .mean = norm.mean,
                        .rstd = norm.rstd,
                        .addend = addend,
                        .d_input = d_input,
                        .weight_offset = spec_.norm_weight_offset});
}

void UnitOps::norm_backward_weight(std::string_view layer, ConstView d_output, ConstView input,
                                   const NormTensors& norm) const {
  const View d_weight = gradients().find(weight_of(layer));
  const View d_bias = gradients().find(bias_of(layer));
  if (!d_weight) return linear_backward_weight({}, d_output, {}, d_bias);
  run(NormBackwardWeight{.type = norm_type(spec_),
                         .d_output = d_output,
                         .input = input,
                         .mean = norm.mean,
                         .rstd = norm.rstd,
                         .d_weight = d_weight,
                         .d_bias = d_bias});
}

void UnitOps::linear_backward_weight(ConstView input, ConstView d_output, View d_weight, View d_bias) const {
  if (!d_weight && !d_bias) return;
  if (!d_weight) {
    // The bias alone: as that of a map without inputs.
    input = ConstView(nullptr, d_output.dtype(), {d_output.shape()[0], 0});
    d_weight = View(nullptr, d_bias.dtype(), {d_bias.shape()[0], 0});
  }
  run(LinearBackwardWeight{.input = input, .d_output = d_output, .d_weight = d_weight, .d_bias = d_bias});
}

void UnitOps::head_norm_forward(std::string_view layer, const HeadRows& input, const HeadRows& output,
                                View rstd) const {
  run(NormForward{.type = NormType::rmsnorm,
                  .epsilon = spec_.norm_epsilon,
                  .input = input.values,
                  .weight = weights_.find(weight_of(layer)).values,
                  .bias = {},
                  .output = output.values,
                  .mean = {},
                  .rstd = rstd,
                  .input_rows = input.layout,
                  .output_rows = output.layout,
                  .weight_offset = spec_.norm_weight_offset});
}

void UnitOps::head_norm_backward_input(std::string_view layer, const HeadRows& d_output, const HeadRows& input,
                                       ConstView rstd, const HeadRows& d_input) const {
  run(NormBackwardInput{.type = NormType::rmsnorm,
                        .d_output = d_output.values,
                        .input = input.values,
                        .weight = weights_.find(weight_of(layer)).values,
                        .mean = {},
                        .rstd = rstd,
                        .addend = {},
                        .d_input = d_input.values,
                        .d_output_rows = d_output.layout,
                        .input_rows = input.layout,
                        .d_input_rows = d_input.layout,
                        .weight_offset = spec_.norm_weight_offset});
}

void UnitOps::head_norm_backward_weight(std::string_view layer, const HeadRows& d_output, const HeadRows& input,
                                        ConstView rstd) const {
  const View d_weight = gradients().find(weight_of(layer));
  if (!d_weight) return;
  run(NormBackwardWeight{.type = NormType::rmsnorm,
                         .d_output = d_output.values,
                         .input = input.values,
                         .mean = {},
                         .rstd = rstd,
                         .d_weight = d_weight,
                         .d_bias = {},
                         .d_output_rows = d_output.layout,
                         .input_rows = input.layout});
}

void UnitOps::linear_backward_input(std::string_view layer, ConstView d_output, View d_input) const {
  run(LinearBackwardInput{.weight = weights_.find(weight_of(layer)), .d_output = d_output, .d_input = d_input});
  add_adapter_input_gradient(layer, d_input);
}

void UnitOps::column_forward(std::string_view layer, View input, View output, View unsharded) const {
  column_forward(layer, input, output, {}, unsharded);
}

void UnitOps::column_forward(std::string_view layer, View input, View output, View activated, View unsharded) const {
  const View all = sums_.unsharded(input, unsharded);
  run(LinearForward{.weight = weights_.find(weight_of(layer)),
                    .bias = weights_.find(bias_of(layer)).values,
                    .input = all,
                    .addend = adapter_forward(layer, all, {}, output),
                    .output = output,
                    .activation = activation_type(spec_),
                    .activated = activated});
}

void UnitOps::column_backward_input(std::string_view layer, ConstView d_output, View d_input, View unsharded) const {
  const View partial = sums_.partial(d_input, unsharded);
  linear_backward_input(layer, d_output, partial);
  sums_.sum(partial, d_input);
}

void UnitOps::column_backward_weight(std::string_view layer, View input, ConstView d_output, View unsharded) const {
  const View all = sums_.unsharded(input, unsharded);
  linear_backward_weight(all, d_output, gradients().find(weight_of(layer)), gradients().find(bias_of(layer)));
  adapter_backward_weight(layer, all, d_output);
}

void UnitOps::row_forward(std::string_view layer, ConstView input, View output, ConstView addend,
                          View unsharded) const {
  const View partial = sums_.partial(output, unsharded);
  run(LinearForward{.weight = weights_.find(weight_of(layer)),
                    .bias = sums_.adds_shared_values() ? weights_.find(bias_of(layer)).values : ConstView(),
                    .input = input,
                    .addend = adapter_forward(layer, input, sums_.parallel() ? ConstView() : addend, partial),
                    .output = partial});
  if (!sums_.parallel()) return;
  sums_.sum(partial, output);
  if (addend) run(Add{.a = output, .b = addend, .output = output});
}

void UnitOps::post_norm_forward(std::string_view layer, ConstView input, View output, View rstd,
                                ConstView addend) const {
  norm_forward(layer, input, {.output = output, .mean = {}, .rstd = rstd});
  if (addend) run(Add{.a = output, .b = addend, .output = output});
}

void UnitOps::row_backward_weight(std::string_view layer, ConstView input, ConstView d_unsharded,
                                  ConstView d_own) const {
  const View d_weight = gradients().find(weight_of(layer));
  const View d_bias = gradients().find(bias_of(layer));
  linear_backward_weight(input, d_unsharded, d_weight, sums_.sequence() ? View() : d_bias);
  if (sums_.sequence()) linear_backward_weight({}, d_own, {}, d_bias);  // which sees own rows only
  adapter_backward_weight(layer, input, d_unsharded);
}

}  // namespace scaletrain
