// A backend with a fault: another backend's results, but the last element of one output is off by a little. What the
// parity harness must notice.
#pragma once

#include <initializer_list>

#include "backend/backend.h"

namespace scaletrain::parity {

class PlantedError final : public Backend {
 public:
  explicit PlantedError(Backend& inner) : inner_(inner) {}

  // From now on `delta` is added to the last element of output number `output` (in the descriptor's order, absent ones
  // left out). If that is lost in rounding, the lowest bit of the element is flipped; a zero of either sign becomes the
  // smallest normal number.
  void plant(int output, double delta) {
    output_ = output;
    delta_ = delta;
  }

  DType compute_type() const override { return inner_.compute_type(); }
  std::string description() const override { return inner_.description() + " with a planted error"; }
  int num_threads() const override { return inner_.num_threads(); }
  std::unique_ptr<Stream> make_stream() override { return inner_.make_stream(); }
  Space space() const override { return inner_.space(); }
  Buffer allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  Buffer allocate_pinned(std::size_t bytes) override { return inner_.allocate_pinned(bytes); }
  std::size_t workspace_bytes() const override { return inner_.workspace_bytes(); }
  std::size_t packed_bytes(const Shape& weight) const override { return inner_.packed_bytes(weight); }
  std::unique_ptr<PackedWeight> pack(Stream& stream, ConstView values, Region memory) override {
    return inner_.pack(stream, values, memory);
  }

 private:
  struct Element {
    void* data = nullptr;
    DType dtype = DType::f32;
  };

  static Element at(const View& view, std::int64_t index) {
    if (!view || view.num_elements() == 0) return {};
    return {static_cast<std::byte*>(view.data()) + static_cast<std::size_t>(index) * size_of(view.dtype()),
            view.dtype()};
  }
  static Element last(const View& view) { return at(view, view.num_elements() - 1); }
  static Element last(const View& view, const RowLayout& rows) {
    const std::int64_t columns = view.shape()[1];
    return at(view, rows.start(view.shape()[0] - 1, columns) + columns - 1);
  }
  static Element last(const HeadsView& heads, std::int64_t rows, std::int64_t width) {
    return at(heads.values, (rows - 1) * heads.row_stride + width - 1);
  }

  template <class Descriptor>
  void run_and_spoil(Stream& stream, const Descriptor& op, std::initializer_list<Element> outputs) {
    inner_.run(stream, op);
    int number = 0;
    for (const Element& element : outputs) {
      if (element.data == nullptr) continue;
      if (number++ == output_) spoil(element);
    }
  }

  static double value_of(const Element& element) {
    double value = 0;
    convert_floats(element.dtype, element.data, DType::f64, &value, 1);
    return value;
  }
  static void store(double value, const Element& element) {
    convert_floats(DType::f64, &value, element.dtype, element.data, 1);
  }

  void spoil(const Element& element) const {
    const double before = value_of(element);
    store(before + delta_, element);
    if (value_of(element) != before) return;
    if (before == 0)
      store(element.dtype == DType::f16 ? 0x1p-14 : 0x1p-126, element);
    else
      *static_cast<std::byte*>(element.data) ^= std::byte{1};
  }

  void spoiled(Stream& s, const LinearForward& op) { run_and_spoil(s, op, {last(op.output), last(op.activated)}); }
  void spoiled(Stream& s, const LinearBackwardInput& op) { run_and_spoil(s, op, {last(op.d_input)}); }
  void spoiled(Stream& s, const LinearBackwardWeight& op) {
    run_and_spoil(s, op, {last(op.d_weight), last(op.d_bias)});
  }
  void spoiled(Stream& s, const NormForward& op) {
    run_and_spoil(s, op, {last(op.output, op.output_rows), last(op.mean), last(op.rstd)});
  }
  void spoiled(Stream& s, const NormBackwardInput& op) { run_and_spoil(s, op, {last(op.d_input, op.d_input_rows)}); }
  void spoiled(Stream& s, const NormBackwardWeight& op) { run_and_spoil(s, op, {last(op.d_weight), last(op.d_bias)}); }
  void spoiled(Stream& s, const ActivationForward& op) { run_and_spoil(s, op, {last(op.output)}); }
  void spoiled(Stream& s, const ActivationBackward& op) { run_and_spoil(s, op, {last(op.d_input)}); }
  void spoiled(Stream& s, const RopeRotate& op) {
    run_and_spoil(s, op,
                  {last(HeadsView{op.values, op.row_stride}, op.positions.shape()[0], op.num_heads * op.head_size)});
  }
  void spoiled(Stream& s, const AttentionForward& op) {
    const AttentionShape& shape = op.shape;
    run_and_spoil(
        s, op, {last(op.output, shape.batch * shape.num_queries, shape.heads * shape.head_size), last(op.log_sum_exp)});
  }
  void spoiled(Stream& s, const AttentionBackward& op) {
    const AttentionShape& shape = op.shape;
    run_and_spoil(s, op,
                  {last(op.d_query, shape.batch * shape.num_queries, shape.heads * shape.head_size),
                   last(op.d_key, shape.batch * shape.num_keys, shape.kv_heads * shape.head_size),
                   last(op.d_value, shape.batch * shape.num_keys, shape.kv_heads * shape.head_size)});
  }
  void spoiled(Stream& s, const EmbeddingForward& op) { run_and_spoil(s, op, {last(op.output)}); }
  void spoiled(Stream& s, const EmbeddingBackward& op) {
    run_and_spoil(s, op, {last(op.d_table), last(op.d_position_table)});
  }
  void spoiled(Stream& s, const CrossEntropy& op) { run_and_spoil(s, op, {last(op.loss_sum), last(op.logits)}); }
  void spoiled(Stream& s, const SoftmaxStatistics& op) { run_and_spoil(s, op, {last(op.statistics)}); }
  void spoiled(Stream& s, const CrossEntropyParts& op) { run_and_spoil(s, op, {last(op.loss_sum), last(op.logits)}); }
  void spoiled(Stream& s, const Add& op) { run_and_spoil(s, op, {last(op.output)}); }
  void spoiled(Stream& s, const Dropout& op) { run_and_spoil(s, op, {last(op.output)}); }
  void spoiled(Stream& s, const Scale& op) {
    const Shape& shape = op.output.shape();
    const std::int64_t place = (shape[0] - 1) * op.output_row_stride() + shape[1] - 1;
    run_and_spoil(s, op, {shape.num_elements() == 0 ? Element() : at(op.output, place)});
  }
  void spoiled(Stream& s, const SoftCap& op) { run_and_spoil(s, op, {last(op.output)}); }
  void spoiled(Stream& s, const SoftCapBackward& op) { run_and_spoil(s, op, {last(op.d_input)}); }
  void spoiled(Stream& s, const Copy& op) { run_and_spoil(s, op, {last(op.output)}); }
  void spoiled(Stream& s, const Fill& op) { run_and_spoil(s, op, {last(op.output)}); }
  void spoiled(Stream& s, const SumsOfSquares& op) { run_and_spoil(s, op, {last(op.results)}); }
  void spoiled(Stream& s, const AdamWStep& op) {
    run_and_spoil(s, op, {last(op.param), last(op.first_moment), last(op.second_moment), last(op.compute_weights)});
  }
  // Codes are no numbers: their case decodes them.
  void spoiled(Stream& s, const BlockAdamWStep& op) {
    run_and_spoil(s, op, {last(op.param), last(op.first_scales), last(op.second_scales), last(op.compute_weights)});
  }
  void spoiled(Stream& s, const SgdStep& op) {
    run_and_spoil(s, op, {last(op.param), last(op.momentum_buffer), last(op.compute_weights)});
  }
  void spoiled(Stream& s, const LionStep& op) {
    run_and_spoil(s, op, {last(op.param), last(op.momentum), last(op.compute_weights)});
  }
  void spoiled(Stream& s, const AdemamixStep& op) {
    run_and_spoil(s, op,
                  {last(op.param), last(op.first_moment), last(op.slow_moment), last(op.second_moment),
                   last(op.compute_weights)});
  }
  void spoiled(Stream& s, const AdamDirection& op) {
    run_and_spoil(s, op, {last(op.gradient), last(op.first_moment), last(op.second_moment)});
  }
  void spoiled(Stream& s, const MomentumDirection& op) { run_and_spoil(s, op, {last(op.gradient), last(op.momentum)}); }
  void spoiled(Stream& s, const ScaleSpans& op) { run_and_spoil(s, op, {last(op.values)}); }
  void spoiled(Stream& s, const MatrixSquares& op) { run_and_spoil(s, op, {last(op.rows), last(op.columns)}); }
  void spoiled(Stream& s, const FactoredDirection& op) { run_and_spoil(s, op, {last(op.gradient)}); }
  void spoiled(Stream& s, const RmsDirection& op) { run_and_spoil(s, op, {last(op.gradient), last(op.second_moment)}); }
  void spoiled(Stream& s, const AverageStep& op) { run_and_spoil(s, op, {last(op.average)}); }
  void spoiled(Stream& s, const Swap& op) { run_and_spoil(s, op, {last(op.a), last(op.b)}); }
  void spoiled(Stream& s, const MatrixProduct& op) { run_and_spoil(s, op, {last(op.output)}); }

  void launch(Stream& stream, const Operation& op) override {
    std::visit([&](const auto& descriptor) { spoiled(stream, descriptor); }, op);
  }
  void transfer(Stream& stream, const ConstView& from, const View& to) override { inner_.copy(stream, from, to); }

  Backend& inner_;
  int output_ = -1;
  double delta_ = 0;
};

}  // namespace scaletrain::parity
