// Learning-rate schedules, held against those of transformers and PyTorch (make_learning_rates.py).
#include <doctest/doctest.h>

#include <string>

#include "config/keys/keys.h"
#include "golden_models.h"

namespace scaletrain {

namespace {

template <class Enum>
Enum named(std::initializer_list<Enum> all, const std::string& name) {
  for (const Enum value : all)
    if (to_text(value) == name) return value;
  FAIL("no such name: " << name);
  return *all.begin();
}

LrScheduleConfig schedule_of(const nlohmann::json& of) {
  LrScheduleConfig config;
  config.type = named({LrScheduleKind::cosine, LrScheduleKind::linear, LrScheduleKind::constant,
                       LrScheduleKind::inverse_sqrt, LrScheduleKind::wsd, LrScheduleKind::cosine_restarts},
                      of.at("type").get<std::string>());
  config.warmup = of.at("warmup").get<std::int64_t>();
  config.min_ratio = of.at("min_ratio").get<double>();
  if (of.contains("decay_steps")) config.decay_steps = of.at("decay_steps").get<std::int64_t>();
  config.decay_share = of.value("decay_share", config.decay_share);
  if (of.contains("decay_shape"))
    config.decay_shape = named({DecayShape::linear, DecayShape::cosine, DecayShape::one_minus_sqrt},
                               of.at("decay_shape").get<std::string>());
  config.restart_steps = of.value("restart_steps", config.restart_steps);
  config.restart_factor = of.value("restart_factor", config.restart_factor);
  return config;
}

}  // namespace

TEST_CASE("golden_learning_rates_agree_with_the_schedulers_of_transformers_and_pytorch") {
  const auto cases = nlohmann::json::parse(read_text_file(golden_folder("learning_rates.json"), 1u << 20));
  REQUIRE(cases.size() >= 40);
  for (const nlohmann::json& of : cases) {
    const auto rates = of.at("rates").get<std::vector<double>>();
    const LrScheduleConfig schedule = schedule_of(of);
    for (std::size_t i = 0; i < rates.size(); ++i) {
      CAPTURE(of.dump());
      CAPTURE(i + 1);
      const double rate = learning_rate(schedule, 0.75, static_cast<std::int64_t>(i) + 1, std::ssize(rates));
      CHECK(std::abs(rate - rates[i]) <= 1e-14);
    }
  }
}

}  // namespace scaletrain
