#include <array>
#include <bit>
#include <initializer_list>
#include <string_view>

#include "backend/moment_codes.h"
#include "backend/operation_checks.h"

namespace scaletrain {

namespace {

struct NamedView {
  std::string_view name;
  ConstView view;
};

// What every update has: operands of the params' length in the masters' type, none of which is another.
template <class Step>
void check_update(const Checker& check, const Step& op, std::initializer_list<NamedView> others) {
  check.dims("param", op.param, 1);
  const Shape& shape = op.param.shape();
  check.operand("param", op.param, check.master(), shape);
  check.operand("step", op.step, DType::f64, Shape{num_step_scalars});
  for (const NamedView* other = others.begin(); other != others.end(); ++other) {
    check.operand(other->name, other->view, check.master(), shape);
    check.disjoint("param", op.param, {other->view});
    for (const NamedView* behind = other + 1; behind != others.end(); ++behind)
      check.disjoint(other->name, other->view, {behind->view});
  }
  check_spans(check, op.spans, shape[0]);
}

template <class Step>
void check_compute_weights(const Checker& check, const Step& op, std::initializer_list<ConstView> others) {
  check.optional("compute_weights", op.compute_weights, check.compute(), op.param.shape());
  check.disjoint("compute_weights", op.compute_weights, {op.param, op.gradient});
  check.disjoint("compute_weights", op.compute_weights, others);
}

template <class Step>
void check_betas(const Checker& check, const Step& op) {
  check.require("beta1", op.beta1 >= 0 && op.beta1 < 1, "a number in [0, 1)");
  check.require("beta2", op.beta2 >= 0 && op.beta2 < 1, "a number in [0, 1)");
}

template <class Step>
void check_adam(const Checker& check, const Step& op) {
  check_betas(check, op);
  check.require("epsilon", op.epsilon >= 0, "a number of at least 0");
}

// Of a contiguous part of a matrix, the vectors over its rows and columns.
void check_part(const Checker& check, std::int64_t count, std::int64_t first_column, const ConstView& rows,
                const ConstView& columns, DType type) {
  check.dims("columns", columns, 1);
  const std::int64_t num_columns = columns.shape()[0];
  check.require("columns", num_columns > 0, "at least one column");
  check.require("first_column", first_column >= 0 && first_column < num_columns, "a column of the matrix");
  const std::int64_t touched = count == 0 ? 0 : (first_column + count + num_columns - 1) / num_columns;
  check.operand("rows", rows, type, Shape{touched});
  check.operand("columns", columns, type, Shape{num_columns});
}

}  // namespace

void check_operation(const Backend& backend, const AdamWStep& op) {
  const Checker check("AdamWStep", backend);
  check_update(check, op,
               {{"first_moment", op.first_moment}, {"second_moment", op.second_moment}, {"gradient", op.gradient}});
  check_compute_weights(check, op, {op.first_moment, op.second_moment});
  check_adam(check, op);
}

void check_operation(const Backend& backend, const BlockAdamWStep& op) {
  const Checker check("BlockAdamWStep", backend);
  check.require("block",
                op.block >= least_in_moment_block && op.block <= most_in_moment_block &&
                    std::has_single_bit(static_cast<std::uint64_t>(op.block)),
                "a power of two from 16 to 256");
  check_update(check, op, {{"gradient", op.gradient}});
  const Shape& shape = op.param.shape();
  check.require("param", shape[0] % op.block == 0, "whole blocks");
  for (const UpdateSpan& span : op.spans)
    check.require("spans", span.first % op.block == 0 && span.count % op.block == 0, "spans of whole blocks");
  const Shape blocks{shape[0] / op.block};
  const std::array<NamedView, 4> moments = {{{"first_codes", op.first_codes},
                                             {"second_codes", op.second_codes},
                                             {"first_scales", op.first_scales},
                                             {"second_scales", op.second_scales}}};
  for (std::size_t i = 0; i < moments.size(); ++i) {
    const bool is_codes = i < 2;
    check.operand(moments[i].name, moments[i].view, is_codes ? DType::u8 : check.master(), is_codes ? shape : blocks);
    check.disjoint("param", op.param, {moments[i].view});
    check.disjoint("compute_weights", op.compute_weights, {moments[i].view});
    check.disjoint(moments[i].name, moments[i].view, {op.gradient});
    for (std::size_t other = i + 1; other < moments.size(); ++other)
      check.disjoint(moments[i].name, moments[i].view, {moments[other].view});
  }
  check_compute_weights(check, op, {});
  check_adam(check, op);
}

void check_operation(const Backend& backend, const SgdStep& op) {
  const Checker check("SgdStep", backend);
  check_update(check, op, {{"gradient", op.gradient}});
  check_compute_weights(check, op, {op.momentum_buffer});
  check.require("momentum", op.momentum >= 0 && op.momentum < 1, "a number in [0, 1)");
  if (op.form == MomentumForm::none)
    check.require("momentum_buffer", !op.momentum_buffer, "none without momentum");
  else
    check_update(check, op, {{"momentum_buffer", op.momentum_buffer}, {"gradient", op.gradient}});
}

void check_operation(const Backend& backend, const LionStep& op) {
  const Checker check("LionStep", backend);
  check_update(check, op, {{"momentum", op.momentum}, {"gradient", op.gradient}});
  check_compute_weights(check, op, {op.momentum});
  check_betas(check, op);
}

void check_operation(const Backend& backend, const AdemamixStep& op) {
  const Checker check("AdemamixStep", backend);
  check_update(check, op,
               {{"first_moment", op.first_moment},
                {"slow_moment", op.slow_moment},
                {"second_moment", op.second_moment},
                {"gradient", op.gradient}});
  check_compute_weights(check, op, {op.first_moment, op.slow_moment, op.second_moment});
  check_adam(check, op);
}

void check_operation(const Backend& backend, const AdamDirection& op) {
  const Checker check("AdamDirection", backend);
  check_update(check, op,
               {{"first_moment", op.first_moment}, {"second_moment", op.second_moment}, {"gradient", op.gradient}});
  check_adam(check, op);
}

void check_operation(const Backend& backend, const MomentumDirection& op) {
  const Checker check("MomentumDirection", backend);
  check.dims("gradient", op.gradient, 1);
  check.operand("gradient", op.gradient, check.master(), op.gradient.shape());
  check.operand("momentum", op.momentum, check.master(), op.gradient.shape());
  check.operand("step", op.step, DType::f64, Shape{num_step_scalars});
  check.disjoint("gradient", op.gradient, {op.momentum});
  check.require("beta", op.beta >= 0 && op.beta < 1, "a number in [0, 1)");
  check_spans(check, op.spans, op.gradient.shape()[0]);
}

void check_operation(const Backend& backend, const ScaleSpans& op) {
  const Checker check("ScaleSpans", backend);
  check.dims("values", op.values, 1);
  check.operand("values", op.values, check.master(), op.values.shape());
  check_spans(check, op.spans, op.values.shape()[0]);
}

void check_operation(const Backend& backend, const MatrixSquares& op) {
  const Checker check("MatrixSquares", backend);
  check.dims("values", op.values, 1);
  check.operand("values", op.values, check.master(), op.values.shape());
  check_part(check, op.values.shape()[0], op.first_column, op.rows, op.columns, DType::f64);
  check.disjoint("rows", op.rows, {op.values, op.columns});
  check.disjoint("columns", op.columns, {op.values});
}

void check_operation(const Backend& backend, const FactoredDirection& op) {
  const Checker check("FactoredDirection", backend);
  check.dims("gradient", op.gradient, 1);
  check.operand("gradient", op.gradient, check.master(), op.gradient.shape());
  check_part(check, op.gradient.shape()[0], op.first_column, op.rows, op.columns, check.master());
  check.operand("step", op.step, DType::f64, Shape{num_step_scalars});
  check.disjoint("gradient", op.gradient, {op.rows, op.columns});
  check.require("largest", op.largest > 0, "a number above 0");
}

void check_operation(const Backend& backend, const RmsDirection& op) {
  const Checker check("RmsDirection", backend);
  check.dims("gradient", op.gradient, 1);
  check.operand("gradient", op.gradient, check.master(), op.gradient.shape());
  check.operand("second_moment", op.second_moment, check.master(), op.gradient.shape());
  check.operand("step", op.step, DType::f64, Shape{num_step_scalars});
  check.disjoint("gradient", op.gradient, {op.second_moment});
  check.require("weight", op.weight > 0 && op.weight <= 1, "a number in (0, 1]");
  check.require("smallest", op.smallest > 0, "a number above 0");
  check_spans(check, op.spans, op.gradient.shape()[0]);
}

void check_operation(const Backend& backend, const AverageStep& op) {
  const Checker check("AverageStep", backend);
  check.dims("average", op.average, 1);
  check.operand("average", op.average, check.master(), op.average.shape());
  check.operand("param", op.param, check.master(), op.average.shape());
  check.require("decay", op.decay >= 0 && op.decay < 1, "a number in [0, 1)");
  check.disjoint("average", op.average, {op.param});
}

void check_operation(const Backend& backend, const Swap& op) {
  const Checker check("Swap", backend);
  check.dims("a", op.a, 1);
  check.operand("a", op.a, check.master(), op.a.shape());
  check.operand("b", op.b, check.master(), op.a.shape());
  check.disjoint("a", op.a, {op.b});
}

}  // namespace scaletrain
