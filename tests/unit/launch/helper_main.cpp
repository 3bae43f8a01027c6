// A process that behaves as its first argument says; run by the tests of the agent in the worker's place.
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "host/machine.h"
#include "host/process/child_process.h"
#include "host/process/signals.h"
#include "launch/agent/agent.h"
#include "launch/coordination/coordinator.h"
#include "launch/meeting/meeting.h"
#include "launch/watch/hang_report.h"
#include "launch/workers/worker_channel.h"

namespace scaletrain {
namespace {

constexpr double report_period = 0.05;

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

[[noreturn]] void sleep_for_ever() {
  for (;;) sleep_seconds(1.0);
}

struct Call {
  std::vector<std::string> words;  // the mode and its arguments, without --channel
  int channel = -1;
};

Call parse_call(int count, char** arguments) {
  Call call;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    if (word == "--channel" && i + 1 < count) {
      call.channel = std::stoi(arguments[++i]);
    } else {
      call.words.push_back(word);
    }
  }
  return call;
}

// exit CODE
int exit_at_once(const Call& call) {
  return std::stoi(call.words.at(1));
}

// die STEP SIGNAL: reaches the step, then gets the signal
int die(const Call& call) {
  WorkerReporter reporter(call.channel, report_period);
  reporter.entered(std::stoll(call.words.at(1)), false);
  const int number = std::stoi(call.words.at(2));
  // Sanitizers catch faults and turn them into exit codes; here the signal itself must end the process.
  if (number != SIGKILL) std::signal(number, SIG_DFL);
  std::raise(number);
  sleep_for_ever();
}

// fail CODE MESSAGE
int fail(const Call& call) {
  const int code = std::stoi(call.words.at(1));
  WorkerReporter reporter(call.channel, report_period);
  reporter.error(static_cast<ExitCode>(code), call.words.at(2));
  return code;
}

// hang STEP [FILE]: says it works and counts nothing; then writes the file ("ready")
int hang(const Call& call) {
  WorkerReporter reporter(call.channel, report_period);
  reporter.entered(std::stoll(call.words.at(1)), false);
  if (call.words.size() > 2) std::ofstream(call.words[2]) << "ready" << std::flush;
  sleep_for_ever();
}

// work SECONDS: at one step, slowly, but instruction after instruction
int work(const Call& call) {
  std::atomic<std::uint64_t> counter{0};
  WorkerReporter reporter(call.channel, report_period);
  reporter.watch([&counter] { return counter.load(); });
  reporter.entered(3, false);
  const MonotonicTime start = monotonic_now();
  while (seconds_since(start) < std::stod(call.words.at(1))) {
    ++counter;
    sleep_seconds(0.02);
  }
  reporter.watch({});
  return 0;
}

// looked-after SECONDS: works until its agent has said a second time that it looks after it; fails if it does not
int looked_after(const Call& call) {
  std::atomic<std::uint64_t> counter{0};
  WorkerReporter reporter(call.channel, report_period);
  reporter.watch([&counter] { return ++counter; });
  reporter.entered(3, false);
  const MonotonicTime start = monotonic_now();
  MonotonicTime first = MonotonicTime::min();
  while (seconds_since(start) < std::stod(call.words.at(1))) {
    const MonotonicTime now = reporter.vouched();
    if (first == MonotonicTime::min()) first = now;
    if (now > first) break;
    sleep_seconds(0.01);
  }
  reporter.watch({});
  return reporter.vouched() > first ? 0 : 1;
}

// wait SECONDS: for storage, without progress
int wait(const Call& call) {
  WorkerReporter reporter(call.channel, report_period);
  reporter.entered(3, true);
  sleep_seconds(std::stod(call.words.at(1)));
  return 0;
}

// save FILE SECONDS: trains until interrupted, then saves for so long; writes the file at the start ("ready") and the
// end ("saved")
int save(const Call& call) {
  WorkerReporter reporter(call.channel, report_period);
  const InterruptWatcher interrupts;
  reporter.entered(1, false);
  std::ofstream(call.words.at(1)) << "ready" << std::flush;
  while (!interrupts.interrupted()) sleep_seconds(0.005);
  std::ofstream(call.words.at(1)) << "saving" << std::flush;
  sleep_seconds(std::stod(call.words.at(2)));
  std::ofstream(call.words.at(1)) << "saved" << std::flush;
  return static_cast<int>(ExitCode::interrupted);
}

// slow-start SECONDS: has no watcher for a while, as a program that is still being loaded
int slow_start(const Call& call) {
  sleep_seconds(std::stod(call.words.at(1)));
  const InterruptWatcher interrupts;
  while (!interrupts.interrupted()) sleep_seconds(0.005);
  return static_cast<int>(ExitCode::interrupted);
}

// pid FILE: writes its pid and stays
int write_pid(const Call& call) {
  const std::string temporary = call.words.at(1) + ".tmp";
  std::ofstream(temporary) << ::getpid() << std::flush;
  if (std::rename(temporary.c_str(), call.words.at(1).c_str()) != 0) return 1;
  sleep_for_ever();
}

// explain CODE MESSAGE SECONDS: says why it will fail, and takes its time to leave
int explain(const Call& call) {
  const int code = std::stoi(call.words.at(1));
  WorkerReporter reporter(call.channel, report_period);
  reporter.entered(5, false);
  reporter.error(static_cast<ExitCode>(code), call.words.at(2));
  sleep_seconds(std::stod(call.words.at(3)));
  return code;
}

// later SECONDS CODE MESSAGE: fails after a while
int fail_later(const Call& call) {
  WorkerReporter reporter(call.channel, report_period);
  reporter.entered(5, false);
  sleep_seconds(std::stod(call.words.at(1)));
  const int code = std::stoi(call.words.at(2));
  if (!call.words.at(3).empty()) reporter.error(static_cast<ExitCode>(code), call.words.at(3));
  return code;
}

// count FILE: trains until it is told to end, then says how many times it was told, within half a second
int count_signals(const Call& call) {
  WorkerReporter reporter(call.channel, report_period);
  std::atomic<int> signals{0};
  const InterruptWatcher interrupts([&signals](int) { ++signals; });
  std::atomic<std::uint64_t> counter{0};
  reporter.watch([&counter] { return ++counter; });
  reporter.entered(1, false);
  std::ofstream(call.words.at(1)) << "ready" << std::flush;
  while (!interrupts.interrupted()) sleep_seconds(0.005);
  sleep_seconds(0.5);
  std::ofstream(call.words.at(1)) << signals.load() << std::flush;
  reporter.watch({});
  return static_cast<int>(ExitCode::interrupted);
}

// place FILE: writes what it was given: the secret, whether launcher variables are there, the processors
int write_place(const Call& call) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "-" : value);
  };
  std::ofstream file(call.words.at(1));
  file << variable("SCALETRAIN_SECRET") << " " << variable("RANK") << " " << variable("LAUNCH_TEST_KEPT");
  for (const int processor : affinity_processors()) file << " " << processor;
  file << std::flush;
  return 0;
}

// stuck STEP LOG [stop]: says that it waits in a collective, for ever; with `stop`, is stopped after a moment, and its
// report names a later collective than its lines did
int stuck(const Call& call) {
  block_hang_signal();
  WorkerReporter reporter(call.channel, report_period);
  const HangReport report({.file = call.words.at(2),
                           .place =
                               [&call] {
                                 const std::string number = call.words.size() > 3 ? "8" : "7";
                                 return HangPlace{.text = "in all_reduce #" + number,
                                                  .collective = "group data (ranks 0, 1): all_reduce #" + number};
                               },
                           .told = reporter.descriptor()});
  reporter.watch_collective(
      [] { return InCollective{.text = "group data (ranks 0, 1): all_reduce #7", .seconds = 1.0}; });
  reporter.entered(std::stoll(call.words.at(1)), false);
  if (call.words.size() > 3) {
    sleep_seconds(0.2);
    ::kill(::getpid(), SIGSTOP);
  }
  sleep_for_ever();
}

// agent-of-stuck FOLDER: a parent whose child plays `stuck` with FOLDER/log; writes FOLDER/pid
int agent_of_stuck(const Call& call) {
  const ChannelPair pair = make_channel();
  const std::string folder = call.words.at(1) + "/";
  const ChildProcess child(
      {.executable = "/proc/self/exe",
       .arguments = {"stuck", "4", folder + "log", "--channel", std::to_string(pair.worker.get())}},
      pair.worker);
  WorkerChannel channel(FileDescriptor(::dup(pair.agent.get())));
  while (channel.status().lines == 0) {
    channel.drain();
    sleep_seconds(0.01);
  }
  std::ofstream(folder + "pid.tmp") << child.pid() << std::flush;
  if (std::rename((folder + "pid.tmp").c_str(), (folder + "pid").c_str()) != 0) return 1;
  sleep_for_ever();
}

// agent FOLDER WORLD: supervises workers that play `pid FOLDER/worker.pid.RANK`
int agent(const Call& call) {
  Log log(LogOptions{});
  const InterruptWatcher interrupts;
  const RunPaths paths(call.words.at(1));
  std::optional<ExitStatus> noted;
  const auto meeting = Meeting::join({.paths = paths, .place = lone_place()}, {}, noted);
  const std::int64_t world = std::stoll(call.words.at(2));
  Coordinator coordinator(
      {.layout = {.ranks_per_place = world, .replica = 1, .data = world},
       .lock_id = "x",
       .log = log,
       .next_start = [](const StartPoint& before) { return before; },
       .serve = [&](std::int64_t ranks, bool is_one_host) { return meeting->serve_workers(ranks, is_one_host); }});
  AgentOptions options{.paths = paths, .meeting = *meeting, .log = log, .interrupts = interrupts};
  options.arguments = [&](const StartPoint&, const WorkerSlot& slot) {
    return std::vector<std::string>{"pid", call.words.at(1) + "/worker.pid." + std::to_string(slot.rank.value())};
  };
  return static_cast<int>(run_first_agent(options, coordinator).status.code);
}

int run(const Call& call);

// meet FOLDER COUNT SCRIPT...: plays the script once so many have come to the folder
int meet(const Call& call) {
  const std::filesystem::path folder = call.words.at(1);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / std::to_string(::getpid())) << std::flush;
  const auto count_of = [&folder] {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  };
  while (count_of() < std::stol(call.words.at(2))) sleep_seconds(0.005);
  return run({.words = {call.words.begin() + 3, call.words.end()}, .channel = call.channel});
}

int run(const Call& call) {
  const std::map<std::string, std::function<int(const Call&)>> modes = {{"exit", exit_at_once},
                                                                        {"die", die},
                                                                        {"fail", fail},
                                                                        {"hang", hang},
                                                                        {"work", work},
                                                                        {"looked-after", looked_after},
                                                                        {"wait", wait},
                                                                        {"save", save},
                                                                        {"slow-start", slow_start},
                                                                        {"stuck", stuck},
                                                                        {"agent-of-stuck", agent_of_stuck},
                                                                        {"pid", write_pid},
                                                                        {"agent", agent},
                                                                        {"explain", explain},
                                                                        {"later", fail_later},
                                                                        {"count", count_signals},
                                                                        {"place", write_place},
                                                                        {"meet", meet}};
  return modes.at(call.words.at(0))(call);
}

}  // namespace
}  // namespace scaletrain

int main(int count, char** arguments) {
  scaletrain::block_interrupt_signals();
  try {
    return scaletrain::run(scaletrain::parse_call(count, arguments));
  } catch (const std::exception& error) {
    std::cerr << "launch_test_helper: " << error.what() << "\n";
    return 99;
  }
}
