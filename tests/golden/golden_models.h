// Losses, gradients and twenty AdamW steps of the golden models, held against PyTorch in float64, on any backend.
// make_golden.py wrote the folders; README.md says what is in them.
#pragma once

#include <doctest/doctest.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/hugging_face/hugging_face_tensors.h"
#include "optim/gradient_norm.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/step_scalars.h"
#include "optim/weight_average.h"
#include "support/models/gradient_share.h"
#include "support/models/model_runner.h"
#include "support/near.h"

namespace scaletrain {

inline constexpr std::int64_t num_steps = 20;
inline constexpr BatchShape batch_shape{.samples = 4, .tokens = 16};
inline constexpr BatchShape micro_shape{.samples = 2, .tokens = 16};

// Where the models' folders are: where the source was built, or, on another machine, where SCALETRAIN_GOLDEN_FOLDER
// says.
inline std::filesystem::path golden_folder(const std::string& name) {
  const char* const moved = std::getenv("SCALETRAIN_GOLDEN_FOLDER");
  return std::filesystem::path(moved != nullptr ? moved : SCALETRAIN_GOLDEN_FOLDER) / name;
}

// expected.safetensors, read with the format's reader only.
class Expected {
 public:
  explicit Expected(const std::filesystem::path& file) : reader_(file) {
    header_ =
        read_safetensors_header([&](std::uint64_t offset, std::span<std::byte> out) { reader_.read_at(offset, out); },
                                reader_.size(), file.string());
  }
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const SafetensorsEntry* entry = header_.find(name);
    REQUIRE_MESSAGE(entry != nullptr, name);
    REQUIRE(entry->dtype == dtype_of<T>());
    std::vector<T> out(static_cast<std::size_t>(entry->shape.num_elements()));
    reader_.read_at(entry->offset, std::as_writable_bytes(std::span(out)));
    return out;
  }
  bool has_number(const std::string& name) const { return header_.metadata.contains(name); }
  double number(const std::string& name) const {
    const std::string text = header_.metadata.at(name);
    double value = 0;
    REQUIRE(std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc());
    return value;
  }
  std::size_t num_gradients() const {
    std::size_t count = 0;
    for (const auto& [name, entry] : header_.entries) count += name.starts_with("gradient/") ? 1 : 0;
    return count;
  }

 private:
  FileReader reader_;
  SafetensorsHeader header_;
};

// What of a model is frozen, and the file with what PyTorch computes then.
struct GoldenCase {
  std::string file = "expected.safetensors";
  std::vector<std::string> freeze{};
  std::vector<UnfreezeConfig> unfreeze{};
  std::vector<std::pair<std::string, double>> weight_decays{};
  std::optional<LoraConfig> lora{};  // its adapters begin as the file has them
  OptimizerKind optimizer = OptimizerKind::adamw;
  std::string prefix{};  // of the steps' names in the file
  LossShape loss{};
  std::optional<EmaConfig> ema{};
  DropoutSpec dropout{};
};

inline ModelSpec spec_of_case(const HuggingFaceModel& source, const GoldenCase& of) {
  ModelSpec spec = make_model_spec(source.model_config(), *source.model_config().vocab);
  spec.loss = of.loss;
  spec.dropout = of.dropout;
  if (of.lora) spec.lora = make_lora_spec(make_param_table(spec, InitConfig{}), *of.lora);
  return spec;
}

// One golden model on one backend.
struct Golden {
  // optimizer: null: it is not trained.
  Golden(const std::string& name, std::unique_ptr<Backend> backend, const Optimizer* optimizer,
         const GoldenCase& of = {}, RecomputeKind recompute = RecomputeKind::none)
      : folder(golden_folder(name)),
        expected(folder / of.file),
        source(folder),
        runner(spec_of_case(source, of), std::move(backend), optimizer, states_beside(of),
               {.freeze = of.freeze, .unfreeze = of.unfreeze, .weight_decays = of.weight_decays}, recompute),
        ids(expected.values<std::int32_t>("ids")),
        targets(expected.values<std::int32_t>("targets")) {
    source.load(runner.store, *runner.stream);
    for (const HuggingFaceTensor& tensor : peft_tensors(runner.table)) load_adapter(tensor);
    runner.store.values_changed(*runner.stream);
  }

  static std::vector<std::string> states_beside(const GoldenCase& of) {
    std::vector<std::string> states;
    if (of.ema) states.emplace_back(WeightAverage::state_name);
    return states;
  }

  void load_adapter(const HuggingFaceTensor& tensor) {
    const std::vector<double> all = expected.values<double>("adapter/" + tensor.name);
    for (const HuggingFacePart& part : tensor.parts) {
      const View values = runner.store.master(runner.table.parameters()[static_cast<std::size_t>(part.parameter)].name);
      const Buffer pinned = runner.backend->allocate_pinned(values.num_bytes());
      const View there = pinned.view(0, values.dtype(), values.shape());
      convert_floats(DType::f64, all.data() + part.offset * tensor.shape[1], there.dtype(), there.data(),
                     static_cast<std::size_t>(there.num_elements()));
      runner.backend->copy(*runner.stream, there, values);
      runner.stream->synchronize();
    }
  }

  std::span<const std::int32_t> part(const std::vector<std::int32_t>& all, std::int64_t first,
                                     std::int64_t count) const {
    return std::span(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }
  std::int64_t num_tokens(std::int64_t step) const {
    std::int64_t count = 0;
    for (const std::int32_t target : part(targets, step * batch_shape.rows(), batch_shape.rows())) {
      count += target >= 0 ? 1 : 0;
    }
    return count;
  }

  std::filesystem::path folder;
  Expected expected;
  HuggingFaceModel source;
  ModelRunner runner;
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;
};

// By the device's own copy: the host need not reach what it is from.
inline std::vector<double> values_of(ModelRunner& runner, const View& view) {
  const Buffer pinned = runner.backend->allocate_pinned(view.num_bytes());
  const View there = pinned.view(0, view.dtype(), view.shape());
  runner.backend->copy(*runner.stream, view, there);
  runner.stream->synchronize();
  std::vector<double> values(static_cast<std::size_t>(view.num_elements()));
  convert_floats(view.dtype(), there.data(), DType::f64, values.data(), values.size());
  return values;
}

// What view_of(parameter's name) has of a tensor, as the file lays it out.
template <class ViewOf>
std::vector<double> in_file_layout(ModelRunner& runner, const HuggingFaceTensor& tensor, ViewOf view_of) {
  std::vector<double> out(static_cast<std::size_t>(tensor.shape.num_elements()), NAN);
  for (const HuggingFacePart& part : tensor.parts) {
    const View view = view_of(runner.table.parameters()[static_cast<std::size_t>(part.parameter)].name);
    const std::int64_t outputs = view.shape()[0];
    const std::int64_t inputs = view.shape().num_dims() == 2 ? view.shape()[1] : 1;
    const std::vector<double> values = values_of(runner, view);
    for (std::int64_t o = 0; o < outputs; ++o) {
      for (std::int64_t i = 0; i < inputs; ++i) {
        const std::int64_t at =
            tensor.is_transposed ? i * tensor.shape[1] + part.offset + o : (part.offset + o) * inputs + i;
        out[static_cast<std::size_t>(at)] = values[static_cast<std::size_t>(o * inputs + i)];
      }
    }
  }
  return out;
}

// The gradient of a tensor as the file lays it out.
inline std::vector<double> gradient_in_file_layout(ModelRunner& runner, const HuggingFaceTensor& tensor) {
  return in_file_layout(runner, tensor, [&](const std::string& name) { return runner.store.gradient(name); });
}

inline double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

struct Tolerances {
  double loss = 0;
  double gradient = 0;
  double training = 0;  // relative, of each step's loss
};
// The design's bounds for fp32; float64 must agree to rounding.
inline constexpr Tolerances in_f32{.loss = 1e-6, .gradient = 1e-5, .training = 1e-5};
inline constexpr Tolerances in_f64{.loss = 1e-13, .gradient = 1e-11, .training = 1e-11};

inline void check_loss_and_gradients(Golden&& golden, const Tolerances& tolerances) {
  ModelRunner& runner = golden.runner;
  const auto ids = golden.part(golden.ids, 0, batch_shape.rows());
  const auto targets = golden.part(golden.targets, 0, batch_shape.rows());
  const auto tokens = static_cast<double>(golden.num_tokens(0));
  REQUIRE(tokens < static_cast<double>(batch_shape.rows()));  // some are masked
  const double expected_loss = golden.expected.values<double>("losses").at(0);
  CHECK(std::abs(runner.evaluate(batch_shape, ids, targets) / tokens - expected_loss) <= tolerances.loss);
  const double loss = runner.train(batch_shape, ids, targets, 1.0 / tokens) / tokens;
  CHECK(std::abs(loss - expected_loss) <= tolerances.loss);

  const double all = golden.expected.values<double>("grad_norms").at(0);
  const std::vector<HuggingFaceTensor> adapters = peft_tensors(runner.table);
  const std::vector<HuggingFaceTensor> tensors = adapters.empty() ? hugging_face_tensors(runner.table) : adapters;
  CHECK(tensors.size() == golden.expected.num_gradients());
  for (const HuggingFaceTensor& tensor : tensors) {
    CAPTURE(tensor.name);
    const auto expected = golden.expected.values<double>("gradient/" + tensor.name);
    auto difference = gradient_in_file_layout(runner, tensor);
    REQUIRE(difference.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) difference[i] -= expected[i];
    CHECK(norm(difference) <= tolerances.gradient * std::max(norm(expected), 1e-6 * all));
  }
}

// By what setting(name) has, an optional double.
template <class Setting>
OptimizerConfig optimizer_of(OptimizerKind type, Setting setting) {
  OptimizerConfig config{.type = type};
  const auto read = [&](const char* key, double& value) { value = setting(key).value_or(value); };
  read("learning_rate", config.learning_rate);
  read("beta1", config.beta1);
  read("beta2", config.beta2);
  read("epsilon", config.epsilon);
  read("weight_decay", config.weight_decay);
  read("momentum", config.momentum);
  read("trust_coefficient", config.trust_coefficient);
  read("alpha", config.alpha);
  read("beta3", config.beta3);
  double nesterov = 0;
  read("nesterov", nesterov);
  config.nesterov = nesterov != 0;
  read("adamw_rate", config.adamw_rate);
  read("beta2_exponent", config.beta2_exponent);
  read("clip_threshold", config.clip_threshold);
  read("smallest_scale", config.smallest_scale);
  double original = 0;
  read("original", original);
  config.step_scale = original != 0 ? StepScale::original : StepScale::match_rms_adamw;
  double slow_warmup = 0;
  read("slow_warmup", slow_warmup);
  config.slow_warmup = static_cast<std::int64_t>(slow_warmup);
  return config;
}

// As the file has it.
inline OptimizerConfig golden_optimizer(const Expected& expected, const GoldenCase& of) {
  return optimizer_of(of.optimizer, [&](const char* key) -> std::optional<double> {
    if (!expected.has_number(of.prefix + key)) return std::nullopt;
    return expected.number(of.prefix + key);
  });
}

// How far each step's loss and norm were from float64, relative.
struct Course {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::map<std::string, std::vector<double>> averages;  // of the weights behind the last step, by the file's names
};

inline Course train_twenty_steps(const std::string& name, std::unique_ptr<Backend> backend, double loss_scale = 1.0,
                                 const GoldenCase& of = {}) {
  Course course;
  const OptimizerConfig config = golden_optimizer(Expected(golden_folder(name) / of.file), of);
  const auto optimizer = make_optimizer(config);
  Golden golden(name, std::move(backend), optimizer.get(), of);
  ModelRunner& runner = golden.runner;
  const auto number = [&](const char* key) { return golden.expected.number(of.prefix + key); };
  const LrScheduleConfig schedule{.type = LrScheduleKind::cosine,
                                  .warmup = static_cast<std::int64_t>(number("warmup")),
                                  .min_ratio = number("min_ratio")};
  const auto losses = golden.expected.values<double>(of.prefix + "losses");
  const auto norms = golden.expected.values<double>(of.prefix + "grad_norms");
  const auto rates = golden.expected.values<double>(of.prefix + "learning_rates");
  REQUIRE(losses.size() == num_steps);
  // Micro-batches do not know how many of the batch's tokens are unmasked.
  const double micro_scale = loss_scale / static_cast<double>(batch_shape.rows());
  const std::int64_t slow_warmup = config.slow_warmup.value_or(0);
  int num_clipped = 0;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    CAPTURE(step);
    runner.store.zero_gradients(*runner.stream, step);
    double loss_sum = 0;
    for (std::int64_t first = 0; first < batch_shape.rows(); first += micro_shape.rows()) {
      const std::int64_t place = step * batch_shape.rows() + first;
      loss_sum += runner.train(micro_shape, golden.part(golden.ids, place, micro_shape.rows()),
                               golden.part(golden.targets, place, micro_shape.rows()), micro_scale);
    }
    const StepMeasurements measured{.sum_of_squares = gradient_share(*runner.backend, *runner.stream, runner.store),
                                    .loss_sum = loss_sum,
                                    .num_tokens = golden.num_tokens(step),
                                    .micro_scale = micro_scale};
    const double rate = learning_rate(schedule, config.learning_rate, step + 1, num_steps);
    const StepOutcome outcome = make_step_scalars(measured, {.learning_rate = rate,
                                                             .clip_norm = number("clip_norm"),
                                                             .beta1 = config.beta1,
                                                             .beta2 = config.beta2,
                                                             .slow = slow_mean_at(config, step + 1, slow_warmup),
                                                             .update = step + 1});
    if (of.ema) WeightAverage(*of.ema).begin(*runner.backend, *runner.stream, runner.store, step + 1);
    optimizer->step(*runner.backend, *runner.stream, runner.store, outcome.block);
    runner.stream->synchronize();
    const auto at = static_cast<std::size_t>(step);
    CHECK(rate == Near(rates[at]).epsilon(1e-14));
    course.losses.push_back(std::abs(outcome.loss - losses[at]) / losses[at]);
    course.grad_norms.push_back(std::abs(outcome.grad_norm - norms[at]) / norms[at]);
    num_clipped += outcome.grad_norm > number("clip_norm") ? 1 : 0;
  }
  if (of.ema)
    for (const HuggingFaceTensor& tensor : hugging_face_tensors(runner.table))
      course.averages[tensor.name] = in_file_layout(
          runner, tensor, [&](const std::string& parameter) { return runner.store.state(parameter, 2); });
  // The clipping took part, and was off at times.
  CHECK(num_clipped > 0);
  CHECK(num_clipped < num_steps);
  return course;
}

inline void check_training(const std::string& name, std::unique_ptr<Backend> backend, const Tolerances& tolerances,
                           const GoldenCase& of = {}) {
  const Course course = train_twenty_steps(name, std::move(backend), 1.0, of);
  for (std::size_t step = 0; step < num_steps; ++step) {
    CAPTURE(step);
    CHECK(course.losses[step] <= tolerances.training);
    CHECK(course.grad_norms[step] <= tolerances.training);
  }
}

// How far the losses of PyTorch's autocast are from float64, relative, as make_autocast.py measured it.
inline std::vector<double> autocast_losses(const std::string& name, const std::string& half) {
  const std::filesystem::path file = golden_folder(name) / "autocast.json";
  return nlohmann::json::parse(read_text_file(file, 1u << 16)).at(half).at("losses").get<std::vector<double>>();
}

// The distance of all gradients of the first batch, back-propagated with a loss scale, in units of their norm.
inline double gradient_error(Golden& golden, double loss_scale) {
  double error = 0;
  double all = 0;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(golden.runner.table)) {
    const auto expected = golden.expected.values<double>("gradient/" + tensor.name);
    auto difference = gradient_in_file_layout(golden.runner, tensor);
    REQUIRE(difference.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) difference[i] = difference[i] / loss_scale - expected[i];
    error = std::hypot(error, norm(difference));
    all = std::hypot(all, norm(expected));
  }
  return error / all;
}

struct Half {
  std::string name;
  DType type;
  double epsilon;  // half the distance between 1 and the next number
  double loss_scale;
};
inline const std::vector<Half> halves = {{"bf16", DType::bf16, std::ldexp(1.0, -8), 1},
                                         {"fp16", DType::f16, std::ldexp(1.0, -11), 65536}};

// Those whose losses in halves are held against PyTorch's autocast.
inline const std::vector<std::string> autocast_models = {"gpt2", "llama_untied", "llama_tied"};
inline const std::vector<std::string> golden_models = {"gpt2",  "llama_untied", "llama_tied", "llama3_scaled", "qwen2",
                                                       "qwen3", "gemma",        "gemma2",     "gemma3"};

using MakeBackend = std::function<std::unique_ptr<Backend>()>;

// How far the losses of twenty steps of all models are from float64, of a backend and of PyTorch's autocast.
struct ModelErrors {
  std::vector<double> ours;
  std::vector<double> theirs;
};
inline std::vector<ModelErrors> errors_of_losses(const Half& half, const std::vector<MakeBackend>& backends) {
  std::vector<ModelErrors> all;
  for (const MakeBackend& make_backend : backends) {
    ModelErrors& errors = all.emplace_back();
    for (const std::string& model : autocast_models) {
      const std::vector<double> of_autocast = autocast_losses(model, half.name);
      const std::vector<double> of_model = train_twenty_steps(model, make_backend(), half.loss_scale).losses;
      REQUIRE(of_autocast.size() == of_model.size());
      errors.ours.insert(errors.ours.end(), of_model.begin(), of_model.end());
      errors.theirs.insert(errors.theirs.end(), of_autocast.begin(), of_autocast.end());
    }
  }
  return all;
}
// All of them together are at most so many times those of autocast.
inline void check_losses_against_autocast(const Half& half, const std::vector<ModelErrors>& errors, double most) {
  double ours = 0;
  double theirs = 0;
  for (const ModelErrors& of_backend : errors) {
    ours = std::hypot(ours, norm(of_backend.ours));
    theirs = std::hypot(theirs, norm(of_backend.theirs));
  }
  CAPTURE(half.name);
  CAPTURE(errors.size());
  CAPTURE(ours);
  CAPTURE(theirs);
  CHECK(ours > 0);
  CHECK(ours <= most * theirs);
}
// What is left to chance where the order of sums is one of many, in standard errors of the comparison: one is, for the
// ratio of two root mean squares of n errors, 1 / sqrt(n).
inline double standard_errors(int number) {
  return 1.0 + number / std::sqrt(static_cast<double>(autocast_models.size() * num_steps));
}

// A gradient passes some 60 roundings, whose errors of at most epsilon each add up as a random walk; twice that for the
// worst.
inline void check_gradients_in_halves(const std::function<std::unique_ptr<Backend>(DType)>& make_backend) {
  for (const Half& half : halves) {
    for (const std::string& model : golden_models) {
      CAPTURE(half.name);
      CAPTURE(model);
      Golden golden(model, make_backend(half.type), {});
      golden.runner.train(batch_shape, golden.part(golden.ids, 0, batch_shape.rows()),
                          golden.part(golden.targets, 0, batch_shape.rows()),
                          half.loss_scale / static_cast<double>(golden.num_tokens(0)));
      const double error = gradient_error(golden, half.loss_scale);
      CHECK(error > 0);
      CHECK(error <= 16 * half.epsilon);
    }
  }
}

}  // namespace scaletrain
