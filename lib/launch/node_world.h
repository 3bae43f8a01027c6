// How the agents of several nodes find each other: node 0 serves the rendezvous and says where in RUN/rendezvous.json,
// as rank 0 does among launched ranks (launched_world.h); the others read it until they have come in. An agent may come
// late, or again after its node was lost: the place of one of whom nothing was heard for longer than a lease is free.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/key_value_store.h"
#include "comm/rendezvous.h"
#include "launch/coordination.h"
#include "launch/launched_world.h"

namespace scaletrain {

class NodeWorld {
 public:
  // place.rank and place.world count nodes. Node 0 (the run folder exists and is locked by this process): serves at
  // once; its basis is what the others find. The others: come in, or nothing when interrupted. PeerError and `refused`
  // as LaunchedWorld::join; UserError where another agent of the same node is there.
  static std::unique_ptr<NodeWorld> join(const LaunchedWorld::Options& options, double heartbeat, const RunBasis& basis,
                                         std::optional<SharedFailure>& refused);
  // Node 0's file goes.
  ~NodeWorld();
  NodeWorld(const NodeWorld&) = delete;
  NodeWorld& operator=(const NodeWorld&) = delete;

  // A store of its own for each thread. PeerError where no connection is had within a quarter of the lease.
  std::unique_ptr<KeyValueStore> connect() const;
  // Node 0's.
  const RunBasis& basis() const { return basis_; }
  double lease() const { return lease_; }
  bool is_serving() const { return server_ != nullptr; }

  // Node 0: a rendezvous for the workers of a new attempt; that of the last one ends.
  WorkersRendezvous serve_workers(std::int64_t world);
  std::string workers_secret(const WorkersRendezvous& rendezvous) const;

 private:
  NodeWorld(LaunchedWorld::Options options, double heartbeat);

  LaunchedWorld::Options options_;
  double lease_;
  RendezvousFile file_{};
  std::string secret_{};
  RunBasis basis_{};
  std::unique_ptr<RendezvousServer> server_{};
  std::unique_ptr<RendezvousServer> workers_{};
};

}  // namespace scaletrain
