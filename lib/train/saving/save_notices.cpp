#include "train/saving/save_notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace scaletrain {

namespace {

// How long training may wait for the save before without a word.
constexpr double unnoticed_wait = 1.0;
constexpr double longest_pause = 900.0;
constexpr double pause_per_try = 10.0;
constexpr int most_doublings = 10;  // beyond the longest pause
// As these come, if nobody has changed them.
constexpr double slurm_kill_wait = 30.0;
constexpr double kubernetes_grace = 30.0;

// Where the grace time's figure is from, and how a longer one is had there.
struct GraceOrigin {
  std::string source;
  std::string remedy;
};

bool is_set(const char* name) {
  return std::getenv(name) != nullptr;
}

GraceOrigin grace_origin() {
  const bool is_told = is_set("SCALETRAIN_GRACE_SECONDS");
  if (is_set("SLURM_JOB_ID"))
    return {is_told ? "SCALETRAIN_GRACE_SECONDS" : "SLURM's KillWait, unless it was changed",
            "Have the signal come earlier (--signal=B:USR1@SECONDS) and say how much in SCALETRAIN_GRACE_SECONDS"};
  if (is_set("KUBERNETES_SERVICE_HOST"))
    return {is_told ? "SCALETRAIN_GRACE_SECONDS" : "terminationGracePeriodSeconds, unless it was changed",
            "Raise terminationGracePeriodSeconds and say it in SCALETRAIN_GRACE_SECONDS"};
  return {"SCALETRAIN_GRACE_SECONDS",
          "Have the signal come earlier (SLURM: --signal=B:USR1@SECONDS) and say how much in SCALETRAIN_GRACE_SECONDS"};
}

}  // namespace

void SaveNotices::saved(std::int64_t step, double seconds) {
  if (num_failed_ > 0)
    options_.log.warn(fmt::format("step {}: saved again, after {} that failed", step, counted(num_failed_, "save")));
  num_failed_ = 0;
  saved_step_ = step;
  last_good_ = monotonic_now();
  tell_grace(step, seconds);
}

// A later state is not the best one: that is gone with the save.
void SaveNotices::failed(std::int64_t step, bool best, double seconds, const std::string& failure) {
  ++num_failed_;
  const auto doublings = static_cast<int>(std::min<std::int64_t>(num_failed_ - 1, most_doublings));
  const double doubled = options_.retry_seconds * static_cast<double>(1 << doublings);
  retry_pause_ = std::max(std::min(doubled, longest_pause), pause_per_try * seconds);
  const std::string row = num_failed_ > 1 ? fmt::format("{} saves in a row have failed; ", num_failed_) : "";
  const std::string loss =
      saved_step_ < 0 ? "no checkpoint was written yet"
                      : fmt::format("what was trained since the checkpoint of step {} would be lost", saved_step_);
  options_.log.error(fmt::format(
      "step {}: the checkpoint was not saved, training goes on and tries again within {}{}: {}\n  {}{}: {} of training",
      step, duration_text(retry_pause_), best ? " (with a later state: this best one is not kept)" : "", failure, row,
      loss, duration_text(seconds_since(last_good_))));
}

std::string SaveNotices::last_loss(std::int64_t step) const {
  const std::int64_t lost = saved_step_ < 0 ? step : step - saved_step_;
  const std::string steps = counted(lost, "step");
  constexpr const char* remedy =
      "Mend that (where the disk is full, free space or lower checkpoint.keep) and start the run again: it ";
  if (saved_step_ < 0)
    return fmt::format("No checkpoint was written before: the {} that were trained are lost. {}begins anew", steps,
                       remedy);
  return fmt::format("The {} since the checkpoint of step {} are lost. {}goes on from there", steps, saved_step_,
                     remedy);
}

void SaveNotices::waited(std::int64_t step, double seconds) {
  if (!options_.is_first || seconds < std::max(unnoticed_wait, 2.0 * longest_wait_)) return;
  longest_wait_ = seconds;
  options_.log.warn(fmt::format(
      "step {}: training waited {:.1f} s because the save before had not ended; if that goes on, saves are due faster "
      "than the storage{} can take them: raise checkpoint.every",
      step, seconds, options_.is_alone ? "" : ", the slowest rank or the rendezvous"));
}

void SaveNotices::went_back(std::int64_t step) {
  saved_step_ = step;
  last_good_ = monotonic_now();
}

// A run that is asked to leave finishes a save that is under way, and writes its last one.
void SaveNotices::tell_grace(std::int64_t step, double seconds) {
  const double needed = options_.background ? 2.0 * seconds : seconds;
  if (!options_.is_first || told_grace_ || !options_.grace_seconds || needed <= *options_.grace_seconds) return;
  told_grace_ = true;
  const GraceOrigin origin = grace_origin();
  options_.log.warn(fmt::format(
      "step {}: saving took {:.1f} s, so that leaving may take {:.1f} s and a step after the signal{}, and this "
      "process is given {:.0f} s ({}): the last save may be lost. {}",
      step, seconds, needed, options_.background ? " (a save under way is finished first)" : "",
      *options_.grace_seconds, origin.source, origin.remedy));
}

std::optional<double> grace_seconds() {
  if (const char* const text = std::getenv("SCALETRAIN_GRACE_SECONDS")) {
    double seconds = 0.0;
    const char* const end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, seconds);
    if (error != std::errc() || stop != end || !(seconds >= 0.0))
      throw UserError(
          fmt::format("SCALETRAIN_GRACE_SECONDS is {}, not a number of seconds", quoted(std::string(text))));
    return seconds;
  }
  if (is_set("SLURM_JOB_ID")) return slurm_kill_wait;
  if (is_set("KUBERNETES_SERVICE_HOST")) return kubernetes_grace;
  return std::nullopt;
}

}  // namespace scaletrain
