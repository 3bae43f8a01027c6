#include "ranks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <set>
#include <sstream>
#include <stdexcept>

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

double number_at(const std::string& text, int position) {
  std::size_t at = 0;
  for (int i = 0; i < position; ++i) at = text.find(' ', at) + 1;
  return std::stod(text.substr(at));
}

void check_close(const std::string& found, const std::string& expected, const std::string& where, double tolerance) {
  const double ours = number_at(found, 0);
  const double theirs = number_at(expected, 0);
  CHECK_MESSAGE(std::abs(ours - theirs) <= tolerance * std::abs(theirs), where, ": ", ours, " against ", theirs);
}

// The text of a file of /proc, as far as it can be read: its process may end at any moment.
std::string text_of_process(pid_t process, const char* name) {
  try {
    return read_file(fs::path("/proc") / std::to_string(process) / name);
  } catch (const std::exception&) {
    return {};
  }
}

// What a worker's command line says, and the only rank's does not; -1: it is no worker, or not yet.
long rank_of_worker(pid_t process) {
  const std::string words = text_of_process(process, "cmdline");
  const auto option = [](const char* name) { return '\0' + std::string(name) + '\0'; };
  if (words.find(option("worker")) == std::string::npos) return -1;
  const std::size_t at = words.find(option("--rank"));
  return at == std::string::npos ? 0 : std::atol(words.c_str() + at + option("--rank").size());
}

// By inode.
std::set<std::string> sockets_of(pid_t process) {
  std::set<std::string> sockets;
  std::error_code error;
  for (fs::directory_iterator entry("/proc/" + std::to_string(process) + "/fd", error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code closed;
    const std::string target = fs::read_symlink(entry->path(), closed).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  return sockets;
}

}  // namespace

int layout_steps() {
  const char* const text = std::getenv("SCALETRAIN_SOAK_STEPS");
  return text == nullptr ? 10 : std::max(10, std::atoi(text));
}

fs::path layout_folder(const std::string& run) {
  return workspace() / run;
}

std::vector<std::string> layout_arguments(const std::string& run, const Settings& settings) {
  Settings all = {"model.layers=4",
                  "train.global_batch=8",
                  "train.micro_batch=1",
                  "train.steps=" + std::to_string(layout_steps()),
                  "evaluate={every: 5, batches: 2}",
                  "checkpoint={every: 5, keep: 100}"};
  all.insert(all.end(), settings.begin(), settings.end());
  return workspace().training(layout_folder(run).string(), all);
}

Launch layout_launch(const std::string& run, const Settings& settings) {
  return workspace().launch(layout_arguments(run, settings));
}

const Trajectory& one_rank() {
  static const Trajectory trajectory = [] {
    const Ended end = run_program(layout_launch("one-rank", {}), ranks_patience);
    if (end.exit_code != 0) throw std::runtime_error("the run on one rank failed:\n" + end.errors);
    return trajectory_of(layout_folder("one-rank"));
  }();
  return trajectory;
}

void check_same_losses(const std::string& run, const Trajectory& expected, double tolerance) {
  const Trajectory found = trajectory_of(layout_folder(run));
  CHECK(found.steps.size() == static_cast<std::size_t>(layout_steps()));
  CHECK(found.evaluations.size() == expected.evaluations.size());
  for (const auto& entry : expected.steps) {
    const auto other = found.steps.find(entry.first);
    const std::string where = run + ", step " + std::to_string(entry.first);
    REQUIRE_MESSAGE(other != found.steps.end(), where, " is missing");
    check_close(other->second, entry.second, where, tolerance);
  }
  for (const auto& entry : expected.evaluations) {
    const auto other = found.evaluations.find(entry.first);
    const std::string where = run + ", evaluation at step " + std::to_string(entry.first.first);
    REQUIRE_MESSAGE(other != found.evaluations.end(), where, " is missing");
    check_close(other->second, entry.second, where, tolerance);
  }
}

void check_same_losses(const std::string& run) {
  check_same_losses(run, one_rank(), 1e-5);
}

void check_no_process_left(const std::string& run) {
  CHECK(wait_until([&] { return processes_with(layout_folder(run).string()).empty(); }, 10.0));
}

bool reaches_step(Program& process, const std::string& run, long step) {
  return wait_until([&] { return newest_step(layout_folder(run)) >= step || !process.running(); }, ranks_patience) &&
         process.running();
}

std::vector<pid_t> workers_by_rank(Program& agent, std::size_t count) {
  // Not in the order of their process ids: those begin anew when they are used up.
  std::map<long, pid_t> by_rank;
  wait_until(
      [&] {
        by_rank.clear();
        for (const pid_t child : children_of(agent.pid()))
          if (const long rank = rank_of_worker(child); rank >= 0) by_rank[rank] = child;
        return by_rank.size() == count || !agent.running();
      },
      ranks_patience);
  std::vector<pid_t> workers;
  workers.reserve(by_rank.size());
  for (const auto& entry : by_rank) workers.push_back(entry.second);
  return workers;
}

bool takes_interruptions(pid_t process) {
  const std::string status = text_of_process(process, "status");
  const std::string key = "SigBlk:";
  const std::size_t at = status.find(key);
  if (at == std::string::npos) return false;
  const std::uint64_t blocked = std::strtoull(status.c_str() + at + key.size(), nullptr, 16);
  const auto has = [blocked](int number) { return (blocked >> (number - 1) & 1) != 0; };
  return has(SIGTERM) && has(SIGUSR1);
}

std::vector<TcpSocket> tcp_sockets_of(pid_t process) {
  const std::set<std::string> sockets = sockets_of(process);
  std::vector<TcpSocket> found;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    if (!fs::exists(table)) continue;
    std::istringstream lines(read_file(table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::vector<std::string> columns;
      for (std::string word; words >> word;) columns.push_back(word);
      if (columns.size() < 10 || !sockets.contains(columns[9])) continue;
      found.push_back({.local_address = columns[1].substr(0, columns[1].find(':')),
                       .is_listening = columns[3] == "0A",
                       .is_connected = columns[3] == "01"});
    }
  }
  return found;
}

bool is_connected(pid_t process) {
  const std::vector<TcpSocket> sockets = tcp_sockets_of(process);
  return std::any_of(sockets.begin(), sockets.end(), [](const TcpSocket& socket) { return socket.is_connected; });
}

bool hold_up_until(pid_t worker, const std::string& run, const std::function<bool()>& condition, double seconds) {
  constexpr double held = 2.0;
  constexpr double let_go = 0.25;  // at most: where it starts up there is no step
  const double end = test_clock() + seconds;
  bool is_met = false;
  for (;;) {
    ::kill(worker, SIGSTOP);
    is_met = wait_until(condition, held);
    if (is_met || test_clock() > end) break;
    if (!is_alive(worker)) return wait_until(condition, end - test_clock());
    const long step = newest_step(layout_folder(run));
    ::kill(worker, SIGCONT);
    wait_until([&] { return newest_step(layout_folder(run)) > step; }, let_go);
  }
  ::kill(worker, SIGCONT);
  return is_met;
}

LaunchedRanks::LaunchedRanks(int world, const std::string& run, const Settings& settings) : world_(world) {
  for (int rank = 0; rank < world; ++rank) start(rank, run, settings);
}

void LaunchedRanks::start(int rank, const std::string& run, const Settings& settings,
                          const std::vector<std::pair<std::string, std::string>>& environment,
                          const std::string& config) {
  Launch launch = layout_launch(run, settings);
  launch.arguments.at(1) = config;
  // The first of a name is what a process reads.
  launch.environment.insert(launch.environment.end(), environment.begin(), environment.end());
  launch.environment.emplace_back("RANK", std::to_string(rank));
  launch.environment.emplace_back("WORLD_SIZE", std::to_string(world_));
  launch.environment.emplace_back("LOCAL_RANK", std::to_string(rank));
  launch.environment.emplace_back("LOCAL_WORLD_SIZE", std::to_string(world_));
  ranks_.push_back(std::make_unique<Program>(launch));
}

std::vector<int> LaunchedRanks::wait(double seconds) {
  std::vector<int> codes;
  codes.reserve(ranks_.size());
  for (const auto& rank : ranks_) codes.push_back(rank->wait(seconds).exit_code);
  return codes;
}

std::string LaunchedRanks::errors() {
  std::string text;
  for (const auto& rank : ranks_) text += rank->errors();
  return text;
}

}  // namespace scaletrain
