#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "generated.h"
#include "infer/stop_strings.h"
#include "infer_helpers.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

struct Generated {
  std::vector<std::string> pieces;
  GeneratedSample sample;
  GenerationEnd end = GenerationEnd::length;
  std::string text() const {
    std::string all;
    for (const std::string& piece : pieces) all += piece;
    CHECK(all == sample.text);
    return all;
  }
};

Generated generate(LoadedModel& model, const std::string& prompt, std::int64_t max_tokens,
                   const SamplingOptions& sampling, const std::vector<std::string>& stop = {}) {
  Generated out;
  Generator generator(model, {.context = model.transformer().spec().context});
  const std::vector<std::vector<std::int32_t>> prompts = {prompt_tokens(model, prompt, "--prompt")};
  generator.run(prompts, {.max_tokens = max_tokens, .sampling = sampling, .stop = stop},
                {.text = [&out](const GeneratedSample&, const std::string& piece) { out.pieces.push_back(piece); },
                 .done = [&out](const GeneratedSample& sample) { out.sample = sample; }});
  out.end = out.sample.end;
  return out;
}

struct GenerateFixture {
  GenerateFixture()
      : tiny(byte_config()),
        model({ModelSource::checkpoint, tiny.save(folder / "checkpoints")}, *device.backend, *device.stream) {}
  // The logit of the end-of-document token becomes `value` times what any other's is at most: always or never first.
  void favour_end(float value) {
    const View table = model.store().master("embedding.token.weight");
    const View weight = model.store().master("head.norm.weight");
    const View bias = model.store().master("head.norm.bias");
    for (std::int64_t i = 0; i < weight.num_elements(); ++i) {
      weight.as<float>()[i] = 0.0f;
      bias.as<float>()[i] = 1.0f;
      for (std::int64_t token = 0; token < 257; ++token)
        table.as<float>()[token * weight.num_elements() + i] = token == 256 ? value : 0.0f;
    }
    model.store().values_changed(host_stream());
  }

  TempFolder folder;
  TinyModel tiny;
  Device device;
  LoadedModel model;
};

}  // namespace

TEST_CASE("equal seeds give equal texts, other seeds others") {
  GenerateFixture fixture;
  fixture.favour_end(-10.0f);  // uniform over the bytes
  const SamplingOptions options{.temperature = 1.0, .seed = 4};
  const Generated first = generate(fixture.model, "abc", 8, options);
  CHECK(first.pieces.size() == 8);
  CHECK(first.text().size() == 8);
  CHECK(first.end == GenerationEnd::length);
  CHECK(generate(fixture.model, "abc", 8, options).text() == first.text());
  CHECK(generate(fixture.model, "abc", 5, options).text() == first.text().substr(0, 5));
  CHECK(generate(fixture.model, "abc", 8, {.temperature = 1.0, .seed = 5}).text() != first.text());
}

TEST_CASE("generation ends at the length, at a full context, at an end of document") {
  GenerateFixture fixture;
  fixture.favour_end(-10.0f);
  const SamplingOptions options{.temperature = 1.0, .seed = 4};
  CHECK(generate(fixture.model, "abc", 0, options).pieces.empty());
  CHECK(generate(fixture.model, "abc", 1, options).pieces.size() == 1);
  // Context 12: three tokens of prompt and nine more are read, and what follows the twelfth is the tenth new one.
  const Generated full = generate(fixture.model, "abc", 100, options);
  CHECK(full.end == GenerationEnd::context_full);
  CHECK(full.pieces.size() == 10);
  CHECK(generate(fixture.model, "abc", 10, options).end == GenerationEnd::length);
  fixture.favour_end(10.0f);
  const Generated ended = generate(fixture.model, "abc", 100, {.temperature = 0.0, .seed = 0});
  CHECK(ended.end == GenerationEnd::end_of_document);
  CHECK(ended.pieces.empty());
}

TEST_CASE("an empty prompt starts behind an end of document; one that fills the context is refused") {
  GenerateFixture fixture;
  fixture.favour_end(-10.0f);
  const SamplingOptions options{.temperature = 0.0, .seed = 0};
  CHECK(generate(fixture.model, "", 3, options).text() == std::string(3, '\0'));  // equal logits: the lowest id
  const std::string text = message_of<UserError>([&] { generate(fixture.model, "twelve bytes", 3, options); });
  CHECK(contains(text, "--prompt"));
  CHECK(contains(text, "12"));
  CHECK(generate(fixture.model, "eleven byte", 3, options).pieces.size() == 2);
}

TEST_CASE("greedy text of the decoder is what the evaluation's logits say") {
  GenerateFixture fixture;
  // The greedy continuation of a prefix does not depend on how much was generated before it.
  const SamplingOptions greedy{.temperature = 0.0, .seed = 0};
  const Generated all = generate(fixture.model, "hello", 6, greedy);
  std::string prompt = "hello";
  for (const std::string& piece : all.pieces) {
    const Generated next = generate(fixture.model, prompt, 1, greedy);
    REQUIRE(next.pieces.size() == 1);
    CHECK(next.pieces[0] == piece);
    prompt += piece;
  }
}

TEST_CASE("samples are the same whatever is computed beside them, on the reference and on the cpu backend") {
  const std::vector<std::string> prompts = {"abc", "", "hello wor", "a", "eleven byte"};
  for (const bool on_cpu : {false, true}) {
    CAPTURE(on_cpu);
    TempFolder folder;
    TinyModel tiny(byte_config());
    Device device(on_cpu ? make_cpu_backend({.threads = 2, .instruction_set = "auto"})
                         : make_reference_backend(DType::f32));
    LoadedModel model({ModelSource::checkpoint, tiny.save(folder / "checkpoints")}, *device.backend, *device.stream);
    const GenerationOptions options{
        .max_tokens = 7,
        .samples = 6,
        .sampling = {.repetition_penalty = 1.1, .temperature = 1.2, .top_k = 100, .seed = 9},
        .wants_log_probabilities = true};
    const std::vector<GeneratedSample> alone = generate_all(model, prompts, options, 1);
    REQUIRE(alone.size() == 30);
    std::set<std::string> texts;
    for (const std::int64_t batch : {2, 5, 16, 64}) {
      CAPTURE(batch);
      const std::vector<GeneratedSample> together = generate_all(model, prompts, options, batch);
      REQUIRE(together.size() == alone.size());
      for (std::size_t i = 0; i < alone.size(); ++i) {
        CHECK(together[i].prompt == static_cast<std::int64_t>(i) / 6);
        CHECK(together[i].sample == static_cast<std::int64_t>(i) % 6);
        CHECK(together[i].tokens == alone[i].tokens);
        CHECK(together[i].text == alone[i].text);
        CHECK(together[i].log_probabilities == alone[i].log_probabilities);  // to the bit
        CHECK(together[i].end == alone[i].end);
        texts.insert(together[i].text);
      }
    }
    CHECK(texts.size() > 20);
    // Fewer samples are the first of more.
    GenerationOptions fewer = options;
    fewer.samples = 2;
    const std::vector<GeneratedSample> first = generate_all(model, prompts, fewer, 3);
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(first[i].tokens == alone[i / 2 * 6 + i % 2].tokens);
  }
}

TEST_CASE("the tokens are the same with and without the cache") {
  GenerateFixture fixture;
  const GenerationOptions options{
      .max_tokens = 9, .samples = 4, .sampling = {.temperature = 1.0, .seed = 2}, .wants_log_probabilities = true};
  const std::vector<std::string> prompts = {"abc", "hello"};
  const auto with = generate_all(fixture.model, prompts, options, 3);
  const auto without = generate_all(fixture.model, prompts, options, 3, false);
  REQUIRE(with.size() == 8);
  REQUIRE(without.size() == 8);
  for (std::size_t i = 0; i < with.size(); ++i) {
    CHECK(with[i].tokens == without[i].tokens);
    for (std::size_t t = 0; t < with[i].tokens.size(); ++t)
      CHECK(with[i].log_probabilities[t] == Near(without[i].log_probabilities[t]).epsilon(1e-4));
  }
}

TEST_CASE("a text ends before its stop string, also where that spans tokens") {
  GenerateFixture fixture;
  fixture.favour_end(-10.0f);
  const SamplingOptions sampling{.temperature = 1.0, .seed = 4};
  const std::string whole = generate(fixture.model, "abc", 8, sampling).text();
  REQUIRE(whole.size() == 8);
  const Generated stopped = generate(fixture.model, "abc", 8, sampling, {"not there", whole.substr(3, 3)});
  CHECK(stopped.text() == whole.substr(0, 3));
  CHECK(stopped.end == GenerationEnd::stop);
  CHECK(stopped.sample.stop == whole.substr(3, 3));
  CHECK(stopped.sample.tokens.size() == 6);
  // The beginning of a stop string that does not come is given out at the end.
  const Generated begun = generate(fixture.model, "abc", 8, sampling, {whole.substr(6) + "more"});
  CHECK(begun.text() == whole);
  CHECK(begun.end == GenerationEnd::length);
}

TEST_CASE("stop strings are found however the text is cut, the first of several, and what may be one is held back") {
  const std::string text = "one two aab three";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    StopStrings stop({"three", "aab", "ab "});
    std::string out;
    for (std::size_t at = 0; at < text.size() && !stop.found(); at += size) {
      out += stop.add(text.substr(at, size));
      CHECK(text.starts_with(out));
      CHECK(out.size() <= 8);
    }
    CHECK(out == "one two ");
    CHECK(stop.found() == "aab");
  }
  StopStrings none;
  CHECK(none.add("abc") == "abc");
  StopStrings held({"abcd"});
  CHECK(held.add("xabc") == "x");
  CHECK(held.add("ab") == "abc");
  CHECK(held.finish() == "ab");
}

TEST_CASE("a chat's prompt is read from where its last text ended") {
  GenerateFixture fixture;
  fixture.favour_end(-10.0f);
  Generator generator(fixture.model, {.context = 12, .keeps_past = true});
  const auto run = [&](const std::string& prompt) {
    GeneratedSample last;
    const std::vector<std::vector<std::int32_t>> prompts = {prompt_tokens(fixture.model, prompt, "--prompt")};
    generator.run(prompts, {.max_tokens = 2, .sampling = {.temperature = 0.0}},
                  {.text = {}, .done = [&last](const GeneratedSample& sample) { last = sample; }});
    return last;
  };
  const GeneratedSample first = run("abc");
  CHECK(generator.prompt_tokens_read() == 3);
  const GeneratedSample second = run("abc" + first.text + "de");
  CHECK(generator.prompt_tokens_read() == 3 + 3);  // the last token of the text was not read yet
  CHECK(second.tokens == generate(fixture.model, "abc" + first.text + "de", 2, {.temperature = 0.0}).sample.tokens);
}

TEST_CASE("samples that begin when windows have let go of their prompt read it again, and are the same") {
  Config config = byte_config();
  config.model.context = 1200;
  config.model.position = PositionKind::rope;
  config.model.window.tokens = 4;
  config.model.layers = 1;
  const TinyModel tiny(config);
  const TempFolder folder;
  const Device device(make_cpu_backend({.threads = 1, .instruction_set = "auto"}));
  LoadedModel model({ModelSource::checkpoint, tiny.save(folder / "checkpoints")}, *device.backend, *device.stream);
  const std::vector<std::vector<std::int32_t>> prompts = {
      prompt_tokens(model, std::string(200, 'a') + " prompt", "--prompt")};
  const auto run = [&](std::int64_t batch, std::int64_t read) {
    std::vector<std::vector<std::int32_t>> samples;
    Generator generator(model, {.context = 1200, .batch = batch});
    generator.run(prompts, {.max_tokens = 650, .samples = 2, .sampling = {.temperature = 0.0}},
                  {.text = {}, .done = [&](const GeneratedSample& sample) { samples.push_back(sample.tokens); }});
    CHECK(generator.prompt_tokens_read() == read * std::ssize(prompts[0]));
    return samples;
  };
  const auto together = run(2, 1);
  REQUIRE(together.size() == 2);
  REQUIRE(together[0].size() == 650);  // else the windows are never left behind
  CHECK(together[0] == together[1]);
  CHECK(run(1, 2) == together);
}

TEST_CASE("greedy tokens of every family are those of transformers") {
  const std::filesystem::path golden = SCALETRAIN_GOLDEN_FOLDER;
  const nlohmann::json greedy = read_json_file(golden / "greedy.json");
  REQUIRE(greedy.size() >= 8);
  for (const auto& entry : greedy.items()) {
    CAPTURE(entry.key());
    const Device device(make_cpu_backend({.threads = 1, .instruction_set = "auto"}));
    LoadedModel model({ModelSource::hugging_face, golden / entry.key()}, *device.backend, *device.stream);
    Generator generator(model, {.context = 16, .batch = 3});
    std::vector<std::vector<std::int32_t>> prompts;
    for (const nlohmann::json& row : entry.value())
      prompts.push_back(row.at("prompt").get<std::vector<std::int32_t>>());
    std::vector<std::vector<std::int32_t>> found;
    generator.run(prompts, {.max_tokens = 13, .samples = 1, .sampling = {.temperature = 0.0}},
                  {.text = {}, .done = [&](const GeneratedSample& sample) { found.push_back(sample.tokens); }});
    REQUIRE(found.size() == entry.value().size());
    for (std::size_t i = 0; i < found.size(); ++i)
      CHECK(found[i] == entry.value().at(i).at("tokens").get<std::vector<std::int32_t>>());
  }
}
