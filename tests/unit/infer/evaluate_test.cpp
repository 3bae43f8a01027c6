#include "infer/evaluate.h"

#include <cmath>
#include <cstring>

#include "generated.h"
#include "infer/generate.h"
#include "infer_helpers.h"
#include "nn/decode.h"
#include "support/near.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/late_backend.h"
#include "unit/data/token_files.h"

using namespace scaletrain;

namespace {

struct EvaluateFixture {
  EvaluateFixture(std::unique_ptr<Backend> backend, const std::string& text)
      : tiny(byte_config()),
        device(std::move(backend)),
        model({ModelSource::checkpoint, tiny.save(folder / "checkpoints")}, *device.backend, *device.stream) {
    DataConfig data;
    data.cache = (folder / "cache").string();
    ValidationConfig config;
    config.name = "v";
    config.path = folder.write("v.txt", text).string();
    set = open_validation_set(config, data, model.tokenizer(), {.vocab = 257, .context = 12, .seed = 1, .report = {}},
                              "--data");
  }
  EvaluationResult evaluate(std::int64_t micro_batch, std::int64_t num_samples = 1'000'000) {
    return evaluate_model(model, *set, num_samples, micro_batch, {});
  }

  TempFolder folder;
  TinyModel tiny;
  Device device;
  LoadedModel model;
  std::unique_ptr<ValidationSet> set;
};

std::string some_text(std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>('a' + i * i % 23);
  return text;
}

}  // namespace

TEST_CASE("the loss is the mean over tokens of what the decoder predicts for each") {
  EvaluateFixture fixture(make_reference_backend(DType::f64), some_text(12 * 3 + 5));
  const std::int64_t windows = fixture.set->num_samples();
  REQUIRE(windows >= 4);
  double sum = 0.0;
  std::int64_t tokens = 0;
  std::vector<double> per_window;
  for (std::int64_t window = 0; window < windows; ++window) {
    std::vector<std::int32_t> inputs(12);
    std::vector<std::int32_t> targets(12);
    std::vector<std::int32_t> starts;
    fixture.set->read_sample(window, inputs, targets, starts);
    Decoder decoder(fixture.model.transformer(), *fixture.device.backend, *fixture.device.stream, fixture.model.store(),
                    12);
    double window_sum = 0.0;
    std::int64_t window_tokens = 0;
    for (std::size_t i = 0; i < 12; ++i) {
      const auto logits = decoder.append(std::span(&inputs[i], 1));
      if (targets[i] < 0) continue;
      double normaliser = 0.0;
      for (const float logit : logits) normaliser += std::exp(static_cast<double>(logit));
      window_sum += std::log(normaliser) - static_cast<double>(logits[static_cast<std::size_t>(targets[i])]);
      ++window_tokens;
    }
    sum += window_sum;
    tokens += window_tokens;
    per_window.push_back(window_sum / static_cast<double>(std::max<std::int64_t>(window_tokens, 1)));
  }
  const EvaluationResult result = fixture.evaluate(2);
  CHECK(result.tokens == tokens);
  CHECK(result.loss == Near(sum / static_cast<double>(tokens)).epsilon(1e-6));
  // Not a mean of means: the last window is short, so the two differ here.
  double mean_of_means = 0.0;
  for (const double loss : per_window) mean_of_means += loss / static_cast<double>(per_window.size());
  CHECK(std::abs(mean_of_means - result.loss) > 1e-4);
}

// A window holds them all; another set holds each alone, behind nothing.
TEST_CASE("within documents each has the loss that it has by itself, and across them it has not") {
  const std::vector<std::string> texts = {"ab\n", "hello wor\n", "c\n", "what is this\n"};
  const auto losses_of = [&](DocumentAttention attention) {
    Config config = byte_config();
    config.model.context = 40;
    config.data.documents.attention = attention;
    const TinyModel tiny(config);
    const Device device(make_cpu_backend({.threads = 2, .instruction_set = "auto"}));
    const TempFolder folder;
    LoadedModel model({ModelSource::checkpoint, tiny.save(folder / "checkpoints")}, *device.backend, *device.stream);
    DataConfig data = config.data;
    data.cache = (folder / "cache").string();
    data.documents.loss_across = false;
    const auto result_of = [&](const std::string& name, const std::string& text) {
      ValidationConfig set;
      set.name = "v";
      set.path = folder.write(name, text).string();
      set.separator = "--";
      const auto opened = open_validation_set(set, data, model.tokenizer(),
                                              {.vocab = 257, .context = 40, .seed = 1, .report = {}}, "--data");
      return evaluate_model(model, *opened, opened->num_samples(), 2, {});
    };
    std::string all;
    double sum = 0;
    std::int64_t tokens = 0;
    for (const std::string& text : texts) {
      const EvaluationResult alone = result_of("alone" + std::to_string(all.size()) + ".txt", text);
      sum += alone.loss * static_cast<double>(alone.tokens);
      tokens += alone.tokens;
      all += (all.empty() ? "" : "--\n") + text;
    }
    const EvaluationResult together = result_of("all.txt", all);
    CHECK(together.tokens == tokens);
    return std::pair(together.loss, sum / static_cast<double>(tokens));
  };
  const auto [within, alone] = losses_of(DocumentAttention::within);
  CHECK(within == Near(alone).epsilon(1e-6));
  const auto [across, also_alone] = losses_of(DocumentAttention::across);
  CHECK(also_alone == alone);
  CHECK(std::abs(across - alone) > 1e-4);
}

TEST_CASE("any micro-batch gives the same loss") {
  EvaluateFixture fixture(make_cpu_backend({.threads = 1, .instruction_set = "auto"}), some_text(12 * 7 + 3));
  const EvaluationResult whole = fixture.evaluate(fixture.set->num_samples());
  for (const std::int64_t micro_batch : {1, 2, 3, 5, 1000}) {
    const EvaluationResult result = fixture.evaluate(micro_batch);
    CHECK(result.tokens == whole.tokens);
    CHECK(result.loss == Near(whole.loss).epsilon(1e-6));
  }
}

TEST_CASE("only the first samples are read where fewer are asked for, and progress says so") {
  EvaluateFixture fixture(make_reference_backend(DType::f32), some_text(100));
  CHECK(fixture.evaluate(4, 2).tokens == 24);
  std::vector<std::int64_t> done;
  evaluate_model(fixture.model, *fixture.set, 5, 2, [&done](std::int64_t now, std::int64_t all) {
    CHECK(all == 5);
    done.push_back(now);
  });
  CHECK(done == std::vector<std::int64_t>{0, 2, 4, 5});  // told before the first micro-batch too
  CHECK_THROWS_AS(fixture.evaluate(4, 0), BugError);
}

TEST_CASE("evaluation changes no weight and gives the same bits again") {
  EvaluateFixture fixture(make_cpu_backend({.threads = 2, .instruction_set = "auto"}), some_text(100));
  const std::vector<float> before = fixture.tiny.weights(fixture.model.store());
  const double first = fixture.evaluate(3).loss;
  CHECK(fixture.evaluate(3).loss == first);
  CHECK(fixture.tiny.weights(fixture.model.store()) == before);
}

TEST_CASE("a set whose every target is masked is named with its key, its path and what to do") {
  EvaluateFixture fixture(make_reference_backend(DType::f32), some_text(100));
  DataConfig data;
  data.cache = (fixture.folder / "cache").string();
  data.documents.loss_across = false;
  fixture.folder.write("one.idx", test::megatron_index({{1}, {1}, {1}}, 8, 2));
  ValidationConfig config;
  config.name = "v";
  config.path = fixture.folder.write("one.bin", test::packed<std::uint16_t>({5, 6, 7})).string();
  const auto set = open_validation_set(config, data, fixture.model.tokenizer(),
                                       {.vocab = 257, .context = 12, .seed = 1, .report = {}}, "--data");
  const std::string message = message_of<InputError>([&] { evaluate_model(fixture.model, *set, 100, 4, {}); });
  CHECK(message.starts_with("--data: " + config.path + ": no token of what was read has a loss: "));
  CHECK(message.ends_with("give it longer documents"));
}

TEST_CASE("bytes are those of the text of what was measured, and unknown where a token has none") {
  EvaluateFixture fixture(make_reference_backend(DType::f32), some_text(12 * 3 + 5));
  const EvaluationResult all = fixture.evaluate(2);
  CHECK(all.tokens == 41);  // the end of the document with them, the first byte not
  CHECK(all.bytes == 40);
  CHECK(all.bits_per_byte() == Near(all.loss * 41.0 / 40.0 / std::log(2.0)).epsilon(1e-12));
  CHECK(fixture.evaluate(2, 1).bytes == 12);
  CHECK_FALSE(bytes_of_tokens(IdsTokenizer(10, std::nullopt)));
  CHECK((*bytes_of_tokens(ByteTokenizer()))[256] == 0);
  CHECK_FALSE(EvaluationResult{.loss = 1.0, .tokens = 3, .bytes = 0}.bits_per_byte());
}

// The prompt is longer than what goes through the model at once.
TEST_CASE("a model beyond the host's reach is evaluated, decodes and generates to the same bits, late or at once") {
  Config config = byte_config();
  config.model.context = 600;
  const TinyModel tiny(config);
  const TempFolder folder;
  const std::filesystem::path checkpoint = tiny.save(folder / "checkpoints");
  const std::string prompt = some_text(560);
  const auto answers_of = [&](std::unique_ptr<Backend> backend) {
    const Device device(std::move(backend));
    LoadedModel model({ModelSource::checkpoint, checkpoint}, *device.backend, *device.stream);
    Decoder decoder(model.transformer(), *device.backend, *device.stream, model.store(), 600);
    const auto logits = decoder.append(model.tokenizer().encode(prompt));
    std::string text(logits.size_bytes(), '\0');
    std::memcpy(text.data(), logits.data(), logits.size_bytes());
    const GenerationOptions options{.max_tokens = 30, .samples = 3, .sampling = {.temperature = 1.0, .seed = 3}};
    for (const GeneratedSample& sample : generate_all(model, {prompt}, options, 2)) text += sample.text;
    DataConfig data;
    data.cache = (folder / "cache").string();
    ValidationConfig validation;
    validation.name = "v";
    validation.path = folder.write("v.txt", some_text(1500)).string();
    const auto set = open_validation_set(validation, data, model.tokenizer(),
                                         {.vocab = 257, .context = 600, .seed = 1, .report = {}}, "--data");
    return std::pair(text, evaluate_model(model, *set, 3, 2, {}).loss);
  };
  const auto cpu = [] { return make_cpu_backend({.threads = 2, .instruction_set = "auto"}); };
  const auto expected = answers_of(cpu());
  CHECK(std::isfinite(expected.second));
  CHECK(answers_of(std::make_unique<LateBackend>(cpu())) == expected);
  CHECK(answers_of(std::make_unique<FencedBackend>(cpu())) == expected);
  CHECK(answers_of(std::make_unique<LateBackend>(std::make_unique<FencedBackend>(cpu()))) == expected);
}
