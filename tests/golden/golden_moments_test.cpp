// AdamW with moments in 8 bits, held against twenty steps that numpy computed by the paper (make_moments.py): through
// the table's blocks, the layout, the store and the optimizer, as a run has them.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "backend/moment_codes.h"
#include "golden_models.h"
#include "support/models/model_store.h"

namespace scaletrain {

namespace {

struct MomentsGolden {
  explicit MomentsGolden(const nlohmann::json& of, std::unique_ptr<Backend> backend)
      : file(of), optimizer(make_optimizer(config_of(of))), store(table_of(of), std::move(backend), states()) {
    for (const auto& [name, tensor] : file.at("tensors").items())
      for (std::int64_t i = 0; i < count_of(name); ++i)
        set(store.store.master("u." + name), i, std::cos(0.37 * static_cast<double>(i)));
    store.store.values_changed(*store.stream);
  }

  static OptimizerConfig config_of(const nlohmann::json& of) {
    const nlohmann::json& settings = of.at("settings");
    OptimizerConfig config;
    config.learning_rate = settings.at("learning_rate").get<double>();
    config.beta1 = settings.at("beta1").get<double>();
    config.beta2 = settings.at("beta2").get<double>();
    config.epsilon = settings.at("epsilon").get<double>();
    config.weight_decay = settings.at("weight_decay").get<double>();
    return config;
  }
  static ParamTable table_of(const nlohmann::json& of) {
    ParamTable table;
    table.begin_unit("u");
    for (const auto& [name, tensor] : of.at("tensors").items()) {
      Parameter parameter;
      parameter.name = "u." + name;
      for (const std::int64_t extent : tensor.at("shape").get<std::vector<std::int64_t>>())
        parameter.shape.append(extent);
      parameter.decays = parameter.shape.num_dims() == 2;
      table.add(parameter);
    }
    table.hold_states_in_blocks();
    return table;
  }
  ParamStore::Options states() const {
    return {.state_names = {optimizer->state_names().begin(), optimizer->state_names().end()}};
  }
  std::int64_t count_of(const std::string& name) const { return std::ssize(file.at("tensors").at(name).at("values")); }
  static void set(const View& view, std::int64_t at, double value) {
    convert_floats(DType::f64, &value, view.dtype(),
                   view.bytes() + at * static_cast<std::int64_t>(size_of(view.dtype())), 1);
  }
  double master(const std::string& name, std::int64_t at) const {
    const View view = store.store.master("u." + name);
    double value = 0;
    convert_floats(view.dtype(), view.bytes() + at * static_cast<std::int64_t>(size_of(view.dtype())), DType::f64,
                   &value, 1);
    return value;
  }

  void train() {
    const auto steps = file.at("steps").get<std::int64_t>();
    for (std::int64_t step = 1; step <= steps; ++step) {
      store.store.zero_gradients(*store.stream, step);
      for (const auto& [name, tensor] : file.at("tensors").items())
        for (std::int64_t i = 0; i < count_of(name); ++i)
          set(store.store.gradient("u." + name), i, gradient(i, step, master(name, i)));
      StepScalars scalars{.learning_rate = config_of(file).learning_rate, .gradient_scale = 1.0};
      set_bias_corrections(scalars, config_of(file).beta1, config_of(file).beta2, step);
      optimizer->step(*store.backend, *store.stream, store.store, scalars);
      store.stream->synchronize();
    }
  }
  // Over seven powers of ten within each block, and zero at times where it was not before.
  static double gradient(std::int64_t i, std::int64_t step, double value) {
    if (i % 5 == 0 && step % 3 != 1) return 0;
    const auto at = static_cast<double>(i);
    return (value - std::sin(0.11 * at)) * std::pow(10.0, -static_cast<double>(i % 7)) +
           1e-3 * std::sin(0.7 * at + 1.3 * static_cast<double>(step));
  }

  // Elements whose code is another than the file's, and the furthest of them.
  struct CodeDifference {
    std::int64_t others = 0, all = 0, furthest = 0;
  };
  CodeDifference codes_differ() const {
    CodeDifference difference;
    for (const auto& [name, tensor] : file.at("tensors").items()) {
      const bool is_in_blocks = tensor.at("block").get<std::int64_t>() > 0;
      for (std::size_t state = 0; state < 2; ++state) {
        const View view = store.store.state("u." + name, state);
        CHECK((view.dtype() == DType::u8) == is_in_blocks);
        const auto codes = tensor.at(state == 0 ? "first_codes" : "second_codes").get<std::vector<std::int64_t>>();
        for (std::size_t i = 0; i < codes.size(); ++i) {
          const std::int64_t apart = std::abs(codes[i] - std::int64_t{view.as<std::uint8_t>()[i]});
          ++difference.all;
          difference.others += apart > 0 ? 1 : 0;
          difference.furthest = std::max(difference.furthest, apart);
        }
      }
    }
    return difference;
  }
  struct ValueDifference {
    double most = 0, mean = 0;
  };
  ValueDifference values_differ() const {
    ValueDifference difference;
    double count = 0;
    for (const auto& [name, tensor] : file.at("tensors").items()) {
      const auto values = tensor.at("values").get<std::vector<double>>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double apart = std::abs(values[i] - master(name, static_cast<std::int64_t>(i)));
        difference.most = std::max(difference.most, apart);
        difference.mean += apart;
        ++count;
      }
    }
    difference.mean /= count;
    return difference;
  }

  nlohmann::json file;
  std::unique_ptr<Optimizer> optimizer;
  ModelStore store;
};

}  // namespace

TEST_CASE("golden_numbers_of_eight_bits_are_those_of_dynamic_tree_quantisation") {
  const auto file = nlohmann::json::parse(read_text_file(golden_folder("moments.json"), 1u << 20));
  const auto check = [&](const char* name, const MomentCodes& codes) {
    const auto numbers = file.at(name).get<std::vector<double>>();
    REQUIRE(numbers.size() == codes.values.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) CHECK(static_cast<double>(codes.values[i]) == numbers[i]);
  };
  check("first", first_moment_codes());
  check("second", second_moment_codes());
}

// A float is now and then on the other side of what is between two codes, and that element of the moments is another by
// a step of about one in a hundred: the values follow from it by a hundredth of the learning rate.
TEST_CASE("golden_twenty_steps_with_moments_in_eight_bits_agree_with_the_paper") {
  const auto file = nlohmann::json::parse(read_text_file(golden_folder("moments.json"), 1u << 20));
  MomentsGolden exact(file, make_reference_backend(DType::f64));
  exact.train();
  CHECK(exact.values_differ().most <= 1e-13);
  const auto codes = exact.codes_differ();
  CHECK(codes.others == 0);
  CHECK(codes.all == 2 * (6 * 128 + 5 * 48 + 2 * 256));
  for (const bool is_reference : {true, false}) {
    CAPTURE(is_reference);
    MomentsGolden rounded(file, is_reference ? make_reference_backend(DType::f32)
                                             : make_cpu_backend({.threads = 2, .compute = DType::f32}));
    rounded.train();
    const auto differing = rounded.codes_differ();
    CHECK(differing.others <= differing.all / 200);
    CHECK(differing.furthest <= 1);
    const auto values = rounded.values_differ();
    CHECK(values.most <= 1e-4);
    CHECK(values.mean <= 1e-6);
  }
}

}  // namespace scaletrain
