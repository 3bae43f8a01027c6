#include "infer/measure_task.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "infer/evaluate.h"
#include "infer_helpers.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

std::filesystem::path golden_choices() {
  return std::filesystem::path(SCALETRAIN_GOLDEN_FOLDER) / "choices";
}

}  // namespace

TEST_CASE("log-likelihoods of choices and the accuracies are those of a float64 script") {
  const nlohmann::json expected = read_json_file(golden_choices() / "expected.json");
  const auto log_likelihoods = expected.at("log_likelihoods").get<std::vector<double>>();
  for (const bool on_cpu : {false, true}) {
    CAPTURE(on_cpu);
    Device device(on_cpu ? make_cpu_backend({.threads = 2, .instruction_set = "auto"})
                         : make_reference_backend(DType::f64));
    LoadedModel model({ModelSource::hugging_face, golden_choices()}, *device.backend, *device.stream,
                      TokenizerKind::bytes);
    const ChoiceTask task("golden", golden_choices() / "questions.jsonl", model.tokenizer(), 24, "--task");
    CHECK(task.num_questions() == 8);
    CHECK(task.num_cut() == 2);
    REQUIRE(task.num_rows() == std::ssize(log_likelihoods));
    for (const std::int64_t micro_batch : {1, 3, 64}) {
      CAPTURE(micro_batch);
      const std::vector<double> found = measure_rows(model, task, micro_batch, {});
      for (std::size_t i = 0; i < found.size(); ++i) {
        CAPTURE(i);
        CHECK(found[i] == Near(log_likelihoods[i]).epsilon(on_cpu ? 1e-5 : 1e-9));
      }
      const TaskScore score = task.score(found);
      CHECK(score.questions == 8);
      CHECK(score.accuracy == expected.at("accuracy"));
      CHECK(score.normalized_accuracy == expected.at("normalized_accuracy"));
      CHECK(*score.accuracy_error == Near(expected.at("accuracy_error").get<double>()).epsilon(1e-12));
      CHECK(*score.normalized_accuracy_error ==
            Near(expected.at("normalized_accuracy_error").get<double>()).epsilon(1e-12));
    }
  }
}
