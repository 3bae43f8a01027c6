#include "infer/sampling.h"
#include "infer_helpers.h"

using namespace scaletrain;

namespace {

struct Generated {
  std::vector<std::string> pieces;
  GenerationEnd end = GenerationEnd::length;
  std::string text() const {
    std::string all;
    for (const std::string& piece : pieces) all += piece;
    return all;
  }
};

Generated generate(LoadedModel& model, const std::string& prompt, std::int64_t max_tokens,
                   const SamplingOptions& options) {
  Generated out;
  out.end = generate_text(model, prompt, max_tokens, options,
                          [&out](const std::string& piece) { out.pieces.push_back(piece); });
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
