// GGUF files: blocks as llama.cpp's own package makes them, and what a file says and holds.
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>

#include "base/file.h"
#include "checkpoint/gguf/gguf_blocks.h"
#include "checkpoint/gguf/gguf_export.h"
#include "hugging_face_fixture.h"

namespace scaletrain {
namespace {

std::vector<float> floats_of(const nlohmann::json& bits) {
  std::vector<float> values;
  for (const nlohmann::json& one : bits) values.push_back(std::bit_cast<float>(one.get<std::uint32_t>()));
  return values;
}

float scale_of(const std::vector<std::byte>& block) {
  float scale = 0.0F;
  convert_floats(DType::f16, block.data(), DType::f32, &scale, 1);
  return scale;
}

TEST_CASE("gguf_blocks_read_as_llama_cpp_reads_them_and_are_as_near_to_the_numbers") {
  const nlohmann::json cases = read_json_file(SCALETRAIN_SOURCE_FOLDER "/tests/golden/gguf/blocks.json");
  REQUIRE(cases.size() >= 6);
  const std::map<std::string, GgufType> types = {{"q8_0", GgufType::q8_0}, {"q4_0", GgufType::q4_0}};
  for (const nlohmann::json& one : cases) {
    for (const auto& entry : types) {
      const std::string& word = entry.first;
      const GgufType type = entry.second;
      CAPTURE(one["name"]);
      CAPTURE(word);
      const std::vector<float> values = floats_of(one["values"]);
      std::vector<std::byte> theirs;
      for (const nlohmann::json& byte : one[word]["bytes"]) theirs.push_back(std::byte(byte.get<int>()));
      REQUIRE(theirs.size() == gguf_bytes(type, std::ssize(values)));
      std::vector<float> decoded(values.size());
      decode_gguf(type, theirs, decoded);
      CHECK(decoded == floats_of(one[word]["decoded"]));

      std::vector<std::byte> ours(theirs.size());
      encode_gguf(type, values, ours);
      CHECK(scale_of(ours) == scale_of(theirs));
      std::vector<float> rounded(values.size());
      decode_gguf(type, ours, rounded);
      double our_error = 0.0;
      double their_error = 0.0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        our_error += std::pow(rounded[i] - values[i], 2);
        their_error += std::pow(decoded[i] - values[i], 2);
      }
      CHECK(our_error <= their_error);
      // Half a step, and of int4 a whole one at the end that has no code; more by what an f16 scale is off, which is
      // much where it is all but zero.
      const float step = std::fabs(scale_of(ours));
      const float largest_code = type == GgufType::q8_0 ? 127.0F : 8.0F;
      for (std::size_t i = 0; i < 32; ++i)
        CHECK(std::fabs(rounded[i] - values[i]) <=
              step * (type == GgufType::q8_0 ? 0.57F : 1.01F) + largest_code * 0x1p-25F);
    }
  }
}

TEST_CASE("gguf_numbers_that_a_type_cannot_hold_are_found") {
  std::vector<float> values(32, 1.0F);
  for (const GgufType type : {GgufType::f32, GgufType::f16, GgufType::bf16, GgufType::q8_0, GgufType::q4_0})
    CHECK(find_unholdable(type, values) == -1);
  values[5] = 70000.0F;
  CHECK(find_unholdable(GgufType::f16, values) == 5);
  CHECK(find_unholdable(GgufType::q8_0, values) == -1);
  values[5] = 9e6F;
  CHECK(find_unholdable(GgufType::q8_0, values) == 5);
  CHECK(find_unholdable(GgufType::bf16, values) == -1);
  values[7] = std::nanf("");
  CHECK(find_unholdable(GgufType::f32, values) == 7);
}

// What a file says, read in the most direct way.
struct ReadFile {
  std::map<std::string, std::string> texts;
  std::map<std::string, double> numbers;
  std::map<std::string, std::vector<std::string>> lists;
  std::map<std::string, std::pair<Shape, std::vector<float>>> tensors;

  explicit ReadFile(const std::filesystem::path& path) : bytes_(read_text_file(path, 1 << 30)) {
    REQUIRE(take(4) == "GGUF");
    REQUIRE(number<std::uint32_t>() == 3);
    const auto num_tensors = number<std::uint64_t>();
    const auto num_keys = number<std::uint64_t>();
    for (std::uint64_t i = 0; i < num_keys; ++i) read_key();
    struct Described {
      std::string name;
      Shape shape;
      GgufType type;
      std::uint64_t offset;
    };
    std::vector<Described> described;
    for (std::uint64_t i = 0; i < num_tensors; ++i) {
      Described& one = described.emplace_back();
      one.name = text();
      const auto num_dims = number<std::uint32_t>();
      std::vector<std::int64_t> dims;
      for (std::uint32_t dim = 0; dim < num_dims; ++dim)
        dims.insert(dims.begin(), static_cast<std::int64_t>(number<std::uint64_t>()));
      one.shape = dims.size() == 1 ? Shape{dims[0]} : Shape{dims[0], dims[1]};
      one.type = static_cast<GgufType>(number<std::uint32_t>());
      one.offset = number<std::uint64_t>();
    }
    const std::size_t data = (at_ + 31) / 32 * 32;
    for (const Described& one : described) {
      REQUIRE(one.offset % 32 == 0);
      std::vector<float> values(static_cast<std::size_t>(one.shape.num_elements()));
      const auto size = static_cast<std::size_t>(gguf_bytes(one.type, one.shape.num_elements()));
      REQUIRE(data + one.offset + size <= bytes_.size());
      decode_gguf(one.type, std::as_bytes(std::span(bytes_)).subspan(data + one.offset, size), values);
      tensors[one.name] = {one.shape, values};
    }
  }

 private:
  std::string take(std::size_t size) {
    REQUIRE(at_ + size <= bytes_.size());
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  template <class Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return take(static_cast<std::size_t>(number<std::uint64_t>())); }
  void read_key() {
    const std::string key = text();
    const auto type = number<std::uint32_t>();
    if (type == 8) texts[key] = text();
    if (type == 4) numbers[key] = number<std::uint32_t>();
    if (type == 6) numbers[key] = number<float>();
    if (type == 7) numbers[key] = number<std::uint8_t>();
    if (type != 9) return;
    const auto inner = number<std::uint32_t>();
    const auto size = number<std::uint64_t>();
    for (std::uint64_t i = 0; i < size; ++i)
      lists[key].push_back(inner == 8   ? text()
                           : inner == 6 ? std::to_string(number<float>())
                                        : std::to_string(number<std::int32_t>()));
  }

  std::string bytes_;
  std::size_t at_ = 0;
};

GgufVocabulary two_tokens() {
  GgufVocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  vocabulary.tokens = {"a", "<|endoftext|>"};
  vocabulary.kinds = {GgufVocabulary::Kind::normal, GgufVocabulary::Kind::control};
  vocabulary.special = {.begin = std::nullopt, .end = {1}, .pad = std::nullopt};
  return vocabulary;
}

TensorReader reader_of(StoreFixture& from) {
  return [&from](const Parameter& parameter, View out) {
    const View master = from.store.master(parameter.name);
    std::memcpy(out.data(), master.data(), master.num_bytes());
  };
}

std::vector<float> values_of(StoreFixture& from, const std::string& name) {
  const View master = from.store.master(name);
  return {master.as<float>(), master.as<float>() + master.num_elements()};
}

// As llama.cpp computes them, with windows of `tokens`.
ModelConfig gguf_gemma2_config() {
  ModelConfig model = tiny_gemma2_config();
  model.query_pre_attn_scalar.reset();
  model.window = {.tokens = model.context - 1, .global_every = 2, .rope_theta = std::nullopt};
  return model;
}
ModelConfig gguf_gemma3_config() {
  ModelConfig model = tiny_gemma3_config();
  model.query_pre_attn_scalar.reset();
  model.layers = 7;
  model.window = {.tokens = model.context - 1, .global_every = 6, .rope_theta = 5e3};
  return model;
}

TEST_CASE("gguf_files_hold_every_family_as_llama_cpp_names_and_orders_it") {
  struct Case {
    ModelConfig model;
    std::string architecture;
  };
  for (const Case& one :
       {Case{tiny_gpt2_config(), "gpt2"}, Case{tiny_llama_config(false), "llama"}, Case{tiny_llama3_config(), "llama"},
        Case{tiny_mistral_config(), "llama"}, Case{tiny_qwen2_config(), "qwen2"}, Case{tiny_qwen3_config(), "qwen3"},
        Case{tiny_gemma_config(), "gemma"}, Case{gguf_gemma2_config(), "gemma2"},
        Case{gguf_gemma3_config(), "gemma3"}}) {
    CAPTURE(one.architecture);
    const TempFolder folder;
    StoreFixture saved(make_param_table(make_model_spec(one.model, 11), InitConfig{}), {});
    saved.fill(3);
    export_gguf(saved.table, reader_of(saved),
                {.file = folder / "m.gguf", .model = one.model, .type = GgufType::f32, .vocabulary = two_tokens()});
    const ReadFile file(folder / "m.gguf");
    const std::string& arch = one.architecture;
    CHECK(file.texts.at("general.architecture") == arch);
    CHECK(file.numbers.at(arch + ".block_count") == one.model.layers);
    CHECK(file.numbers.at(arch + ".attention.head_count") == 3);
    CHECK(file.numbers.at(arch + ".embedding_length") == one.model.hidden);
    CHECK(file.lists.at("tokenizer.ggml.tokens").size() == 11);
    CHECK(file.lists.at("tokenizer.ggml.tokens").back() == "[PAD10]");
    CHECK(file.lists.at("tokenizer.ggml.token_type") ==
          std::vector<std::string>{"1", "3", "5", "5", "5", "5", "5", "5", "5", "5", "5"});
    CHECK(file.numbers.at("tokenizer.ggml.eos_token_id") == 1);
    CHECK(file.tensors.at("token_embd.weight").second == values_of(saved, "embedding.token.weight"));
    CHECK(file.tensors.at("blk.1.ffn_down.weight").second == values_of(saved, "blocks.1.ffn.down.weight"));
    CHECK(file.tensors.contains("output.weight") == !one.model.tie_embeddings);
    CHECK(file.tensors.contains("rope_freqs.weight") == (one.model.rope_scaling.type == RopeScalingKind::llama3));
    const std::vector<float> query = values_of(saved, "blocks.1.attention.query.weight");
    if (arch == "gpt2") {
      const auto& [shape, values] = file.tensors.at("blk.1.attn_qkv.weight");
      CHECK(shape == Shape{36, 12});
      CHECK(std::equal(query.begin(), query.end(), values.begin()));
      CHECK(file.tensors.contains("blk.1.attn_qkv.bias"));
      CHECK(file.tensors.contains("position_embd.weight"));
      continue;
    }
    // Llama's are in another order: of each head the rows 0, D/2, 1, D/2 + 1 ...
    const std::vector<float>& stored = file.tensors.at("blk.1.attn_q.weight").second;
    const std::int64_t width = one.model.hidden;
    const std::int64_t head = one.model.head_size();
    REQUIRE(stored.size() == query.size());
    for (std::int64_t row = 0; row < 3 * head; ++row) {
      const std::int64_t in_head = row % head;
      const std::int64_t from = arch != "llama" ? row : row - in_head + in_head % 2 * (head / 2) + in_head / 2;
      CHECK(std::equal(query.begin() + from * width, query.begin() + (from + 1) * width, stored.begin() + row * width));
    }
    CHECK(file.numbers.at(arch + ".attention.key_length") == head);
    CHECK(file.tensors.contains("blk.0.attn_q_norm.weight") == one.model.qk_norm);
  }
}

ModelConfig wide_llama() {
  ModelConfig model = tiny_llama_config(false);
  model.hidden = 64;
  model.heads = 4;
  model.ffn_hidden = 40;
  return model;
}

TEST_CASE("gguf_files_hold_what_rounding_leaves_and_keep_what_has_no_whole_groups") {
  const ModelConfig model = wide_llama();
  for (const GgufType type : {GgufType::q8_0, GgufType::q4_0}) {
    const TempFolder folder;
    StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
    saved.fill(3);
    export_gguf(saved.table, reader_of(saved),
                {.file = folder / "m.gguf", .model = model, .type = type, .vocabulary = {}});
    const ReadFile file(folder / "m.gguf");
    CHECK(file.texts.at("tokenizer.ggml.model") == "no_vocab");
    CHECK(file.numbers.at("general.file_type") == (type == GgufType::q8_0 ? 7 : 2));
    const std::map<std::string, std::string> names = {
        {"embedding.token.weight", "token_embd.weight"},   {"blocks.0.attention.value.weight", "blk.0.attn_v.weight"},
        {"blocks.0.ffn.up.weight", "blk.0.ffn_up.weight"}, {"blocks.0.ffn.down.weight", "blk.0.ffn_down.weight"},
        {"head.norm.weight", "output_norm.weight"},        {"head.weight", "output.weight"}};
    for (const auto& entry : names) {
      const std::string& ours = entry.first;
      const std::string& theirs = entry.second;
      CAPTURE(ours);
      std::vector<float> values = values_of(saved, ours);
      const std::vector<float> before = values;
      const Parameter& parameter = *saved.table.find(ours);
      round_as_gguf(parameter, type, values);
      CHECK(file.tensors.at(theirs).second == values);
      CHECK((values != before) == (ours != "head.norm.weight"));
    }
    CHECK(gguf_type_of(*saved.table.find("blocks.0.ffn.down.weight"), type) == GgufType::f16);  // rows of 40
    CHECK(gguf_type_of(*saved.table.find("head.weight"), type) == GgufType::q8_0);
    CHECK(gguf_type_of(*saved.table.find("blocks.0.ffn.up.weight"), type) == type);
  }
}

TEST_CASE("gguf_files_of_gemma_say_windows_and_caps_and_hold_norms_as_they_are") {
  const auto written = [](const ModelConfig& model, const TempFolder& folder, StoreFixture& saved) {
    saved.fill(3);
    export_gguf(saved.table, reader_of(saved),
                {.file = folder / "m.gguf", .model = model, .type = GgufType::f32, .vocabulary = two_tokens()});
    return ReadFile(folder / "m.gguf");
  };
  const auto store_of = [](const ModelConfig& model) {
    return make_param_table(make_model_spec(model, 11), InitConfig{});
  };
  const ModelConfig gemma2 = gguf_gemma2_config();
  const TempFolder folder;
  StoreFixture saved(store_of(gemma2), {});
  const ReadFile file = written(gemma2, folder, saved);
  CHECK(file.numbers.at("gemma2.attention.sliding_window") == gemma2.context - 1);
  CHECK(file.numbers.at("gemma2.attn_logit_softcapping") == static_cast<float>(*gemma2.attention_softcap));
  CHECK(file.numbers.at("gemma2.final_logit_softcapping") == static_cast<float>(*gemma2.logit_softcap));
  CHECK_FALSE(file.numbers.contains("gemma2.rope.freq_base_swa"));
  const std::map<std::string, std::string> norms = {
      {"blocks.1.attention_norm.weight", "blk.1.attn_norm.weight"},
      {"blocks.1.attention_post_norm.weight", "blk.1.post_attention_norm.weight"},
      {"blocks.1.ffn_norm.weight", "blk.1.ffn_norm.weight"},
      {"blocks.1.ffn_post_norm.weight", "blk.1.post_ffw_norm.weight"},
      {"head.norm.weight", "output_norm.weight"}};
  for (const auto& [ours, theirs] : norms) {
    const std::string& tensor = ours;
    CAPTURE(tensor);
    std::vector<float> values = values_of(saved, ours);
    for (float& value : values) value += 1.0F;
    CHECK(file.tensors.at(theirs).second == values);
  }
  // Without windows Gemma 2 is told of one that changes nothing, since it has one of its own.
  ModelConfig wide = gemma2;
  wide.window = {};
  const TempFolder of_wide;
  StoreFixture wide_store(store_of(wide), {});
  CHECK(written(wide, of_wide, wide_store).numbers.at("gemma2.attention.sliding_window") == wide.context);

  const ModelConfig gemma3 = gguf_gemma3_config();
  const TempFolder of_third;
  StoreFixture third(store_of(gemma3), {});
  const ReadFile rotated = written(gemma3, of_third, third);
  CHECK(rotated.numbers.at("gemma3.attention.sliding_window") == gemma3.context - 1);
  CHECK(rotated.numbers.at("gemma3.rope.freq_base") == static_cast<float>(gemma3.rope_theta));
  CHECK(rotated.numbers.at("gemma3.rope.freq_base_swa") == 5e3);
  CHECK(rotated.texts.at("gemma3.rope.scaling.type") == "linear");
  CHECK(rotated.numbers.at("gemma3.rope.scaling.factor") == 8);
  // A window as long as the context hides nothing, and its layers rotate by a base of their own all the same.
  ModelConfig long_window = gemma3;
  long_window.window.tokens = 2 * gemma3.context;
  const TempFolder of_long;
  StoreFixture long_store(store_of(long_window), {});
  const ReadFile by_window = written(long_window, of_long, long_store);
  CHECK(by_window.numbers.at("gemma3.attention.sliding_window") == gemma3.context);
  CHECK(by_window.numbers.at("gemma3.rope.freq_base_swa") == 5e3);
  std::vector<float> key_norm = values_of(third, "blocks.6.attention.key_norm.weight");
  for (float& value : key_norm) value += 1.0F;
  CHECK(rotated.tensors.at("blk.6.attn_k_norm.weight").second == key_norm);
}

TEST_CASE("gguf_files_are_of_no_longer_context_than_a_window_that_the_format_does_not_have") {
  ModelConfig model = tiny_mistral_config();
  CHECK(gguf_context(model, 100) == (model.window.tokens ? *model.window.tokens : 100));
  model.context = 16;
  model.window.tokens = 16;
  CHECK(gguf_context(model, 100) == 16);
  CHECK(gguf_context(model, 10) == 10);
  CHECK(gguf_context(gguf_gemma2_config(), 100) == 100);
  ModelConfig other = gguf_gemma3_config();
  other.context = *other.window.tokens;
  other.window.global_every = 2;
  // Layers that see all, and rotate otherwise, are others than there, however long the window is.
  CHECK_THROWS_AS(gguf_context(other, 100), UserError);
  other = gguf_gemma2_config();
  other.context = *other.window.tokens;
  other.window.global_every = 3;
  CHECK(gguf_context(other, 100) == *other.window.tokens);
}

TEST_CASE("gguf_exports_are_complete_or_not_there_and_refuse_what_llama_cpp_computes_otherwise") {
  const TempFolder folder;
  const auto refusal = [&](const ModelConfig& model) {
    return message_of<UserError>([&] { check_gguf_export(model, folder / "m.gguf"); });
  };
  ModelConfig gelu = tiny_gpt2_config();
  gelu.activation = ActivationKind::gelu;
  CHECK(contains(refusal(gelu), "model.activation: gelu is not what llama.cpp computes"));
  ModelConfig scaled = tiny_qwen3_config();
  scaled.rope_scaling = {.type = RopeScalingKind::llama3, .factor = 8.0, .original_context = 4};
  CHECK(contains(refusal(scaled), "llama3 is not supported with qwen3"));
  ModelConfig windowed = tiny_llama3_config();
  windowed.window.tokens = windowed.context - 1;
  CHECK(contains(refusal(windowed), "model.window.tokens: " + std::to_string(windowed.context - 1)));
  windowed.window.tokens = windowed.context;
  CHECK(refusal(windowed) == "");
  CHECK(refusal(tiny_llama3_config()) == "");
  CHECK(refusal(gguf_gemma2_config()) == "");
  CHECK(refusal(gguf_gemma3_config()) == "");
  const auto changed = [&](ModelConfig gemma, const std::function<void(ModelConfig&)>& change) {
    change(gemma);
    return refusal(gemma);
  };
  CHECK(contains(changed(gguf_gemma2_config(), [](ModelConfig& model) { model.window.global_every = 3; }),
                 "model.window.global_every: 3 is not what llama.cpp computes with gemma2, which is 2"));
  CHECK(contains(changed(gguf_gemma3_config(), [](ModelConfig& model) { model.window.global_every = 0; }),
                 "model.window.global_every: 0 is not what llama.cpp computes with gemma3, which is 6"));
  CHECK(contains(changed(gguf_gemma2_config(), [](ModelConfig& model) { model.query_pre_attn_scalar = 7; }),
                 "model.query_pre_attn_scalar: 7 is not what llama.cpp computes with gemma2, which is 6"));
  CHECK(contains(changed(gguf_gemma2_config(), [](ModelConfig& model) { model.attention_softcap.reset(); }),
                 "model.attention_softcap: none"));
  CHECK(contains(changed(gguf_gemma2_config(), [](ModelConfig& model) { model.logit_softcap.reset(); }),
                 "model.logit_softcap: none"));
  CHECK(contains(changed(tiny_gemma_config(), [](ModelConfig& model) { model.tie_embeddings = false; }),
                 "model.tie_embeddings: false"));
  // The largest ones scale scores by another number, with heads of another size.
  CHECK(contains(changed(gguf_gemma2_config(), [](ModelConfig& model) { model.layers = 46; }),
                 "model.query_pre_attn_scalar: 6 is not what llama.cpp computes with gemma2, which is 4"));

  const ModelConfig model = wide_llama();
  StoreFixture saved(make_param_table(make_model_spec(model, 11), InitConfig{}), {});
  saved.fill(3);
  const auto attempt = [&] {
    return message_of<InputError>([&] {
      export_gguf(saved.table, reader_of(saved),
                  {.file = folder / "m.gguf", .model = model, .type = GgufType::f16, .vocabulary = {}});
    });
  };
  saved.store.master("blocks.1.ffn.up.weight").as<float>()[70] = 1e6F;
  CHECK(contains(attempt(), "blk.1.ffn_up.weight [70] is 1e+06, which fp16 cannot hold: export with --dtype fp32"));
  saved.store.master("blocks.1.ffn.up.weight").as<float>()[70] = std::nanf("");
  CHECK(contains(attempt(), "blk.1.ffn_up.weight [70] is nan: a model with such a weight computes nothing"));
  CHECK(names_in(folder.path()).empty());
  saved.store.master("blocks.1.ffn.up.weight").as<float>()[70] = 1.0F;
  CHECK(attempt() == "");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"m.gguf"});
  CHECK(contains(refusal(model), "m.gguf: already exists"));
}

}  // namespace
}  // namespace scaletrain
