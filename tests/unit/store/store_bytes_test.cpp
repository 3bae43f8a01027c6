// What a store takes: as planned, and less with every ZeRO stage.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "store/param_store.h"
#include "support/models/small_model.h"

using namespace scaletrain;
using small_model::RankModel;

TEST_CASE("the bytes of a store are those of the plan, and fall with every ZeRO stage") {
  for (const bool gradients : {false, true}) {
    for (const std::int64_t tensor : {1, 4}) {
      for (const std::int64_t pipeline : {1, 2}) {
        const ParamTable table = small_model::table(true, 301);
        const Mesh mesh(4, tensor, pipeline);
        std::uint64_t last = 0;
        for (const std::int64_t zero : {0, 1, 2, 3}) {
          const Rank rank = mesh.rank_of({.tensor = tensor - 1, .data = 2, .pipeline = pipeline - 1});
          RankModel model(table, mesh, rank, nullptr, zero, true, {"exp_avg", "exp_avg_sq"}, gradients);
          const StoreBytes planned = store_bytes(table, model.layout, model.store.options());
          CAPTURE(zero);
          CHECK(planned.total() == model.store.bytes());
          ParamStore::Options half = model.store.options();
          half.compute = DType::bf16;
          const ParamStore halves(*model.backend, table, model.layout, half);
          CHECK(store_bytes(table, model.layout, half).total() == halves.bytes());
          ParamStore::Options travelling = model.store.options();
          travelling.reduce = DType::bf16;
          const ParamStore copies(*model.backend, table, model.layout, travelling);
          const StoreBytes with_copies = store_bytes(table, model.layout, travelling);
          CHECK(with_copies.total() == copies.bytes());
          ParamStore::Options twice = model.store.options();
          twice.second_gradients = true;
          const ParamStore second(*model.backend, table, model.layout, twice);
          const StoreBytes with_second = store_bytes(table, model.layout, twice);
          CHECK(with_second.total() == second.bytes());
          // As an optimizer state, of which there are two.
          CHECK(with_second.total() - planned.total() == (gradients ? planned.states / 2 : 0));
          // Two of the widest bucket, whatever the stage.
          std::size_t widest = 0;
          for (const Bucket& bucket : model.layout.buckets())
            widest = std::max(widest, 2 * static_cast<std::size_t>(bucket.count));
          CHECK(with_copies.gradient_staging - planned.gradient_staging == (gradients ? 2 * align_up(widest) : 0));
          CHECK((planned.gathered > 0) == (zero == 3));
          CHECK((planned.gradient_staging > 0) == (gradients && (zero >= 2 || tensor > 1)));
          const std::size_t state = planned.masters + planned.gradients + planned.states;
          if (zero > 0 && gradients) CHECK(state < last);
          last = state;
        }
        // Four words per parameter divided by four data ranks.
        if (gradients) {
          const RankModel whole(table, mesh, Rank(0), nullptr, 0, true, {"exp_avg", "exp_avg_sq"});
          const RankModel part(table, mesh, Rank(0), nullptr, 3, true, {"exp_avg", "exp_avg_sq"});
          const StoreBytes all = store_bytes(table, whole.layout, whole.store.options());
          const StoreBytes sharded = store_bytes(table, part.layout, part.store.options());
          CHECK(all.masters + all.gradients + all.states == 4 * (sharded.masters + sharded.gradients + sharded.states));
        }
      }
    }
  }
}

TEST_CASE("a group of replicas holds what as many replicas without groups hold, and whole gradients with fewer sums") {
  const ParamTable table = small_model::table(true, 301);
  const auto bytes = [&](const Mesh& mesh, bool by_step) {
    const ShardLayout layout(table, small_model::units_of(mesh, 0), mesh, mesh.position_of(Rank(1)));
    StoreBytes planned;
    const RankModel model(table, mesh, Rank(1), nullptr, 3, true, {"exp_avg"}, true, DType::bf16, {}, false, by_step);
    planned = store_bytes(table, layout, model.store.options());
    CHECK(planned.total() == model.store.bytes());
    return planned;
  };
  // Of as many elements each, but for padding: a shard of 4 replicas in groups of 2 has two aligned pieces.
  const StoreBytes in_groups = bytes(Mesh(4, 1, 1, 2), false);
  const StoreBytes of_two = bytes(Mesh(2, 1, 1), false);
  CHECK(in_groups.masters >= of_two.masters);
  CHECK(in_groups.masters < of_two.masters + of_two.masters / 8);
  CHECK(in_groups.states == in_groups.masters);
  CHECK(in_groups.gradients == in_groups.masters);
  const StoreBytes by_step = bytes(Mesh(2, 1, 1), true);
  CHECK(by_step.gradients == 2 * of_two.gradients);
  CHECK(by_step.gradient_staging < of_two.gradient_staging);
  CHECK(by_step.masters == of_two.masters);
  CHECK(by_step.computed == of_two.computed);
}

TEST_CASE("in half precision a parameter takes 18 bytes, 6 + 12/N, 2 + 16/N and 18/N of them by ZeRO stage") {
  const ParamTable table = small_model::table(true, 301);
  for (const std::int64_t data : {1, 4}) {
    const Mesh mesh(data, 1, 1);
    const ShardLayout layout(table, small_model::units_of(mesh, 0), mesh, {});
    std::size_t parameters = 0;  // padding is held like the rest
    for (const FlatBuffer& flat : layout.buffers()) parameters += static_cast<std::size_t>(flat.num_elements);
    const auto bytes = [&](std::int64_t zero, DType compute) {
      return store_bytes(table, layout,
                         {.state_names = {"exp_avg", "exp_avg_sq"},
                          .dtype = DType::f32,
                          .compute = compute,
                          .zero = ZeroPolicy::of_stage(zero)});
    };
    const auto held = [](const StoreBytes& of) { return of.masters + of.computed + of.gradients + of.states; };
    const auto each = static_cast<std::size_t>(data);
    const std::size_t expected[] = {18 * parameters, 6 * parameters + 12 * parameters / each,
                                    2 * parameters + 16 * parameters / each, 18 * parameters / each};
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      CAPTURE(zero);
      CHECK(held(bytes(zero, DType::bf16)) == expected[zero]);
      CHECK(bytes(zero, DType::f32).computed == 0);
    }
    // Gathers travel in the compute type, and are staged in it.
    if (data > 1) CHECK(bytes(3, DType::f32).gathered == 2 * bytes(3, DType::bf16).gathered);
    CHECK(bytes(2, DType::f32).gradient_staging == bytes(2, DType::bf16).gradient_staging);
  }
}

TEST_CASE("factors in place of a state are counted, and are whole on every rank that holds a part of the tensor") {
  ParamTable table = small_model::table(true, 301);
  table.leave_out_states([](const Parameter& parameter) { return parameter.shape.num_dims() == 2 ? 0 : -1; }, true);
  const Mesh mesh(4, 4, 1);
  std::vector<std::int64_t> numbers;
  for (const std::int64_t zero : {0, 1, 3}) {
    const RankModel model(table, mesh, mesh.rank_of({.tensor = 3, .data = 2}), nullptr, zero, true, {"variance"});
    CHECK(store_bytes(table, model.layout, model.store.options()).total() == model.store.bytes());
    numbers.push_back(model.store.factors().num_elements());
  }
  std::int64_t expected = 0;
  for (const Parameter& parameter : table.parameters())
    if (parameter.shape.num_dims() == 2 && !parameter.tied_to) expected += parameter.shape[0] + parameter.shape[1];
  CHECK(numbers == std::vector<std::int64_t>(3, expected));
}
