// Ranks of any layout with stores whose values tell where they belong: a hash of the tensor's name and the element's
// index in the whole tensor, computed here from the boxes and not by the code under test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/numbers/checked.h"
#include "checkpoint/state_name.h"
#include "checkpoint_fixture.h"
#include "support/ranks/host_stream.h"
#include "support/ranks/ranks.h"

namespace scaletrain {

struct Layout {
  std::int64_t data = 1;
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t zero = 0;

  Mesh mesh() const { return {data, tensor, pipeline}; }
  std::string text() const { return mesh().text() + " zero " + std::to_string(zero); }
};

// The units in equal parts, the first stages with one more.
inline std::vector<int> units_of(const ParamTable& table, const Layout& layout, Rank rank) {
  const auto units = static_cast<std::int64_t>(table.units().size());
  const std::int64_t stage = layout.mesh().position_of(rank).pipeline;
  const auto first_of = [&](std::int64_t index) {
    return index * (units / layout.pipeline) + std::min(index, units % layout.pipeline);
  };
  std::vector<int> out(static_cast<std::size_t>(first_of(stage + 1) - first_of(stage)));
  std::iota(out.begin(), out.end(), static_cast<int>(first_of(stage)));
  return out;
}

inline ShardLayout layout_of(const ParamTable& table, const Layout& layout, Rank rank) {
  return {table, units_of(table, layout, rank), layout.mesh(), layout.mesh().position_of(rank)};
}

// The index in the whole row-major tensor of element `local` of a box.
inline std::int64_t global_index(const Shape& shape, const Box& box, std::int64_t local) {
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (std::size_t dim = box.extent.size(); dim-- > 0;) {
    index += (box.first[dim] + local % box.extent[dim]) * stride;
    local /= box.extent[dim];
    stride *= shape[static_cast<int>(dim)];
  }
  return index;
}

inline float value_at(const std::string& tensor, std::int64_t index, std::uint64_t seed) {
  const std::uint64_t bits = hash_bytes(std::as_bytes(std::span(&index, 1)), hash_text(tensor, seed));
  return static_cast<float>(static_cast<std::int64_t>(bits >> 40)) * 0x1p-24f;
}

inline const std::vector<std::string>& adam_states() {
  static const std::vector<std::string> names = {"exp_avg", "exp_avg_sq"};
  return names;
}

// One rank's store.
class RankStore {
 public:
  RankStore(const ParamTable& table, const Layout& layout, Rank rank, const RankGroups* groups)
      : table_(table),
        layout_(layout_of(table, layout, rank)),
        backend_(make_reference_backend(DType::f32)),
        store_(*backend_, table, layout_,
               {.state_names = adam_states(), .zero = ZeroPolicy::of_stage(layout.zero), .groups = groups}) {}

  ParamStore& store() { return store_; }

  void fill(std::uint64_t seed) {
    visit([&](const std::string& name, std::int64_t index, float& value) { value = value_at(name, index, seed); });
    store_.values_changed(host_stream());
  }
  // The first value that is not what fill(seed) gives, as text; empty if there is none.
  std::string difference(std::uint64_t seed, bool with_optimizer_state = true) {
    std::string text;
    visit([&](const std::string& name, std::int64_t index, float& value) {
      if (!text.empty() || value == value_at(name, index, seed)) return;
      if (!with_optimizer_state && name.find('/') != std::string::npos) return;
      text = name + " at " + std::to_string(index) + ": " + std::to_string(value);
    });
    return text;
  }
  std::int64_t num_held() {
    std::int64_t count = 0;
    visit([&](const std::string&, std::int64_t, float&) { ++count; });
    return count;
  }

  // visit(tensor name, index in the whole tensor, value) for all masters and states; tied copies as their owner.
  template <class Visit>
  void visit(Visit visit) {
    const auto one_kind = [&](StateKind kind, std::size_t state) {
      for (const ParamRange& range : store_.held(kind)) {
        const Parameter& parameter = table_.parameters()[static_cast<std::size_t>(range.parameter)];
        std::string name = parameter.tied_to.value_or(parameter.name);
        if (kind == StateKind::optimizer) name = state_tensor_name(name, adam_states()[state]);
        auto* const values = store_.values(kind, range, state).as<float>();
        for (std::int64_t i = 0; i < range.count; ++i) {
          visit(name, global_index(parameter.shape, layout_.find(range.parameter)->box, range.first + i), values[i]);
        }
      }
    };
    one_kind(StateKind::master, 0);
    for (std::size_t state = 0; state < adam_states().size(); ++state) one_kind(StateKind::optimizer, state);
  }

 private:
  const ParamTable& table_;
  ShardLayout layout_;
  std::unique_ptr<Backend> backend_;
  ParamStore store_;
};

inline SaveGroup save_group(const ParamTable& table, const Layout& layout, Rank rank, KeyValueStore& store,
                            std::int64_t attempt = 1) {
  SaveGroup group{.rank = rank, .world = layout.mesh().world(), .store = &store};
  group.attempt = attempt;
  group.deadline = 60.0;
  group.plan_of = [&table, layout](Rank of) {
    return make_save_plan(table, layout_of(table, layout, of), adam_states(), DType::f32);
  };
  return group;
}

// Runs function(Rank, RankStore&, KeyValueStore&) on the ranks of a layout, each with a store of zeros.
template <class Function>
void run_layout(const ParamTable& table, const Layout& layout, Function function) {
  const bool tied = std::any_of(table.parameters().begin(), table.parameters().end(),
                                [](const Parameter& parameter) { return parameter.tied_to.has_value(); });
  run_ranks(layout.mesh(), {.kv_heads = 2, .tied = tied}, [&](Rank rank, RankGroups& groups, InProcessWorld& world) {
    RankStore store(table, layout, rank, &groups);
    const auto rendezvous = world.make_store();
    function(rank, store, *rendezvous);
  });
}

// Saves what fill(seed) gives, by all ranks of the layout.
inline std::filesystem::path save_layout(const ParamTable& table, const Layout& layout,
                                         const std::filesystem::path& folder, std::uint64_t seed, std::int64_t step = 1,
                                         std::int64_t generation = 0) {
  std::filesystem::path path;
  run_layout(table, layout, [&](Rank rank, RankStore& store, KeyValueStore& rendezvous) {
    store.fill(seed);
    SaveRequest request = save_request(folder, step, generation);
    if (layout.mesh().world() > 1) request.group = save_group(table, layout, rank, rendezvous);
    const SaveResult result = save_checkpoint(store.store(), request);
    if (rank == Rank(0)) path = result.path;
  });
  return path;
}

inline ModelConfig layout_model(bool llama, bool tied) {
  ModelConfig model = llama ? tiny_llama_config(tied) : tiny_gpt2_config();
  model.tie_embeddings = tied;
  model.layers = 3;
  model.hidden = 24;
  model.heads = 4;
  model.kv_heads = llama ? 2 : 4;
  model.ffn_hidden = 12;
  return model;
}

inline ParamTable layout_table(bool llama, bool tied) {
  const ModelConfig model = layout_model(llama, tied);
  return make_param_table(make_model_spec(model, model.vocab.value()), InitConfig{});
}

}  // namespace scaletrain
