// What a worker tells its agent, over a socket pair: lines, each a JSON object that is complete in itself. The agent
// says one thing only: that it looks after its workers, a byte every now and then as long as it does.
//
//   {"progress": COUNTER, "step": STEP, "waiting": BOOL     what it does, once a second at least
//    "collective": {"text", "seconds"},                     since when it waits for its peers, and in what; if it does
//    "storage": {"activity", "bytes", "text", "seconds"},   where it can be told (host/process/storage_probe.h)
//    "pace": {"steps", "busy_seconds"}}                     whole steps so far, and the time in them not spent waiting
//   {"dumped": COLLECTIVE}                                  what SIGQUIT asks for is in its log (watch/hang_report.h)
//   {"error": EXIT_CODE, "message": TEXT, "at": SECONDS}    why it will end, and when it said so by the host's clock
//
// COUNTER counts pieces of work (base/process/work_count.h): while the worker is not waiting it must move within the
// heartbeat. Waiting means start-up or storage, where no progress is expected; then the lines themselves must keep
// coming, so that a stopped process is still noticed, and the activity must move now and then.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/file.h"
#include "base/process/exit_code.h"
#include "base/process/guarded_thread.h"
#include "host/process/storage_probe.h"

namespace scaletrain {

// A wait for peers.
struct InCollective {
  std::string text;
  double seconds = 0.0;
};

// How fast a worker is itself, its peers left out.
struct Pace {
  std::int64_t steps = 0;
  double busy_seconds = 0.0;  // in these steps
};

// The worker's end. A thread sends a line every period; changes of state are sent at once. Never blocks and never
// fails: lines that the agent does not take are dropped. Thread-safe.
class WorkerReporter {
 public:
  // descriptor: what the agent passed as --channel; negative: there is no agent, and nothing is sent. Owned from here
  // on.
  explicit WorkerReporter(int descriptor, double period_seconds = 1.0);
  ~WorkerReporter();
  WorkerReporter(const WorkerReporter&) = delete;
  WorkerReporter& operator=(const WorkerReporter&) = delete;

  // Where the counter of finished pieces of work is read, by the reporter's thread at any time until the next call; an
  // empty function ends that before what it reads is destroyed. It must not block.
  void watch(std::function<std::uint64_t()> counter);
  // Where the collective under way is read, on the same terms.
  void watch_collective(std::function<std::optional<InCollective>()> collective);
  // Where that is asked which the storage line tells, on the same terms, but always by the reporter's thread.
  void watch_storage(std::function<std::optional<InStorage>()> storage);
  // What the worker is about to do. Until the first call: waiting, at an unknown step.
  void entered(std::int64_t step, bool waiting);
  // Since the start; sent with the next line.
  void pace(const Pace& pace);
  // When the agent last said that it looks after the ranks; the clock's earliest moment before it has, or without one.
  // Known within a period.
  MonotonicTime vouched() const { return vouched_.load(std::memory_order_relaxed); }
  // The socket, for a line of somebody who may take no lock; negative without an agent.
  int descriptor() const { return socket_.get(); }
  // Why the worker will exit. True if the agent was told and will show the message; otherwise the caller prints it.
  bool error(ExitCode kind, std::string_view message);

 private:
  void run(double period_seconds);
  void listen();
  bool send_line(const std::string& line);
  bool send_status();

  std::mutex mutex_;
  std::condition_variable wake_;
  FileDescriptor socket_;
  std::string unsent_;  // rest of a line that the socket took in part
  std::function<std::uint64_t()> counter_;
  std::function<std::optional<InCollective>()> collective_;
  std::function<std::optional<InStorage>()> storage_;
  std::optional<InStorage> last_storage_;  // not sent yet
  std::optional<Pace> pace_;
  std::uint64_t last_counter_ = 0;
  std::int64_t step_ = -1;
  bool waiting_ = true;
  bool stopping_ = false;
  std::atomic<MonotonicTime> vouched_{MonotonicTime::min()};
  GuardedThread thread_;
};

struct WorkerError {
  ExitCode kind = ExitCode::bug;
  std::string message;
  double at = 0.0;  // seconds of the monotonic clock, which is the same for all processes of a host
};

// The line of a worker that has written its report.
std::string dumped_line(std::string_view collective);

// What the agent knows of its worker.
struct WorkerStatus {
  std::uint64_t lines = 0;  // well-formed ones
  std::uint64_t progress = 0;
  std::int64_t step = -1;  // -1: not told yet
  bool waiting = true;
  bool has_worked = false;                 // its start-up is over: it was not waiting once
  std::optional<InCollective> collective;  // at its last progress line
  std::optional<InStorage> storage;        // as last told
  std::optional<Pace> pace;
  std::optional<std::string> dumped;  // the report is in its log; the collective that it names, or empty
  std::optional<WorkerError> error;
};

// The line for what a living worker does.
std::string status_line(const WorkerStatus& status);

// Reads the lines in whatever pieces they arrive. What is no line of a form above is skipped, without an error: a
// worker that dies may leave half a line, one that is broken must not break its agent. Memory is bounded.
class WorkerStatusParser {
 public:
  void feed(std::string_view bytes);
  const WorkerStatus& status() const { return status_; }

 private:
  void take_line(std::string_view line);

  WorkerStatus status_;
  std::string line_;
  bool overlong_ = false;
};

// The agent's end of the socket.
class WorkerChannel {
 public:
  explicit WorkerChannel(FileDescriptor socket) : socket_(std::move(socket)) {}
  // Takes what has arrived, without waiting. False once the worker's end is closed.
  bool drain();
  // Says that the worker is looked after. Never waits: a worker that does not listen misses it.
  void vouch();
  const WorkerStatus& status() const { return parser_.status(); }
  int descriptor() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
  WorkerStatusParser parser_;
};

// Two connected ends, both closed on exec.
struct ChannelPair {
  FileDescriptor agent;
  FileDescriptor worker;
};
ChannelPair make_channel();

}  // namespace scaletrain
