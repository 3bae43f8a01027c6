// Low-rank adapters (LoRA, Hu et al. 2021). A map of the base model, whose parameters are frozen, gets something to
// train beside it: y = x·Wᵀ + bias + scale · (x·Aᵀ)·Bᵀ with A [r, inputs], B [outputs, r] and scale = alpha / r. A
// begins uniform in ±1/sqrt(inputs), as in peft, B as zeros: the first loss is the base model's.
//
// A map is what the model's family has as one in its files: query, key and value have adapters of their own in Llama's
// kind, and one together in GPT-2's (c_attn), whose A is a parameter of its own and whose B is kept as three.
//
// With dropout, each adapter's A sees an input of which elements are dropped, by a mask of its own, as in peft.
//
// Tensor parallel, as the map is: where its outputs are divided B is too and A is on every rank, where its inputs are,
// A is and B is on every rank. What is on every rank has a gradient that each rank computes a part of, and asks nothing
// of the group before the step's end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "nn/model_spec.h"
#include "parallel/param_table.h"

namespace scaletrain {

// A map of every block that can have an adapter.
struct LoraMap {
  std::string name;                // in a block: "attention.query"; "attention.qkv"
  std::string layer;               // the matrix that layers multiply by: "attention.qkv"
  std::string module;              // the family's, behind the block's: "self_attn.q_proj"
  std::vector<std::string> parts;  // its weights, without ".weight": "attention.query"; all three of c_attn
};
// In the order of the table.
std::vector<LoraMap> lora_maps(const ParamTable& base);

// The maps that a config's targets name: as in peft, a target is a module's name or its last parts ("q_proj",
// "self_attn.q_proj"); "all-linear" are all. UserError: a target that names none, with those that there are.
LoraSpec make_lora_spec(const ParamTable& base, const LoraConfig& config);

// The base's table, all of it frozen, with the adapters' parameters behind those of each block: MAP.lora_a and, of each
// part of the map, PART.lora_b. The A of one layer's maps are fused as LAYER.lora_a, the B of one map's parts as
// MAP.lora_b.
ParamTable with_adapters(const ParamTable& base, const LoraSpec& lora);

// A map of one layer, as a tensor rank has it: outputs [first, first + outputs) of the layer.
struct AdaptedMap {
  std::string name;
  std::int64_t first = 0;
  std::int64_t outputs = 0;
};
// A layer with adapters.
struct AdaptedLayer {
  std::string name;
  std::int64_t inputs = 0, outputs = 0;            // this rank's
  std::int64_t first_input = 0, whole_inputs = 0;  // the first of those, and how many all ranks have
  std::vector<AdaptedMap> maps;

  // Whether the only adapter is one for all outputs.
  bool is_whole() const { return maps.size() == 1 && maps.front().outputs == outputs; }
  std::string down() const { return (maps.size() == 1 ? maps.front().name : name) + ".lora_a"; }  // A, of all maps
};
// Of a tensor rank.
std::vector<AdaptedLayer> adapted_layers(const ModelSpec& whole, const TensorPart& part);

}  // namespace scaletrain
