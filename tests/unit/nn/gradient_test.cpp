// Every gradient of every unit against finite differences in float64.
#include <doctest/doctest.h>

#include <functional>

#include "model_fixture.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

// Fourth-order central difference: with this step its error and that of rounding are both about 1e-12.
constexpr double finite_step = 1e-3;

double derivative(double& value, const std::function<double()>& objective) {
  const double centre = value;
  const auto at = [&](double offset) {
    value = centre + offset;
    const double result = objective();
    value = centre;
    return result;
  };
  const double near = at(finite_step) - at(-finite_step);
  const double far = at(2 * finite_step) - at(-2 * finite_step);
  return (8 * near - far) / (12 * finite_step);
}

std::vector<double> derivatives(const View& values, const std::function<double()>& objective) {
  std::vector<double> out;
  auto* elements = values.as<double>();
  for (std::int64_t i = 0; i < values.num_elements(); ++i) out.push_back(derivative(elements[i], objective));
  return out;
}

// The objective is output · direction, or, for the head, loss_gradient · loss.
class UnitCheck {
 public:
  UnitCheck(const ModelSpec& spec, int index, BatchShape shape)
      : model(spec, make_reference_backend(DType::f64)), batch(spec, shape), index_(index) {
    model.randomise();
    harness_ = std::make_unique<UnitHarness>(model, index, batch);
    const std::size_t bytes = std::size_t(shape.rows() * spec.hidden) * sizeof(double);
    for (int i = 0; i < 4; ++i) memory_.emplace_back(bytes);
    const auto bundle = [&](std::size_t i) { return Bundle{memory_[i].view(DType::f64, {shape.rows(), spec.hidden})}; };
    const bool is_head = index == static_cast<int>(model.model.units().size()) - 1;
    if (index != 0) input_ = bundle(0);
    if (index != 0) d_input_ = bundle(1);
    if (!is_head) output_ = bundle(2);
    if (!is_head) d_output_ = bundle(3);
    if (index != 0) assign(input_.hidden, normal_values("input", std::size_t(shape.rows() * spec.hidden), 0.1f, 1.0f));
    direction_ = normal_values("direction", std::size_t(shape.rows() * spec.hidden), 0.0f, 1.0f);
  }

  void check(BackwardForm form) {
    CAPTURE(int(form));
    const auto objective = [&] { return evaluate(); };
    std::map<std::string, std::vector<double>> expected;
    if (index_ != 0) expected["input"] = derivatives(input_.hidden, objective);
    for (const Parameter& parameter : model.table.parameters())
      if (reads(parameter)) expected[parameter.name] = derivatives(model.store.master(parameter.name), objective);

    model.store.zero_gradients(*model.stream);
    batch.loss_sum = 0.0;
    Saved saved = harness_->forward(Mode::train, input_, output_);
    if (output_.hidden) assign(d_output_.hidden, direction_);
    harness_->backward(form, std::move(saved), d_output_, d_input_);

    double floor = 0.0;
    for (const auto& entry : expected) floor = std::max(floor, 1e-5 * largest(entry.second));
    for (const auto& entry : expected) {
      const std::string& name = entry.first;
      CAPTURE(name);
      const View actual = name == "input" ? d_input_.hidden : model.store.gradient(name);
      CHECK(element_error(to_doubles(actual), entry.second, floor) <= 1e-6);
    }
    if (!output_.hidden) CHECK(batch.loss_sum * batch.loss_gradient == Near(evaluate()).epsilon(1e-12));
  }

  TestModel model;
  TestBatch batch;

 private:
  static void assign(const View& view, const std::vector<double>& values) {
    std::copy(values.begin(), values.end(), view.as<double>());
  }

  bool reads(const Parameter& parameter) const {
    if (parameter.unit == index_) return true;
    return !output_.hidden && model.spec.tie_embeddings && parameter.name == "embedding.token.weight";
  }

  double evaluate() {
    batch.loss_sum = 0.0;
    // With dropout as in training: the same masks each time.
    const Mode mode = has_dropout(model.spec) && output_.hidden ? Mode::train : Mode::evaluate;
    harness_->forward(mode, input_, output_);
    if (!output_.hidden) return batch.loss_gradient * batch.loss_sum;
    double sum = 0.0;
    for (std::size_t i = 0; i < direction_.size(); ++i) sum += output_.hidden.as<double>()[i] * direction_[i];
    return sum;
  }

  int index_;
  std::unique_ptr<UnitHarness> harness_;
  std::vector<PoisonedRegion> memory_;
  Bundle input_, d_input_, output_, d_output_;
  std::vector<double> direction_;
};

void check_both_forms(UnitCheck& unit) {
  unit.check(BackwardForm::whole);
  unit.check(BackwardForm::split);
}

}  // namespace

TEST_CASE("embedding gradients are those of finite differences, with learned positions and without") {
  ModelSpec spec = tiny_gpt2();
  UnitCheck learned(spec, 0, {2, 5});
  check_both_forms(learned);
  UnitCheck rotary(tiny_llama(), 0, {1, 6});
  check_both_forms(rotary);
  UnitCheck scaled(tiny_gemma(), 0, {1, 6});
  check_both_forms(scaled);
}

TEST_CASE("block gradients are those of finite differences: GPT-2") {
  UnitCheck unit(tiny_gpt2(), 1, {2, 4});
  check_both_forms(unit);
}

TEST_CASE("block gradients are those of finite differences: Llama with grouped queries") {
  UnitCheck unit(tiny_llama(), 2, {2, 4});
  check_both_forms(unit);
}

TEST_CASE("block gradients are those of finite differences: mixed kinds, two documents in a sample") {
  ModelSpec spec = tiny_llama();
  spec.norm = NormKind::layernorm;
  spec.activation = ActivationKind::gelu_tanh;
  spec.bias = spec.qkv_bias = true;
  UnitCheck unit(spec, 1, {2, 5});
  unit.batch.add_document(2);
  check_both_forms(unit);
}

TEST_CASE("block gradients are those of finite differences: a gate with bias, fewer ffn features than hidden ones") {
  ModelSpec spec = tiny_gpt2();
  spec.activation = ActivationKind::swiglu;
  spec.norm = NormKind::rmsnorm;
  spec.ffn_hidden = 3;
  UnitCheck unit(spec, 1, {1, 5});
  check_both_forms(unit);
}

TEST_CASE("block gradients are those of finite differences: layernorm without bias, one token") {
  ModelSpec spec = tiny_gpt2();
  spec.bias = spec.qkv_bias = false;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_size = 2;
  spec.position = PositionKind::rope;
  UnitCheck several(spec, 1, {1, 3});
  check_both_forms(several);
  UnitCheck one(spec, 1, {3, 1});
  check_both_forms(one);
}

TEST_CASE("block gradients are those of finite differences: norms of query and key, heads wider than hidden") {
  UnitCheck unit(tiny_qwen3(), 1, {2, 5});
  unit.batch.add_document(2);
  check_both_forms(unit);
}

TEST_CASE(
    "block gradients are those of finite differences: norms of query and key, narrow heads, biases on them alone") {
  ModelSpec spec = tiny_qwen3();
  spec.hidden = 24;
  spec.head_size = 4;  // query, key and value together are narrower than hidden
  spec.qkv_bias = true;
  UnitCheck unit(spec, 1, {2, 4});
  check_both_forms(unit);
}

TEST_CASE("block gradients are those of finite differences: norms of query and key that are not rotated") {
  ModelSpec spec = tiny_gpt2();
  spec.qk_norm = true;
  UnitCheck unit(spec, 1, {2, 4});
  check_both_forms(unit);
}

TEST_CASE(
    "block gradients are those of finite differences: norms behind the maps, capped scores, with a window and not") {
  for (const int layer : {1, 2}) {
    UnitCheck unit(tiny_gemma(), layer, {2, 6});
    unit.batch.add_document(2);
    check_both_forms(unit);
  }
}

TEST_CASE("embedding and block gradients are those of finite differences: dropout") {
  for (const ModelSpec& spec : {tiny_gpt2(), tiny_llama(), tiny_gemma()}) {
    for (const int index : {0, 1}) {
      UnitCheck unit(with_dropout(spec), index, {2, 5});
      if (index == 1) unit.batch.add_document(2);
      check_both_forms(unit);
    }
  }
}

TEST_CASE("head gradients are those of finite differences, tied and untied") {
  UnitCheck tied(tiny_gpt2(), 3, {2, 5});
  check_both_forms(tied);
  UnitCheck untied(tiny_llama(), 3, {2, 5});
  check_both_forms(untied);
  UnitCheck capped(tiny_gemma(), 3, {2, 5});
  check_both_forms(capped);
}

TEST_CASE("gradients of whole models are those of finite differences") {
  for (const bool is_llama : {false, true}) {
    CAPTURE(is_llama);
    ModelSpec spec = is_llama ? tiny_llama() : tiny_gpt2();
    if (is_llama) spec.tie_embeddings = true;
    TestModel model(spec, make_reference_backend(DType::f64));
    model.randomise();
    TestBatch batch(spec, {1, 4});
    ModelHarness harness(model, batch);
    harness.train(BackwardForm::whole);
    const auto objective = [&] { return batch.loss_gradient * harness.evaluate(); };
    std::map<std::string, std::vector<double>> expected;
    double floor = 0.0;
    for (const Parameter& parameter : model.table.parameters()) {
      expected[parameter.name] = derivatives(model.store.master(parameter.name), objective);
      floor = std::max(floor, 1e-5 * largest(expected[parameter.name]));
    }
    for (const auto& entry : expected) {
      const std::string& name = entry.first;
      CAPTURE(name);
      CHECK(element_error(to_doubles(model.store.gradient(name)), entry.second, floor) <= 1e-6);
    }
  }
}
