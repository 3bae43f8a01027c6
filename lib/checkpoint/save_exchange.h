// What the ranks of one save tell each other, through the rendezvous store alone. Keys are below
// "save/GENERATION/STEP/ATTEMPT/": "begin" (rank 0: the save id, or why there is none), "report/RANK" (its files, or
// why not), "result" (rank 0) and "read" (how many have read it; the last one removes what is left).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "checkpoint/manifest.h"
#include "checkpoint/save.h"

namespace scaletrain {

// Either files or an error.
struct SaveReport {
  std::vector<ManifestFile> files;
  std::string error;
};

// Not thread-safe; one for each save. Every function may throw PeerError: the store is gone.
class SaveExchange {
 public:
  SaveExchange(const SaveGroup& group, std::int64_t generation, std::int64_t step);

  // Rank 0. save_id is empty if error is not.
  void begin(const std::string& save_id, const std::string& error);
  // Every other rank's report, by rank (the first entry is empty); one that does not come in time is an error as well.
  std::vector<SaveReport> collect();
  void publish(const SaveResult& result);
  void publish_error(const std::string& error);

  // The other ranks. The save id; InputError: rank 0 could not begin. PeerError: nothing was heard.
  std::string wait_for_begin();
  void report(const SaveReport& report);
  // The path is to be filled in by the caller. InputError, PeerError likewise.
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
