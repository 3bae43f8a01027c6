#include "infer/model.h"

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "infer/exported_tokens.h"
#include "infer_helpers.h"

using namespace scaletrain;
namespace fs = std::filesystem;

TEST_CASE("a path is a checkpoint, a run folder or a Hugging Face folder") {
  const TempFolder folder;
  const TinyModel tiny(byte_config());
  const fs::path older = tiny.save(folder / "run/checkpoints", 3);
  const fs::path newest = tiny.save(folder / "run/checkpoints", 12);
  CHECK(locate_model(older).source == ModelSource::checkpoint);
  CHECK(locate_model(older).path == older);
  CHECK(locate_model(folder / "run").path == newest);
  // A newest one whose manifest is broken is passed over.
  fs::resize_file(newest / "manifest.json", 30);
  CHECK(locate_model(folder / "run").path == older);
  fs::resize_file(older / "manifest.json", 30);
  CHECK(contains(message_of<InputError>([&] { locate_model(folder / "run"); }), "no checkpoint that can be read"));
  folder.write("hf/config.json", "{}");
  CHECK(locate_model(folder / "hf").source == ModelSource::hugging_face);
  folder.write("empty/file.txt", "");
  const std::string text = message_of<InputError>([&] { locate_model(folder / "empty"); });
  CHECK(contains(text, "manifest.json"));
  CHECK(contains(text, "config.json"));
  CHECK(contains(text, "checkpoints/"));
  CHECK(contains(message_of<InputError>([&] { locate_model(folder / "none"); }), "no such file"));
  CHECK_FALSE(message_of<InputError>([&] { locate_model(folder / "empty/file.txt"); }).empty());
}

TEST_CASE("a checkpoint is enough by itself, wherever it was moved") {
  const TempFolder folder;
  const TinyModel tiny(byte_config());
  const fs::path moved = folder / "elsewhere";
  fs::rename(tiny.save(folder / "run/checkpoints", 9), moved);
  const Device device;
  const LoadedModel model(locate_model(moved), *device.backend, *device.stream);
  CHECK(model.step() == 9);
  CHECK(model.tokenizer().vocab_size() == 257);
  CHECK(model.config().model.hidden == 16);
  CHECK(model.transformer().spec() == tiny.spec);
  LoadedModel taken(locate_model(moved), *device.backend, *device.stream);
  CHECK(tiny.weights(taken.store()) == tiny.weights(tiny.store));
}

TEST_CASE("a manifest whose config claims another model is refused before memory is taken for it") {
  const TempFolder folder;
  const TinyModel tiny(byte_config());
  const auto refusal = [&](auto change) {
    Config claimed = byte_config();
    change(claimed);
    TinyModel lying(byte_config());
    lying.config = claimed;
    const Device device;
    const fs::path path = lying.save(folder / "lies");
    return message_of<InputError>([&] {
      LoadedModel({ModelSource::checkpoint, path}, *device.backend, *device.stream);
    });
  };
  CHECK(refusal([](Config&) {}).empty());
  // 2^20 wide: terabytes, were it believed.
  CHECK(contains(refusal([](Config& c) { c.model.hidden = 1 << 20; }), "embedding.token.weight"));
  CHECK(contains(refusal([](Config& c) { c.model.ffn_hidden = 1 << 20; }), "ffn.up.weight"));
  CHECK(contains(refusal([](Config& c) { c.model.layers = 100; }), "model.layers"));
  CHECK(contains(refusal([](Config& c) { c.model.layers = 3; }), "blocks.2."));
  CHECK(contains(refusal([](Config& c) { c.model.tie_embeddings = false; }), "head.weight"));
  CHECK(contains(refusal([](Config& c) { c.precision.reduce = Precision::fp16; }), "precision.reduce"));
}

TEST_CASE("damaged weights are refused by file") {
  const TempFolder folder;
  const TinyModel tiny(byte_config());
  const fs::path path = tiny.save(folder / "c");
  {
    std::fstream file(path / "model-00000.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-9, std::ios::end);
    file.put('\x7f');
    file.put('\x7f');
  }
  const Device device;
  const std::string text = message_of<InputError>([&] {
    LoadedModel({ModelSource::checkpoint, path}, *device.backend, *device.stream);
  });
  CHECK(contains(text, "model-00000.safetensors"));
}

namespace {

void export_tiny(const TinyModel& tiny, const fs::path& folder) {
  ModelConfig model = tiny.config.model;
  model.vocab = tiny.spec.vocab;
  export_hugging_face(tiny.table,
                      [&tiny](const Parameter& parameter, View out) {
                        const View master = tiny.store.master(parameter.name);
                        std::copy_n(master.as<float>(), master.num_elements(), out.as<float>());
                      },
                      {.folder = folder, .model = model, .dtype = DType::f32, .tokenizer_files = {}});
}

}  // namespace

TEST_CASE("a Hugging Face model whose attention reaches less far than its context has that for one, and says so") {
  const TempFolder folder;
  Config config = byte_config();
  make_llama(config.model);
  config.model.qkv_bias = true;
  const TinyModel tiny(config);
  export_tiny(tiny, folder / "hf");
  const Device device;
  const auto loaded = [&](bool is_used, std::int64_t window) {
    nlohmann::json values = nlohmann::json::parse(TempFolder::read(folder / "hf" / "config.json"));
    REQUIRE(values["model_type"] == "qwen2");
    values["use_sliding_window"] = is_used;
    values["sliding_window"] = window;
    values["max_window_layers"] = 0;
    folder.write("hf/config.json", values.dump());
    return LoadedModel(locate_model(folder / "hf"), *device.backend, *device.stream);
  };
  CHECK(loaded(false, 7).transformer().spec() == tiny.spec);
  CHECK(loaded(false, 7).context_notice() == "");
  CHECK(loaded(true, 20).context_notice() == "");
  CHECK(loaded(true, 7).transformer().spec().context == 7);
  CHECK(contains(loaded(true, 7).context_notice(), "attention reaches 7 tokens back in this model (sliding window)"));
}

TEST_CASE("a Mistral's window is computed, and leaves its context as it is") {
  const TempFolder folder;
  Config config = byte_config();
  make_llama(config.model);
  const TinyModel tiny(config);
  export_tiny(tiny, folder / "hf");
  const Device device;
  const auto loaded = [&](const std::string& window) {
    nlohmann::json values = nlohmann::json::parse(TempFolder::read(folder / "hf" / "config.json"));
    values["model_type"] = "mistral";
    values["sliding_window"] = nlohmann::json::parse(window);
    folder.write("hf/config.json", values.dump());
    return LoadedModel(locate_model(folder / "hf"), *device.backend, *device.stream);
  };
  CHECK(loaded("null").transformer().spec() == tiny.spec);
  CHECK_FALSE(loaded("null").config().model.window.tokens.has_value());
  CHECK(loaded("7").config().model.window.tokens == 7);
  CHECK(loaded("7").transformer().spec().context == tiny.spec.context);
  CHECK(loaded("7").context_notice() == "");
}

TEST_CASE("a Hugging Face folder loads as the model that was exported") {
  for (const bool llama : {false, true}) {
    const TempFolder folder;
    Config config = byte_config();
    config.model.vocab = 300;
    config.model.activation = ActivationKind::gelu_tanh;
    if (llama) {
      config.model.kv_heads = 1;
      make_llama(config.model);
      config.model.tie_embeddings = false;
    }
    const TinyModel tiny(config, 300);
    const fs::path path = folder / "hf";
    export_tiny(tiny, path);
    const Device device;
    LoadedModel model(locate_model(path), *device.backend, *device.stream);
    CHECK_FALSE(model.step().has_value());
    CHECK(model.transformer().spec() == tiny.spec);
    CHECK(tiny.weights(model.store()) == tiny.weights(tiny.store));
    // Its tokenizer is not read: ids by default, bytes where asked for.
    CHECK(model.tokenizer().vocab_size() == 300);
    CHECK(model.tokenizer().encode("7 299") == std::vector<std::int32_t>{7, 299});
    const LoadedModel bytes(locate_model(path), *device.backend, *device.stream, TokenizerKind::bytes);
    CHECK(bytes.tokenizer().encode("a") == std::vector<std::int32_t>{'a'});
  }
}

TEST_CASE("ids that a model does not have begin, end and pad no exported text") {
  Config config = byte_config();
  config.data.tokenizer.type = TokenizerKind::ids;
  config.model.vocab = 257;
  const TinyModel tiny(config);
  const TempFolder folder;
  const Device device;
  const LoadedModel model({ModelSource::checkpoint, tiny.save(folder / "checkpoints")}, *device.backend,
                          *device.stream);
  const auto tokens_by = [&](const std::string& generation_config) {
    folder.write("named/generation_config.json", generation_config);
    return exported_tokens(model.text(), folder / "named");
  };
  const SpecialTokens within = tokens_by(R"({"bos_token_id": 256, "eos_token_id": [3, 256], "pad_token_id": 0})");
  CHECK(within.begin == 256);
  CHECK(within.end == std::vector<std::int64_t>{3, 256});
  CHECK(within.pad == 0);
  const SpecialTokens beyond =
      tokens_by(R"({"bos_token_id": 257, "eos_token_id": [3, 257, 9000], "pad_token_id": 300})");
  CHECK_FALSE(beyond.begin);
  CHECK(beyond.end == std::vector<std::int64_t>{3});
  CHECK_FALSE(beyond.pad);
}
