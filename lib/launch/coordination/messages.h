// What agents of several places say to each other through the rendezvous: each agent its status, again and again, and
// the coordinator (beside place 0's agent) its orders to all. Both are whole states, not events: whoever missed one
// reading needs only the next.
//
//   agents/N       AgentStatus of place N
//   orders         Orders, without the shares
//   orders/share/N what place N has of the round: nobody reads more than his own
//   orders/serial  changes after each change of the orders: what is small enough to be read again and again
//   agents/start   what all must have been given alike (RunBasis)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/process/exit_status.h"
#include "comm/rendezvous/key_value_store.h"
#include "comm/rendezvous/rendezvous.h"
#include "launch/coordination/places.h"
#include "launch/workers/worker_group.h"
#include "train/start/run_folder.h"

namespace scaletrain {

struct AgentStatus {
  std::int64_t place = 0;
  std::string host{};  // its name
  PlaceMachine machine{};
  std::string incarnation{};            // random: of this agent's process
  std::uint64_t beat = 0;               // grows with every status: the sign of life
  std::int64_t round = 0;               // whose workers are running here, or ran last; 0: none yet
  std::optional<RoundResult> report{};  // of that round, once they have ended
  GroupStatus workers{};                // while they run; without the process ids
  bool is_interrupted = false;          // by a signal
  std::optional<ExitStatus> left{};     // no worker of it lives, and none will
};

// Where the workers of a round meet. Its secret is not told: it follows from the agents' own and the salt.
struct WorkersRendezvous {
  RendezvousAddress address{};
  std::string salt{};
};

// The workers of one round.
struct RoundPlan {
  StartPoint start{};
  std::string lock_id{};
  std::vector<PlaceShare> shares{};         // of all places; to an agent, its own
  std::vector<std::string> incarnations{};  // of the shares' agents
  std::int64_t world = 1;
  std::int64_t data = 1;  // replicas
  WorkersRendezvous rendezvous{};
};

enum class OrderKind {
  wait,   // for what comes
  run,    // the round's workers
  leave,  // the workers save and leave
  end,    // the workers are killed
  over,   // every agent leaves
};

// Of an agent that the run goes on without.
struct Dismissal {
  std::int64_t place = 0;
  std::string incarnation{};
  ExitStatus status{};  // what it leaves with
};

struct Orders {
  OrderKind command = OrderKind::wait;
  std::int64_t round = 0;              // counted from 1
  RoundPlan plan{};                    // of the round
  std::string reason{};                // of end and over: for people
  bool is_hang = false;                // of end
  ExitCode code = ExitCode::finished;  // of over
  std::vector<Dismissal> dismissed{};  // the last of each place
};

// The first place's config and program, for the others to compare with their own.
struct RunBasis {
  std::string config{};
  std::string version{};
};

std::string status_key(std::int64_t place);
inline constexpr const char* orders_key = "orders";
inline constexpr const char* orders_serial_key = "orders/serial";
inline constexpr const char* basis_key = "agents/start";

std::string to_text(const AgentStatus& status);
std::string to_text(const Orders& orders);  // without the shares
std::string to_text(const RunBasis& basis);
// For every place's agent.
void publish_orders(KeyValueStore& store, const Orders& orders);
// What is published now; of the shares only this place's, if it has one. PeerError without an answer within `seconds`.
Orders fetch_orders(KeyValueStore& store, std::int64_t place, double seconds);
// InputError for what is none.
AgentStatus parse_status(const std::string& text);
Orders parse_orders(const std::string& text);
RunBasis parse_basis(const std::string& text);

// For how long after its last contact with the coordinator an agent may let workers live: 10 s, or a third of a shorter
// heartbeat.
double agent_lease(double heartbeat);
// After which the coordinator takes it that they are dead: the lease, and the time that ending them takes.
double lease_run_out(double lease);

}  // namespace scaletrain
