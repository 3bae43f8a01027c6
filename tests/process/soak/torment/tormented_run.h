// A run of one agent to which things are done from outside, and which is started again by the same command whenever it
// ends other than finished, as a person or a job system would.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tormented.h"
#include "trouble.h"

namespace scaletrain {

struct SoakLayout {
  std::string name;
  std::size_t world = 1;
  Settings settings{};
};

const std::vector<SoakLayout>& soak_layouts();
const SoakLayout& soak_of_two_ranks();
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

const char* name_of(Torment torment);
bool kills_a_rank(Torment torment);

class TormentedRun : public Tormented {
 public:
  TormentedRun(const std::string& name, const SoakLayout& layout, const Settings& settings);

  // Runs until `step` is in the metrics, then does it. False: the run ended before, and nothing was done.
  bool suffer(Torment torment, long step, SoakRandom& random);

  // Seconds from a stopped rank's SIGSTOP, or from a reset, to the first step of the restarted ranks.
  const std::vector<double>& recoveries_from_stop() const { return stop_recoveries_; }
  const std::vector<double>& recoveries_from_reset() const { return reset_recoveries_; }
  // Of starts by hand, from the start of the program.
  const std::vector<double>& restarts() const { return restarts_; }
  int kills_inside_saves() const { return kills_inside_saves_; }

 private:
  bool keep_running() override;
  std::string said() const override { return agent_ ? agent_->errors() : std::string(); }
  void compare_with_undisturbed(const Trajectory& found) override;
  bool await_save(double delay);
  std::vector<pid_t> await_workers(std::size_t count);
  void kill_and_await_death(pid_t process);
  void await_death_of_agent();
  // The signal reached the worker: the agent leaves. One that has just died of something else has taken it along.
  void await_leaving(int before);
  // Since a fault, before which training had begun so often.
  void await_recovery(double since, int before, std::vector<double>& into);
  void count_dead_save();
  bool flip_any_bit(SoakRandom& random);
  bool hang_storage_of(pid_t victim, double seconds);
  bool reset_connection_of(pid_t victim, std::size_t choice);

  SoakLayout layout_;
  Settings settings_;
  HangingStorage storage_;
  std::unique_ptr<Program> agent_;
  int kills_since_start_ = 0;
  double started_ = 0.0;
  bool measure_start_ = false;
  int starts_before_ = 0;
  // A connection was reset, and nobody has noticed: how often training had begun then.
  int begun_at_reset_ = -1;
  int kills_inside_saves_ = 0;
  std::set<std::string> dead_saves_;
  std::vector<double> stop_recoveries_;
  std::vector<double> reset_recoveries_;
  std::vector<double> restarts_;
};

}  // namespace scaletrain
