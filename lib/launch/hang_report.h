// What a rank writes into its log when it is taken for hung: the collective that it is in, what each of its threads
// does in the kernel, and a stack trace of each.
//
// An agent asks with SIGQUIT. It is blocked in every thread and read by one, as the signals of signals.h are. A rank
// without an agent asks itself (write_last). To see other threads' stacks, a thread has a handler run on each of
// them: the only place where a handler ever runs on a compute thread, whose generated code may keep data below the
// stack pointer. It is done only when the process is ended afterwards whatever is found, by the agent that is its
// parent or by itself; and the handler does not return, so that nothing is computed from what it may have overwritten.
// A SIGQUIT from anybody else is answered without it.
//
// A thread that comes to its handler late (it was in the kernel) finds that the report has gone on, and writes nowhere.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/file.h"

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
    bool has_agent =
        true;       // the parent asks with SIGQUIT, and kills this process then; false: no signal is listened to
    int told = -1;  // a line "dumped", with the collective, is sent here when all is written; negative: nowhere. Not
                    // owned
  };
  // InputError if the kernel refuses what it needs.
  explicit HangReport(Options options);
  ~HangReport();
  HangReport(const HangReport&) = delete;
  HangReport& operator=(const HangReport&) = delete;

  // Writes the whole report, with this reason, and returns when it is written or the storage has not taken it within
  // some seconds. All threads but the caller stand still for good then: it may do nothing that waits for a lock, and
  // ends the process. Never throws.
  void write_last(const std::string& reason) noexcept;

 private:
  void watch();
  // The thread `spared` goes on, and nothing is told of it.
  void write_report(const std::string& reason, bool with_stacks, int spared = 0);

  Options options_;
  FileDescriptor signals_;
  FileDescriptor stop_;
  std::atomic<bool> is_last_written_{false};
  std::thread thread_;
};

}  // namespace scaletrain
