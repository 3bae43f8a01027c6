// The operands of operations, one by one: for backends that put them elsewhere.
#pragma once

#include <variant>

#include "backend/operations.h"

namespace scaletrain {

template <class Visit>
class OperandVisitor {
 public:
  explicit OperandVisitor(const Visit& visit) : visit_(visit) {}

  void enter(LinearForward& op) const { reach_all(op.weight, op.bias, op.input, op.addend, op.output, op.activated); }
  void enter(LinearBackwardInput& op) const { reach_all(op.weight, op.d_output, op.d_input); }
  void enter(LinearBackwardWeight& op) const { reach_all(op.input, op.d_output, op.d_weight, op.d_bias); }
  void enter(NormForward& op) const { reach_all(op.input, op.weight, op.bias, op.output, op.mean, op.rstd); }
  void enter(NormBackwardInput& op) const {
    reach_all(op.d_output, op.input, op.weight, op.mean, op.rstd, op.addend, op.d_input);
  }
  void enter(NormBackwardWeight& op) const {
    reach_all(op.d_output, op.input, op.mean, op.rstd, op.d_weight, op.d_bias);
  }
  void enter(ActivationForward& op) const { reach_all(op.input, op.output); }
  void enter(ActivationBackward& op) const { reach_all(op.input, op.d_output, op.d_input); }
  void enter(RopeRotate& op) const { reach_all(op.values, op.positions); }
  void enter(AttentionForward& op) const {
    reach_all(op.query, op.key, op.value, op.document_start, op.output, op.log_sum_exp, op.dropout.mask.samples);
  }
  void enter(AttentionBackward& op) const {
    reach_all(op.query, op.key, op.value, op.output, op.d_output, op.log_sum_exp, op.document_start, op.d_query,
              op.d_key, op.d_value, op.workspace, op.dropout.mask.samples);
  }
  void enter(EmbeddingForward& op) const { reach_all(op.table, op.position_table, op.ids, op.positions, op.output); }
  void enter(EmbeddingBackward& op) const {
    reach_all(op.d_output, op.ids, op.positions, op.d_table, op.d_position_table);
  }
  void enter(CrossEntropy& op) const { reach_all(op.logits, op.targets, op.loss_sum); }
  void enter(SoftmaxStatistics& op) const { reach_all(op.logits, op.targets, op.statistics); }
  void enter(CrossEntropyParts& op) const { reach_all(op.logits, op.targets, op.statistics, op.loss_sum); }
  void enter(Add& op) const { reach_all(op.a, op.b, op.output); }
  void enter(Dropout& op) const { reach_all(op.input, op.addend, op.output, op.mask.samples); }
  void enter(Scale& op) const { reach_all(op.input, op.output); }
  void enter(SoftCap& op) const { reach_all(op.input, op.output); }
  void enter(SoftCapBackward& op) const { reach_all(op.input, op.d_output, op.d_input); }
  void enter(Copy& op) const { reach_all(op.input, op.output); }
  void enter(Fill& op) const { reach_all(op.output); }
  void enter(SumsOfSquares& op) const { reach_all(op.values, op.results); }
  void enter(AdamWStep& op) const {
    reach_all(op.param, op.first_moment, op.second_moment, op.gradient, op.step, op.compute_weights);
  }
  void enter(BlockAdamWStep& op) const {
    reach_all(op.param, op.first_codes, op.second_codes, op.first_scales, op.second_scales, op.gradient, op.step,
              op.compute_weights);
  }
  void enter(SgdStep& op) const { reach_all(op.param, op.gradient, op.step, op.compute_weights, op.momentum_buffer); }
  void enter(LionStep& op) const { reach_all(op.param, op.momentum, op.gradient, op.step, op.compute_weights); }
  void enter(AdemamixStep& op) const {
    reach_all(op.param, op.first_moment, op.slow_moment, op.second_moment, op.gradient, op.step, op.compute_weights);
  }
  void enter(AdamDirection& op) const { reach_all(op.param, op.gradient, op.first_moment, op.second_moment, op.step); }
  void enter(MomentumDirection& op) const { reach_all(op.gradient, op.momentum, op.step); }
  void enter(ScaleSpans& op) const { reach_all(op.values); }
  void enter(MatrixSquares& op) const { reach_all(op.values, op.rows, op.columns); }
  void enter(FactoredDirection& op) const { reach_all(op.gradient, op.rows, op.columns, op.step); }
  void enter(RmsDirection& op) const { reach_all(op.gradient, op.second_moment, op.step); }
  void enter(AverageStep& op) const { reach_all(op.average, op.param); }
  void enter(Swap& op) const { reach_all(op.a, op.b); }
  void enter(MatrixProduct& op) const { reach_all(op.a, op.b, op.addend, op.output); }

 private:
  void reach(View& view) const { visit_(view); }
  void reach(ConstView& view) const { visit_(view); }
  void reach(Weight& weight) const { visit_(weight.values); }
  void reach(HeadsView& heads) const { visit_(heads.values); }
  void reach(ConstHeadsView& heads) const { visit_(heads.values); }
  template <class... Operands>
  void reach_all(Operands&... operands) const {
    (reach(operands), ...);
  }

  const Visit& visit_;
};

// visit(View&) or visit(ConstView&) for each operand, absent ones included. Packed weights stay as they are.
template <class Visit>
void for_each_view(Operation& op, const Visit& visit) {
  const OperandVisitor<Visit> visitor(visit);
  std::visit([&](auto& descriptor) { visitor.enter(descriptor); }, op);
}

}  // namespace scaletrain
