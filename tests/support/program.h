// Real processes under test: started without a shell, watched, measured, and gone when their owner goes.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace scaletrain {

struct Launch {
  std::filesystem::path executable;
  std::vector<std::string> arguments;
  // Added to the test's own environment.
  std::vector<std::pair<std::string, std::string>> environment{};
  std::filesystem::path directory{};                   // working directory; empty: the test's
  std::optional<std::filesystem::path> output_file{};  // opened for writing as standard output ("/dev/full")
};

// How a process ended and what it used, its waited-for children included in none of it.
struct Ended {
  int exit_code = -1;  // -1: a signal ended it
  int signal = 0;
  bool timed_out = false;  // killed by the test
  std::string output;      // standard output and standard error, with those of its children
  std::string errors;
  double seconds = 0.0;
  double cpu_seconds = 0.0;  // user and system
  long peak_bytes = 0;       // resident
  bool says(std::string_view words) const { return errors.find(words) != std::string::npos; }
};

// Owns a process: the destructor kills it. The process also dies with the test. Not thread-safe.
class Program {
 public:
  explicit Program(const Launch& launch);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  bool running();
  void signal(int number) const;
  // Kills it when the time is over. May be called again after the end.
  const Ended& wait(double timeout_seconds = 60.0);
  // What it has written so far.
  std::string output() const;
  std::string errors() const;

 private:
  bool reap(int flags);

  pid_t pid_ = -1;
  int output_ = -1;
  int errors_ = -1;
  double start_ = 0.0;
  std::optional<Ended> end_;
};

// From start to end.
Ended run_program(const Launch& launch, double timeout_seconds = 60.0);

// Living processes (no zombies) that `parent` started.
std::vector<pid_t> children_of(pid_t parent);
// Living processes whose command line contains `text`.
std::vector<pid_t> processes_with(std::string_view text);
bool is_alive(pid_t pid);

double test_clock();  // monotonic seconds
void sleep_for(double seconds);

// Asks every half millisecond until the answer is yes; false when the time is over.
template <class Condition>
bool wait_until(Condition condition, double timeout_seconds = 30.0) {
  const double end = test_clock() + timeout_seconds;
  while (!condition()) {
    if (test_clock() > end) return false;
    sleep_for(0.0005);
  }
  return true;
}

}  // namespace scaletrain
