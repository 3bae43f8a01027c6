#include "tormented_run.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "strangers.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr int max_restarts = 1000;

bool checkpoint_verifies(const fs::path& checkpoint) {
  return workspace().run({"checkpoint", "verify", checkpoint.string()}, ranks_patience).exit_code == 0;
}

}  // namespace

const std::vector<SoakLayout>& soak_layouts() {
  static const std::vector<SoakLayout> all = {
      {"one-rank", 1, {}},
      {"data-2-zero-1", 2, {"parallel.data=2", "parallel.zero=1"}},
      {"data-2-zero-2", 2, {"parallel.data=2", "parallel.zero=2"}},
      {"tensor-2-zero-0", 2, {"parallel.tensor=2", "parallel.zero=0"}},
      {"pipeline-2", 2, {"parallel.pipeline=2"}},
      {"data-2-pipeline-2-zero-2", 4, {"parallel.data=2", "parallel.pipeline=2", "parallel.zero=2"}},
      {"data-4-zero-3", 4, {"parallel.data=4", "parallel.zero=3"}},
      {"data-2-tensor-2-pipeline-2-zero-1",
       8,
       {"parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2", "parallel.zero=1"}},
      {"data-2-zero-1-bf16", 2, {"parallel.data=2", "parallel.zero=1", "precision.compute=bf16"}},
      {"pipeline-2-fp16", 2, {"parallel.pipeline=2", "precision.compute=fp16"}},
      {"data-2-tensor-2-zero-2-bf16",
       4,
       {"parallel.data=2", "parallel.tensor=2", "parallel.zero=2", "precision={compute: bf16, reduce: bf16}"}},
      {"tensor-2-pipeline-2-fp16", 4, {"parallel.tensor=2", "parallel.pipeline=2", "precision.compute=fp16"}},
      {"data-4-zero-3-fp16", 4, {"parallel.data=4", "parallel.zero=3", "precision.compute=fp16"}},
  };
  return all;
}

const SoakLayout& soak_of_two_ranks() {
  return soak_layouts().at(1);
}

Settings soak_settings(const SoakLayout& layout, bool background) {
  Settings settings = {"train.steps=" + std::to_string(soak_steps), "evaluate={every: 15, batches: 2}",
                       "checkpoint={every: " + std::to_string(save_distance) +
                           ", keep: 3, background: " + (background ? "true}" : "false}"),
                       "supervise.max_restarts=" + std::to_string(max_restarts)};
  settings.insert(settings.end(), layout.settings.begin(), layout.settings.end());
  return settings;
}

const Trajectory& undisturbed_soak(const SoakLayout& layout) {
  return undisturbed_run_of(layout.name, [&layout](const std::string& run) {
    return run_program(layout_launch(run, soak_settings(layout, false)), ranks_patience);
  });
}

const char* name_of(Torment torment) {
  switch (torment) {
    case Torment::kill_rank:
      return "kill -9 of a rank";
    case Torment::kill_rank_in_save:
      return "kill -9 of a rank in a save";
    case Torment::kill_rank_at_start:
      return "kill -9 of a starting rank";
    case Torment::kill_agent:
      return "kill -9 of the agent";
    case Torment::stop_rank:
      return "SIGSTOP of a rank";
    case Torment::tell_agent:
      return "SIGTERM or SIGUSR1 to the agent";
    case Torment::tell_rank:
      return "SIGTERM or SIGUSR1 to a rank";
    case Torment::flip_bit:
      return "a flipped bit in a checkpoint";
    case Torment::besiege_port:
      return "strangers at the port";
    case Torment::hang_storage:
      return "storage that hangs for a rank";
    case Torment::reset_connection:
      return "a reset connection of a rank";
  }
  return "?";
}

bool kills_a_rank(Torment torment) {
  return torment == Torment::kill_rank || torment == Torment::kill_rank_in_save ||
         torment == Torment::kill_rank_at_start;
}

TormentedRun::TormentedRun(const std::string& name, const SoakLayout& layout, const Settings& settings)
    : Tormented(name), layout_(layout), settings_(settings), storage_(name, folder_) {}

bool TormentedRun::keep_running() {
  if (finished_ || !problem().empty()) return false;
  if (agent_ && measure_start_) {
    if (beginnings_of(folder_).has_gone_on(starts_before_)) {
      restarts_.push_back(test_clock() - started_);
      measure_start_ = false;
    }
  }
  if (agent_ && agent_->running()) return true;
  if (agent_) {
    const Ended& end = agent_->wait();
    // 75: asked to save and leave. 6: three kills met the same step. A signal: it was we.
    const bool gave_up = end.exit_code == 6 && kills_since_start_ >= 3;
    if (end.exit_code == 0) finished_ = true;
    if (end.exit_code != 0 && end.exit_code != 75 && end.signal != SIGKILL && !gave_up)
      note("exit code " + std::to_string(end.exit_code));
    if (finished_ || !problem().empty()) return false;
  }
  starts_before_ = beginnings_of(folder_).count;
  measure_start_ = agent_ != nullptr;
  started_ = test_clock();
  kills_since_start_ = 0;
  Launch launch = layout_launch(name_, settings_);
  storage_.attach(launch);
  agent_ = std::make_unique<Program>(launch);
  return true;
}

// At least so many living workers; fewer if it has finished.
std::vector<pid_t> TormentedRun::await_workers(std::size_t count) {
  std::vector<pid_t> workers;
  const bool in_time =
      wait_until([&] { return !keep_running() || (workers = children_of(agent_->pid())).size() >= count; }, patience);
  if (!in_time) note("the workers were not started in time");
  if (finished_ || !in_time) workers.clear();
  std::sort(workers.begin(), workers.end());
  return workers;
}

// Some time after the beginning of a save that is still going on then; one that was shorter is let go and the next one
// met earlier.
bool TormentedRun::await_save(double delay) {
  const auto is_saving = [this] { return !hidden_names(folder_, ".saving-").empty(); };
  for (const double end = test_clock() + patience; test_clock() < end; delay /= 2) {
    // What a dead save has left goes with the next one.
    while (is_saving() && test_clock() < end)
      if (!keep_running()) return false;
    while (!is_saving() && test_clock() < end)
      if (!keep_running()) return false;
    sleep_for(delay);
    if (is_saving()) return true;
  }
  note("no save was met");
  return false;
}

void TormentedRun::kill_and_await_death(pid_t process) {
  ::kill(process, SIGKILL);
  ++kills_since_start_;
  if (!wait_until([&] { return !is_alive(process); }, patience)) note("a killed process lives");
}

void TormentedRun::await_recovery(double since, int before, std::vector<double>& into) {
  const pid_t agent = agent_->pid();
  const bool in_time = wait_until(
      [&] {
        sleep_for(0.003);
        if (!agent_->running() || !keep_running()) return true;
        return beginnings_of(folder_).has_gone_on(before);
      },
      patience);
  if (!in_time) note("no step followed a fault in time");
  // An agent that gave up was started again: that is no recovery of its own.
  if (in_time && agent_ && agent_->pid() == agent && agent_->running()) into.push_back(test_clock() - since);
}

void TormentedRun::await_death_of_agent() {
  if (agent_->wait(patience).timed_out) note("the agent stays");
  await_end_of_all();
}

void TormentedRun::await_leaving(int before) {
  wait_until([&] { return !agent_->running() || beginnings_of(folder_).has_gone_on(before); }, patience);
  if (!agent_->running() || beginnings_of(folder_).count == before) await_death_of_agent();
}

// What a dead save has left is not counted twice: each has a name of its own.
void TormentedRun::count_dead_save() {
  bool is_new = false;
  for (const std::string& name : hidden_names(folder_, ".saving-")) is_new = dead_saves_.insert(name).second || is_new;
  if (is_new) ++kills_inside_saves_;
}

// In one of which another one can take the place: those that were flipped before are found when they are needed.
bool TormentedRun::flip_any_bit(SoakRandom& random) {
  const std::vector<std::string> names = checkpoint_names(folder_);
  if (names.empty()) return false;
  const std::string& victim = names[pick(random, names.size())];
  if (std::none_of(names.begin(), names.end(), [&](const std::string& name) {
        return name != victim && checkpoint_verifies(folder_ / "checkpoints" / name);
      }))
    return false;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_ / "checkpoints" / victim)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  const fs::path file = files[pick(random, files.size())];
  std::string content = read_file(file);
  char& byte = content[pick(random, content.size())];
  byte = static_cast<char>(byte ^ (1 << pick(random, 8)));
  write_file(file, content);
  return true;
}

// It waits, and nothing else happens.
bool TormentedRun::hang_storage_of(pid_t victim, double seconds) {
  // By the agent's words: the storage of a rank that starts hangs before the metrics tell of its start.
  const auto restarts_told = [this] {
    return occurrences(agent_->errors(), " of " + std::to_string(max_restarts) + ", from ");
  };
  const pid_t agent = agent_->pid();
  const int before = restarts_told();
  const bool may_restart = begun_at_reset_ == beginnings_of(folder_).count;
  if (!storage_.hang(victim, seconds)) return finished_;
  const bool goes_on = reach(newest_step(folder_) + save_distance);
  if (agent_->pid() == agent && restarts_told() != before && !may_restart)
    note("ranks were started anew because storage hung for a while");
  return goes_on || finished_;
}

// One that was in use costs a restart, another one nothing: the run goes on either way.
bool TormentedRun::reset_connection_of(pid_t victim, std::size_t choice) {
  const int before = beginnings_of(folder_).count;
  const long step = newest_step(folder_);
  const double now = test_clock();
  if (!reset_connection(victim, choice)) return false;
  ++kills_since_start_;
  begun_at_reset_ = before;
  const auto is_back = [&] { return beginnings_of(folder_).has_gone_on(before); };
  const bool in_time = wait_until(
      [&] {
        sleep_for(0.003);
        return !keep_running() || is_back() || newest_step(folder_) >= step + 2 * save_distance;
      },
      patience);
  if (!in_time) note("no step followed the loss of a connection in time");
  if (is_back()) reset_recoveries_.push_back(test_clock() - now);
  look_for_checkpoint();
  return true;
}

bool TormentedRun::suffer(Torment torment, long step, SoakRandom& random) {
  // Drawn whatever happens, so that a seed means the same faults on a faster machine.
  const std::size_t choice = random();
  const double delay = fraction_of(random);
  const int number = signal_to_tell(random);
  SoakRandom further(random());
  if (!reach(step)) return false;
  const bool at_start = torment == Torment::kill_rank_at_start;
  if (at_start) {
    // One dies; of those that are started in its place, another one.
    const auto first = await_workers(layout_.world);
    if (first.empty()) return false;
    kill_and_await_death(first.front());
    sleep_for(0.5 * delay);
  } else if (torment == Torment::kill_rank_in_save) {
    if (!await_save(0.01 * delay)) return false;
  } else {
    sleep_for(0.05 * delay);
  }
  const std::vector<pid_t> workers = await_workers(at_start ? 1 : layout_.world);
  if (workers.empty() || !agent_->running()) return false;
  const pid_t victim = workers[choice % workers.size()];
  const int before = beginnings_of(folder_).count;
  const double now = test_clock();
  // It may have died of what was done before.
  if (!is_alive(victim)) return false;
  switch (torment) {
    case Torment::kill_rank:
    case Torment::kill_rank_in_save:
    case Torment::kill_rank_at_start:
      kill_and_await_death(victim);
      count_dead_save();
      look_for_checkpoint();
      await_recovery(now, before, recoveries_);
      break;
    case Torment::kill_agent:
      kill_and_await_death(agent_->pid());
      await_death_of_agent();
      look_for_checkpoint();
      break;
    case Torment::stop_rank:
      ::kill(victim, SIGSTOP);
      ++kills_since_start_;
      look_for_checkpoint();
      await_recovery(now, before, stop_recoveries_);
      break;
    case Torment::tell_agent:
      agent_->signal(number);
      await_death_of_agent();
      look_for_checkpoint();
      break;
    case Torment::tell_rank:
      ::kill(victim, number);
      await_leaving(before);
      look_for_checkpoint();
      break;
    case Torment::flip_bit:
      kill_and_await_death(agent_->pid());
      await_death_of_agent();
      if (!flip_any_bit(further)) return false;
      look_for_checkpoint();
      break;
    case Torment::besiege_port: {
      const auto place = rendezvous_of(victim);
      if (!place) return false;
      const Siege siege(*place, 200);
      if (!reach(newest_step(folder_) + 2)) return finished_;
      break;
    }
    case Torment::hang_storage:
      return hang_storage_of(victim, 0.5 + fraction_of(further));
    case Torment::reset_connection:
      return reset_connection_of(victim, further());
  }
  return true;
}

void TormentedRun::compare_with_undisturbed(const Trajectory& found) {
  const Trajectory& expected = undisturbed_soak(layout_);
  if (found.steps != expected.steps) note("other losses than the undisturbed run's");
  if (found.evaluations != expected.evaluations) note("other evaluations than the undisturbed run's");
}

}  // namespace scaletrain
