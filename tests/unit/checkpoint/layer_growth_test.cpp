#include "nn/layer_growth.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "hugging_face_fixture.h"
#include "layout_fixture.h"

using namespace scaletrain;

namespace {

std::vector<std::int64_t> sources_of(const std::vector<GrownLayer>& layers) {
  std::vector<std::int64_t> sources;
  sources.reserve(layers.size());
  for (const GrownLayer& layer : layers) sources.push_back(layer.source);
  return sources;
}

std::vector<int> copies_of(const std::vector<GrownLayer>& layers) {
  std::vector<int> copies;
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (layers[i].is_identity) copies.push_back(static_cast<int>(i));
  return copies;
}

// What the deep model's parameter is at first, by what the shallow model's are. Gemma 3's norms behind the branches
// keep their gains as distances from one.
float expected(const std::string& name, std::int64_t index, const std::vector<GrownLayer>& growth, bool is_gemma) {
  const std::string blocks = "blocks.";
  if (!name.starts_with(blocks)) return value_at(name, index, 9);
  const std::size_t end = name.find('.', blocks.size());
  const GrownLayer& layer = growth[std::stoul(name.substr(blocks.size(), end - blocks.size()))];
  const std::string local = name.substr(end);
  if (layer.is_identity && is_gemma && (local == ".attention_post_norm.weight" || local == ".ffn_post_norm.weight"))
    return -1.0F;
  const bool ends_branch = local == ".attention.output.weight" || local == ".attention.output.bias" ||
                           local == ".ffn.down.weight" || local == ".ffn.down.bias";
  if (layer.is_identity && !is_gemma && ends_branch) return 0.0F;
  return value_at(blocks + std::to_string(layer.source) + local, index, 9);
}

}  // namespace

TEST_CASE("layers_grow_by_stacks_or_beside_their_originals_and_the_first_copy_of_each_is_itself") {
  const GrowthConfig stack{.order = GrowthOrder::stack};
  const GrowthConfig interleave{.order = GrowthOrder::interleave};
  CHECK(sources_of(grow_layers(stack, 2, 5)) == std::vector<std::int64_t>{0, 1, 0, 1, 0});
  CHECK(copies_of(grow_layers(stack, 2, 5)) == std::vector<int>{2, 3, 4});
  CHECK(sources_of(grow_layers(interleave, 2, 5)) == std::vector<std::int64_t>{0, 0, 0, 1, 1});
  CHECK(copies_of(grow_layers(interleave, 2, 5)) == std::vector<int>{1, 2, 4});
  CHECK(sources_of(grow_layers(interleave, 3, 6)) == std::vector<std::int64_t>{0, 0, 1, 1, 2, 2});
  CHECK(copies_of(grow_layers({.order = GrowthOrder::stack, .identity = false}, 2, 5)).empty());
  CHECK(sources_of(grow_layers(stack, 3, 3)) == std::vector<std::int64_t>{0, 1, 2});
}

TEST_CASE("a_deeper_model_begins_as_copies_of_the_folder_s_layers_on_every_layout") {
  // GPT-2: transposed, fused, with biases. Llama: neither, and two key/value heads. Gemma: norms behind the branches.
  ModelConfig gemma = tiny_gemma3_config();
  gemma.layers = 3;
  for (const ModelConfig& model : {layout_model(false, true), layout_model(true, true), gemma}) {
    const bool is_gemma = model.post_norm;
    const TempFolder folder;
    StoreFixture saved(make_param_table(make_model_spec(model, model.vocab.value()), InitConfig{}), {});
    for (const Parameter& parameter : saved.table.parameters()) {
      if (parameter.tied_to) continue;
      const View master = saved.store.master(parameter.name);
      for (std::int64_t i = 0; i < master.num_elements(); ++i) master.as<float>()[i] = value_at(parameter.name, i, 9);
    }
    export_store(saved, {.folder = folder / "out",
                         .model = model,
                         .dtype = DType::f32,
                         .tokenizer_files = {},
                         .max_shard_bytes = 20'000});
    ModelConfig deep = model;
    deep.layers = 7;
    const ParamTable table = make_param_table(make_model_spec(deep, deep.vocab.value()), InitConfig{});
    for (const GrowthConfig& how : {GrowthConfig{GrowthOrder::stack, true}, GrowthConfig{GrowthOrder::interleave, true},
                                    GrowthConfig{GrowthOrder::stack, false}}) {
      const std::vector<GrownLayer> growth = grow_layers(how, model.layers, deep.layers);
      for (const Layout& layout : {Layout{1, 1, 1, 0}, Layout{3, 1, 1, 3}, Layout{2, 2, 1, 3}, Layout{2, 1, 3, 1}}) {
        CAPTURE(layout.text());
        std::vector<std::string> differences(static_cast<std::size_t>(layout.mesh().world()));
        run_layout(table, layout, [&](Rank rank, RankStore& store, KeyValueStore&) {
          HuggingFaceModel(folder / "out").load(store.store(), host_stream(), growth);
          store.visit([&](const std::string& name, std::int64_t index, float& value) {
            std::string& difference = differences[static_cast<std::size_t>(rank.value())];
            if (name.find('/') != std::string::npos || !difference.empty()) return;
            if (value != expected(name, index, growth, is_gemma)) difference = name + " at " + std::to_string(index);
          });
        });
        for (const std::string& difference : differences) CHECK(difference == "");
      }
    }
  }
}
