// Ranks as threads of one process: for tests. Transfers are rendezvous: a send completes when its receive has copied
// the bytes, so that a schedule that needs buffering deadlocks here (and is named at the deadline), as it might
// elsewhere.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/numbers/strong.h"
#include "comm/collective/direct_communicator.h"
#include "comm/rendezvous/key_value_store.h"

namespace scaletrain {

// Shared by the threads of all ranks; outlives their communicators. Thread-safe.
class InProcessWorld {
 public:
  explicit InProcessWorld(int num_ranks);
  ~InProcessWorld();
  InProcessWorld(const InProcessWorld&) = delete;
  InProcessWorld& operator=(const InProcessWorld&) = delete;

  int size() const;
  // `name` names the group uniquely in the world; every member calls with the same name and members (ascending
  // positions of the group, `self` one of them). Does not wait for the others.
  std::unique_ptr<Transport> make_transport(const std::string& name, const std::vector<Rank>& members, Rank self);
  // One store, shared.
  std::unique_ptr<KeyValueStore> make_store();
  // A rank has failed: every wait on it and by it, now and later, ends with a PeerError that carries `reason`; so does
  // waiting for keys of the store that are not there.
  void fail(Rank rank, const std::string& reason);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace scaletrain
