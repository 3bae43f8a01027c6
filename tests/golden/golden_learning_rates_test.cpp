// Learning-rate schedules, held against those of transformers and PyTorch (make_learning_rates.py).
#include <doctest/doctest.h>

#include <string>

#include "golden_models.h"
#include "golden_schedules.h"

namespace scaletrain {

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
