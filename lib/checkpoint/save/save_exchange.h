// What the ranks of one save tell each other, through the rendezvous store alone. Keys are below
// "save/GENERATION/STEP/ATTEMPT/": "begin" (rank 0: the save id; empty: there is none, and the result says why),
// "report/RANK" (its files, or why not), "result" (rank 0) and "read" (how many have read it; the last one removes what
// is left).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/save/save.h"

namespace scaletrain {

// Why a rank, or the save, came to nothing; no text: it did not.
struct SaveFailure {
  std::string text{};
  bool no_space = false;  // NoSpaceError
};
// Throws it: NoSpaceError or InputError.
[[noreturn]] void throw_failure(const SaveFailure& failure);

// Either files or a failure.
struct SaveReport {
  std::vector<ManifestFile> files{};
  SaveFailure failure{};
};

// Not thread-safe; one for each save. Every function may throw PeerError: the store is gone.
class SaveExchange {
 public:
  SaveExchange(const SaveGroup& group, std::int64_t generation, std::int64_t step);

  // Rank 0. Instead of it, if there is nothing to begin: publish_failure().
  void begin(const std::string& save_id);
  // Every other rank's report, by rank (the first entry is empty); one that does not come in time is a failure as well.
  // PeerError: the store knows that a rank is gone, or is itself.
  std::vector<SaveReport> collect();
  void publish(const SaveResult& result);
  void publish_failure(const SaveFailure& failure);

  // The other ranks. The save id; InputError, NoSpaceError: rank 0 could not begin. PeerError: nothing was heard.
  std::string wait_for_begin();
  void report(const SaveReport& report);
  // The path is to be filled in by the caller. Errors likewise.
  SaveResult wait_for_result();
  // Instead of waiting for the result: this rank has reported why it cannot go on.
  void leave();

 private:
  std::string key(const std::string& name) const { return prefix_ + name; }
  void has_read(bool failed);

  const SaveGroup& group_;
  std::string prefix_;
  MonotonicTime start_;
};

}  // namespace scaletrain
