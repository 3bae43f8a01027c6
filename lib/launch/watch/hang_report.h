// What a rank writes into its log when it is taken for hung: the collective that it is in, what each of its threads
// does in the kernel, and a stack trace of each.
//
// The agent asks with SIGQUIT. It is blocked in every thread and read by one, as the signals of host/process/signals.h
// are. To see other threads' stacks costs them their lives (host/process/thread_stacks.h): they are written only for
// the agent that is its parent, which ends the process afterwards whatever is found. A SIGQUIT from anybody else is
// answered without them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/process/guarded_thread.h"

namespace scaletrain {

// Blocks SIGQUIT in the calling thread and those it starts; before the first thread is started.
void block_hang_signal();

// What a process knows of what it is in.
struct HangPlace {
  std::string text{};                       // for people
  std::optional<std::string> collective{};  // nothing: in none
};

class HangReport {
 public:
  struct Options {
    std::filesystem::path file;        // appended to; created if it is not there
    std::function<HangPlace()> place;  // called by another thread
    // A line "dumped", with the collective, is sent here when all is written; negative: nowhere. Not owned.
    int told = -1;
  };
  // InputError if the kernel refuses what it needs.
  explicit HangReport(Options options);
  ~HangReport();
  HangReport(const HangReport&) = delete;
  HangReport& operator=(const HangReport&) = delete;

 private:
  void watch();
  void write_report(const std::string& reason, bool with_stacks);

  Options options_;
  FileDescriptor signals_;
  FileDescriptor stop_;
  GuardedThread thread_;
};

}  // namespace scaletrain
