#include "train/start/stop_verdict.h"

#include <fmt/format.h>

#include "base/error.h"
#include "data/dataset.h"
#include "train/evaluation.h"

namespace scaletrain {

namespace {

// As a worker opens it, except that nothing is read that has not changed.
MeasuredOn measured_now(const Config& config, const ValidationConfig& set) {
  const auto tokenizer = make_tokenizer(config.data.tokenizer, config.model.vocab);
  DataConfig data = config.data;
  data.verify = DataCheck::changed;
  const DataOptions options{
      .vocab = tokenizer->vocab_size(), .context = config.model.context, .seed = config.run.seed, .report = {}};
  const std::string key = validation_key(config.data, static_cast<std::size_t>(&set - config.data.validation.data()));
  return measured_on(*open_validation_set(set, data, *tokenizer, options, key), config);
}

MeasuredOn measured_now(const Config& config, const TaskConfig& task) {
  const auto tokenizer = make_tokenizer(config.data.tokenizer, config.model.vocab);
  const std::string key = fmt::format("evaluate.tasks.{}", &task - config.evaluate.tasks.data());
  return measured_on(ChoiceTask(task.name, task.path, *tokenizer, config.model.context, key), config);
}

}  // namespace

std::optional<std::string> stop_verdict(const EarlyStopState& state, const Config& before, const Config& now) {
  const EarlyStopState next = continue_early_stop(state, before, now);
  const ValidationConfig* const set = watched_set(now);
  const TaskConfig* const task = watched_task(now);
  if (!next.stopped) return std::nullopt;
  // Not of a checkpoint of an older program, which does not say what it was measured on.
  if ((set == nullptr && task == nullptr) || !next.measured_on) return next.stopped;
  try {
    const MeasuredOn measured = set != nullptr ? measured_now(now, *set) : measured_now(now, *task);
    if (measured != *next.measured_on) return std::nullopt;
  } catch (const InputError& error) {
    return fmt::format("{}; over the set as it was then, which cannot be opened now: {}", *next.stopped, error.what());
  }
  return next.stopped;
}

}  // namespace scaletrain
