// A backend that takes the time of every operation, by what it is for: from its issue to its end, for which the host
// waits where operations are not done when they have been issued.
#pragma once

#include <fmt/format.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "support/forwarding_backend.h"

namespace scaletrain {

// What a step's time goes to. The update: the gradient's norm, the optimizer, and packing the weights that it changed.
enum class Purpose { products, attention, element_wise, head, update };
inline constexpr std::array<std::string_view, 5> purpose_names = {"products", "attention", "norms and element-wise",
                                                                  "head and loss", "optimizer"};

// In the order of Operation.
inline constexpr std::array<std::string_view, std::variant_size_v<Operation>> operation_names = {
    "linear forward",
    "linear backward input",
    "linear backward weight",
    "norm forward",
    "norm backward input",
    "norm backward weight",
    "activation forward",
    "activation backward",
    "rope",
    "attention forward",
    "attention backward",
    "embedding forward",
    "embedding backward",
    "cross-entropy",
    "softmax statistics",
    "cross-entropy of parts",
    "add",
    "dropout",
    "scale",
    "soft cap",
    "soft cap backward",
    "copy",
    "fill",
    "matrix product",
    "sum of squares",
    "adamw",
    "sgd",
    "lion",
    "ademamix",
    "adam direction",
    "momentum direction",
    "scale of spans",
    "squares of a matrix",
    "factored direction",
    "rms direction",
    "average",
    "swap",
    "adamw in 8 bits"};
static_assert(!operation_names.back().empty(), "a new operation has a name, in its place above");

// What the calls of an operation took together; products apart by their shapes.
struct OperationTime {
  int calls = 0;
  double seconds = 0.0;
};

class TimedBackend final : public ForwardingBackend {
 public:
  // vocab: products of so many outputs are the head's.
  TimedBackend(std::unique_ptr<Backend> inner, std::int64_t vocab)
      : ForwardingBackend(std::move(inner)), vocab_(vocab) {}

  // Whether the host waits for every operation, so that its time is known, or for none, as in training.
  void set_waits(bool waits) { waits_ = waits; }
  // Since the last call.
  std::array<double, purpose_names.size()> take_seconds() { return std::exchange(seconds_, {}); }
  std::map<std::string, OperationTime> take_operations() { return std::exchange(operations_, {}); }

  std::unique_ptr<PackedWeight> pack(Stream& stream, ConstView values, Region memory) override {
    const MonotonicTime start = monotonic_now();
    auto packed = inner().pack(stream, values, memory);
    count(stream, Purpose::update, start, "pack");
    return packed;
  }

 private:
  template <class Descriptor, class... Listed>
  static constexpr bool is_one_of = (std::is_same_v<Descriptor, Listed> || ...);

  template <class Descriptor>
  Purpose purpose_of(const Descriptor&) const {
    static_assert(
        is_one_of<Descriptor, NormForward, NormBackwardInput, NormBackwardWeight, ActivationForward, ActivationBackward,
                  RopeRotate, EmbeddingForward, EmbeddingBackward, Add, Scale, Copy, Fill>,
        "a new operation has a purpose, here or below");
    return Purpose::element_wise;
  }
  Purpose of_product(const Shape& weight) const { return weight[0] == vocab_ ? Purpose::head : Purpose::products; }
  Purpose purpose_of(const LinearForward& op) const { return of_product(op.weight.values.shape()); }
  Purpose purpose_of(const LinearBackwardInput& op) const { return of_product(op.weight.values.shape()); }
  Purpose purpose_of(const LinearBackwardWeight& op) const { return of_product(op.d_weight.shape()); }
  Purpose purpose_of(const AttentionForward&) const { return Purpose::attention; }
  Purpose purpose_of(const AttentionBackward&) const { return Purpose::attention; }
  Purpose purpose_of(const CrossEntropy&) const { return Purpose::head; }
  Purpose purpose_of(const SoftmaxStatistics&) const { return Purpose::head; }
  Purpose purpose_of(const CrossEntropyParts&) const { return Purpose::head; }
  Purpose purpose_of(const Dropout&) const { return Purpose::element_wise; }
  Purpose purpose_of(const SoftCap&) const { return Purpose::head; }
  Purpose purpose_of(const SoftCapBackward&) const { return Purpose::head; }
  Purpose purpose_of(const SumsOfSquares&) const { return Purpose::update; }
  Purpose purpose_of(const AdamWStep&) const { return Purpose::update; }
  Purpose purpose_of(const BlockAdamWStep&) const { return Purpose::update; }
  Purpose purpose_of(const SgdStep&) const { return Purpose::update; }
  Purpose purpose_of(const LionStep&) const { return Purpose::update; }
  Purpose purpose_of(const AdemamixStep&) const { return Purpose::update; }
  Purpose purpose_of(const AdamDirection&) const { return Purpose::update; }
  Purpose purpose_of(const MomentumDirection&) const { return Purpose::update; }
  Purpose purpose_of(const ScaleSpans&) const { return Purpose::update; }
  Purpose purpose_of(const MatrixSquares&) const { return Purpose::update; }
  Purpose purpose_of(const FactoredDirection&) const { return Purpose::update; }
  Purpose purpose_of(const RmsDirection&) const { return Purpose::update; }
  Purpose purpose_of(const AverageStep&) const { return Purpose::update; }
  Purpose purpose_of(const Swap&) const { return Purpose::update; }
  Purpose purpose_of(const MatrixProduct&) const { return Purpose::update; }

  // "linear forward 3904 x 768 -> 50257".
  static std::string label_of(const Operation& op) {
    std::string name(operation_names[op.index()]);
    const auto with = [&](const ConstView& rows, std::int64_t inputs, std::int64_t outputs) {
      return fmt::format("{} {} x {} -> {}", name, rows.shape()[0], inputs, outputs);
    };
    if (const auto* linear = std::get_if<LinearForward>(&op))
      return with(linear->input, linear->input.shape()[1], linear->weight.values.shape()[0]);
    if (const auto* linear = std::get_if<LinearBackwardInput>(&op))
      return with(linear->d_output, linear->weight.values.shape()[1], linear->weight.values.shape()[0]);
    if (const auto* linear = std::get_if<LinearBackwardWeight>(&op))
      return with(linear->d_output, linear->d_weight.shape()[1], linear->d_weight.shape()[0]);
    if (const auto* product = std::get_if<MatrixProduct>(&op))
      return with(product->output, product->depth(), product->output.shape()[1]);
    return name;
  }

  void launch(Stream& stream, const Operation& op) override {
    const MonotonicTime start = monotonic_now();
    inner().run(stream, op);
    count(stream, std::visit([this](const auto& descriptor) { return purpose_of(descriptor); }, op), start,
          waits_ ? label_of(op) : "");
  }
  void transfer(Stream& stream, const ConstView& from, const View& to) override {
    const MonotonicTime start = monotonic_now();
    inner().copy(stream, from, to);
    count(stream, Purpose::element_wise, start, "transfer");
  }
  void count(Stream& stream, Purpose purpose, MonotonicTime start, const std::string& label) {
    if (waits_) stream.synchronize();
    const double seconds = seconds_since(start);
    seconds_[static_cast<std::size_t>(purpose)] += seconds;
    OperationTime& of_operation = operations_[label];
    ++of_operation.calls;
    of_operation.seconds += seconds;
  }

  std::int64_t vocab_;
  bool waits_ = true;
  std::array<double, purpose_names.size()> seconds_{};
  std::map<std::string, OperationTime> operations_;
};

}  // namespace scaletrain
