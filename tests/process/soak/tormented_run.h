// A run to which things are done from outside, and which is started again by the same command whenever it ends other
// than finished, as a person or a job system would.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "process/ranks.h"
#include "trouble.h"

namespace scaletrain {

struct SoakLayout {
  std::string name;
  std::size_t world = 1;
  Settings settings{};
};

inline constexpr int soak_steps = 60;
const std::vector<SoakLayout>& soak_layouts();
// Settings of a run of the layout; saves every four steps.
Settings soak_settings(const SoakLayout& layout, bool background);
// The trajectory of the layout that nothing disturbed, trained once.
const Trajectory& undisturbed_soak(const SoakLayout& layout);

enum class Torment {
  kill_rank,           // after a step
  kill_rank_in_save,   // while a checkpoint is being written
  kill_rank_at_start,  // of workers that have just been started
  kill_agent,
  stop_rank,        // SIGSTOP
  tell_agent,       // SIGTERM or SIGUSR1
  tell_rank,        // the same to one worker
  flip_bit,         // in any byte of any checkpoint, while nothing runs
  besiege_port,     // strangers at the rendezvous
  hang_storage,     // of one rank, for a second or two
  reset_connection  // any of one rank's
};
// Whether one of a run's checkpoints verifies, looked for from the newest; what was said of those that do not.
bool some_checkpoint_verifies(const std::filesystem::path& run, std::string& said);
// What is wrong with the folder of a finished run, apart from its numbers; empty: nothing.
std::string problem_of_finished(const std::filesystem::path& run);
// SIGTERM or SIGUSR1.
int signal_to_tell(std::mt19937& random);

// How often training has begun in a run's metrics, and whether a step stands behind the last beginning.
struct Beginnings {
  int count = 0;
  bool has_step = false;
};
Beginnings beginnings_of(const std::filesystem::path& run);

const char* name_of(Torment torment);
bool kills_a_rank(Torment torment);

using SoakRandom = std::mt19937;
// From 0 to 1, and below `bound`: by arithmetic of our own, so that a seed means the same with every library.
double fraction_of(SoakRandom& random);
std::size_t pick(SoakRandom& random, std::size_t bound);

class TormentedRun {
 public:
  TormentedRun(const std::string& name, const SoakLayout& layout, const Settings& settings);

  // Runs until `step` is in the metrics, then does it. False: the run ended before, and nothing was done.
  bool suffer(Torment torment, long step, SoakRandom& random);
  // Runs to the end; what is wrong with it then, empty: nothing.
  std::string finish();

  // Seconds from a rank's death, or from a stopped rank's SIGSTOP, to the first step of the restarted ranks.
  const std::vector<double>& recoveries() const { return recoveries_; }
  const std::vector<double>& recoveries_from_stop() const { return stop_recoveries_; }
  const std::vector<double>& recoveries_from_reset() const { return reset_recoveries_; }
  // Of starts by hand, from the start of the program.
  const std::vector<double>& restarts() const { return restarts_; }
  int kills_inside_saves() const { return kills_inside_saves_; }
  // What went wrong so far; empty: nothing.
  const std::string& problem() const { return problem_; }

 private:
  bool keep_running();
  bool reach(long step);
  bool await_save(double delay);
  std::vector<pid_t> await_workers(std::size_t count);
  void kill_and_await_death(pid_t process);
  // Since a fault, before which training had begun so often.
  void await_recovery(double since, int before, std::vector<double>& into);
  void await_end_of_all();
  void count_dead_save();
  bool flip_any_bit(SoakRandom& random);
  bool hang_storage_of(pid_t victim, double seconds);
  bool reset_connection_of(pid_t victim, std::size_t choice);
  void look_for_checkpoint();
  void note(const std::string& problem);

  std::string name_;
  SoakLayout layout_;
  Settings settings_;
  std::filesystem::path folder_;
  HangingStorage storage_;
  std::unique_ptr<Program> agent_;
  bool finished_ = false;
  bool was_saved_ = false;
  int kills_since_start_ = 0;
  double started_ = 0.0;
  bool measure_start_ = false;
  int starts_before_ = 0;
  int kills_inside_saves_ = 0;
  std::set<std::string> dead_saves_;
  std::vector<double> recoveries_;
  std::vector<double> stop_recoveries_;
  std::vector<double> reset_recoveries_;
  std::vector<double> restarts_;
  std::string problem_;
};

// Of what was measured; 0 of nothing.
double median_of(std::vector<double> values);
double largest_of(const std::vector<double>& values);

}  // namespace scaletrain
