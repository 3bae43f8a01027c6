// What happens to the jobs of slurm_test. Most of the time is SLURM's, so jobs run side by side, each on nodes of its
// own, from the first look at one on; a test case looks at one.
#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "slurm_jobs.h"

namespace scaletrain {

inline constexpr int slurm_steps = 800;  // several seconds, so that there is a middle

// A constant learning rate: a step's loss does not depend on how many steps there will be. A small one: the roundings
// of other layouts grow apart slowly.
inline const Settings two_replicas = {"parallel.data=auto",
                                      "train.steps=" + std::to_string(slurm_steps),
                                      "train.lr_schedule={type: constant, warmup: 10}",
                                      "train.optimizer.learning_rate=1e-4",
                                      "evaluate.every=100",
                                      "checkpoint={every: 20, keep: 100}"};

// Of a job that saves and comes back.
inline const std::string was_put_back = "after signal USR1; back into the queue";

// Jobs that keep their nodes. What happens to one in its middle happens before the next begins, so that none is over by
// then.
struct KeptNodes {
  KeptNodes();

  Job early;
  Job troubled;
  Job damaged;
  Job stalled;
  std::optional<Job> cancelled, requeued, first_killed, other_killed;
};

// Loses nothing but time. SLURM looks at time limits seldom, and the signal may come up to a minute early.
struct Limited {
  Limited();

  Job job;
  long reached_at = 0;
};

// An endless one that loses an agent, then for a moment a node.
struct Regrown {
  Regrown();

  Job job;

 private:
  std::size_t wait_until_grown(std::size_t starts) const;
};

// Jobs that lose a node, where those of KeptNodes were. Each begins when the one before has lost its own, so that none
// is over by then.
struct LostNodes {
  LostNodes();

  Job swept;
  std::optional<Job> shrunk, headless, blinked, bereft;

 private:
  void lose(const Job& job, std::size_t index);
  void sweep(const std::string& restarts);

  std::vector<std::string> lost_;
};

// All of these at once, but that nodes are lost when those who were to keep them have ended.
struct Scenes {
  template <class Scene>
  using Played = std::shared_future<std::unique_ptr<const Scene>>;
  template <class Scene>
  static std::unique_ptr<const Scene> play() {
    return std::make_unique<const Scene>();
  }

  Played<Limited> limited = std::async(std::launch::async, play<Limited>).share();
  Played<Regrown> regrown = std::async(std::launch::async, play<Regrown>).share();
  Played<KeptNodes> kept = std::async(std::launch::async, play<KeptNodes>).share();
  Played<LostNodes> lost = std::async(std::launch::async, [kept = kept] {
                             kept.wait();
                             return play<LostNodes>();
                           }).share();
};
// The test program's; begun by the first call.
const Scenes& scenes();

// What each test case asks first: begins the scenes. False, and a message, where this is not root.
bool is_there();

}  // namespace scaletrain
