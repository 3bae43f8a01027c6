// A table that has every kind of parameter, and exact gradients for it: whole numbers that depend on who computes them,
// so that sums are exact in any order and every wrong sum shows. For tests of what is divided and summed among ranks;
// its parameters are written out because the layers below `nn` know no models.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "support/models/model_store.h"
#include "support/ranks/host_stream.h"

namespace scaletrain {

namespace small_model {

inline Parameter parameter(std::string name, Shape shape, Split split = {}, std::string fused = "",
                           bool partial = false) {
  Parameter out;
  out.name = std::move(name);
  out.shape = shape;
  out.split = split;
  out.fused = std::move(fused);
  out.decays = shape.num_dims() == 2;
  out.sequence_partial = partial;
  return out;
}

inline constexpr int num_blocks = 2;
inline constexpr std::int64_t kv_heads = 2;

// Units: embedding, two blocks, head. Four heads, two key/value heads; no size divides evenly. tied: the head's matrix
// is the embedding's.
inline ParamTable table(bool tied, std::int64_t vocab = 29) {
  const Split by_row{.kind = Split::Kind::cut, .dim = 0, .pieces = 0};
  const Split query{.kind = Split::Kind::cut, .dim = 0, .pieces = 4};
  const Split key{.kind = Split::Kind::grouped, .dim = 0, .pieces = kv_heads};
  ParamTable table;
  table.begin_unit("embedding");
  table.add(parameter("embedding.token.weight", {vocab, 6}, by_row));
  table.add(parameter("embedding.position.weight", {5, 6}));
  for (int block = 0; block < num_blocks; ++block) {
    const std::string prefix = "blocks." + std::to_string(block);
    table.begin_unit(prefix);
    table.add(parameter(prefix + ".norm.weight", {6}, {}, "", true));
    table.add(parameter(prefix + ".norm.bias", {6}, {}, "", true));
    table.add(parameter(prefix + ".query.weight", {8, 6}, query, prefix + ".qkv.weight"));
    table.add(parameter(prefix + ".key.weight", {4, 6}, key, prefix + ".qkv.weight"));
    table.add(parameter(prefix + ".value.weight", {4, 6}, key, prefix + ".qkv.weight"));
    table.add(parameter(prefix + ".query.bias", {8}, query, prefix + ".qkv.bias"));
    table.add(parameter(prefix + ".key.bias", {4}, key, prefix + ".qkv.bias"));
    table.add(parameter(prefix + ".value.bias", {4}, key, prefix + ".qkv.bias"));
    table.add(parameter(prefix + ".output.weight", {6, 8}, {.kind = Split::Kind::cut, .dim = 1, .pieces = 4}));
    table.add(parameter(prefix + ".output.bias", {6}, {}, "", true));
  }
  table.begin_unit("head");
  table.add(parameter("head.norm.weight", {6}, {}, "", true));
  Parameter head = parameter("head.weight", {vocab, 6}, by_row);
  if (tied) head.tied_to = "embedding.token.weight";
  table.add(head);
  return table;
}

// The units of a stage of one or two.
inline std::vector<int> units_of(const Mesh& mesh, std::int64_t stage) {
  if (mesh.degree(Axis::pipeline) == 1) return {0, 1, 2, 3};
  return stage == 0 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
}

inline std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15ULL;
  return state ^ (state >> 29);
}

// A whole number in [-8, 8] that a tensor rank (`part`) of a replica contributes in one micro-batch of a step.
struct Contribution {
  std::int64_t step = 0;
  std::int64_t data = 0;
  std::int64_t micro_batch = 0;
  std::int64_t part = 0;
};
inline double contribution(std::string_view parameter, std::int64_t index, const Contribution& from) {
  std::uint64_t state = 7;
  for (const char letter : parameter) state = mix(state, static_cast<unsigned char>(letter));
  for (const std::int64_t value : {index, from.step, from.data, from.micro_batch, from.part})
    state = mix(state, static_cast<std::uint64_t>(value) + 1);
  return static_cast<double>(state % 17) - 8;
}

// Whether each tensor rank computes a part of the parameter's gradient of its own.
inline bool is_partial(const Parameter& parameter, std::int64_t tensor_degree, bool sequence) {
  if (parameter.split.kind == Split::Kind::replicated)
    return parameter.tensor_partial || (parameter.sequence_partial && sequence);
  return ParamTable::replication_degree(parameter, tensor_degree) > 1;
}

// The global index of the n-th element of a box.
inline std::int64_t global_index(const Shape& shape, const Box& box, std::int64_t n) {
  if (shape.num_dims() == 1) return box.first[0] + n;
  return (box.first[0] + n / box.extent[1]) * shape[1] + box.first[1] + n % box.extent[1];
}

inline bool contains(const Shape& shape, const Box& box, std::int64_t index) {
  const std::int64_t columns = shape.num_dims() == 1 ? 1 : shape[1];
  const auto inside = [&](std::size_t dim, std::int64_t at) {
    return at >= box.first[dim] && at < box.first[dim] + box.extent[dim];
  };
  return inside(0, index / columns) && (shape.num_dims() == 1 || inside(1, index % columns));
}

struct Work {
  const ParamTable* table = nullptr;
  Mesh mesh;
  std::int64_t micro_batches = 1;
  bool sequence = false;
};

// What the gradient of an element of a stored parameter must be after all sums.
inline double expected_gradient(const Work& work, const Parameter& owner, std::int64_t index, std::int64_t step) {
  double sum = 0;
  const std::int64_t tensor = work.mesh.degree(Axis::tensor);
  for (const Parameter& parameter : work.table->parameters()) {
    if (parameter.name != owner.name && parameter.tied_to != owner.name) continue;
    for (std::int64_t part = 0; part < tensor; ++part) {
      if (!is_partial(parameter, tensor, work.sequence)) {
        if (part > 0) break;
      } else if (!contains(parameter.shape, ParamTable::box_of(parameter, tensor, part), index)) {
        continue;
      }
      for (std::int64_t data = 0; data < work.mesh.degree(Axis::data); ++data) {
        for (std::int64_t micro_batch = 0; micro_batch < work.micro_batches; ++micro_batch)
          sum += contribution(parameter.name, index, {step, data, micro_batch, part});
      }
    }
  }
  return sum;
}

// The parameter that stores this one's values.
inline const Parameter& owner_of(const ParamTable& table, const Parameter& parameter) {
  return parameter.tied_to ? *table.find(*parameter.tied_to) : parameter;
}

// An initial value; a different one for every element of the model.
inline double initial_value(const ParamTable& table, const Parameter& parameter, std::int64_t index) {
  const Parameter& owner = owner_of(table, parameter);
  return static_cast<double>(table.index_of(owner.name) * 1024 + index) / 16;
}

// Calls visit(parameter, span, first element) for every parameter of a unit, in the memory of its handle: `find` gives
// a handle's f64 view by its local name.
template <class Find, class Visit>
void for_each_parameter(const ParamStore& store, int unit, Find find, Visit visit) {
  const ParamTable& table = store.table();
  const ParamUnit& place = table.units()[static_cast<std::size_t>(unit)];
  std::string group;
  std::int64_t in_group = 0;
  for (int index = place.first_parameter; index < place.first_parameter + place.num_parameters; ++index) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(index)];
    const ParamSpan* span = store.layout().find(index);
    if (parameter.fused.empty() || parameter.fused != group) in_group = 0;
    group = parameter.fused;
    const std::string& name = parameter.fused.empty() ? parameter.name : parameter.fused;
    auto* data = find(std::string_view(name).substr(place.name.size() + 1));
    visit(parameter, *span, data + in_group);
    in_group += span->count;
  }
}

// One rank's store, filled with the initial values.
struct RankModel : ModelStore {
  static ZeroPolicy policy(std::int64_t zero, bool reduces_by_step) {
    ZeroPolicy of = ZeroPolicy::of_stage(zero);
    if (reduces_by_step) of.shard_gradients = false;
    return of;
  }
  RankModel(const ParamTable& model, const Mesh& mesh, Rank rank, const RankGroups* groups, std::int64_t zero,
            bool sequence, std::vector<std::string> state_names = {}, bool gradients = true, DType compute = DType::f64,
            std::optional<DType> reduce = {}, bool offload = false, bool reduces_by_step = false)
      : ModelStore(model, make_reference_backend(DType::f64),
                   {.state_names = std::move(state_names),
                    .gradients = gradients,
                    .compute = compute,
                    .reduce = reduce,
                    .zero = policy(zero, reduces_by_step),
                    .sequence = sequence,
                    .offload = offload,
                    .longest_staged = 48,  // several pieces
                    .groups = groups},
                   {mesh, mesh.position_of(rank), units_of(mesh, mesh.position_of(rank).pipeline)}),
        position(mesh.position_of(rank)),
        units(units_of(mesh, position.pipeline)) {
    for (const ParamRange& range : store.held(StateKind::master)) {
      const Parameter& parameter = table.parameters()[static_cast<std::size_t>(range.parameter)];
      auto* values = store.values(StateKind::master, range).as<double>();
      for (std::int64_t n = 0; n < range.count; ++n)
        values[n] = initial_value(table, parameter,
                                  global_index(parameter.shape, layout.find(range.parameter)->box, range.first + n));
    }
    store.values_changed(host_stream());
  }

  // Adds what this rank contributes for one unit.
  void accumulate(int unit, const Contribution& from) {
    const UnitGradients& gradients = store.acquire_gradients(*stream, unit);
    for_each_parameter(
        store, unit, [&](std::string_view name) { return gradients.find(name).as<double>(); },
        [&](const Parameter& parameter, const ParamSpan& span, double* data) {
          Contribution own = from;
          own.data = position.data;
          own.part =
              is_partial(parameter, layout.mesh().degree(Axis::tensor), store.options().sequence) ? position.tensor : 0;
          for (std::int64_t n = 0; n < span.count; ++n)
            data[n] += grain * contribution(parameter.name, global_index(parameter.shape, span.box, n), own);
        });
  }

  MeshPosition position;
  std::vector<int> units;
  double grain = 1;  // of what it contributes
};

}  // namespace small_model

}  // namespace scaletrain
