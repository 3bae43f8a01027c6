#include "tormented.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <stdexcept>

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

long behind_last(const std::string& text, std::string_view words) {
  return static_cast<long>(text.rfind(words) + 1);
}

// Where the last beginning of training stands; 0: nowhere.
long last_beginning(const std::string& metrics) {
  return std::max(behind_last(metrics, "\"kind\":\"start\""), behind_last(metrics, "\"kind\":\"restart\""));
}

// Whether one of a run's checkpoints verifies, looked for from the newest, which is never pruned while it is looked at;
// what was said of those that do not.
bool some_checkpoint_verifies(const fs::path& run, std::string& said) {
  const std::vector<std::string> names = checkpoint_names(run);
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const Ended end = workspace().run({"checkpoint", "verify", (run / "checkpoints" / *name).string()}, ranks_patience);
    if (end.exit_code == 0) return true;
    said += end.errors;
  }
  return false;
}

}  // namespace

double fraction_of(SoakRandom& random) {
  return static_cast<double>(random() % 4096) / 4096.0;
}

std::size_t pick(SoakRandom& random, std::size_t bound) {
  return random() % bound;
}

int signal_to_tell(SoakRandom& random) {
  return pick(random, 2) == 0 ? SIGTERM : SIGUSR1;
}

int occurrences(const std::string& text, std::string_view words) {
  int count = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

Beginnings beginnings_of(const fs::path& run) {
  Beginnings found;
  std::error_code error;
  if (!fs::exists(run / "metrics.jsonl", error)) return found;
  const std::string text = read_file(run / "metrics.jsonl");
  found.count = occurrences(text, "\"kind\":\"start\"") + occurrences(text, "\"kind\":\"restart\"");
  found.has_step = behind_last(text, "\"kind\":\"step\"") > last_beginning(text);
  return found;
}

std::string problem_of_finished(const fs::path& run) {
  if (!wait_until([&] { return processes_with(run.string()).empty(); }, ranks_patience)) return "a process is left";
  // What a dead save has left goes with the next save, if there is one.
  const std::string metrics = read_file(run / "metrics.jsonl");
  const bool was_saved_since = behind_last(metrics, "\"kind\":\"checkpoint\"") > last_beginning(metrics);
  for (const char* leftover : {".saving-", ".removing-"}) {
    const auto names = hidden_names(run, leftover);
    if (was_saved_since && !names.empty()) return "left behind: " + names.front();
  }
  const Ended verified = workspace().run({"checkpoint", "verify", run.string()}, ranks_patience);
  if (verified.exit_code != 0) return "does not verify at the end: " + verified.errors;
  if (checkpoint_names(run).size() < 2) return "fewer than two checkpoints at the end";
  return {};
}

const Trajectory& undisturbed_run_of(const std::string& name,
                                     const std::function<Ended(const std::string& run)>& train) {
  static std::map<std::string, Trajectory> all;
  if (const auto known = all.find(name); known != all.end()) return known->second;
  const std::string run = "undisturbed-" + name;
  const Ended end = train(run);
  if (end.exit_code != 0) throw std::runtime_error("the undisturbed run of " + name + " failed:\n" + end.errors);
  return all[name] = trajectory_of(layout_folder(run));
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double largest_of(const std::vector<double>& values) {
  return values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
}

void append(std::vector<double>& to, const std::vector<double>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

long number_from_environment(const char* name, long otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atol(text);
}

void Tormented::note(const std::string& problem) {
  // The reason last, where it is seen.
  if (!problem_.empty()) return;
  const std::string words = said();
  problem_ = (words.empty() ? words : "the agents said:\n" + words) + problem;
}

bool Tormented::reach(long step) {
  const bool in_time = wait_until(
      [&] {
        sleep_for(0.002);
        return !keep_running() || newest_step(folder_) >= step;
      },
      patience);
  if (!in_time) note("step " + std::to_string(step) + " was not reached in time");
  return in_time && !finished_ && problem_.empty();
}

void Tormented::await_end_of_all() {
  if (!wait_until([&] { return processes_with(folder_.string()).empty(); }, patience))
    note("a process outlives its agent");
}

void Tormented::look_for_checkpoint() {
  was_saved_ = was_saved_ || !checkpoint_names(folder_).empty();
  std::string words;
  if (was_saved_ && !some_checkpoint_verifies(folder_, words)) note("no checkpoint verifies\n" + words);
}

std::string Tormented::finish() {
  while (keep_running()) sleep_for(0.005);
  if (!problem_.empty()) return problem_;
  compare_with_undisturbed(trajectory_of(folder_));
  const std::string left = problem_of_finished(folder_);
  if (!left.empty()) note(left);
  return problem_;
}

}  // namespace scaletrain
