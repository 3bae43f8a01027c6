// Configs that begin from somebody else's model (model.init.from).
#include <doctest/doctest.h>

#include <algorithm>

#include "config/keys/keys.h"
#include "config_helpers.h"
#include "support/temp_folder.h"

using namespace scaletrain;

namespace {

// What a folder of this model makes of a config.
LoadedConfig load_from(const FolderModel& folder, const std::string& keys) {
  return load_text(kLeast + "model: {init: {from: f}" + keys + "}\n", {"data.tokenizer.type=bytes"}, {},
                   {.look_at_model = [folder](const Config&) { return folder; }});
}
std::string errors_from(const FolderModel& folder, const std::string& keys) {
  return message_of<UserError>([&] { load_from(folder, keys); });
}

FolderModel small_folder() {
  FolderModel folder;
  folder.model = *find_model_preset("qwen3-0.6b");
  folder.model.preset.reset();
  folder.model.layers = 3;
  return folder;
}

}  // namespace

TEST_CASE("a model that grows has the layers that the config says, more than the folder's") {
  const std::string grows = ", grow: {order: stack}";
  const ModelConfig model = load_from(small_folder(), grows + ", layers: 5").config.model;
  CHECK(model.layers == 5);
  CHECK(model.hidden == 1024);
  CHECK(contains(errors_from(small_folder(), grows),
                 "model.layers: is missing; model.grow.order needs to know how many layers the model is to have, more "
                 "than the 3 of that in f"));
  CHECK(contains(errors_from(small_folder(), grows + ", layers: 3"),
                 "model.layers: 3, but the model in f has 3, and model.grow.order stack makes a deeper one of it"));
  // What a run that has begun holds is as deep already.
  FolderModel of_run = small_folder();
  of_run.is_of_run = true;
  of_run.model.layers = 5;
  CHECK(load_from(of_run, grows + ", layers: 5").config.model.layers == 5);
  CHECK(load_from(of_run, grows).config.model.layers == 5);
}

TEST_CASE("a folder of a model that is not for bytes asks for the tokenizer that it is for") {
  const auto errors = [](std::int64_t vocab, std::vector<std::string> more) {
    FolderModel folder = small_folder();
    folder.model.vocab = vocab;
    return message_of<UserError>([&] {
      load_text(kLeast + "model: {init: {from: f}}\n", more, {},
                {.look_at_model = [&](const Config&) { return folder; }});
    });
  };
  CHECK(contains(errors(151936, {}),
                 "data.tokenizer.type: is missing; the model in f has 151936 ids, and bytes, which would stand here, "
                 "have 257. Name its tokenizer: data.tokenizer: {type: bpe, path: f}, or type: sentencepiece; write "
                 "type: ids for token files, or bytes if that is meant"));
  CHECK(errors(257, {}).empty());
  CHECK_FALSE(contains(errors(320, {"data.tokenizer.type=bytes"}), "data.tokenizer.type"));
}

TEST_CASE("another tokenizer than that beside the model is told, and not the same under another name") {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "model");
  folder.write("model/tokenizer.json", "{\"a\": 1}");
  folder.write("same.json", "{\"a\": 1}");
  folder.write("other.json", "{\"a\": 2}");
  const auto notices = [&](const std::string& tokenizer) {
    const std::string model = (folder / "model").string();
    return load_text(kLeast + "model: {init: {from: " + model + "}}\n",
                     {"data.tokenizer.type=bpe", "data.tokenizer.path=" + tokenizer}, {},
                     {.look_at_model = [](const Config&) { return small_folder(); }})
        .notices;
  };
  const auto tells = [&](const std::string& tokenizer) {
    const std::vector<std::string> all = notices(tokenizer);
    return std::any_of(all.begin(), all.end(), [](const std::string& line) {
      return contains(line, "is not the tokenizer.json beside the model");
    });
  };
  CHECK(tells((folder / "other.json").string()));
  CHECK_FALSE(tells((folder / "same.json").string()));
  CHECK_FALSE(tells((folder / "model").string()));
}

TEST_CASE("a folder to start from brings the shape, and what is said beside it agrees") {
  const FolderModel folder = small_folder();
  const ModelConfig model = load_from(folder, "").config.model;
  CHECK(model.layers == 3);
  CHECK(model.heads == 16);
  CHECK(model.kv_heads == 8);
  CHECK(model.head_size() == 128);
  CHECK(model.ffn_hidden == 3072);
  CHECK(model.vocab == 151936);
  CHECK(model.context == 40960);
  CHECK(model.norm == NormKind::rmsnorm);
  CHECK((model.qk_norm && !model.bias && model.tie_embeddings && model.rope_theta == 1e6));
  CHECK(model.init.from->ends_with("/f"));
  // The resolved config spells all of it out.
  CHECK(parse_resolved_config(resolved_yaml(load_from(folder, "").config), "x").model.head_dim == 128);
  CHECK(load_from(folder, ", layers: 3, head_dim: 128, vocab: auto, dropout: 0").config.model.vocab == 151936);
  CHECK(errors_from(folder, ", layers: 2") ==
        "c.yaml:3:34: model.layers: 2, but the model in f has 3; leave the key "
        "out, or write what the folder has");
  CHECK(contains(errors_from(folder, ", kv_heads: 16"), "model.kv_heads: 16, but the model in f has 8"));
  CHECK(contains(errors_from(folder, ", head_dim: 64"), "model.head_dim: 64, but the model in f has 128"));
  CHECK(contains(errors_from(folder, ", qk_norm: false"), "model.qk_norm: false, but the model in f has true"));
  CHECK(contains(errors_from(folder, ", rope_scaling: {type: linear, factor: 2}"),
                 "model.rope_scaling.type: linear, but the model in f has none; leave the key out, or write what the "
                 "folder has; to go on with another rotation, write it into a copy of the folder, as its config.json"));
  CHECK(contains(errors_from(folder, ", preset: qwen3-0.6b"),
                 "model.preset: qwen3-0.6b has model.layers 28, but the model in f has 3"));
  CHECK(load_from(folder, ", preset: qwen3-0.6b, layers: 3").config.model.layers == 3);
}

TEST_CASE("a section that is null takes nothing away from a folder's model or a preset's, and is refused") {
  FolderModel folder = small_folder();
  CHECK(load_from(folder, ", window: null, rope_scaling: null").config.model.layers == 3);  // it has none
  folder.model.window.tokens = 64;
  CHECK(errors_from(folder, ", window: null") ==
        "c.yaml:3:26: model.window: null, but the model in f has one; leave the key out, or write what the folder has");
  CHECK(contains(errors_from(folder, ", window: {tokens: none}"),
                 "model.window.tokens: none, but the model in f has 64"));
  CHECK(load_from(folder, ", window: {tokens: 64}").config.model.window.tokens == 64);
  folder.model.rope_scaling = {.type = RopeScalingKind::linear, .factor = 8.0};
  CHECK(contains(errors_from(folder, ", rope_scaling: null"), "model.rope_scaling: null, but the model in f has one"));

  const auto with_preset = [](const std::string& keys) {
    return load_text(kLeast + "model: {preset: gemma2-2b, context: 512" + keys + "}\n").config.model;
  };
  CHECK(
      contains(message_of<UserError>([&] { with_preset(", window: null"); }),
               "model.window: null leaves what gemma2-2b has; write {tokens: none} to take that away, or leave the key "
               "out"));
  CHECK_FALSE(with_preset(", window: {tokens: none}").window.tokens);
}

TEST_CASE(
    "samples of a folder's model may be shorter or longer where positions are rotated, as far as attention reaches") {
  FolderModel folder = small_folder();
  CHECK(load_from(folder, ", context: 512").config.model.context == 512);
  const LoadedConfig longer = load_from(folder, ", context: 100000");
  CHECK(longer.config.model.context == 100000);
  const auto tells_of_new = [](const LoadedConfig& loaded) {
    return std::any_of(loaded.notices.begin(), loaded.notices.end(), [](const std::string& notice) {
      return contains(notice, "and the model in f was made for 40960: it has not learnt the positions behind those");
    });
  };
  CHECK(tells_of_new(longer));
  CHECK_FALSE(tells_of_new(load_from(folder, ", context: 40960")));
  folder.window = folder.model.context = 4096;
  const LoadedConfig bounded = load_from(folder, "");
  CHECK(bounded.config.model.context == 4096);
  CHECK(std::any_of(bounded.notices.begin(), bounded.notices.end(), [](const std::string& notice) {
    return contains(notice, "model.context: 4096, as far back as attention reaches in the model in f (sliding window)");
  }));
  CHECK(load_from(folder, ", context: 512").config.model.context == 512);
  CHECK(contains(errors_from(folder, ", context: 4097"),
                 "model.context: 4097, but attention reaches only 4096 tokens back in the model in f"));
  FolderModel learned;
  learned.model.context = 64;
  CHECK(load_from(learned, ", context: 64").config.model.context == 64);
  const std::string shorter = errors_from(learned, ", context: 32");
  CHECK(contains(shorter, "model.context: 32, but the model in f has 64"));
  CHECK(contains(shorter, "; shorter samples come by phases: [{steps: ..., context: ...}]"));
  const std::string beyond = errors_from(learned, ", context: 65");
  CHECK(contains(beyond, "model.context: 65, but the model in f has 64"));
  CHECK_FALSE(contains(beyond, "phases"));
}

TEST_CASE("a folder that cannot be read is refused where nothing else says what the model is") {
  const auto load = [](const std::string& keys) {
    return load_text(kLeast + "model: {init: {from: f}" + keys + "}\n", {"data.tokenizer.type=bytes"}, {},
                     {.look_at_model = [](const Config&) -> FolderModel { throw InputError("it is gone"); }});
  };
  CHECK(message_of<UserError>([&] { load(""); }) ==
        "c.yaml:3:22: model.init.from: it is gone; so there is no telling what the model is");
  CHECK(load(", hidden: 96").config.model.hidden == 96);  // who reads the weights reports it
  // A run that has a checkpoint compares with that.
  FolderModel of_run = small_folder();
  of_run.is_of_run = true;
  CHECK(load_from(of_run, ", layers: 2").config.model.layers == 2);
  CHECK(load_from(of_run, "").config.model.layers == 3);
}
