#include "train/rollback.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/numbers/checked.h"
#include "checkpoint/catalog.h"
#include "checkpoint/quarantine.h"
#include "optim/adaptive_batch.h"
#include "optim/gradient_noise.h"
#include "train/data/data_left.h"
#include "train/early_stop.h"
#include "train/run_length.h"
#include "train/start/run_folder.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

// Between two words that a rank still waits. Reading a large checkpoint takes minutes; whoever dies ends the wait.
constexpr double seconds_between_notices = 300.0;

// In the order in which they are to be tried.
std::vector<CatalogEntry> candidates(std::vector<CatalogEntry> entries, std::int64_t step, std::int64_t reach) {
  std::erase_if(entries, [step](const CatalogEntry& entry) { return !entry.problem.empty() || entry.step >= step; });
  // Newest first; behind those that are old enough, the nearest to being so.
  const auto recent_end = std::stable_partition(entries.begin(), entries.end(),
                                                [&](const CatalogEntry& entry) { return entry.step < step - reach; });
  std::reverse(recent_end, entries.end());
  return entries;
}

}  // namespace

RunState restore(const Checkpoint& checkpoint, const Config& config, ParamStore& store, Stream& stream,
                 WorkCount* work) {
  RunState state = read_state(checkpoint.manifest(), (checkpoint.path() / "manifest.json").string());
  const Config before = config_of(checkpoint);
  state.early_stop = continue_early_stop(state.early_stop, before, config);
  if (!state.warmup) state.warmup = before.train.lr_schedule.warmup;
  state.warmup = warmup_steps(config, state);
  state.loss_scale = continue_loss_scale(state.loss_scale, config.precision);
  // Of a run whose batch was not auto what its last step had.
  if (!state.batch && !state.history.segments().empty()) state.batch = state.history.segments().back().global_batch;
  state.batch = continue_batch(state.batch, config.train);
  state.gradient_noise = continue_gradient_noise(state.gradient_noise, config.log.gradient_noise);
  checkpoint.load(store, stream, true, work);
  return state;
}

std::optional<Checkpoint> checkpoint_before(const fs::path& checkpoints, std::int64_t step, std::int64_t reach,
                                            const std::function<void(const std::string&)>& report) {
  for (const CatalogEntry& entry : candidates(list_readable_checkpoints(checkpoints), step, reach)) {
    try {
      Checkpoint checkpoint(entry.path);
      checkpoint.verify();
      return checkpoint;
    } catch (const FileAccessError&) {
      throw;
    } catch (const InputError& error) {
      const fs::path aside = rename_to_hidden(entry.path, damaged_prefix);
      report(fmt::format("{}: not usable, quarantined as {}: {}", entry.path.string(), aside.filename().string(),
                         error.what()));
    }
  }
  return std::nullopt;
}

Rollback::Result Rollback::run(const RunState& now, std::int64_t last) {
  require_rollback(now.spike, Step(now.step));
  ++count_;
  parts_.store.settle(parts_.stream);
  const Choice choice = agreed_choice(now, last);
  if (choice.path.empty()) return {.state = std::nullopt, .checkpoint = {}, .fingerprint = {}, .reason = choice.reason};
  // Rank 0 has verified all of it.
  const Checkpoint checkpoint(choice.path, OpenCheck::none);
  RunState state = restore_or_restart(checkpoint);
  state.spike = after_rollback(now.spike, std::move(state.spike), Step(now.step));
  state.history.go_on_like(now.history, checked_add<std::int64_t>(last, 1));
  state.generation = now.generation + 1;
  state.branch = now.branch;
  wait_for_all();
  const bool within_window = checkpoint.manifest().step >= now.step - reach(now);
  return {.state = std::move(state),
          .checkpoint = checkpoint.path(),
          .fingerprint = checkpoint.manifest().fingerprint,
          .reason = {},
          .within_window = within_window};
}

// The store may hold half of it when the file system refuses: nothing that training could go on from here.
RunState Rollback::restore_or_restart(const Checkpoint& checkpoint) {
  try {
    return restore(checkpoint, parts_.config, parts_.store, parts_.stream, parts_.work);
  } catch (const FileAccessError& error) {
    throw PeerError(fmt::format("rank {}: going back to an older checkpoint: {}", parts_.rank.value(), error.what()));
  }
}

std::int64_t Rollback::reach(const RunState& now) const {
  return checked_mul(parts_.config.train.spike->window, now.spike.rollbacks + 1);
}

void Rollback::quarantine_after(std::int64_t step) const {
  for (const fs::path& path : quarantine_later(parts_.checkpoints, step))
    parts_.log.info(fmt::format("{}: a checkpoint of the branch that training leaves", path.string()));
}

void Rollback::leave_branch(const RunState& state) {
  if (parts_.rank != Rank(0)) return;
  try {
    if (!parts_.may_commit || parts_.may_commit()) quarantine_after(state.step);
  } catch (const InputError& error) {
    parts_.log.warn(fmt::format("later checkpoints of the branch that training leaves stay: {}", error.what()));
  }
}

// Whatever the file system refuses leaves training where it is: a spike is no reason to lose a run.
Rollback::Choice Rollback::choose(const RunState& now, std::int64_t last) const {
  try {
    if (parts_.may_commit && !parts_.may_commit()) return {{}, "this process no longer owns the run"};
    const std::optional<Checkpoint> found = checkpoint_before(
        parts_.checkpoints, now.step, reach(now), [this](const std::string& text) { parts_.log.warn(text); });
    if (!found) return {{}, "there is no checkpoint to go back to"};
    const std::int64_t from = found->manifest().step;
    RunState then = read_state(found->manifest(), (found->path() / "manifest.json").string());
    then.history.go_on_like(now.history, last + 1);
    if (!data_shortage(parts_.data, parts_.config, then).empty())
      return {{}, "the epoch caps of data.train leave too few samples to skip any"};
    // Older than the checkpoint that --resume named: by those that stem from that one the same command, given again,
    // knows its run.
    const Branch branch = branch_of(found->manifest());
    if (branch.root == now.branch.root) quarantine_after(from);
    return {found->path().string(), {}};
  } catch (const InputError& error) {
    return {{}, error.what()};
  }
}

Rollback::Choice Rollback::agreed_choice(const RunState& now, std::int64_t last) {
  if (parts_.rendezvous == nullptr) return choose(now, last);
  // One word: which of the two follows.
  const std::string found = "found ";
  const std::string none = "none  ";
  if (parts_.rank == Rank(0)) {
    Choice choice = choose(now, last);
    parts_.rendezvous->set(key("choice"), choice.path.empty() ? none + choice.reason : found + choice.path);
    return choice;
  }
  const std::string text = wait_for("choice", "chooses a checkpoint to go back to");
  SCALETRAIN_CHECK(text.size() >= found.size());
  const std::string rest = text.substr(found.size());
  return text.starts_with(found) ? Choice{rest, {}} : Choice{{}, rest};
}

// The next step's deadlines are not spent on another rank's reading.
void Rollback::wait_for_all() {
  if (parts_.rendezvous == nullptr) return;
  if (parts_.rendezvous->add(key("loaded"), 1) == parts_.world) parts_.rendezvous->set(key("go"), "go");
  wait_for("go", "and the others read the checkpoint");
}

std::string Rollback::wait_for(const std::string& name, const char* what) {
  for (;;) {
    if (const auto value = parts_.rendezvous->find_within(key(name), seconds_between_notices)) return *value;
    parts_.log.warn(fmt::format("still waiting while rank 0 {}", what));
  }
}

std::string Rollback::key(const std::string& name) const {
  return fmt::format("rollback/{}/{}/{}", parts_.start_generation, count_, name);
}

}  // namespace scaletrain
