#include "launch/host/start_limits.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>

#include "support/temp_folder.h"

using namespace scaletrain;

namespace {

bool has_words(const std::optional<std::string>& text, const std::string& words) {
  return text && text->find(words) != std::string::npos;
}

// Of a start of four workers of 10 threads, and an agent of 8 of which 2 run already: 46 new ones.
HostNeeds four_workers() {
  return {.workers = 4,
          .worker = {.threads = 10, .descriptors = 100},
          .agents = 1,
          .agent = {.threads = 8, .descriptors = 90},
          .running = 2};
}

ThreadLimit limit_of(const std::string& name, std::uint64_t most, std::uint64_t used) {
  return {.name = name, .remedy = "raise " + name, .most = most, .used = used};
}

// While it lives, the processes of this user are limited.
class ProcessLimit {
 public:
  explicit ProcessLimit(rlim_t most) {
    ::getrlimit(RLIMIT_NPROC, &before_);
    const rlimit lower{.rlim_cur = std::min(most, before_.rlim_max), .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NPROC, &lower);
  }
  ~ProcessLimit() { ::setrlimit(RLIMIT_NPROC, &before_); }
  ProcessLimit(const ProcessLimit&) = delete;
  ProcessLimit& operator=(const ProcessLimit&) = delete;

 private:
  rlimit before_{};
};

const ThreadLimit* find_limit(const std::vector<ThreadLimit>& limits, const std::string& words) {
  for (const ThreadLimit& limit : limits)
    if (limit.name.find(words) != std::string::npos) return &limit;
  return nullptr;
}

}  // namespace

TEST_CASE("a start that a limit on threads has just room for is let through, and one less refuses it") {
  CHECK_FALSE(beyond_limits(four_workers(), {}, std::nullopt).has_value());
  CHECK_FALSE(beyond_limits(four_workers(), {limit_of("A", 60, 14)}, std::nullopt).has_value());
  const auto refused = beyond_limits(four_workers(), {limit_of("A", 60, 15)}, std::nullopt);
  // What is needed, what there is, and what helps.
  CHECK(has_words(refused, "needs 48 processes and threads"));
  CHECK(has_words(refused, "46 of them new"));
  CHECK(has_words(refused, "A leaves 45"));
  CHECK(has_words(refused, "allows 60, and 15 are in use"));
  CHECK(has_words(refused, "raise A"));
}

TEST_CASE("of several limits the one that leaves least is named") {
  const auto refused =
      beyond_limits(four_workers(), {limit_of("wide", 1000, 100), limit_of("narrow", 50, 40), limit_of("full", 30, 19)},
                    std::nullopt);
  CHECK(has_words(refused, "narrow leaves 10"));
  CHECK(has_words(beyond_limits(four_workers(), {limit_of("over", 10, 40)}, std::nullopt), "over leaves 0"));
}

TEST_CASE("a limit on descriptors is judged by the process that needs most") {
  CHECK_FALSE(beyond_limits(four_workers(), {}, 100).has_value());
  const auto refused = beyond_limits(four_workers(), {}, 99);
  CHECK(has_words(refused, "a worker of this run needs 100 descriptors"));
  CHECK(has_words(refused, "RLIMIT_NOFILE (ulimit -n) allows 99"));
  HostNeeds serving = four_workers();
  serving.agent.descriptors = 5000;
  CHECK(has_words(beyond_limits(serving, {}, 4096), "an agent of this run needs 5000 descriptors"));
}

TEST_CASE("what a worker needs grows with its kernels' threads and its groups") {
  const GroupFacts facts{.kv_heads = 8, .tied = true};
  const Mesh one;
  const ProcessNeeds alone = worker_needs(one, Rank(0), facts, 1);
  CHECK(worker_needs(one, Rank(0), facts, 16).threads >= alone.threads + 15);
  // 16 replicas of 4 stages of 8 tensor ranks: groups of 8, 16 and 4, and the ends of the pipeline are tied.
  const Mesh many(16, 8, 4);
  const ProcessNeeds first = worker_needs(many, Rank(0), facts, 1);
  CHECK(first.descriptors == alone.descriptors + 7 + 15 + 3 + 1);
  // A queue each for the data, pipeline and tied groups; Gloo's loop and its watch.
  CHECK(first.threads == alone.threads + 3 + 2);
  CHECK(agent_needs(8, 1024).descriptors >= 1024);
  CHECK(agent_needs(64, 0).descriptors >= agent_needs(8, 0).descriptors + 56);
}

TEST_CASE("limits are read from the control groups, all levels of both versions, and from the machine") {
  const TempFolder folder;
  folder.write("proc/self/cgroup", "0::/job/step\n7:pids:/old\n");
  folder.write("proc/self/status", "Name:\tx\nUid:\t4242\t4242\t4242\t4242\nThreads:\t3\nCapEff:\t0000000000000000\n");
  folder.write("proc/self/uid_map", "         0          0 4294967295\n");
  folder.write("proc/loadavg", "0.00 0.01 0.05 1/345 6789\n");
  folder.write("proc/sys/kernel/threads-max", "1000\n");
  folder.write("proc/sys/kernel/pid_max", "400\n");
  folder.write("mounts/job/pids.max", "64\n");
  folder.write("mounts/job/pids.current", "60\n");
  folder.write("mounts/job/step/pids.max", "max\n");
  folder.write("mounts/job/step/pids.current", "3\n");
  folder.write("mounts/pids/old/pids.max", "128\n");
  folder.write("mounts/pids/old/pids.current", "5\n");
  CHECK(running_threads(folder / "proc") == 3);
  const auto limits = thread_limits(folder / "proc", folder / "mounts");
  const ThreadLimit* const job = find_limit(limits, "mounts/job");
  REQUIRE(job != nullptr);
  CHECK(job->most == 64);
  CHECK(job->used == 60);
  CHECK(find_limit(limits, "job/step") == nullptr);  // without a limit
  const ThreadLimit* const old = find_limit(limits, "pids/old");
  REQUIRE(old != nullptr);
  CHECK(old->most == 128);
  const ThreadLimit* const machine = find_limit(limits, "pid_max");
  REQUIRE(machine != nullptr);
  CHECK(machine->most == 400);
  CHECK(machine->used == 345);
  CHECK(find_limit(limits, "threads-max") != nullptr);
}

TEST_CASE("a limit of the user counts the threads of all that is the user's, and exempts who the kernel exempts") {
  const TempFolder folder;
  const std::string caps_of_none = "CapEff:\t0000000000000000\n";
  folder.write("proc/self/status", "Uid:\t4242\t4242\t4242\t4242\nThreads:\t3\n" + caps_of_none);
  folder.write("proc/self/uid_map", "         0          0 4294967295\n");
  folder.write("proc/17/status", "Uid:\t4242\t4242\t4242\t4242\nThreads:\t3\n");
  folder.write("proc/18/status", "Uid:\t4242\t0\t0\t0\nThreads:\t40\n");
  folder.write("proc/19/status", "Uid:\t1\t1\t1\t1\nThreads:\t500\n");
  const ProcessLimit limit(2000);
  const auto user = [&] {
    const auto limits = thread_limits(folder / "proc", folder / "mounts");
    const ThreadLimit* const found = find_limit(limits, "RLIMIT_NPROC");
    return found == nullptr ? std::optional<ThreadLimit>() : *found;
  };
  REQUIRE(user().has_value());
  CHECK(user()->most == 2000);
  CHECK(user()->used == 43);
  // CAP_SYS_RESOURCE.
  folder.write("proc/self/status", "Uid:\t4242\t4242\t4242\t4242\nThreads:\t3\nCapEff:\t0000000001000000\n");
  CHECK_FALSE(user().has_value());
  // The machine's root; but not a container's, which is somebody else outside.
  folder.write("proc/self/status", "Uid:\t0\t0\t0\t0\nThreads:\t3\n" + caps_of_none);
  CHECK_FALSE(user().has_value());
  folder.write("proc/self/uid_map", "         0     100000      65536\n");
  CHECK(user().has_value());
}
