#include "nn/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace scaletrain {

namespace {

constexpr std::string_view weight_suffix = ".weight";

bool is_block(const ParamUnit& unit) {
  return unit.name.starts_with("blocks.");
}

// Without what it ends with.
std::string without(std::string_view text, std::string_view end) {
  SCALETRAIN_CHECK(text.ends_with(end));
  return std::string(text.substr(0, text.size() - end.size()));
}

// "model.layers.0.self_attn.q_proj.weight" -> "self_attn.q_proj"
std::string module_in_block(const Parameter& weight) {
  const std::string path = without(weight.hugging_face_name, weight_suffix);
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  const auto number = std::find_if(path.begin(), path.end(), is_digit);
  const auto end = std::find_if_not(number, path.end(), is_digit);
  SCALETRAIN_CHECK(end != path.end() && *end == '.');
  return {end + 1, path.end()};
}

bool is_named_by(const LoraMap& map, const std::string& target) {
  return map.module == target || map.module.ends_with("." + target);
}

// The shortest name of each that is no other's too.
std::string names_text(const std::vector<LoraMap>& maps) {
  std::vector<std::string> names;
  for (const LoraMap& map : maps) {
    std::string name = map.module.substr(map.module.rfind('.') + 1);
    const auto named = std::count_if(maps.begin(), maps.end(), [&](const LoraMap& m) { return is_named_by(m, name); });
    names.push_back(named == 1 ? name : map.module);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

class AdapterTable {
 public:
  AdapterTable(const ParamTable& base, const LoraSpec& lora) : base_(base), lora_(lora) {}

  ParamTable build() {
    const std::vector<LoraMap> maps = lora_maps(base_);
    for (std::size_t unit = 0; unit < base_.units().size(); ++unit) {
      table_.begin_unit(base_.units()[unit].name);
      for (Parameter parameter : base_.parameters_of(static_cast<int>(unit))) {
        parameter.role = ParamRole::frozen;
        parameter.in_base = true;
        table_.add(std::move(parameter));
      }
      if (is_block(base_.units()[unit])) add_adapters(base_.units()[unit].name + ".", maps);
    }
    return std::move(table_);
  }

 private:
  bool is_chosen(const LoraMap& map) const {
    return std::find(lora_.maps.begin(), lora_.maps.end(), map.name) != lora_.maps.end();
  }

  void add_adapters(const std::string& prefix, const std::vector<LoraMap>& maps) {
    for (std::size_t first = 0; first < maps.size();) {
      std::vector<const LoraMap*> of_layer;
      std::size_t last = first;
      for (; last < maps.size() && maps[last].layer == maps[first].layer; ++last)
        if (is_chosen(maps[last])) of_layer.push_back(&maps[last]);
      for (const LoraMap* map : of_layer) add_down(prefix, *map, of_layer.size() > 1);
      for (const LoraMap* map : of_layer)
        for (const std::string& part : map->parts) add_up(prefix, *map, part);
      first = last;
    }
  }

  const Parameter& weight(const std::string& prefix, const std::string& part) const {
    const Parameter* const found = base_.find(prefix + part + std::string(weight_suffix));
    SCALETRAIN_CHECK(found != nullptr);
    return *found;
  }

  static void name_as_peft(Parameter& adapter, const Parameter& weight, std::string_view factor) {
    adapter.is_adapter = true;
    adapter.hugging_face_name =
        fmt::format("base_model.model.{}.{}.weight", without(weight.hugging_face_name, weight_suffix), factor);
  }

  static void divide(Parameter& adapter, const Parameter& weight, int dim) {
    if (weight.split.kind != Split::Kind::replicated && weight.split.dim == dim)
      adapter.split = weight.split;
    else
      adapter.tensor_partial = true;
  }

  void add_down(const std::string& prefix, const LoraMap& map, bool is_fused) {
    const Parameter& of_map = weight(prefix, map.parts.front());
    Parameter adapter;
    adapter.name = prefix + map.name + ".lora_a";
    adapter.shape = {lora_.rank, of_map.shape[1]};
    name_as_peft(adapter, of_map, "lora_A");
    adapter.decays = true;
    adapter.is_hidden_map = true;
    adapter.init = {InitialValues::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(of_map.shape[1]))};
    if (is_fused) adapter.fused = map.layer + ".lora_a";
    divide(adapter, of_map, 1);
    table_.add(std::move(adapter));
  }

  void add_up(const std::string& prefix, const LoraMap& map, const std::string& part) {
    const Parameter& of_part = weight(prefix, part);
    Parameter adapter;
    adapter.name = prefix + part + ".lora_b";
    adapter.shape = {of_part.shape[0], lora_.rank};
    name_as_peft(adapter, of_part, "lora_B");
    adapter.decays = true;
    adapter.is_hidden_map = true;
    if (map.parts.size() > 1) adapter.fused = map.name + ".lora_b";
    divide(adapter, of_part, 0);
    table_.add(std::move(adapter));
  }

  const ParamTable& base_;
  const LoraSpec& lora_;
  ParamTable table_;
};

// Where each map of a rank's layer ends, in their order.
struct MapExtent {
  std::string_view layer, map;
  std::int64_t inputs, outputs;
};
std::vector<MapExtent> map_extents(const ModelSpec& spec) {
  const std::int64_t query = spec.heads * spec.head_size;
  const std::int64_t key = spec.kv_heads * spec.head_size;
  std::vector<MapExtent> maps = {{"attention.qkv", "attention.query", spec.hidden, query},
                                 {"attention.qkv", "attention.key", spec.hidden, key},
                                 {"attention.qkv", "attention.value", spec.hidden, key},
                                 {"attention.output", "attention.output", query, spec.hidden}};
  const std::int64_t ffn = spec.ffn_hidden;
  if (has_gate(spec.activation)) {
    maps.push_back({"ffn.gate_up", "ffn.gate", spec.hidden, ffn});
    maps.push_back({"ffn.gate_up", "ffn.up", spec.hidden, ffn});
  } else {
    maps.push_back({"ffn.up", "ffn.up", spec.hidden, ffn});
  }
  maps.push_back({"ffn.down", "ffn.down", ffn, spec.hidden});
  return maps;
}

}  // namespace

std::vector<LoraMap> lora_maps(const ParamTable& base) {
  std::vector<LoraMap> maps;
  const auto block = std::find_if(base.units().begin(), base.units().end(), is_block);
  SCALETRAIN_CHECK(block != base.units().end());
  const std::string prefix = block->name + ".";
  for (const Parameter& parameter : base.parameters_of(static_cast<int>(block - base.units().begin()))) {
    if (parameter.shape.num_dims() != 2 || !parameter.name.ends_with(weight_suffix)) continue;
    const std::string part = without(parameter.name, weight_suffix).substr(prefix.size());
    const std::string layer = parameter.fused.empty() ? part : without(parameter.fused, weight_suffix);
    const std::string module = module_in_block(parameter);
    if (!maps.empty() && maps.back().module == module) {
      maps.back().name = layer;
      maps.back().parts.push_back(part);
    } else {
      maps.push_back({part, layer, module, {part}});
    }
  }
  return maps;
}

LoraSpec make_lora_spec(const ParamTable& base, const LoraConfig& config) {
  LoraSpec spec{.rank = config.rank,
                .scale = config.alpha / static_cast<double>(config.rank),
                .dropout = config.dropout,
                .maps = {}};
  const std::vector<LoraMap> maps = lora_maps(base);
  std::set<std::string_view> chosen;
  for (const std::string& target : config.targets) {
    bool names_one = false;
    for (const LoraMap& map : maps) {
      if (target != "all-linear" && !is_named_by(map, target)) continue;
      names_one = true;
      chosen.insert(map.name);
    }
    if (!names_one)
      throw UserError(
          fmt::format("finetune.lora.targets: {} is no map of this model that can have an adapter; there "
                      "are {}, and all-linear for all of them",
                      quoted(target), names_text(maps)));
  }
  for (const LoraMap& map : maps)
    if (chosen.contains(map.name)) spec.maps.push_back(map.name);
  return spec;
}

ParamTable with_adapters(const ParamTable& base, const LoraSpec& lora) {
  return AdapterTable(base, lora).build();
}

std::vector<AdaptedLayer> adapted_layers(const ModelSpec& whole, const TensorPart& part) {
  const ModelSpec local = local_spec(whole, part);
  std::vector<AdaptedLayer> layers;
  if (local.lora.rank == 0) return layers;
  const auto has = [&](std::string_view map) {
    return std::find(local.lora.maps.begin(), local.lora.maps.end(), map) != local.lora.maps.end();
  };
  for (const MapExtent& map : map_extents(local)) {
    if (layers.empty() || layers.back().name != map.layer)
      layers.push_back({.name = std::string(map.layer),
                        .inputs = map.inputs,
                        .outputs = 0,
                        .first_input = 0,
                        .whole_inputs = map.inputs,
                        .maps = {}});
    AdaptedLayer& layer = layers.back();
    if (has(map.map)) layer.maps.push_back({std::string(map.map), layer.outputs, map.outputs});
    layer.outputs += map.outputs;
  }
  for (AdaptedLayer& layer : layers)  // one for all of its maps
    if (layer.maps.empty() && has(layer.name)) layer.maps.push_back({layer.name, 0, layer.outputs});
  for (AdaptedLayer& layer : layers) {
    if (layer.name == "attention.output") {
      layer.first_input = part.rank * layer.inputs;
      layer.whole_inputs = whole.heads * whole.head_size;
    } else if (layer.name == "ffn.down") {
      layer.first_input = first_ffn_column(whole, part);
      layer.whole_inputs = whole.ffn_hidden;
    }
  }
  std::erase_if(layers, [](const AdaptedLayer& layer) { return layer.maps.empty(); });
  return layers;
}

}  // namespace scaletrain
