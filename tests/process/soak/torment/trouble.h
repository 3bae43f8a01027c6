// What storage and network do to one process of a run, from outside: storage that does not answer for a while, a
// connection that is reset.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "support/program.h"

namespace scaletrain {

// Storage that can be made to hang for one process of the runs that are started with it. The control file lies in the
// workspace.
class HangingStorage {
 public:
  // Of a run in this folder.
  HangingStorage(const std::string& name, const std::filesystem::path& run);
  ~HangingStorage();
  HangingStorage(const HangingStorage&) = delete;
  HangingStorage& operator=(const HangingStorage&) = delete;

  // Preloads it into a run that is to be started.
  void attach(Launch& launch) const;
  // The process waits for its storage for so long. False: it wanted nothing of it in that time.
  bool hang(pid_t process, double seconds) const;

 private:
  std::filesystem::path control_;
  std::filesystem::path run_;
};

// Resets one of the process's TCP connections, as a firewall or a rebooted switch does: both ends find it gone. Which
// one: the `choice`-th of those that are there, around and around. False: it has none, or it has ended.
bool reset_connection(pid_t process, std::size_t choice);

}  // namespace scaletrain
