// What agents of several nodes say to each other through the rendezvous: each agent its status, again and again, and
// the coordinator (the agent of node 0) its orders to all. Both are whole states, not events: whoever missed one
// reading needs only the next.
//
//   agents/N       NodeStatus of node N
//   orders         Orders
//   orders/serial  changes after each change of the orders: what is small enough to be read again and again
//   agents/start   what all must have been given alike (RunBasis)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_code.h"
#include "comm/key_value_store.h"
#include "comm/rendezvous.h"
#include "launch/crew.h"
#include "launch/node_layout.h"
#include "train/run_folder.h"

namespace scaletrain {

// Why an agent has left or is about to.
struct Departure {
  ExitCode code = ExitCode::interrupted;
  std::string message{};
};

struct NodeStatus {
  std::int64_t node = 0;
  std::string host{};
  std::string incarnation{};        // random: of this agent's process
  std::uint64_t beat = 0;           // grows with every status: the sign of life
  std::int64_t attempt = 0;         // whose workers are running here, or ran last; 0: none yet
  std::optional<Attempt> report{};  // of that attempt, once they have ended
  CrewPulse pulse{};                // while they run; without the process ids
  bool is_interrupted = false;      // by a signal
  std::optional<Departure> left{};  // no worker of it lives, and none will
};

// Where the workers of an attempt meet. Its secret is not told: it follows from the agents' own and the salt.
struct WorkersRendezvous {
  RendezvousAddress address{};
  std::string salt{};
};

// The workers of one attempt.
struct AttemptPlan {
  StartPoint start{};
  std::string lock_id{};
  std::vector<NodeShare> shares{};
  std::vector<std::string> incarnations{};  // of the shares' agents
  std::int64_t world = 1;
  std::int64_t data = 1;  // replicas
  WorkersRendezvous rendezvous{};
};

enum class NodeCommand {
  wait,   // for what comes
  run,    // the attempt's workers
  leave,  // the workers save and leave
  end,    // the workers are killed
  over,   // every agent leaves
};

// Of an agent that the run goes on without.
struct Dismissal {
  std::int64_t node = 0;
  std::string incarnation{};
  Departure departure{};  // what it leaves with
};

struct Orders {
  NodeCommand command = NodeCommand::wait;
  std::int64_t attempt = 0;            // counted from 1
  AttemptPlan plan{};                  // of the attempt
  std::string reason{};                // of end and over: for people
  bool is_hang = false;                // of end
  ExitCode code = ExitCode::finished;  // of over
  std::vector<Dismissal> dismissed{};  // the last of each node
};

// Node 0's config and program, for the others to compare with their own.
struct RunBasis {
  std::string config{};
  std::string version{};
};

std::string status_key(std::int64_t node);
inline constexpr const char* orders_key = "orders";
inline constexpr const char* orders_serial_key = "orders/serial";
inline constexpr const char* basis_key = "agents/start";

std::string to_text(const NodeStatus& status);
std::string to_text(const Orders& orders);
std::string to_text(const RunBasis& basis);
void publish_orders(KeyValueStore& store, const Orders& orders);
// InputError for what is none.
NodeStatus parse_status(const std::string& text);
Orders parse_orders(const std::string& text);
RunBasis parse_basis(const std::string& text);

// For how long after its last contact with the coordinator an agent may let workers live: 10 s, or a third of a shorter
// heartbeat.
double agent_lease(double heartbeat);
// After which the coordinator takes it that they are dead: the lease, and the time that ending them takes.
double lease_run_out(double lease);

}  // namespace scaletrain
