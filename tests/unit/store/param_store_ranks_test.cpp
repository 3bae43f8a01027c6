// The store over several ranks: what every ZeRO stage divides must not show in gradients, weights and updates.
#include <doctest/doctest.h>

#include <deque>
#include <numeric>

#include "base/error.h"
#include "store/param_store.h"
#include "support/models/optimizer_ranges.h"
#include "support/models/small_model.h"
#include "support/ranks/host_stream.h"
#include "support/ranks/ranks.h"
#include "tensor/halves.h"

using namespace scaletrain;
using small_model::RankModel;
using small_model::Work;

namespace {

struct Case {
  std::int64_t zero = 0;
  std::int64_t data = 1;
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  bool sequence = false;
  bool tied = true;
  bool prefetch = false;
  std::int64_t vocab = 29;
  DType compute = DType::f64;
  std::optional<DType> reduce = {};
  std::int64_t shards = 0;       // replicas that share a copy; 0: all
  bool reduces_by_step = false;  // of stage 3

  Mesh mesh() const { return Mesh(data, tensor, pipeline, shards == 0 ? data : shards); }
  std::string text() const {
    return "zero " + std::to_string(zero) + ", data " + std::to_string(data) + " x tensor " + std::to_string(tensor) +
           " x pipeline " + std::to_string(pipeline) + (sequence ? ", sequence" : "") + (tied ? ", tied" : "") +
           (prefetch ? ", prefetch" : "") + (shards > 0 ? ", in groups of " + std::to_string(shards) : "") +
           (reduces_by_step ? ", gradients by the step" : "") + ", vocabulary " + std::to_string(vocab) +
           ", weights in " + std::string(to_text(compute)) +
           (reduce ? ", gradients in " + std::string(to_text(*reduce)) : "");
  }
};

// What a thread has found wrong: doctest's assertions are for one thread.
struct Findings {
  std::int64_t compared = 0;
  std::string first;  // difference; empty: none

  void compare(double found, double expected, std::string_view what, std::int64_t index) {
    ++compared;
    if (found != expected && first.empty())
      first = std::string(what) + "[" + std::to_string(index) + "] is " + std::to_string(found) + ", not " +
              std::to_string(expected);
  }
};

constexpr std::int64_t micro_batches = 3;
constexpr double rate = 0.25;

// Contributions of more bits than bf16 has, but exact in f32 however they are summed.
constexpr double fine_grain = 1 + 0x1p-9 + 0x1p-12;

// What replica `data` sends of one element in one reduction, of one or all micro-batches, for one parameter.
double contributed(const Work& work, const Parameter& parameter, std::int64_t index, std::int64_t step,
                   std::int64_t data, std::int64_t first, std::int64_t count) {
  const std::int64_t tensor = work.mesh.degree(Axis::tensor);
  double sum = 0;
  for (std::int64_t part = 0; part < tensor; ++part) {
    const bool is_partial = small_model::is_partial(parameter, tensor, work.sequence);
    if (!is_partial && part > 0) break;
    if (is_partial && !small_model::contains(parameter.shape, ParamTable::box_of(parameter, tensor, part), index))
      continue;
    for (std::int64_t micro_batch = first; micro_batch < first + count; ++micro_batch)
      sum += small_model::contribution(parameter.name, index, {step, data, micro_batch, part});
  }
  return fine_grain * sum;
}

// Each replica's share rounded to bf16, their sum in f32 in the order of ranks, and that rounded once more: for every
// micro-batch where gradients are sharded, but of a tensor that two units share. Copies of the state and a tied
// tensor's stages are added as they are.
double gradient_by_bf16(const Case& of, const Work& work, const Parameter& owner, std::int64_t index,
                        std::int64_t step) {
  std::vector<std::vector<const Parameter*>> reduced_together;
  for (const Parameter& parameter : work.table->parameters()) {
    if (parameter.name != owner.name && parameter.tied_to != owner.name) continue;
    if (reduced_together.empty() || of.pipeline > 1) reduced_together.emplace_back();
    reduced_together.back().push_back(&parameter);
  }
  double sum = 0;
  for (const auto& parameters : reduced_together) {
    const bool is_by_use = of.zero >= 2 && !of.reduces_by_step && parameters.size() == 1;
    const std::int64_t count = is_by_use ? 1 : micro_batches;
    const std::int64_t together = of.shards == 0 ? of.data : of.shards;
    for (std::int64_t first = 0; first < micro_batches; first += count) {
      for (std::int64_t copy = 0; copy < of.data; copy += together) {
        float total = 0;
        for (std::int64_t data = copy; data < copy + together; ++data) {
          double share = 0;
          for (const Parameter* parameter : parameters)
            share += contributed(work, *parameter, index, step, data, first, count);
          total += static_cast<float>(static_cast<double>(Bf16(share)));
        }
        sum += static_cast<double>(Bf16(static_cast<double>(total)));
      }
    }
  }
  return sum;
}

double gradient_of(const Case& of, const Work& work, const Parameter& owner, std::int64_t index, std::int64_t step) {
  if (of.reduce) return gradient_by_bf16(of, work, owner, index, step);
  return small_model::expected_gradient(work, owner, index, step);
}

// Whole numbers times powers of two: exact, so the expected weights are too.
double expected_weight(const Case& of, const Work& work, const Parameter& parameter, std::int64_t index,
                       std::int64_t updates) {
  const Parameter& owner = small_model::owner_of(*work.table, parameter);
  double value = small_model::initial_value(*work.table, owner, index);
  for (std::int64_t step = 0; step < updates; ++step) value -= rate * gradient_of(of, work, owner, index, step);
  return value;
}

// As layers find it that compute in this type.
double rounded(double value, DType compute) {
  return compute == DType::bf16 ? float_from_bf16(bf16_from_float(static_cast<float>(value))) : value;
}

void compare_weights(RankModel& model, const Case& of, const Work& work, int unit, std::int64_t updates,
                     Findings& findings) {
  const UnitWeights& weights = model.store.acquire(*model.stream, unit);
  const DType compute = model.store.options().compute.value();
  std::deque<std::vector<double>> widened;
  small_model::for_each_parameter(
      model.store, unit,
      [&](std::string_view name) {
        const ConstView values = weights.find(name).values;
        const auto count = static_cast<std::size_t>(values.num_elements());
        std::vector<double>& wide = widened.emplace_back(count);
        if (values.dtype() == compute) convert_floats(compute, values.data(), DType::f64, wide.data(), count);
        return wide.data();
      },
      [&](const Parameter& parameter, const ParamSpan& span, const double* data) {
        for (std::int64_t n = 0; n < span.count; ++n) {
          const std::int64_t index = small_model::global_index(parameter.shape, span.box, n);
          findings.compare(data[n], rounded(expected_weight(of, work, parameter, index, updates), compute),
                           parameter.name, index);
        }
      });
}

// Forward and backward over all units of this rank, as an executor brackets them.
void run_micro_batch(RankModel& model, const Case& of, std::int64_t step, std::int64_t micro_batch) {
  const std::vector<int>& units = model.units;
  for (std::size_t i = 0; i < units.size(); ++i) {
    model.store.acquire(*model.stream, units[i]);
    if (of.prefetch && i + 1 < units.size()) model.store.prefetch(*model.stream, units[i + 1]);
    model.store.release(units[i]);
  }
  for (std::size_t i = units.size(); i-- > 0;) {
    model.store.acquire(*model.stream, units[i]);
    if (of.prefetch && i > 0) model.store.prefetch(*model.stream, units[i - 1]);
    model.accumulate(units[i], {.step = step, .data = 0, .micro_batch = micro_batch, .part = 0});
    model.store.release_gradients(*model.stream, units[i], micro_batch + 1 == micro_batches);
    model.store.release(units[i]);
  }
}

void compare_gradients(const RankModel& model, const Case& of, const Work& work, std::int64_t step,
                       Findings& findings) {
  for (const ParamRange& range : model.store.held(StateKind::gradient)) {
    const Parameter& parameter = work.table->parameters()[static_cast<std::size_t>(range.parameter)];
    const Parameter& owner = small_model::owner_of(*work.table, parameter);
    const auto* values = model.store.values(StateKind::gradient, range).as<double>();
    for (std::int64_t n = 0; n < range.count; ++n) {
      const std::int64_t index =
          small_model::global_index(parameter.shape, model.layout.find(range.parameter)->box, range.first + n);
      findings.compare(values[n], gradient_of(of, work, owner, index, step), parameter.name, index);
    }
  }
}

void update(RankModel& model) {
  for (const OptimizerRange& range : optimizer_ranges(model.store)) {
    for (std::int64_t n = 0; n < range.param.num_elements(); ++n)
      range.param.as<double>()[n] -= rate * range.gradient.as<double>()[n];
    if (range.compute)
      convert_floats(DType::f64, range.param.data(), range.compute.dtype(), range.compute.data(),
                     static_cast<std::size_t>(range.param.num_elements()));
  }
  model.store.updated(*model.stream);
}

// Two steps: gradients after each, weights before, between and after.
void train(const Case& of, const ParamTable& table, const Mesh& mesh, Rank rank, RankGroups& groups,
           Findings& findings) {
  const Work work{.table = &table, .mesh = mesh, .micro_batches = micro_batches, .sequence = of.sequence};
  RankModel model(table, mesh, rank, &groups, of.zero, of.sequence, {}, true, of.compute, of.reduce, false,
                  of.reduces_by_step);
  if (of.reduce) model.grain = fine_grain;
  const auto compare_all = [&](std::int64_t updates) {
    for (const int unit : model.units) {
      compare_weights(model, of, work, unit, updates, findings);
      model.store.release(unit);
    }
  };
  compare_all(0);
  for (std::int64_t step = 0; step < 2; ++step) {
    model.store.zero_gradients(*model.stream);
    for (std::int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch)
      run_micro_batch(model, of, step, micro_batch);
    model.store.reduce_tied(*model.stream);
    model.store.finish_gradients(*model.stream, model.units);
    compare_gradients(model, of, work, step, findings);
    update(model);
    if (step == 0) compare_all(1);
  }
  compare_all(2);
  model.store.settle(*model.stream);
}

void check(const Case& of) {
  const ParamTable table = small_model::table(of.tied, of.vocab);
  const Mesh mesh = of.mesh();
  std::vector<Findings> findings(static_cast<std::size_t>(mesh.world()));
  std::vector<Trace> traces;
  const GroupFacts facts{.kv_heads = small_model::kv_heads, .tied = of.tied};
  INFO(of.text());
  const auto run = [&] {
    run_ranks(mesh, facts,
              [&](Rank rank, RankGroups& groups, InProcessWorld&) {
                train(of, table, mesh, rank, groups, findings[static_cast<std::size_t>(rank.value())]);
              },
              {.deadline = 60.0, .traces = nullptr, .mode = {}});
  };
  REQUIRE_NOTHROW(run());
  for (const Findings& of_rank : findings) {
    CHECK(of_rank.compared > 0);
    CHECK(of_rank.first == "");
  }
}

}  // namespace

TEST_CASE("every ZeRO stage over any data degree has the summed gradients and sees each update") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    for (const std::int64_t data : {1, 2, 3, 4}) {
      for (const bool prefetch : {false, true}) check({.zero = zero, .data = data, .prefetch = prefetch});
    }
  }
}

TEST_CASE("every ZeRO stage works without tied embeddings, whose head is the widest unit") {
  for (const std::int64_t zero : {0, 1, 2, 3}) check({.zero = zero, .data = 2, .tied = false, .prefetch = true});
}

TEST_CASE("a tied embedding on the first and last stage gets the sum of both, under every ZeRO stage") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    for (const std::int64_t data : {1, 3}) check({.zero = zero, .data = data, .pipeline = 2});
  }
}

TEST_CASE("weights in a type of their own are the rounded masters, from the start and after every update") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    for (const std::int64_t data : {1, 2, 3}) {
      for (const bool prefetch : {false, true})
        check({.zero = zero, .data = data, .prefetch = prefetch, .compute = DType::bf16});
    }
    check({.zero = zero, .data = 2, .tensor = 4, .pipeline = 2, .sequence = true, .vocab = 3, .compute = DType::bf16});
  }
}

TEST_CASE("gradients that travel in bf16 are rounded once on every replica and once as a sum, under every ZeRO stage") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    for (const std::int64_t data : {2, 3, 4})
      check({.zero = zero, .data = data, .prefetch = data == 3, .reduce = DType::bf16});
    check({.zero = zero, .data = 3, .pipeline = 2, .reduce = DType::bf16});
    check({.zero = zero, .data = 2, .tied = false, .reduce = DType::bf16});
    check({.zero = zero, .data = 2, .tensor = 4, .pipeline = 2, .sequence = true, .vocab = 3, .reduce = DType::bf16});
    check({.zero = zero, .data = 2, .tensor = 2, .sequence = true, .compute = DType::bf16, .reduce = DType::bf16});
  }
}

TEST_CASE("what groups of replicas divide has the sums over all groups, under every ZeRO stage") {
  for (const std::int64_t zero : {1, 2, 3}) {
    for (const std::int64_t shards : {2, 3})
      check({.zero = zero, .data = 6, .prefetch = shards == 2, .shards = shards});
    check({.zero = zero, .data = 4, .tied = false, .prefetch = true, .shards = 2});
    check({.zero = zero, .data = 4, .pipeline = 2, .compute = DType::bf16, .shards = 2});
    check({.zero = zero, .data = 4, .tensor = 4, .sequence = true, .vocab = 3, .shards = 2});
    check({.zero = zero, .data = 4, .pipeline = 2, .reduce = DType::bf16, .shards = 2});
  }
}

TEST_CASE("weights that are divided have their gradients once a step where that is asked for") {
  for (const std::int64_t shards : {0, 2}) {
    check({.zero = 3, .data = 4, .prefetch = true, .shards = shards, .reduces_by_step = true});
    check({.zero = 3, .data = 4, .pipeline = 2, .reduce = DType::bf16, .shards = shards, .reduces_by_step = true});
    check({.zero = 3,
           .data = 4,
           .tensor = 2,
           .sequence = true,
           .compute = DType::bf16,
           .shards = shards,
           .reduces_by_step = true});
  }
}

TEST_CASE("norms, row-parallel biases and shared key heads are summed once over tensor ranks") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    for (const std::int64_t tensor : {2, 4}) {
      for (const bool sequence : {false, true})
        check({.zero = zero, .data = 2, .tensor = tensor, .sequence = sequence});
    }
  }
}

TEST_CASE("all axes at once, with ranks that hold no row of the vocabulary") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    check({.zero = zero, .data = 2, .tensor = 4, .pipeline = 2, .sequence = true, .vocab = 3});
    check({.zero = zero, .data = 2, .tensor = 4, .pipeline = 1, .sequence = true, .vocab = 3});
  }
}

TEST_CASE("a unit that no micro-batch has passed, and one whose last release never came, are reduced at the end") {
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    const ParamTable table = small_model::table(true);
    const Mesh mesh(2, 1, 1);
    std::vector<Findings> findings(2);
    run_ranks(mesh, {.kv_heads = small_model::kv_heads, .tied = true}, [&](Rank rank, RankGroups& groups, auto&) {
      Findings& own = findings[static_cast<std::size_t>(rank.value())];
      RankModel model(table, mesh, rank, &groups, zero, false);
      const Work work{.table = &table, .mesh = mesh, .micro_batches = 1, .sequence = false};
      model.accumulate(3, {});
      model.store.release_gradients(*model.stream, 3, false);
      model.accumulate(1, {});
      model.store.release_gradients(*model.stream, 1, true);
      model.store.finish_gradients(*model.stream, model.units);
      for (const ParamRange& range : model.store.held(StateKind::gradient)) {
        const Parameter& parameter = table.parameters()[static_cast<std::size_t>(range.parameter)];
        const auto* values = model.store.values(StateKind::gradient, range).as<double>();
        for (std::int64_t n = 0; n < range.count; ++n) {
          const std::int64_t index = range.first + n;  // one tensor rank: the box is the tensor
          double expected = 0;
          if (parameter.unit == 1 || parameter.unit == 3)
            expected = small_model::expected_gradient(work, parameter, index, 0);
          else if (parameter.name == "embedding.token.weight")  // from the head alone
            expected = small_model::contribution("head.weight", index, {}) +
                       small_model::contribution("head.weight", index, {.step = 0, .data = 1});
          own.compare(values[n], expected, parameter.name, index);
        }
      }
    });
    CAPTURE(zero);
    for (const Findings& of_rank : findings) {
      CHECK(of_rank.compared > 0);
      CHECK(of_rank.first == "");
    }
  }
}

TEST_CASE("a shard group of size one neither divides nor adds a gradient twice") {
  const ParamTable table = small_model::table(true);
  RankGroups none;
  RankModel model(table, Mesh(), Rank(0), &none, 3, false);
  const Work work{.table = &table, .mesh = Mesh(), .micro_batches = 1, .sequence = false};
  for (const int unit : model.units) {
    model.accumulate(unit, {});
    model.store.release_gradients(*model.stream, unit, true);
  }
  model.store.reduce_tied(*model.stream);
  model.store.finish_gradients(*model.stream, model.units);
  Findings findings;
  compare_gradients(model, {}, work, 0, findings);
  CHECK(findings.first == "");
  CHECK(findings.compared == table.num_parameters());
  CHECK(static_cast<bool>(model.store.master("blocks.0.norm.bias")));
}

TEST_CASE("a rank whose units have no elements has handles without elements and nothing to update") {
  const ParamTable table = [] {
    ParamTable of;
    of.begin_unit("embedding");
    of.add(small_model::parameter("embedding.token.weight", {3, 6}, {.kind = Split::Kind::cut, .dim = 0, .pieces = 0}));
    return of;
  }();
  const std::vector<int> units{0};
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    const auto backend = make_reference_backend(DType::f64);
    const auto stream = backend->make_stream();
    const ShardLayout layout(table, units, Mesh(2, 4, 1), {.tensor = 3});
    ParamStore store(*backend, table, layout,
                     {.state_names = {"exp_avg"}, .dtype = DType::f64, .zero = ZeroPolicy::of_stage(zero)});
    store.zero_gradients(*stream);
    const ConstView weight = store.acquire(*stream, 0).find("token.weight").values;
    const View gradient = store.acquire_gradients(*stream, 0).find("token.weight");
    CHECK(static_cast<bool>(weight));
    CHECK(static_cast<bool>(gradient));
    CHECK(weight.shape() == Shape{0, 6});
    store.release_gradients(*stream, 0, true);
    store.release(0);
    store.finish_gradients(*stream, units);
    CHECK(optimizer_ranges(store).empty());
    store.updated(*stream);
    CHECK(store.bytes() == 0);
  }
}

TEST_CASE("more units acquired at once than there is staging is a bug that says so") {
  const ParamTable table = small_model::table(false);
  const Mesh mesh(2, 1, 1);
  std::vector<std::string> errors(2);
  run_ranks(mesh, {.kv_heads = small_model::kv_heads, .tied = false}, [&](Rank rank, RankGroups& groups, auto&) {
    RankModel model(table, mesh, rank, &groups, 3, false);
    std::string& error = errors[static_cast<std::size_t>(rank.value())];
    model.store.acquire(*model.stream, 0);
    model.store.acquire(*model.stream, 1);
    model.store.prefetch(*model.stream, 2);  // no place: left for acquire
    try {
      model.store.acquire(*model.stream, 2);
    } catch (const BugError& bug) {
      error = bug.what();
    }
    model.store.release(0);
    model.store.acquire(*model.stream, 2);
  });
  for (const std::string& error : errors) CHECK(error.find("more units acquired at once") != std::string::npos);
}

TEST_CASE("a prefetch that is never used leaves its place to the next unit") {
  const ParamTable table = small_model::table(false);
  const Mesh mesh(2, 1, 1);
  std::vector<Findings> findings(2);
  run_ranks(mesh, {.kv_heads = small_model::kv_heads, .tied = false}, [&](Rank rank, RankGroups& groups, auto&) {
    RankModel model(table, mesh, rank, &groups, 3, false);
    const Work work{.table = &table, .mesh = mesh, .micro_batches = 1, .sequence = false};
    model.store.prefetch(*model.stream, 1);
    model.store.prefetch(*model.stream, 2);
    for (const int unit : {0, 3}) {
      compare_weights(model, {}, work, unit, 0, findings[static_cast<std::size_t>(rank.value())]);
    }
  });
  for (const Findings& of_rank : findings) {
    CHECK(of_rank.compared > 0);
    CHECK(of_rank.first == "");
  }
}

TEST_CASE("what is gathered again after a load are the loaded values") {
  const ParamTable table = small_model::table(true);
  const Mesh mesh(2, 1, 1);
  for (const std::int64_t zero : {1, 3}) {
    std::vector<Findings> findings(2);
    run_ranks(mesh, {.kv_heads = small_model::kv_heads, .tied = true}, [&](Rank rank, RankGroups& groups, auto&) {
      RankModel model(table, mesh, rank, &groups, zero, false);
      model.store.acquire(*model.stream, 3);  // stays gathered, with the embedding, unless it is dropped
      model.store.release(3);
      for (const ParamRange& range : model.store.held(StateKind::master)) {
        auto* values = model.store.values(StateKind::master, range).as<double>();
        for (std::int64_t n = 0; n < range.count; ++n) values[n] += 1;
      }
      model.store.values_changed(host_stream());
      const UnitWeights& head = model.store.acquire(*model.stream, 3);
      const auto* weight = head.find("weight").values.as<double>();
      for (std::int64_t n = 0; n < 29 * 6; ++n)
        findings[static_cast<std::size_t>(rank.value())].compare(
            weight[n], small_model::initial_value(table, *table.find("head.weight"), n) + 1, "head.weight", n);
    });
    for (const Findings& of_rank : findings) CHECK(of_rank.first == "");
  }
}

TEST_CASE("a step has nothing to add once its last release has been given") {
  const ParamTable table = small_model::table(true);
  RankModel model(table, Mesh(), Rank(0), nullptr, 0, false);
  model.accumulate(1, {});
  model.store.release_gradients(*model.stream, 1, true);
  CHECK_THROWS_AS(model.store.acquire_gradients(*model.stream, 1), BugError);
  CHECK_THROWS_AS(model.store.release_gradients(*model.stream, 1, true), BugError);
  model.store.zero_gradients(*model.stream);
  model.accumulate(1, {});
}

TEST_CASE("ranks of a group issue the same transfers in the same order, under every ZeRO stage") {
  std::vector<Case> cases;
  for (const std::int64_t zero : {0, 1, 2, 3})
    cases.push_back({.zero = zero, .data = 2, .tensor = 2, .pipeline = 2, .sequence = true, .prefetch = true});
  for (const std::int64_t zero : {1, 2, 3})
    cases.push_back({.zero = zero, .data = 4, .pipeline = 2, .prefetch = true, .shards = 2});
  for (const Case& of : cases) {
    CAPTURE(of.text());
    const ParamTable table = small_model::table(true);
    const Mesh mesh = of.mesh();
    const GroupFacts facts{.kv_heads = small_model::kv_heads, .tied = true};
    std::vector<Findings> findings(static_cast<std::size_t>(mesh.world()));
    std::vector<Trace> traces;
    run_ranks(mesh, facts,
              [&](Rank rank, RankGroups& groups, auto&) {
                train(of, table, mesh, rank, groups, findings[static_cast<std::size_t>(rank.value())]);
              },
              {.deadline = 60.0, .traces = &traces, .mode = {}});
    CHECK(compare_traces(rank_traces(mesh, facts, traces)) == "");
  }
}
