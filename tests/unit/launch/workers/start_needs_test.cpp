#include "launch/workers/start_needs.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>

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
  // Control groups are as large as those of the axes, and have no queues; the tensor group has one then.
  GroupFacts devices = facts;
  devices.control = true;
  const ProcessNeeds beside = worker_needs(many, Rank(0), devices, 1);
  CHECK(beside.descriptors == first.descriptors + 7 + 15 + 3);
  CHECK(beside.threads == first.threads + 1);
  CHECK(agent_needs(8, 1024).descriptors >= 1024);
  CHECK(agent_needs(64, 0).descriptors >= agent_needs(8, 0).descriptors + 56);
}
