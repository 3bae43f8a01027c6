// Traps of what a step reads, and of what is kept from one step to the next: masks changed in place, the rest of an
// epoch, plans of another layout.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/order/history.h"
#include "data/tokens/tokenizer.h"
#include "support/near.h"
#include "support/temp_folder.h"
#include "train/training_source.h"
#include "trap_runs.h"

using namespace scaletrain;

namespace {

// Remembers what it has written where, and counts the values that have changed by the time that the place is used
// again.
class WatchingSource final : public MicroBatchSource {
 public:
  explicit WatchingSource(MicroBatchSource& source) : source_(source) {}

  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
    for (const auto& values : {tensors.ids, tensors.targets}) compare(values.data());
    const Filled filled = source_.fill(micro_batch, tensors);
    for (const auto& values : {tensors.ids, tensors.targets})
      if (!values.empty()) written_[values.data()].assign(values.begin(), values.end());
    return filled;
  }
  void compare_all() {
    std::vector<const std::int32_t*> places;
    for (const auto& entry : written_) places.push_back(entry.first);
    for (const std::int32_t* place : places) compare(place);
  }
  std::int64_t compared() const { return compared_; }
  std::int64_t changed() const { return changed_; }

 private:
  void compare(const std::int32_t* place) {
    const auto entry = written_.find(place);
    if (entry == written_.end()) return;
    for (std::size_t i = 0; i < entry->second.size(); ++i) changed_ += entry->second[i] != place[i];
    compared_ += static_cast<std::int64_t>(entry->second.size());
    written_.erase(entry);
  }

  MicroBatchSource& source_;
  std::map<const std::int32_t*, std::vector<std::int32_t>> written_;
  std::int64_t compared_ = 0;
  std::int64_t changed_ = 0;
};

StepSettings standing_still() {
  return {.learning_rate = 0.0, .clip_norm = 1.0, .beta1 = 0.9, .beta2 = 0.95, .update = 1};
}

struct MaskAnswer {
  std::int64_t compared = 0;
  std::int64_t changed = 0;
  double first_loss = 0.0;
  double again = 0.0;
};

// The windows that a run reads, of all replicas in the order of the micro-batches, and the targets that count.
struct Consumed {
  std::vector<std::vector<std::int32_t>> windows;
  std::int64_t target_tokens = 0;
};

void read_step(const TrainingData& data, const std::vector<std::int64_t>& batch, std::int64_t replicas,
               std::int64_t micro_batch, Consumed& consumed) {
  const auto context = static_cast<std::size_t>(data.context());
  const auto rows = static_cast<std::size_t>(micro_batch) * context;
  const std::int64_t share = (static_cast<std::int64_t>(batch.size()) + replicas - 1) / replicas;
  for (std::int64_t replica = 0; replica < replicas; ++replica) {
    TrainingSource source(data, replicas, replica, micro_batch);
    source.set_batch(batch);
    for (std::int64_t m = 0; m < (share + micro_batch - 1) / micro_batch; ++m) {
      std::vector<std::int32_t> ids(rows), targets(rows), positions(rows);
      const auto filled = source.fill(MicroBatch(m), {.ids = ids, .targets = targets, .positions = positions});
      consumed.target_tokens += filled.target_tokens;
      const auto samples = micro_batch_samples(batch, replicas, replica, micro_batch, m);
      for (std::size_t i = 0; i < samples.size(); ++i) {
        const auto first = ids.begin() + static_cast<std::ptrdiff_t>(i * context);
        consumed.windows.emplace_back(first, first + static_cast<std::ptrdiff_t>(context));
      }
    }
  }
}

}  // namespace

TEST_CASE("trap_masks_and_ids_of_a_micro_batch_are_not_changed_in_place_by_training_or_evaluation") {
  for (const TrapLayout& layout : trap_layouts()) {
    CAPTURE(layout.name);
    const Config config = layout.on(trap_config(), layout.data > 1 ? 2 : 0);
    const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
    const auto answers = on_ranks<MaskAnswer>(config, plan, [&](RankTrainer& trainer, Rank, InProcessWorld&) {
      WatchingSource source(trainer.source());
      MaskAnswer answer;
      trainer.source().set_step(0);
      answer.first_loss = trainer.runner().step(source, standing_still()).outcome.loss;
      source.compare_all();
      trainer.runner().evaluate(source, plan.num_micro_batches);
      source.compare_all();
      answer.again = trainer.runner().step(source, standing_still()).outcome.loss;
      source.compare_all();
      answer.compared = source.compared();
      answer.changed = source.changed();
      return answer;
    });
    std::int64_t compared = 0;
    for (const MaskAnswer& answer : answers) {
      CHECK(answer.changed == 0);
      CHECK(answer.again == answer.first_loss);  // the same samples with the same masks, and no update between
      compared += answer.compared;
    }
    // Both ends of the model read every token of every pass: ids here, targets there.
    const std::int64_t tokens = config.train.global_batch * config.model.context * config.parallel.tensor;
    CHECK(compared == 3 * 2 * tokens);
  }
}

// 36 tokens are 35 targets, or 9 windows of 4 with one target masked: batches of four cut no epoch at its end.
TEST_CASE("trap_the_last_partial_accumulation_of_an_epoch_is_filled_from_the_next_and_no_window_is_lost_or_repeated") {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 35; ++i) text.push_back(static_cast<char>('A' + i));
  DataConfig config;
  config.cache = (folder.path() / "cache").string();
  SourceConfig of_text;
  of_text.path = folder.write("a.txt", text).string();
  config.train = {of_text};
  const ByteTokenizer tokenizer;
  const auto data = open_training_data(config, tokenizer, {.vocab = 257, .context = 4, .seed = 3, .report = {}});
  constexpr std::size_t per_epoch = 9;
  constexpr std::int64_t batch_size = 4;
  constexpr std::int64_t epochs = batch_size;  // as many as make whole batches
  for (const std::int64_t replicas : {1, 2, 3}) {
    for (const std::int64_t micro_batch : {1, 2, 3}) {
      CAPTURE(replicas);
      CAPTURE(micro_batch);
      ConsumptionHistory history;
      history.continue_with(data->description(), 4, batch_size);
      Consumed consumed;
      for (std::size_t step = 0; step < per_epoch; ++step) {
        read_step(*data, history.batch(), replicas, micro_batch, consumed);
        history.consume_batch(4 * batch_size);
        // As a start after each step would go on: the epoch's end is also met in the first step after a resume.
        history = ConsumptionHistory::from_json(history.to_json(), "history");
        CHECK(history.continue_with(data->description(), 4, batch_size));
        CHECK(consumed.windows.size() == (step + 1) * static_cast<std::size_t>(batch_size));
      }
      CHECK(consumed.target_tokens == epochs * 35);
      for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
        const auto first = consumed.windows.begin() + epoch * static_cast<std::ptrdiff_t>(per_epoch);
        std::vector<std::vector<std::int32_t>> own(first, first + static_cast<std::ptrdiff_t>(per_epoch));
        std::sort(own.begin(), own.end());
        CHECK(std::adjacent_find(own.begin(), own.end()) == own.end());
      }
    }
  }
}

// A trainer keeps the plan of every length of evaluation that it has met, and one process may plan many layouts.
TEST_CASE("trap_no_plan_that_was_made_for_another_layout_or_another_length_is_used_again") {
  const std::vector<std::int64_t> sizes = {5, 40, 12, 5, 40};
  std::map<std::string, LayoutOutcome> first;
  std::map<std::int64_t, StepRunner::EvaluationSums> sums;
  for (int pass = 0; pass < 2; ++pass) {
    for (const TrapLayout& layout : trap_layouts()) {
      CAPTURE(layout.name);
      LayoutRun run{.config = layout.on(trap_config(), layout.data > 1 ? 3 : 0)};
      run.steps = 2;
      const LayoutOutcome outcome = run_layout(run);
      CHECK(outcome.problem == "");
      const auto [known, is_new] = first.try_emplace(layout.name, outcome);
      CHECK(known->second.losses == outcome.losses);
      if (!is_new) continue;
      const auto answers = on_ranks<std::vector<StepRunner::EvaluationSums>>(
          run.config, outcome.plan, [&](RankTrainer& trainer, Rank, InProcessWorld&) {
            std::vector<StepRunner::EvaluationSums> own;
            own.reserve(sizes.size());
            for (const std::int64_t size : sizes) own.push_back(trainer.evaluate(size));
            return own;
          });
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const StepRunner::EvaluationSums& own = answers.front()[i];
        const StepRunner::EvaluationSums& expected = sums.try_emplace(sizes[i], own).first->second;
        CHECK(own.target_tokens == expected.target_tokens);
        CHECK(own.loss_sum == Near(expected.loss_sum).epsilon(1e-12));
      }
    }
  }
  CHECK(sums.at(5).target_tokens < sums.at(12).target_tokens);
  CHECK(sums.at(12).target_tokens < sums.at(40).target_tokens);
}
