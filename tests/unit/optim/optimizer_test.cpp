#include "optim/optimizer.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "optim/step_scalars.h"
#include "support/models/optimizer_ranges.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

struct Fixture {
  explicit Fixture(const OptimizerConfig& config) : optimizer(make_optimizer(config)) {
    table.begin_unit("u");
    Parameter matrix;
    matrix.name = "u.weight";
    matrix.shape = {3, 2};
    matrix.decays = true;
    table.add(matrix);
    Parameter bias;
    bias.name = "u.bias";
    bias.shape = {3};
    table.add(bias);
    const int units[] = {0};
    layout = ShardLayout(table, units, Mesh(2, 1, 1), {});
    const auto names = optimizer->state_names();
    store.emplace(
        *backend, table, layout,
        ParamStore::Options{.state_names = {names.begin(), names.end()}, .gradients = true, .dtype = DType::f64});
    set("u.weight", 6, 0.5);
    set("u.bias", 3, 1.0);
  }
  void set(const char* name, int count, double scale) {
    for (int index = 0; index < count; ++index) {
      store->master(name).as<double>()[index] = scale * (index + 1);
      store->gradient(name).as<double>()[index] = 0.1 * scale * (index - 2);
    }
  }
  std::vector<double> values(const char* name) const {
    const View view = store->master(name);
    return {view.as<double>(), view.as<double>() + view.num_elements()};
  }

  std::unique_ptr<Backend> backend = make_reference_backend(DType::f64);
  std::unique_ptr<Stream> stream = backend->make_stream();
  std::unique_ptr<Optimizer> optimizer;
  ParamTable table;
  ShardLayout layout;
  std::optional<ParamStore> store;
};

}  // namespace

TEST_CASE("adamw follows its formula over several updates and decays matrices only") {
  const OptimizerConfig config{
      .type = OptimizerKind::adamw, .beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-6, .weight_decay = 0.3};
  Fixture f(config);
  REQUIRE(f.optimizer->state_names().size() == 2);
  CHECK(f.optimizer->state_names()[0] == "exp_avg");
  CHECK(f.optimizer->state_names()[1] == "exp_avg_sq");
  std::vector<double> m(6, 0.0);
  std::vector<double> v(6, 0.0);
  std::vector<double> p = f.values("u.weight");
  double bias_m = 0;
  double bias_v = 0;
  double bias = f.values("u.bias")[2];
  const double lr = 0.01;
  for (int update = 1; update <= 4; ++update) {
    const StepOutcome outcome =
        make_step_scalars({.sum_of_squares = 1, .loss_sum = 1, .num_tokens = 2, .micro_scale = 0.25},
                          {.learning_rate = lr, .clip_norm = {}, .beta1 = 0.8, .beta2 = 0.9, .update = update});
    REQUIRE(outcome.block.gradient_scale == 2.0);
    f.optimizer->step(*f.backend, *f.stream, *f.store, outcome.block);
    const auto advance = [&](double& param, double& first, double& second, double gradient, double decay) {
      first = 0.8 * first + 0.2 * gradient;
      second = 0.9 * second + 0.1 * gradient * gradient;
      const double first_hat = first / (1 - std::pow(0.8, update));
      const double second_hat = second / (1 - std::pow(0.9, update));
      param -= lr * (first_hat / (std::sqrt(second_hat) + 1e-6) + decay * param);
    };
    for (int index = 0; index < 6; ++index) {
      const auto at = static_cast<std::size_t>(index);
      advance(p[at], m[at], v[at], 2.0 * 0.05 * (index - 2), 0.3);
      CHECK(f.values("u.weight")[at] == Near(p[at]).epsilon(1e-12));
      CHECK(f.store->state("u.weight", 0).as<double>()[index] == Near(m[at]).epsilon(1e-12));
      CHECK(f.store->state("u.weight", 1).as<double>()[index] == Near(v[at]).epsilon(1e-12));
    }
    advance(bias, bias_m, bias_v, 2.0 * 0.1 * 0, 0.0);
    CHECK(f.values("u.bias")[2] == Near(bias).epsilon(1e-12));  // zero gradient, no decay: it stays
  }
}

TEST_CASE("sgd follows its formula, with clipping folded into the step scalars") {
  Fixture f({.type = OptimizerKind::sgd, .weight_decay = 0.5});
  CHECK(f.optimizer->state_names().empty());
  const StepScalars block{.learning_rate = 0.1, .gradient_scale = 3};
  f.optimizer->step(*f.backend, *f.stream, *f.store, block);
  for (int index = 0; index < 6; ++index) {
    const double before = 0.5 * (index + 1);
    CHECK(f.values("u.weight")[static_cast<std::size_t>(index)] ==
          Near(before - 0.1 * (3 * 0.05 * (index - 2) + 0.5 * before)).epsilon(1e-12));
  }
  CHECK(f.values("u.bias")[0] == Near(1.0 - 0.1 * (3 * 0.1 * -2)).epsilon(1e-12));
}

TEST_CASE("a skipped step changes neither parameters nor states") {
  Fixture f({});
  const auto before = f.values("u.weight");
  const StepScalars block{.learning_rate = 0.1, .gradient_scale = 0, .skip = 1};
  f.optimizer->step(*f.backend, *f.stream, *f.store, block);
  CHECK(f.values("u.weight") == before);
  for (int index = 0; index < 6; ++index) CHECK(f.store->state("u.weight", 1).as<double>()[index] == 0.0);
}

TEST_CASE("padding between and behind the parameters stays zero") {
  Fixture f({});
  for (const OptimizerRange& range : optimizer_ranges(*f.store)) {
    for (std::int64_t at = 0; at < range.gradient.num_elements(); ++at) range.gradient.as<double>()[at] = 1.0;
  }
  f.optimizer->step(*f.backend, *f.stream, *f.store, StepScalars{.learning_rate = 0.1});
  const OptimizerRange range = optimizer_ranges(*f.store)[0];
  CHECK(range.param.num_elements() > 9);
  std::int64_t changed = 0;
  for (std::int64_t at = 0; at < range.param.num_elements(); ++at) changed += range.param.as<double>()[at] != 0 ? 1 : 0;
  CHECK(changed == 9);
}

TEST_CASE("a store made for another optimizer is a bug") {
  Fixture f({.type = OptimizerKind::sgd});
  const auto adamw = make_optimizer({.type = OptimizerKind::adamw});
  CHECK_THROWS_AS(adamw->step(*f.backend, *f.stream, *f.store, StepScalars{}), BugError);
}
