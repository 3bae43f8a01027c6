// Norm and update where ZeRO divides what they read and write: the same numbers as one rank.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "optim/gradient_norm.h"
#include "optim/optimizer.h"
#include "optim/tensor_norms.h"
#include "support/models/gradient_share.h"
#include "support/models/optimizer_ranges.h"
#include "support/models/small_model.h"
#include "support/numbers.h"
#include "support/ranks/ranks.h"

using namespace scaletrain;
using small_model::RankModel;
using small_model::Work;

namespace {

const GroupFacts facts{.kv_heads = small_model::kv_heads, .tied = true};

// One micro-batch of the small model's gradients, summed over all ranks.
void run_step(RankModel& model, std::int64_t step) {
  model.store.zero_gradients(*model.stream, step);
  for (std::size_t i = model.units.size(); i-- > 0;) {
    model.accumulate(model.units[i], {.step = step});
    model.store.release_gradients(*model.stream, model.units[i], true);
  }
  model.store.reduce_tied(*model.stream);
  model.store.finish_gradients(*model.stream, model.units);
}

double expected_sum_of_squares(const Work& work) {
  double sum = 0;
  for (const Parameter& parameter : work.table->parameters()) {
    if (parameter.tied_to) continue;
    for (std::int64_t index = 0; index < parameter.shape.num_elements(); ++index) {
      const double gradient = small_model::expected_gradient(work, parameter, index, 0);
      sum += gradient * gradient;
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("the norm counts every element once over data, tensor and pipeline ranks, under every ZeRO stage") {
  const ParamTable table = small_model::table(true);
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    for (const Mesh& mesh : {Mesh(3, 1, 1), Mesh(1, 4, 1), Mesh(2, 2, 2), Mesh(2, 4, 1), Mesh(1, 1, 2)}) {
      const Work work{.table = &table, .mesh = mesh, .micro_batches = 1, .sequence = true};
      std::vector<double> sums(static_cast<std::size_t>(mesh.world()), 0.0);
      run_ranks(mesh, facts, [&](Rank rank, RankGroups& groups, auto&) {
        RankModel model(table, mesh, rank, &groups, zero, true);
        run_step(model, 0);
        double& sum = sums[static_cast<std::size_t>(rank.value())];
        sum = gradient_share(*model.backend, *model.stream, model.store);
        sum_over_world(groups, {&sum, 1});
      });
      CAPTURE(zero);
      CAPTURE(mesh.text());
      const double expected = expected_sum_of_squares(work);  // whole numbers: exact
      for (const double sum : sums) CHECK(sum == expected);
    }
  }
}

// Of the gradients, and of weights that are made equal to them.
TEST_CASE("norms of whole tensors count every element once over all ranks, under every ZeRO stage") {
  const ParamTable table = small_model::table(true);
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    for (const Mesh& mesh : {Mesh(3, 1, 1), Mesh(1, 4, 1), Mesh(2, 2, 2), Mesh(2, 4, 1), Mesh(1, 1, 2)}) {
      const Work work{.table = &table, .mesh = mesh, .micro_batches = 1, .sequence = true};
      const std::size_t count = table.parameters().size();
      std::vector<double> expected(count, 0.0);
      for (std::size_t index = 0; index < count; ++index) {
        const Parameter& parameter = table.parameters()[index];
        if (!parameter.decays || parameter.tied_to) continue;
        for (std::int64_t element = 0; element < parameter.shape.num_elements(); ++element) {
          const double gradient = small_model::expected_gradient(work, parameter, element, 0);
          expected[index] += gradient * gradient;
        }
      }
      for (std::size_t index = 0; index < count; ++index)
        if (const auto& owner = table.parameters()[index].tied_to)
          expected[index] = expected[static_cast<std::size_t>(table.index_of(*owner))];
      std::vector<std::string> wrong(static_cast<std::size_t>(mesh.world()));
      run_ranks(mesh, facts, [&](Rank rank, RankGroups& groups, auto&) {
        RankModel model(table, mesh, rank, &groups, zero, true);
        run_step(model, 0);
        for (const OptimizerRange& range : optimizer_ranges(model.store))
          std::copy_n(range.gradient.as<double>(), range.gradient.num_elements(), range.param.as<double>());
        TensorNorms norms(*model.backend, model.store, decays);
        norms.measure(*model.stream);
        std::string& problem = wrong[static_cast<std::size_t>(rank.value())];
        for (std::size_t index = 0; index < count; ++index) {
          const double norm = std::sqrt(expected[index]);  // of whole numbers: exact
          if (norms.of_gradient(static_cast<int>(index)) != norm || norms.of_weights(static_cast<int>(index)) != norm)
            problem += table.parameters()[index].name + " ";
        }
        model.store.settle(*model.stream);
      });
      CAPTURE(zero);
      CAPTURE(mesh.text());
      CHECK(std::any_of(expected.begin(), expected.end(), [](double sum) { return sum > 0; }));
      for (const std::string& problem : wrong) CHECK(problem == "");
    }
  }
}

TEST_CASE("the norm of one rank has the bits of one sum per row in the order of the table") {
  const ParamTable table = small_model::table(true);
  RankModel model(table, Mesh(), Rank(0), nullptr, 0, false);
  for (const ParamRange& range : model.store.held(StateKind::gradient)) {
    auto* values = model.store.values(StateKind::gradient, range).as<double>();
    for (std::int64_t n = 0; n < range.count; ++n) values[n] = std::sin(static_cast<double>(range.flat_offset + n));
  }
  double expected = 0;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.tied_to) continue;
    const View gradient = model.store.gradient(parameter.name);
    const ElementSpan all{.first = 0, .count = gradient.num_elements()};
    double sum = 0;
    model.backend->run(
        *model.stream,
        SumsOfSquares{.values = gradient.reshape({all.count}), .spans = {&all, 1}, .results = number_at(sum)});
    expected += sum;
  }
  CHECK(gradient_share(*model.backend, *model.stream, model.store) == expected);
}

namespace {

// Three updates by an optimizer, every third one skipped; the weights of all units as layers see them, by row and
// global index, and the optimizer's state.
using Elements = std::map<std::pair<std::string, std::int64_t>, double>;

struct Outcome {
  Elements weights;
  Elements states;
};

void add_weights(RankModel& model, Elements& out) {
  for (const int unit : model.units) {
    const UnitWeights& weights = model.store.acquire(*model.stream, unit);
    small_model::for_each_parameter(
        model.store, unit, [&](std::string_view name) { return weights.find(name).values.as<double>(); },
        [&](const Parameter& parameter, const ParamSpan& span, const double* data) {
          for (std::int64_t n = 0; n < span.count; ++n)
            out[{parameter.name, small_model::global_index(parameter.shape, span.box, n)}] = data[n];
        });
    model.store.release(unit);
  }
}

void add_states(const RankModel& model, std::size_t state, Elements& out) {
  for (const ParamRange& range : model.store.held(StateKind::optimizer)) {
    const Parameter& parameter = model.store.table().parameters()[static_cast<std::size_t>(range.parameter)];
    const auto* values = model.store.values(StateKind::optimizer, range, state).as<double>();
    for (std::int64_t n = 0; n < range.count; ++n)
      out[{parameter.name, small_model::global_index(parameter.shape, model.layout.find(range.parameter)->box,
                                                     range.first + n)}] = values[n];
  }
}

StepScalars block_of(std::int64_t step) {
  return {.learning_rate = 0.01,
          .gradient_scale = 0.125,
          .bias_correction1 = 1 - std::pow(0.9, static_cast<double>(step + 1)),
          .bias_correction2 = 1 - std::pow(0.95, static_cast<double>(step + 1)),
          .skip = step == 1 ? 1.0 : 0.0};
}

constexpr std::int64_t num_steps = 3;
const OptimizerConfig adamw{.type = OptimizerKind::adamw, .weight_decay = 0.1};

// The same updates on one rank, which is given the summed gradients.
Outcome expected_outcome(const Work& work) {
  const auto optimizer = make_optimizer(adamw);
  const auto names = optimizer->state_names();
  RankModel model(*work.table, Mesh(), Rank(0), nullptr, 0, false, {names.begin(), names.end()});
  for (std::int64_t step = 0; step < num_steps; ++step) {
    for (const ParamRange& range : model.store.held(StateKind::gradient)) {
      const Parameter& parameter = work.table->parameters()[static_cast<std::size_t>(range.parameter)];
      auto* values = model.store.values(StateKind::gradient, range).as<double>();
      for (std::int64_t n = 0; n < range.count; ++n)
        values[n] = small_model::expected_gradient(work, parameter, range.first + n, step);
    }
    const StepScalars block = block_of(step);
    optimizer->step(*model.backend, *model.stream, model.store, block);
  }
  Outcome out;
  add_weights(model, out.weights);
  add_states(model, 1, out.states);
  return out;
}

}  // namespace

TEST_CASE("adamw under every ZeRO stage makes the weights and state of one rank, offloaded too") {
  const ParamTable table = small_model::table(true);
  for (const std::int64_t kind : {0, 1, 2, 3, 4, 5, 6, 7}) {
    const std::int64_t zero = kind % 4;
    const bool offload = kind >= 4;
    for (const Mesh& mesh : {Mesh(2, 1, 1), Mesh(4, 1, 1), Mesh(3, 2, 1), Mesh(2, 2, 2)}) {
      const Work work{.table = &table, .mesh = mesh, .micro_batches = 1, .sequence = false};
      const Outcome expected = expected_outcome(work);
      std::vector<Outcome> found(static_cast<std::size_t>(mesh.world()));
      run_ranks(mesh, facts, [&](Rank rank, RankGroups& groups, auto&) {
        const auto optimizer = make_optimizer(adamw);
        const auto names = optimizer->state_names();
        RankModel model(table, mesh, rank, &groups, zero, false, {names.begin(), names.end()}, true, DType::f64, {},
                        offload);
        for (std::int64_t step = 0; step < num_steps; ++step) {
          run_step(model, step);
          const StepScalars block = block_of(step);
          optimizer->step(*model.backend, *model.stream, model.store, block);
        }
        Outcome& own = found[static_cast<std::size_t>(rank.value())];
        add_weights(model, own.weights);
        add_states(model, 1, own.states);
        model.store.settle(*model.stream);
      });
      CAPTURE(zero);
      CAPTURE(offload);
      CAPTURE(mesh.text());
      std::int64_t wrong = 0;
      Elements all_states;
      for (const Outcome& own : found) {
        CHECK(own.weights.size() > 0);
        for (const auto& [place, value] : own.weights) wrong += expected.weights.at(place) != value ? 1 : 0;
        for (const auto& [place, value] : own.states) {
          if (place.first != "head.weight") all_states[place] = value;  // a copy's state is its owner's
        }
        if (zero > 0) CHECK(own.states.size() < expected.states.size() / 2 + 64);
      }
      CHECK(wrong == 0);
      CHECK(all_states == expected.states);
    }
  }
}

// Gradients are whole numbers, so the sums of their squares are exact, in whatever order. The first update keeps
// nothing of the zeros before it.
TEST_CASE("adafactor's factors are the means of squares over whole rows and columns on every rank, under every stage") {
  ParamTable table = small_model::table(true);
  const OptimizerConfig config{.type = OptimizerKind::adafactor};
  table.leave_out_states([](const Parameter& parameter) { return parameter.shape.num_dims() == 2 ? 0 : -1; }, true);
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    for (const Mesh& mesh : {Mesh(3, 1, 1), Mesh(1, 4, 1), Mesh(2, 2, 2), Mesh(2, 4, 1), Mesh(1, 1, 2)}) {
      CAPTURE(zero);
      CAPTURE(mesh.text());
      const Work work{.table = &table, .mesh = mesh, .micro_batches = 1, .sequence = false};
      std::vector<std::int64_t> wrong(static_cast<std::size_t>(mesh.world()), 0);
      std::vector<std::int64_t> found(wrong.size(), 0);
      run_ranks(mesh, facts, [&](Rank rank, RankGroups& groups, auto&) {
        const auto optimizer = make_optimizer(config);
        const auto names = optimizer->state_names();
        RankModel model(table, mesh, rank, &groups, zero, false, {names.begin(), names.end()});
        run_step(model, 0);
        optimizer->step(*model.backend, *model.stream, model.store, {.learning_rate = 0.01, .gradient_scale = 0.5});
        model.store.settle(*model.stream);
        for (const FactorPlace& place : model.store.factor_places()) {
          const Parameter& parameter =
              small_model::owner_of(table, table.parameters()[static_cast<std::size_t>(place.parameter)]);
          std::vector<double> expected(static_cast<std::size_t>(place.rows + place.columns), 0.0);
          for (std::int64_t index = 0; index < place.rows * place.columns; ++index) {
            const double gradient = 0.5 * small_model::expected_gradient(work, parameter, index, 0);
            const double square = gradient * gradient;
            expected[static_cast<std::size_t>(index / place.columns)] += square / static_cast<double>(place.columns);
            expected[static_cast<std::size_t>(place.rows + index % place.columns)] +=
                square / static_cast<double>(place.rows);
          }
          const auto* factors = model.store.factors(place.parameter).as<double>();
          for (std::size_t i = 0; i < expected.size(); ++i) {
            found[static_cast<std::size_t>(rank.value())] += 1;
            if (std::fabs(factors[i] - expected[i]) > 1e-14 * expected[i])
              wrong[static_cast<std::size_t>(rank.value())]++;
          }
        }
      });
      for (std::size_t rank = 0; rank < wrong.size(); ++rank) {
        CHECK(found[rank] > 0);
        CHECK(wrong[rank] == 0);
      }
    }
  }
}
