// The beginning of what `scaletrain check` prints: does it fit, what would make it fit, how long does it take.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/numbers/magnitude.h"
#include "base/text.h"
#include "config/keys/keys.h"
#include "plan/describe/plan_facts.h"

namespace scaletrain {

namespace {

constexpr std::size_t line_width = 80;
constexpr std::size_t key_width = 14;
constexpr char no_break = '\x1f';  // a blank that no line ends at
constexpr std::size_t max_settings = 6;
constexpr std::size_t max_sources = 4;

std::string who_needs(const PlanFacts& facts, const Verdict& verdict) {
  const std::int64_t world = facts.phase.mesh.world();
  if (verdict.budget.kind == MemoryBudget::Kind::device) {
    if (world == 1) return "the rank needs";
    return facts.stages.size() == 1 ? "each rank needs"
                                    : fmt::format("each rank of stage {} needs", verdict.needs.stage);
  }
  if (world == 1) return "the rank needs";
  if (verdict.ranks_per_host >= world) return fmt::format("the {} ranks need", world);
  return fmt::format("a host of {} needs", counted(verdict.ranks_per_host, "rank"));
}

std::string verdict_value(const PlanFacts& facts, const Verdict& verdict) {
  const std::uint64_t has = verdict.budget.memory;
  std::string text = fmt::format("{} {}, {} has {}: ", who_needs(facts, verdict), bytes_text(verdict.bytes),
                                 verdict.budget.name, bytes_text(has));
  text += verdict.fits ? fmt::format("{} to spare", bytes_text(has - verdict.bytes))
                       : fmt::format("{} too much", bytes_text(verdict.bytes - has));
  if (verdict.budget.kind == MemoryBudget::Kind::device && verdict.needs.rank_host > 0)
    text += fmt::format("; and {} of host memory", bytes_text(verdict.needs.rank_host));
  return text;
}

// further: what stands before each but the first.
std::string settings_text(std::string_view key, std::string_view further, const std::vector<NearSetting>& settings) {
  std::string text;
  for (std::size_t i = 0; i < std::min(settings.size(), max_settings); ++i) {
    const NearSetting& setting = settings[i];
    const std::string beside =
        setting.of_host > 0 ? fmt::format("; {} of host memory", bytes_text(setting.of_host)) : "";
    text += fmt::format("{:<{}}{:<29} {:>8}{}{}\n", i == 0 ? key : further, key_width, setting.text,
                        bytes_text(setting.bytes), beside, setting.is_supported ? "" : "  (not supported yet)");
  }
  return text;
}

std::string verdict_text(const PlanFacts& facts) {
  if (!facts.verdict) return {};
  const Verdict& verdict = *facts.verdict;
  std::string text = keyed_lines(verdict.fits ? "fits" : "DOES NOT FIT", verdict_value(facts, verdict));
  if (verdict.fits) return text;
  if (!verdict.fitting.empty()) return text + settings_text("fits with", "       or", verdict.fitting);
  if (verdict.together.empty()) return text + keyed_lines("nearest", "no setting of one key makes it smaller");
  return text + settings_text(verdict.fits_together ? "fits with" : "nearest", "      and", verdict.together);
}

// Three digits, as far as they say something.
std::string epochs_text(double epochs) {
  return epochs < 0.095  ? fmt::format("{:.1g}", epochs)
         : epochs < 99.5 ? fmt::format("{:.3g}", epochs)
                         : fmt::format("{:.0f}", epochs);
}

std::string whole_digits(double count) {
  return grouped_digits(static_cast<std::uint64_t>(count + 0.5));
}

std::string short_duration(double seconds) {
  return seconds < 0.9995 ? fmt::format("{:.3g} ms", 1000 * seconds) : duration_text(seconds);
}

// "1 step", "1.20M tokens".
std::string short_count_text(double count, std::string_view thing) {
  return fmt::format("{} {}{}", short_count(count), thing, count == 1 ? "" : "s");
}

std::string hours_text(double hours) {
  constexpr double least = 0.001;  // less costs nobody anything
  return hours < least ? fmt::format("under {:g}", least) : short_count(hours);
}

// "227 GFLOP/s".
std::string rate_text(double flops) {
  constexpr std::array<const char*, 6> prefixes = {"", "K", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  for (; flops >= 999.5 && prefix + 1 < prefixes.size(); flops /= 1000) ++prefix;
  return fmt::format("{:.3g} {}FLOP/s", flops, prefixes[prefix]);
}

// " from step 100 on"; nothing where the run begins.
std::string from_step(const RunWork& work) {
  return work.first_step > 0 ? fmt::format(" from step {} on", whole_digits(work.first_step)) : "";
}

std::string data_value(const RunWork& work) {
  std::string text;
  for (std::size_t i = 0; i < std::min(work.epochs.size(), max_sources); ++i) {
    const RunWork::Epochs& source = work.epochs[i];
    const std::string epochs = epochs_text(source.epochs);
    text +=
        fmt::format("{}about {} epoch{} of {} ({} tokens, {})", i == 0 ? "" : "; ", epochs, epochs == "1" ? "" : "s",
                    source.path, short_count(static_cast<double>(source.size.tokens)), source.size.basis);
  }
  if (const std::string from = from_step(work); !text.empty() && !from.empty()) text = from.substr(1) + " " + text;
  if (work.epochs.size() > max_sources) text += fmt::format("; {} more sources", work.epochs.size() - max_sources);
  for (std::size_t i = 0; i < std::min(work.uncounted_caps.size(), max_sources); ++i)
    text += fmt::format("{}the size of {} is not known, nor what its epoch cap leaves", text.empty() ? "" : "; ",
                        work.uncounted_caps[i]);
  return text;
}

// What fits and ends for want of data is not told as if all were well.
std::string shortage_verdict(const RunWork& work) {
  if (!work.allowed_samples) return {};
  return keyed_lines(is_clearly_short(work) ? "DOES NOT RUN" : "MAY NOT RUN",
                     fmt::format("the epoch caps of data.train leave about {} of the {} samples that it takes{}",
                                 short_count(*work.allowed_samples), short_count(work.samples_left), from_step(work)));
}

// Whether the length of the run is, if only about.
bool is_known(const PlanFacts& facts) {
  return facts.options.step_count != StepCount::unknown;
}

// Of the transfers of an update; empty where there are none.
std::string update_text(const PlanFacts& facts, const RunTime& time) {
  if (!facts.phase.offload) return {};
  const std::string what =
      fmt::format("of {} to the device and back (train.optimizer.offload)", bytes_text(time.update.each_way));
  if (time.update_seconds <= 0)
    return fmt::format("; without the way {}: the rate of its link to the host is not known", what);
  return fmt::format("; {} of each step are the way {}, at {:.3g} GB/s (assumed) each way",
                     short_duration(time.update_seconds), what, facts.options.budget->host_link / 1e9);
}

std::string time_value(const PlanFacts& facts, const RunTime& time) {
  const MemoryBudget& budget = *facts.options.budget;
  const bool is_device = budget.kind == MemoryBudget::Kind::device;
  std::string of = fmt::format("{} ({}{}{})", budget.name, rate_text(budget.peak_flops),
                               time.devices > 1 ? " each" : "", is_device ? "" : ", measured now");
  if (time.devices > 1) of = fmt::format("{} x {}", time.devices, of);
  std::string text =
      fmt::format("{} a step, {} tokens/s", short_duration(time.step_seconds), short_count(time.tokens_per_second));
  if (is_known(facts)) text += fmt::format(", {} in all", short_duration(time.seconds));
  if (is_known(facts) && (is_device || time.devices > 1))
    text += fmt::format(", {} {}-hours", hours_text(time.seconds / 3600 * static_cast<double>(time.devices)),
                        is_device ? "device" : "host");
  text += fmt::format("; at {:.0f} % (assumed) of the peak of {}", 100 * assumed_share_of_peak, of);
  if (time.bubble > 0)
    text += fmt::format(" while a stage computes, which it does for {:.1f} %", 100 * (1 - time.bubble));
  if (time.recomputed > 0) text += fmt::format("; {:.0f} % are computed again", 100 * time.recomputed);
  if (time.product_seconds > 0)
    text += fmt::format("; {} of each step are the update's products (train.optimizer.type {})",
                        short_duration(time.product_seconds), to_text(facts.phase.optimizer.type));
  return text + update_text(facts, time);
}

}  // namespace

std::string keyed_lines(std::string_view key, const std::string& value) {
  std::string text;
  std::string line = fmt::format("{:<{}}", key, key_width);
  std::size_t used = 0;  // of the line's words
  for (const std::string& word : split_text(value, ' ')) {
    if (used > 0 && line.size() + 1 + word.size() > line_width) {
      text += line + "\n";
      line.assign(key_width, ' ');
      used = 0;
    }
    line += (used++ > 0 ? " " : "") + word;
  }
  std::replace(text.begin(), text.end(), no_break, ' ');
  std::replace(line.begin(), line.end(), no_break, ' ');
  return text + line + "\n";
}

std::string unbroken(std::string text) {
  std::replace(text.begin(), text.end(), ' ', no_break);
  return text;
}

std::string misfit_text(const PlanFacts& facts) {
  if (!facts.verdict || facts.verdict->fits) return {};
  const bool is_shared = facts.verdict->budget.is_shared;
  return "does not fit: " + verdict_value(facts, *facts.verdict) +
         (is_shared ? "; one rank on each GPU would have all of its memory" : "");
}

bool is_clearly_short(const RunWork& work) {
  constexpr double far = 2.0;  // token files may be wider or narrower than their vocabulary needs
  // What was read is known by content, and here by path only: a file may have been replaced.
  return work.allowed_samples && work.samples_left > far * work.most_allowed;
}

std::string shortage_text(const PlanFacts& facts) {
  const RunWork& work = facts.work_of_run;
  if (!work.allowed_samples) return {};
  const bool is_one = work.steps_left == 1;
  return fmt::format(
      "data.train.0.epochs: the run's {}{}{} need{} {} samples, and the epoch caps of data.train leave about {}; raise "
      "data.train[].epochs, reduce {}, or leave one source without a cap",
      is_one ? "" : whole_digits(work.steps_left) + " ", is_one ? "step" : "steps", from_step(work), is_one ? "s" : "",
      whole_digits(work.samples_left), whole_digits(*work.allowed_samples), facts.config.train.length_key());
}

std::string steps_text(const PlanFacts& facts) {
  std::string steps = grouped_digits(static_cast<std::uint64_t>(facts.phase.num_steps));
  switch (facts.options.step_count) {
    case StepCount::exact:
      return facts.config.train.adapts_batch ? "at least " + steps : steps;
    case StepCount::estimated:
      return fmt::format("about {} (train.epochs {}, by the sizes of the files; a start counts)", steps,
                         *facts.config.train.epochs);
    case StepCount::unknown:
      return fmt::format("counted at the start (train.epochs {}),", *facts.config.train.epochs);
  }
  SCALETRAIN_CHECK(false);
}

double steps_of_tasks(const PlanFacts& facts) {
  return static_cast<double>(facts.options.task_choices) / (3.0 * static_cast<double>(facts.phase.global_batch));
}

namespace {

std::string tasks_value(const PlanFacts& facts) {
  const double steps = steps_of_tasks(facts);
  const std::int64_t every = facts.config.evaluate.every;
  return fmt::format("{} of evaluate.tasks, each as long as the context: about as much as {:.3g} steps{} {}",
                     grouped_count(static_cast<std::uint64_t>(facts.options.task_choices), "choice"), steps,
                     facts.time ? fmt::format(", {},", short_duration(steps * facts.time->step_seconds)) : "",
                     every > 0 ? fmt::format("every {} steps", every) : "at the end");
}

}  // namespace

std::string budget_text(const PlanFacts& facts) {
  const RunWork& work = facts.work_of_run;
  const bool is_exact = facts.options.step_count == StepCount::exact;
  std::string text = shortage_verdict(work) + verdict_text(facts);
  text +=
      keyed_lines("work", fmt::format("{}{} in {} and {}, {:.3g} FLOP",
                                      is_exact          ? ""
                                      : is_known(facts) ? "about "
                                                        : "of a step: ",
                                      short_count_text(work.tokens, "token"), short_count_text(work.samples, "sample"),
                                      short_count_text(work.steps, "step"), work.flops));
  if (is_known(facts) && (!work.epochs.empty() || !work.uncounted_caps.empty()))
    text += keyed_lines("data", data_value(work));
  if (facts.time) text += keyed_lines("time", time_value(facts, *facts.time));
  if (facts.options.task_choices > 0) text += keyed_lines("tasks", tasks_value(facts));
  return text;
}

}  // namespace scaletrain
