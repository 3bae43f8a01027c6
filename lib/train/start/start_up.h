// What the ranks of a run settle through the rendezvous store before the first step: who opens the data first, and that
// everybody is ready. A single rank settles nothing.
//
// Opening the data may take hours, and no wait here ends before a day has passed: that a rank dies meanwhile, or that
// this one is asked to leave, is the business of the store it waits through (comm/rendezvous/watched_store.h).
//
// Keys are below "start/GENERATION/", so that what an earlier start left behind is not taken for this one's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "train/start/assembly.h"

namespace scaletrain {

class StartUp {
 public:
  StartUp(const WorkerPlace& place, std::int64_t generation);

  // Runs `open` on the first rank of this host, which may read the corpus and build the token cache for hours; then on
  // the host's other ranks, with what it has returned on the first one. PeerError on those if the first one has failed.
  // The first one's argument is empty.
  void first_on_host(const std::function<std::string(const std::string& found_by_first)>& open);
  // Rank 0's word about the data it has opened; on rank 0, which says it, nothing, as on a single rank. PeerError if
  // rank 0 has failed. See data_agreement.h.
  std::optional<std::string> data_of_first(const std::string& own_word);
  // For who sees only what rank 0 says: a rank's word about itself, before it waits for all. One rank's word is kept.
  void tell_first(const std::string& notice);
  // On rank 0, when all have come: what another has told; elsewhere nothing.
  std::string told_by_another();
  // Returns when every rank has arrived: the first step's deadlines are not spent on another rank's start. PeerError if
  // one has failed.
  void wait_for_all();
  // Instead of arriving: the others need not wait. For use while an exception is on its way, so it reports nothing.
  void failed(const std::string& reason) noexcept;

 private:
  std::string key(const std::string& name) const;
  std::string answer_of(const std::string& name);

  WorkerPlace place_;
  std::int64_t generation_;
  bool has_told_data_ = false;
};

}  // namespace scaletrain
