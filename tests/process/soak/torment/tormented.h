// What is the same for every run to which things are done from outside, be it of one agent or of several: it goes on
// until it has finished, started again whenever it leaves, and at every instant one of its checkpoints verifies.
#pragma once

#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "process/ranks.h"

namespace scaletrain {

inline constexpr int soak_steps = 60;
inline constexpr int save_distance = 4;

using SoakRandom = std::mt19937;
// From 0 to 1, and below `bound`: by arithmetic of our own, so that a seed means the same with every library.
double fraction_of(SoakRandom& random);
std::size_t pick(SoakRandom& random, std::size_t bound);
// SIGTERM or SIGUSR1.
int signal_to_tell(SoakRandom& random);

// How often training has begun in a run's metrics, and whether a step stands behind the last beginning.
struct Beginnings {
  int count = 0;
  bool has_step = false;
  // A step stands behind a beginning that was not among the first `before`.
  bool has_gone_on(int before) const { return count > before && has_step; }
};
Beginnings beginnings_of(const std::filesystem::path& run);
int occurrences(const std::string& text, std::string_view words);

// What is wrong with the folder of a finished run, apart from its numbers; empty: nothing.
std::string problem_of_finished(const std::filesystem::path& run);

// The trajectory of a run that nothing disturbs, trained once for each name by `train`.
const Trajectory& undisturbed_run_of(const std::string& name,
                                     const std::function<Ended(const std::string& run)>& train);

// Of what was measured; 0 of nothing.
double median_of(std::vector<double> values);
double largest_of(const std::vector<double>& values);
void append(std::vector<double>& to, const std::vector<double>& from);
long number_from_environment(const char* name, long otherwise);

class Tormented {
 public:
  virtual ~Tormented() = default;
  Tormented(const Tormented&) = delete;
  Tormented& operator=(const Tormented&) = delete;

  // Runs to the end; what is wrong with it then, empty: nothing.
  std::string finish();
  // What went wrong so far; empty: nothing.
  const std::string& problem() const { return problem_; }
  // Seconds from a rank's death to the first step of the restarted ranks.
  const std::vector<double>& recoveries() const { return recoveries_; }

 protected:
  explicit Tormented(const std::string& run) : name_(run), folder_(layout_folder(run)) {}

  // Starts it, and again if it has left as it may. False once it has finished, or something is wrong.
  virtual bool keep_running() = 0;
  // What its agents have said.
  virtual std::string said() const = 0;
  virtual void compare_with_undisturbed(const Trajectory& found) = 0;

  // Runs until `step` is in the metrics; false: it ended before.
  bool reach(long step);
  // Until none of its processes lives.
  void await_end_of_all();
  // At every instant one verifies, once the first was written.
  void look_for_checkpoint();
  void note(const std::string& problem);

  std::string name_;
  std::filesystem::path folder_;
  bool finished_ = false;
  std::vector<double> recoveries_;

  static constexpr double patience = 150.0;

 private:
  bool was_saved_ = false;
  std::string problem_;
};

}  // namespace scaletrain
