#include "store/param_store.h"

#include <doctest/doctest.h>

#include <cstring>

#include "backend/host_backend.h"
#include "base/error.h"
#include "support/models/optimizer_ranges.h"
#include "support/ranks/host_stream.h"
#include "support/ranks/ranks.h"

using namespace scaletrain;

namespace {

struct FakePacked final : PackedWeight {
  std::size_t bytes = 0;
  float first_value = 0;
  std::size_t num_bytes() const override { return bytes; }
};

// Packs matrices by noting their first value, fills, and refuses everything else.
class PackingBackend final : public HostBackend {
 public:
  int num_packs = 0;

  DType compute_type() const override { return DType::f32; }
  std::string description() const override { return "packing fake"; }
  int num_threads() const override { return 1; }
  std::size_t workspace_bytes() const override { return 0; }
  std::size_t packed_bytes(const Shape& weight) const override {
    return static_cast<std::size_t>(weight.num_elements()) * sizeof(float);
  }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView values, Region memory) override {
    ++num_packs;
    CHECK(memory.size == values.num_bytes());
    auto packed = std::make_unique<FakePacked>();
    packed->bytes = values.num_bytes();
    packed->first_value = values.as<float>()[0];
    return packed;
  }

 private:
  void launch(Stream&, const Operation& op) override {
    const Fill* const fill = std::get_if<Fill>(&op);
    if (fill == nullptr) throw BugError("the parameter store must not compute");
    SCALETRAIN_CHECK(fill->value == 0);
    std::memset(fill->output.data(), 0, fill->output.num_bytes());
  }
};

Parameter parameter(std::string name, Shape shape, std::string fused = "") {
  Parameter out;
  out.name = std::move(name);
  out.shape = shape;
  out.fused = std::move(fused);
  return out;
}

ParamTable small_table() {
  ParamTable table;
  table.begin_unit("embedding");
  Parameter token = parameter("embedding.token.weight", {7, 4});
  token.lookup_only = true;
  table.add(token);
  table.begin_unit("blocks.0");
  table.add(parameter("blocks.0.query.weight", {4, 4}, "qkv.weight"));
  table.add(parameter("blocks.0.key.weight", {2, 4}, "qkv.weight"));
  table.add(parameter("blocks.0.value.weight", {2, 4}, "qkv.weight"));
  table.add(parameter("blocks.0.query.bias", {4}, "qkv.bias"));
  table.add(parameter("blocks.0.key.bias", {2}, "qkv.bias"));
  table.add(parameter("blocks.0.output.weight", {4, 4}));
  table.begin_unit("head");
  Parameter head = parameter("head.weight", {7, 4});
  head.tied_to = "embedding.token.weight";
  table.add(head);
  return table;
}

struct Fixture {
  PackingBackend backend;
  std::unique_ptr<Stream> stream = backend.make_stream();
  ParamTable table = small_table();
  ShardLayout layout{table, all_units(table), Mesh(), {}};
  ParamStore store{
      backend, table, layout, {.state_names = {"first", "second"}, .gradients = true, .dtype = DType::f32}};
};

}  // namespace

TEST_CASE("a unit gives its parameters by local name and fused ones as one matrix in table order") {
  Fixture f;
  for (int index = 0; index < 16; ++index) f.store.master("blocks.0.query.weight").as<float>()[index] = 1.0F;
  for (int index = 0; index < 8; ++index) f.store.master("blocks.0.key.weight").as<float>()[index] = 2.0F;
  for (int index = 0; index < 8; ++index) f.store.master("blocks.0.value.weight").as<float>()[index] = 3.0F;
  const UnitWeights& weights = f.store.acquire(*f.stream, 1);
  const ConstView matrix = weights.find("qkv.weight").values;
  CHECK(matrix.shape() == Shape{8, 4});
  for (int index = 0; index < 32; ++index)
    CHECK(matrix.as<float>()[index] == (index < 16 ? 1.0F : index < 24 ? 2.0F : 3.0F));
  CHECK(weights.find("qkv.bias").values.shape() == Shape{6});
  CHECK(weights.find("output.weight").values.data() == f.store.master("blocks.0.output.weight").data());
  CHECK_FALSE(static_cast<bool>(weights.find("query.weight").values));  // only as part of its matrix
  CHECK_FALSE(static_cast<bool>(weights.find("output.bias").values));   // absent operand
  f.store.release(1);
}

TEST_CASE("acquire and release are counted and a release too many is a bug") {
  Fixture f;
  f.store.acquire(*f.stream, 1);
  f.store.acquire(*f.stream, 1);
  f.store.release(1);
  CHECK_THROWS_AS(f.store.values_changed(host_stream()), BugError);  // still acquired once
  f.store.release(1);
  f.store.values_changed(host_stream());
  CHECK_THROWS_AS(f.store.release(1), BugError);
  CHECK_THROWS_AS(f.store.acquire(*f.stream, 3), BugError);
}

TEST_CASE("packed forms are made once per version in planned memory and follow the values") {
  Fixture f;
  const StoreBytes planned = store_bytes(f.table, f.layout, f.store.options());
  CHECK(planned.packed == (32 + 16 + 28) * sizeof(float) + 16);  // each on a cache line of its own
  CHECK(planned.total() == f.store.bytes());
  const auto packed_value = [&] {
    const Weight weight = f.store.acquire(*f.stream, 1).find("output.weight");
    f.store.release(1);
    return dynamic_cast<const FakePacked&>(*weight.packed).first_value;
  };
  CHECK(packed_value() == 0.0F);
  CHECK(packed_value() == 0.0F);
  CHECK(f.backend.num_packs == 2);  // the fused matrix and the output projection; vectors have no other form
  f.store.master("blocks.0.output.weight").as<float>()[0] = 5.0F;
  f.store.values_changed(host_stream());
  CHECK(packed_value() == 5.0F);
  CHECK(f.backend.num_packs == 4);
}

TEST_CASE("a tied head reads and accumulates in the embedding's memory, and only the head has a compute form") {
  Fixture f;
  CHECK(f.store.master("head.weight").data() == f.store.master("embedding.token.weight").data());
  CHECK(f.store.acquire_gradients(*f.stream, 2).find("weight").data() ==
        f.store.acquire_gradients(*f.stream, 0).find("token.weight").data());
  CHECK(f.store.acquire(*f.stream, 0).find("token.weight").packed == nullptr);
  CHECK(f.store.acquire(*f.stream, 2).find("weight").packed != nullptr);
  CHECK(f.backend.num_packs == 1);
}

TEST_CASE("gradients are views of the flat buffer, by matrix and by parameter, and are zeroed together") {
  Fixture f;
  const View matrix = f.store.acquire_gradients(*f.stream, 1).find("qkv.weight");
  f.store.release_gradients(*f.stream, 1, true);
  CHECK(matrix.shape() == Shape{8, 4});
  matrix.as<float>()[16] = 4.0F;
  CHECK(f.store.gradient("blocks.0.key.weight").as<float>()[0] == 4.0F);
  f.store.gradient("embedding.token.weight").as<float>()[27] = 1.0F;
  f.store.zero_gradients(*f.stream);
  CHECK(matrix.as<float>()[16] == 0.0F);
  CHECK(f.store.gradient("head.weight").as<float>()[27] == 0.0F);
}

TEST_CASE("the optimizer's ranges cover every buffer with its gradient and states at the same offsets") {
  Fixture f;
  const std::vector<OptimizerRange> ranges = optimizer_ranges(f.store);
  REQUIRE(ranges.size() == 1);
  const OptimizerRange& range = ranges[0];
  const ParamSpan& span = *f.layout.find(f.table.index_of("blocks.0.value.weight"));
  CHECK(range.param.num_elements() == f.layout.buffers()[0].num_elements);
  CHECK(range.states.size() == 2);
  CHECK(range.param.as<float>() + span.offset == f.store.master("blocks.0.value.weight").as<float>());
  CHECK(range.gradient.as<float>() + span.offset == f.store.gradient("blocks.0.value.weight").as<float>());
  for (const std::size_t state : {0U, 1U})
    CHECK(range.states[state].as<float>() + span.offset == f.store.state("blocks.0.value.weight", state).as<float>());
  const StoreBytes planned = store_bytes(f.table, f.layout, f.store.options());
  CHECK(planned.total() - planned.packed == 4 * sizeof(float) * static_cast<std::uint64_t>(range.param.num_elements()));
  CHECK_THROWS_AS(f.store.state("blocks.0.value.weight", 2), BugError);
}

TEST_CASE("a store for inference has neither gradients nor states, in the type that is asked for") {
  Fixture f;
  const ParamStore store(f.backend, f.table, f.layout, {.state_names = {}, .gradients = false, .dtype = DType::f64});
  CHECK_FALSE(static_cast<bool>(store.gradient("head.weight")));
  CHECK(store.master("head.weight").dtype() == DType::f64);
  const StoreBytes planned = store_bytes(f.table, f.layout, store.options());
  CHECK(planned.total() == store.bytes());
  CHECK(planned.masters == sizeof(double) * static_cast<std::uint64_t>(f.layout.buffers()[0].num_elements));
  CHECK(planned.total() == planned.masters + planned.packed);
}

TEST_CASE("parameters that a rank does not hold are empty views") {
  Fixture f;
  const int units[] = {1};
  const ShardLayout part(f.table, units, Mesh(1, 1, 2), {});
  const ParamStore store(f.backend, f.table, part, {});
  CHECK_FALSE(static_cast<bool>(store.master("embedding.token.weight")));
  CHECK(static_cast<bool>(store.master("blocks.0.key.bias")));
}

TEST_CASE("held ranges give the values of parameters, and of any part of one, in memory") {
  Fixture f;
  const int value = f.table.index_of("blocks.0.value.weight");
  const auto held = f.store.held(StateKind::master);
  CHECK(held.size() == 7);  // the tied head has no values of its own
  for (const StateKind kind : {StateKind::master, StateKind::gradient, StateKind::optimizer}) {
    const View whole = f.store.values(kind, {.parameter = value, .first = 0, .count = 8}, 1);
    const View part = f.store.values(kind, {.parameter = value, .first = 3, .count = 2}, 1);
    CHECK(whole.shape() == Shape{8});
    CHECK(part.as<float>() == whole.as<float>() + 3);
    CHECK_THROWS_AS(f.store.values(kind, {.parameter = value, .first = 3, .count = 6}, 1), BugError);
  }
  CHECK(f.store.values(StateKind::optimizer, {.parameter = value, .first = 0, .count = 8}, 1).data() ==
        f.store.state("blocks.0.value.weight", 1).data());
  CHECK(f.store.values(StateKind::master, {.parameter = f.table.index_of("head.weight"), .first = 4, .count = 4})
            .data() == f.store.master("embedding.token.weight").as<float>() + 4);
  CHECK_THROWS_AS(f.store.values(StateKind::optimizer, held[0], 2), BugError);
}

TEST_CASE("weights that every use gathers have no packed form, which would be made as often") {
  std::vector<std::string> errors(2);
  const ParamTable table = small_table();
  run_ranks(Mesh(2, 1, 1), {}, [&](Rank rank, RankGroups& groups, auto&) {
    std::string& error = errors[static_cast<std::size_t>(rank.value())];
    PackingBackend backend;
    const auto stream = backend.make_stream();
    const ShardLayout layout(table, all_units(table), Mesh(2, 1, 1), {.data = rank.value()});
    ParamStore store(backend, table, layout, {.gradients = false, .zero = ZeroPolicy::of_stage(3), .groups = &groups});
    for (const ParamRange& range : store.held(StateKind::master)) {
      for (std::int64_t n = 0; n < range.count; ++n)
        store.values(StateKind::master, range).as<float>()[n] =
            static_cast<float>(range.parameter * 100 + range.first + n);
    }
    store.values_changed(host_stream());
    for (int round = 1; round <= 2; ++round) {
      const UnitWeights& weights = store.acquire(*stream, 1);
      const UnitWeights& head = store.acquire(*stream, 2);
      const auto is_plain = [](const Weight& weight, float first) {
        return weight.packed == nullptr && weight.values.as<float>()[0] == first;
      };
      if (!is_plain(weights.find("output.weight"), 600.0F)) error = "output";
      if (!is_plain(head.find("weight"), 0.0F)) error = "head";
      store.release(2);
      store.release(1);
      if (backend.num_packs != 0) error = "number of packs";
    }
    if (store.master("blocks.0.output.weight")) error = "a shard is not an unsharded parameter";
    store.settle(*stream);
  });
  for (const std::string& error : errors) CHECK(error == "");
}
