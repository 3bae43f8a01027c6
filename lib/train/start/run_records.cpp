#include "train/start/run_records.h"

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "telemetry/loss_text.h"
#include "telemetry/metrics_reader.h"
#include "telemetry/run_summary.h"

namespace scaletrain {

namespace {

std::string outcome_text(TrainOutcome outcome) {
  switch (outcome) {
    case TrainOutcome::finished:
      return "finished";
    case TrainOutcome::stopped_early:
      return "stopped early";
    case TrainOutcome::interrupted:
      return "interrupted";
  }
  return "";
}

}  // namespace

LayoutRecord layout_of(const WorkerParts& parts) {
  const PhasePlan& phase = parts.phase;
  return {.world = phase.mesh.world(),
          .data = phase.mesh.degree(Axis::data),
          .tensor = phase.mesh.degree(Axis::tensor),
          .pipeline = phase.mesh.degree(Axis::pipeline),
          .sequence = phase.sequence,
          .schedule = std::string(to_text(phase.schedule_kind)),
          .chunks = phase.chunks,
          .zero = parts.config.parallel.zero,
          .zero_group = phase.mesh.is_hierarchical() ? phase.mesh.shards() : 0,
          .micro_batch = phase.micro_batch.samples,
          .micro_batches = phase.num_micro_batches,
          .threads = parts.backend->num_threads()};
}

DeviceRecord device_of(const WorkerParts& parts, double peak_flops) {
  const auto device = parts.backend->device();
  return {.name = device ? device->name : std::string(to_text(DeviceKind::cpu)),
          .compute = std::string(to_text(parts.config.compute_precision())),
          .peak_flops = peak_flops > 0.0 ? std::optional(peak_flops) : std::nullopt,
          .gpus = parts.num_gpus};
}

bool has_begun(const std::filesystem::path& metrics) {
  constexpr std::string_view end_line = R"({"kind":"end")";
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);)
    if (!line.starts_with(end_line)) return true;
  return false;
}

void write_opening(MetricsWriter& metrics, const WorkerParts& parts, const WorkerOptions& options,
                   const Beginning& begin, const DeviceRecord& device, bool restarted,
                   std::vector<SourceRecord> sources) {
  const LayoutRecord layout = layout_of(parts);
  if (restarted) {
    RestartRecord record;
    record.step = begin.state.step;
    record.generation = begin.state.generation;
    record.checkpoint = options.start.checkpoint ? options.start.checkpoint->string() : "";
    record.fingerprint_changed = begin.fingerprint_changed;
    record.cause = options.start.cause.empty() ? std::string(started_again) : options.start.cause;
    record.wall_time = wall_clock_text();
    record.device = device;
    record.layout = layout;
    record.sources = std::move(sources);
    metrics.write(record);
    return;
  }
  StartRecord record;
  record.world = parts.phase.mesh.world();
  record.parameters = parts.phase.table.num_parameters();
  record.seed = parts.config.run.seed;
  record.version = options.version;
  record.wall_time = wall_clock_text();
  record.device = device;
  record.layout = layout;
  record.sources = std::move(sources);
  metrics.write(record);
}

void continue_summary(WorkerParts& parts, const WorkerOptions& options, std::optional<std::int64_t> restarted_at) {
  if (!restarted_at) return;
  RunSummary summary;
  try {
    summary = summarize_metrics(options.paths.metrics());
  } catch (const InputError& error) {
    parts.log.warn(fmt::format("what the run came to before is not known: {}", error.what()));
  }
  summary.add_restart(*restarted_at, options.start.cause);
  parts.progress.begin(std::move(summary));
}

void write_end(MetricsWriter& metrics, const WorkerParts& parts, TrainOutcome outcome, std::int64_t step) {
  EndRecord end;
  end.step = step;
  end.reason = outcome_text(outcome);
  end.wall_time = wall_clock_text();
  parts.progress.summary().fill(end);
  metrics.write(end);
}

namespace {

// "4 of 5 steps were skipped and changed no weight (`skip` lines of metrics.jsonl); the last 4 among them: the weights
// are those of step 1".
std::string skips_text(const std::vector<std::int64_t>& skipped, std::int64_t step) {
  std::string text = fmt::format("{} of {} steps {} skipped and changed no weight (`skip` lines of metrics.jsonl)",
                                 skipped.size(), step, skipped.size() == 1 ? "was" : "were");
  std::int64_t kept = step;
  for (auto last = skipped.rbegin(); last != skipped.rend() && *last == kept; ++last) --kept;
  if (kept == step) return text;
  return text + fmt::format("; the last {} among them: the weights are those of step {}", step - kept, kept);
}

}  // namespace

void tell_outcome(WorkerParts& parts, TrainOutcome outcome, std::int64_t step) {
  const RunSummary summary = parts.progress.summary();
  std::string text = fmt::format("{} at step {}", outcome_text(outcome), step);
  if (const auto lowest = summary.lowest_loss())
    text += fmt::format("; loss {}, the lowest {} at step {}", loss_text(summary.loss()), loss_text(lowest->loss),
                        lowest->step);
  parts.log.info(text);
  for (const RunSummary::ValidationLoss& set : summary.validation())
    parts.log.info(fmt::format("validation/{}/loss {}, the lowest {} at step {}", set.dataset, loss_text(set.last.loss),
                               loss_text(set.lowest.loss), set.lowest.step));
  for (const RunSummary::TaskAccuracy& task : summary.tasks())
    parts.log.info(fmt::format("task/{}/accuracy {:.4f}, the highest {:.4f} at step {}", task.task, task.last.accuracy,
                               task.highest.accuracy, task.highest.step));
  parts.log.info(fmt::format("{} tokens in {} of training, {}",
                             grouped_digits(static_cast<std::uint64_t>(summary.tokens())),
                             duration_text(summary.elapsed_seconds()), summary.starts_text()));
  if (!summary.skipped().empty()) parts.log.warn(skips_text(summary.skipped(), step));
}

}  // namespace scaletrain
