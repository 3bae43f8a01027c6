#include "tormented_run.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "strangers.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr double patience = 150.0;
constexpr int save_distance = 4;

int occurrences(const std::string& text, std::string_view words) {
  int count = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

}  // namespace

// One of the two that ask for a save.
int signal_to_tell(SoakRandom& random) {
  return pick(random, 2) == 0 ? SIGTERM : SIGUSR1;
}

// The newest is never pruned while it is looked at.
bool some_checkpoint_verifies(const fs::path& run, std::string& said) {
  const std::vector<std::string> names = checkpoint_names(run);
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const Ended end = workspace().run({"checkpoint", "verify", (run / "checkpoints" / *name).string()});
    if (end.exit_code == 0) return true;
    said += end.errors;
  }
  return false;
}

std::string problem_of_finished(const fs::path& run) {
  if (!wait_until([&] { return processes_with(run.string()).empty(); }, 10.0)) return "a process is left";
  // What a dead save has left goes with the next save, if there is one.
  const std::string metrics = read_file(run / "metrics.jsonl");
  const auto last = [&metrics](const char* key) { return static_cast<long>(metrics.rfind(key) + 1); };
  const bool was_saved_since =
      last("\"kind\":\"checkpoint\"") > std::max(last("\"kind\":\"start\""), last("\"kind\":\"restart\""));
  for (const char* leftover : {".saving-", ".removing-"}) {
    const auto names = hidden_names(run, leftover);
    if (was_saved_since && !names.empty()) return "left behind: " + names.front();
  }
  const Ended verified = workspace().run({"checkpoint", "verify", run.string()});
  if (verified.exit_code != 0) return "does not verify at the end: " + verified.errors;
  if (checkpoint_names(run).size() < 2) return "fewer than two checkpoints at the end";
  return {};
}

Beginnings beginnings_of(const fs::path& run) {
  Beginnings found;
  std::error_code error;
  if (!fs::exists(run / "metrics.jsonl", error)) return found;
  const std::string text = read_file(run / "metrics.jsonl");
  found.count = occurrences(text, "\"kind\":\"start\"") + occurrences(text, "\"kind\":\"restart\"");
  const auto last = [&text](const char* key) { return static_cast<long>(text.rfind(key) + 1); };
  found.has_step = last("\"kind\":\"step\"") > std::max(last("\"kind\":\"start\""), last("\"kind\":\"restart\""));
  return found;
}

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
  };
  return all;
}

Settings soak_settings(const SoakLayout& layout, bool background) {
  Settings settings = {"train.steps=" + std::to_string(soak_steps), "evaluate={every: 15, batches: 2}",
                       "checkpoint={every: " + std::to_string(save_distance) +
                           ", keep: 3, background: " + (background ? "true}" : "false}"),
                       "supervise.max_restarts=1000"};
  settings.insert(settings.end(), layout.settings.begin(), layout.settings.end());
  return settings;
}

const Trajectory& undisturbed_soak(const SoakLayout& layout) {
  static std::map<std::string, Trajectory> all;
  const auto known = all.find(layout.name);
  if (known != all.end()) return known->second;
  const std::string run = "undisturbed-" + layout.name;
  const Ended end = run_program(layout_launch(run, soak_settings(layout, false)), patience);
  if (end.exit_code != 0) throw std::runtime_error("the undisturbed run of " + layout.name + " failed:\n" + end.errors);
  return all[layout.name] = trajectory_of(layout_folder(run));
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

double fraction_of(SoakRandom& random) {
  return static_cast<double>(random() % 4096) / 4096.0;
}

std::size_t pick(SoakRandom& random, std::size_t bound) {
  return random() % bound;
}

TormentedRun::TormentedRun(const std::string& name, const SoakLayout& layout, const Settings& settings)
    : name_(name), layout_(layout), settings_(settings), folder_(layout_folder(name)), storage_(name, folder_) {}

void TormentedRun::note(const std::string& problem) {
  // The reason last, where it is seen.
  if (problem_.empty()) problem_ = (agent_ ? "the agent said:\n" + agent_->errors() : "") + problem;
}

// False once it has finished, or something is wrong.
bool TormentedRun::keep_running() {
  if (finished_ || !problem_.empty()) return false;
  if (agent_ && measure_start_) {
    const Beginnings now = beginnings_of(folder_);
    if (now.count > starts_before_ && now.has_step) {
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
    if (finished_ || !problem_.empty()) return false;
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

bool TormentedRun::reach(long step) {
  const bool in_time = wait_until(
      [&] {
        sleep_for(0.002);
        return !keep_running() || newest_step(folder_) >= step;
      },
      patience);
  if (!in_time) note("step " + std::to_string(step) + " was not reached in time");
  return in_time && !finished_ && problem_.empty();
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
        const Beginnings now = beginnings_of(folder_);
        return now.count > before && now.has_step;
      },
      patience);
  if (!in_time) note("no step followed a fault in time");
  // An agent that gave up was started again: that is no recovery of its own.
  if (in_time && agent_ && agent_->pid() == agent && agent_->running()) into.push_back(test_clock() - since);
}

void TormentedRun::await_end_of_all() {
  agent_->wait(patience);
  if (!wait_until([&] { return processes_with(folder_.string()).empty(); }, patience))
    note("a process outlives its agent");
}

// What a dead save has left is not counted twice: each has a name of its own.
void TormentedRun::count_dead_save() {
  bool is_new = false;
  for (const std::string& name : hidden_names(folder_, ".saving-")) is_new = dead_saves_.insert(name).second || is_new;
  if (is_new) ++kills_inside_saves_;
}

bool TormentedRun::flip_any_bit(SoakRandom& random) {
  std::vector<fs::path> files;
  const auto checkpoints = checkpoint_names(folder_);
  if (checkpoints.size() < 2) return false;
  for (const auto& entry :
       fs::directory_iterator(folder_ / "checkpoints" / checkpoints[pick(random, checkpoints.size())]))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  const fs::path file = files[pick(random, files.size())];
  std::string content = read_file(file);
  char& byte = content[pick(random, content.size())];
  byte = static_cast<char>(byte ^ (1 << pick(random, 8)));
  write_file(file, content);
  return true;
}

// At every instant one verifies, once the first was written.
void TormentedRun::look_for_checkpoint() {
  was_saved_ = was_saved_ || !checkpoint_names(folder_).empty();
  std::string said;
  if (was_saved_ && !some_checkpoint_verifies(folder_, said)) note("no checkpoint verifies\n" + said);
}

// It waits, and nothing else happens.
bool TormentedRun::hang_storage_of(pid_t victim, double seconds) {
  // By the agent's words: the storage of a rank that starts hangs before the metrics tell of its start.
  const auto restarts_told = [this] { return occurrences(agent_->errors(), " of 1000, from "); };
  const pid_t agent = agent_->pid();
  const int before = restarts_told();
  if (!storage_.hang(victim, seconds)) return finished_;
  const bool goes_on = reach(newest_step(folder_) + save_distance);
  if (agent_->pid() == agent && restarts_told() != before)
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
  const auto is_back = [&] {
    const Beginnings found = beginnings_of(folder_);
    return found.count > before && found.has_step;
  };
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
      await_end_of_all();
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
      await_end_of_all();
      look_for_checkpoint();
      break;
    case Torment::tell_rank:
      ::kill(victim, number);
      await_end_of_all();
      look_for_checkpoint();
      break;
    case Torment::flip_bit:
      kill_and_await_death(agent_->pid());
      await_end_of_all();
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

std::string TormentedRun::finish() {
  while (keep_running()) sleep_for(0.005);
  if (!problem_.empty()) return problem_;
  const Trajectory& expected = undisturbed_soak(layout_);
  const Trajectory found = trajectory_of(folder_);
  if (found.steps != expected.steps) note("other losses than the undisturbed run's");
  if (found.evaluations != expected.evaluations) note("other evaluations than the undisturbed run's");
  const std::string left = problem_of_finished(folder_);
  if (!left.empty()) note(left);
  return problem_;
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double largest_of(const std::vector<double>& values) {
  return values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
}

}  // namespace scaletrain
