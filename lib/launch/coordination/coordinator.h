// The coordinator: decides for all agents when workers start, at which places, from where, and when the run is over. It
// sees the agents' statuses, and what it says are its orders (messages.h): decisions alone, without clocks, sockets
// or processes. A place is a node with as many workers as the layout says, or a launcher's process with one; then it is
// called by its rank, and whoever is gone is the launcher's to bring back.
//
//   first         all nodes are waited for; with min_data the run begins without those that do not come in time
//   a round    ends when every node's workers have ended: each node has reported, left, or is lost
//   its result    the run's own (as in agent.h) ends the run with that code; a failure is followed by another round,
//                 as Restarts allows, once the checkpoints can be read
//   a lost node   no new status for as long as its workers may outlive its lease: without min_data the run ends with
//                 75 (4, with one worker each); with it, it goes on with as many replicas as the nodes that are left
//                 can carry, and that counts as no restart
//   one comes     with min_data, if the run can have more replicas with it: the workers save and leave, and
//   (back)        the next round has them; one that comes and goes must first stay for a while (roster.h)
//   its trouble   of a node that has come to a run which made steps without it, and makes none itself: it is dismissed
//                 with its code, and the run goes on without it
//   the end       is told to the agents that are there. Nobody is waited for who has not come: he finds a note in the
//                 run folder, with the run's exit code
// Over all places it judges that nobody moves (the smallest of all still times), that the storage is dead, and that a
// rank is slower than its peers.
//
// What it costs: each agent publishes its status four times a second (a thousand and more, less often: agent_link.h)
// and reads two small values then, nothing that grows with the number of places. The coordinator keeps one status of
// each, parses those that are new, and walks over all of them twenty times a second.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/process/exit_code.h"
#include "comm/rendezvous/rendezvous.h"
#include "launch/coordination/messages.h"
#include "launch/coordination/places.h"
#include "launch/coordination/restarts.h"
#include "launch/coordination/roster.h"
#include "launch/watch/slow_ranks.h"
#include "launch/watch/wait_notice.h"
#include "telemetry/log.h"
#include "train/start/run_folder.h"

namespace scaletrain {

class Coordinator {
 public:
  struct Options {
    PlaceLayout layout{};
    std::int64_t places = 1;
    bool is_per_node = true;                 // false: places with one worker each
    std::int64_t stages = 1;                 // of the pipeline
    std::optional<std::int64_t> min_data{};  // supervise.elastic
    StartPoint start{};
    std::string lock_id{};
    std::int64_t max_restarts = 3;
    double heartbeat = 60.0;      // seconds
    double join_seconds = 300.0;  // for all places to come
    Log& log;
    std::function<StartPoint(const StartPoint& before)> next_start;
    // Serves a rendezvous for the workers of a new round, in place of the last one's; whether all are on one host.
    std::function<WorkersRendezvous(std::int64_t world, bool is_one_host)> serve;
    std::function<bool()> holds_lock{};   // empty: always
    std::function<bool()> interrupted{};  // this process, by a signal: known at once, not by a status
  };
  explicit Coordinator(Options options);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;
  std::int64_t places() const { return options_.places; }

  // now: seconds of a clock that does not go back. The statuses: the latest of each place that has any. Errors of
  // next_start and serve end the run with their code.
  const Orders& look(double now, const std::vector<AgentStatus>& statuses);
  const Orders& orders() const { return orders_; }
  // The run is over before it begins, or for a reason from outside.
  void finish(ExitCode code, const std::string& reason);
  // The run is over, and every other agent has left, is lost, or had the time to. Agents that have not come yet have a
  // moment, if they are on their way.
  bool is_done() const;
  const Roster& roster() const { return roster_; }

 private:
  enum class Share { running, reported, gone };

  void gather();
  void supervise();
  void take_reports();
  const AgentStatus& status_of(std::size_t share) const;
  Share state_of(std::size_t share) const;
  std::optional<std::string> reason_to_end();
  void judge_stillness();
  void warn_about_slow_ranks();
  void tell_recovery();
  void conclude();
  bool is_newcomer(std::size_t share) const;
  bool dismiss_newcomers();
  void conclude_without_failure();
  void conclude_failure(const Restarts::Failure& failure);
  void seek_start();
  void begin();

  std::optional<Allotment> allotment(const std::vector<std::int64_t>& places) const;
  bool can_grow() const;
  std::optional<std::string> lost_text() const;
  std::int64_t last_step() const;
  std::string reported_text(std::size_t share) const;
  std::string failure_text(std::size_t share) const;
  std::string places_text() const;
  // "node 3", or "nodes 0, 2"; ranks, where each place has one worker.
  std::string place_text(std::int64_t place) const;
  std::string places_text(const std::vector<std::int64_t>& places) const;
  const char* kind() const { return options_.is_per_node ? "node" : "rank"; }

  Options options_;
  Roster roster_;
  bool is_interrupted_ = false;
  Restarts restarts_;
  Orders orders_;
  std::optional<double> last_look_;
  double clock_ = 0.0;  // seconds in which this coordinator was running: a pause of its own costs nobody a lease
  double over_at_ = 0.0;
  WaitNotice notice_{};  // of the places that have not come
  // By clock_: when the round under way failed, and when that before it did; nothing once it is made good.
  std::optional<double> failed_at_{};
  std::optional<double> failed_before_{};

  // Incarnations of agents whose workers have made a step.
  std::set<std::string> proven_{};

  bool is_seeking_ = false;  // a start point, after a round

  // Of the round that is under way.
  bool is_running_ = false;
  double began_at_ = 0.0;
  std::vector<std::optional<RoundResult>> reports_{};  // by share
  std::vector<std::size_t> told_{};                    // shares in the order of their reports
  std::optional<double> lost_peer_at_{};
  std::optional<std::string> hang_{};
  std::optional<SlowRanks> slow_ranks_{};  // of several
  std::int64_t furthest_ = 0;              // step that any workers told
  bool is_growing_ = false;
};

}  // namespace scaletrain
