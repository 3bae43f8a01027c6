// What a rank sees when another one fails, stays away or does something else.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/deadline.h"
#include "support/ranks/host_stream.h"
#include "support/ranks/ranks.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

using Mode = DirectOptions::Mode;

View view(std::vector<float>& values) {
  return {values.data(), DType::f32, Shape{static_cast<std::int64_t>(values.size())}};
}

std::size_t place_of(Rank rank) {
  return static_cast<std::size_t>(rank.value());
}

// For a peer that does not exist, and for peers of which others must come on a busy machine meanwhile.
constexpr double brief = 0.3;
constexpr double patient = 2.0;

}  // namespace

TEST_CASE("a_missing_rank_is_named_at_the_deadline_with_group_collective_and_number") {
  struct Told {
    Mode mode;
    std::vector<std::string> errors = std::vector<std::string>(4);
    std::vector<std::string> later = std::vector<std::string>(4);
  };
  std::array<Told, 2> both{Told{Mode::queue}, Told{Mode::caller}};
  std::vector<std::thread> threads;
  threads.reserve(both.size());
  for (Told& told : both) {
    threads.emplace_back([&told] {
      InProcessWorld world(4);
      run_threads(world, [&](Rank rank) {
        auto group = make_world_group(world, rank, told.mode, rank == Rank(2) ? 60.0 : patient, "data");
        std::vector<float> values(5000, 1.0f);
        group->all_reduce(host_stream(), view(values), ReduceOp::sum).wait();
        if (rank == Rank(2)) return;  // stays away from the second
        told.errors[place_of(rank)] =
            message_of<PeerError>([&] { group->all_reduce(host_stream(), view(values), ReduceOp::sum).wait(); });
        told.later[place_of(rank)] =
            message_of<PeerError>([&] { group->all_reduce(host_stream(), view(values), ReduceOp::max); });
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Told& told : both) {
    for (const std::size_t rank : {0, 1, 3}) {
      CAPTURE(rank);
      CHECK(told.errors[rank] ==
            "group data: all_reduce #1 waited 2 s for rank 2 (of the world); it is dead, stuck, or issued another "
            "collective");
      CHECK(told.later[rank] == told.errors[rank]);
    }
  }
}

TEST_CASE("several_missing_ranks_are_all_named") {
  InProcessWorld world(4);
  std::string error;
  run_threads(world, [&](Rank rank) {
    if (rank == Rank(1) || rank == Rank(3)) return;
    auto group = make_world_group(world, rank, Mode::caller, rank == Rank(0) ? patient : 60.0, "tensor");
    std::vector<float> values(5);
    const int other = rank == Rank(0) ? 2 : 0;
    const auto direction = rank == Rank(0) ? Transfer::Direction::receive : Transfer::Direction::send;
    group->exchange(host_stream(), std::vector<Transfer>{{direction, other, view(values)}}).wait();
    const std::string text =
        message_of<PeerError>([&] { group->all_reduce(host_stream(), view(values), ReduceOp::max).wait(); });
    if (rank != Rank(0)) return;
    error = text;
    for (const Rank missing : {Rank(1), Rank(3)}) world.fail(missing, "never came");  // ends rank 2
  });
  CHECK(contains(error, "group tensor: all_reduce #0 waited 2 s for ranks 1, 3 (of the world); they are dead"));
}

TEST_CASE("a_late_exchange_names_its_peer") {
  InProcessWorld world(3);
  std::string error;
  auto group = make_world_group(world, Rank(0), Mode::queue, brief, "pipeline");
  std::vector<float> values(5);
  const std::vector<Transfer> transfers{{Transfer::Direction::send, 2, view(values)}};
  Ticket ticket = group->exchange(host_stream(), transfers);
  error = message_of<PeerError>([&] { ticket.wait(); });
  CHECK(contains(error, "group pipeline: exchange #0 waited 0.3 s for rank 2 (of the world)"));
  CHECK(message_of<PeerError>([&] { ticket.wait(); }) == error);
  CHECK(message_of<PeerError>([&] { group->exchange(host_stream(), transfers); }) == error);
}

// Two ranks, of which the second sends what the first waits for as late as it is told.
struct LateMessage {
  // Seconds; vouched: what the first rank's communicator asks.
  std::string error(double after, std::function<MonotonicTime()> vouched, WorkCount* work = nullptr) {
    InProcessWorld world(2);
    std::string text;
    run_threads(world, [&](Rank rank) {
      DirectOptions options{.group_name = "pipeline", .ranks = {Rank(0), Rank(1)}, .deadline = brief};
      if (rank == Rank(0)) {
        options.vouched = vouched;
        options.work = work;
      } else {
        options.deadline = 60.0;
      }
      auto group = make_direct_communicator(world.make_transport("pipeline", options.ranks, rank), options);
      std::vector<float> values(5);
      if (rank == Rank(1)) {
        std::this_thread::sleep_for(std::chrono::duration<double>(after));
        // The first rank may have given up.
        const std::vector<Transfer> sends{{Transfer::Direction::send, 0, view(values)}};
        message_of<PeerError>([&] { group->exchange(host_stream(), sends).wait(); });
        return;
      }
      const std::vector<Transfer> receives{{Transfer::Direction::receive, 1, view(values)}};
      text = message_of<PeerError>([&] { group->exchange(host_stream(), receives).wait(); });
      if (!text.empty()) world.fail(rank, "gave up");
    });
    return text;
  }
};

TEST_CASE("a_rank_that_is_looked_after_waits_as_long_as_it_takes") {
  WorkCount work{0};
  CHECK(LateMessage()
            .error(
                5 * brief, [] { return monotonic_now(); }, &work)
            .empty());
  CHECK(work == 1);
  CHECK(contains(LateMessage().error(5 * brief, {}), "exchange #0 waited 0.3 s for rank 1"));
}

TEST_CASE("a_deadline_runs_from_the_last_word_of_who_looks_after_the_ranks") {
  const MonotonicTime begin = monotonic_now();
  const auto until_a_while = [begin] { return std::min(monotonic_now(), deadline_after(4 * brief, begin)); };
  const std::string error = LateMessage().error(30 * brief, until_a_while);
  CHECK(contains(error, "exchange #0 waited "));
  CHECK(contains(error, ", the last 0.3 of them without a word from who watches the ranks for rank 1 (of the world)"));
  CHECK(seconds_since(begin) >= 5 * brief);
}

TEST_CASE("a_rank_that_aborts_waits_for_nobody_and_its_peers_do_not_wait_for_it") {
  for (const Mode mode : {Mode::queue, Mode::caller}) {
    const MonotonicTime begin = monotonic_now();
    InProcessWorld world(2);
    std::vector<std::string> first(2);
    std::vector<std::string> later(2);
    std::string reduction;
    run_threads(world, [&](Rank rank) {
      auto group = make_world_group(world, rank, mode, 60.0, "data");
      std::vector<float> values(5000, 1.0f);
      std::vector<float> received(5000);
      if (rank == Rank(0)) {
        // A message and, where they queue, a reduction that rank 1 never joins.
        Ticket message =
            group->exchange(host_stream(), std::vector<Transfer>{{Transfer::Direction::receive, 1, view(received)}});
        Ticket sum = mode == Mode::queue ? group->all_reduce(host_stream(), view(values), ReduceOp::sum) : Ticket();
        group->abort();
        group->abort();
        first[0] = message_of<PeerError>([&] { message.wait(); });
        if (mode == Mode::queue) reduction = message_of<PeerError>([&] { sum.wait(); });
      } else {
        first[1] = message_of<PeerError>([&] {
          group->exchange(host_stream(), std::vector<Transfer>{{Transfer::Direction::receive, 0, view(received)}})
              .wait();
        });
      }
      later[place_of(rank)] =
          message_of<PeerError>([&] { group->all_reduce(host_stream(), view(values), ReduceOp::sum).wait(); });
    });
    for (const std::size_t rank : {0, 1}) {
      CHECK_FALSE(first[rank].empty());
      CHECK_FALSE(later[rank].empty());
    }
    CHECK(reduction.empty() == (mode == Mode::caller));
    CHECK(contains(first[1], "rank 0"));
    CHECK(seconds_since(begin) < 30.0);
  }
}

TEST_CASE("ranks_that_issue_different_collectives_of_other_sizes_do_not_exchange_bytes") {
  InProcessWorld world(2);
  CHECK_THROWS_AS(run_threads(world,
                              [&](Rank rank) {
                                auto group = make_world_group(world, rank, Mode::caller);
                                std::vector<float> values(rank == Rank(0) ? 5 : 7);
                                group->all_reduce(host_stream(), view(values), ReduceOp::sum).wait();
                              }),
                  BugError);
}

TEST_CASE("a_failing_rank_ends_the_others_with_its_reason") {
  for (const Mode mode : {Mode::queue, Mode::caller}) {
    InProcessWorld world(4);
    std::vector<std::unique_ptr<Communicator>> groups(4);
    std::vector<std::string> errors(4);
    CHECK_THROWS_WITH_AS(
        run_threads(world,
                    [&](Rank rank) {
                      groups[place_of(rank)] = make_world_group(world, rank, mode);
                      if (rank == Rank(3)) throw InputError("shard 7 is damaged");
                      std::vector<float> values(5000);
                      try {
                        groups[place_of(rank)]->all_reduce(host_stream(), view(values), ReduceOp::sum).wait();
                      } catch (const PeerError& error) {
                        errors[place_of(rank)] = error.what();
                        throw;
                      }
                    }),
        "shard 7 is damaged", InputError);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(contains(errors[rank], "group world: all_reduce #0: "));
      CHECK(contains(errors[rank], "shard 7 is damaged"));
    }
  }
}

TEST_CASE("calls_queued_behind_a_failure_fail_with_the_same_error") {
  InProcessWorld world(2);
  auto group = make_world_group(world, Rank(0), Mode::queue, brief, "data");
  std::vector<float> values(5000);
  std::vector<Ticket> tickets;
  tickets.reserve(3);
  for (int call = 0; call < 3; ++call) tickets.push_back(group->all_reduce(host_stream(), view(values), ReduceOp::sum));
  std::vector<std::string> errors;
  for (int call = 2; call >= 0; --call) {
    errors.push_back(message_of<PeerError>([&] { tickets[static_cast<std::size_t>(call)].wait(); }));
  }
  CHECK(contains(errors[0], "group data: all_reduce #0 waited 0.3 s for rank 1"));
  CHECK(errors[1] == errors[0]);
  CHECK(errors[2] == errors[0]);
}

TEST_CASE("closing_a_communicator_waits_for_no_peer") {
  // Were it to wait, this would take the deadline, ten minutes, and the test would be ended.
  InProcessWorld world(2);
  std::vector<float> values(5000);
  std::vector<Ticket> tickets;
  tickets.reserve(2);
  {
    auto group = make_world_group(world, Rank(0), Mode::queue, 600.0);
    tickets.push_back(group->all_reduce(host_stream(), view(values), ReduceOp::sum));
    tickets.push_back(group->all_reduce(host_stream(), view(values), ReduceOp::sum));
  }
  for (Ticket& ticket : tickets) CHECK(!message_of<PeerError>([&] { ticket.wait(); }).empty());
}

TEST_CASE("a_message_given_up_leaves_its_memory_alone") {
  InProcessWorld world(2);
  const std::vector<Rank> members{Rank(0), Rank(1)};
  auto first = world.make_transport("pair", members, Rank(0));
  auto second = world.make_transport("pair", members, Rank(1));
  std::vector<std::byte> from(8, std::byte{7});
  std::vector<std::byte> to(8, std::byte{1});
  first->send(1, 5, from).reset();
  auto receiving = second->receive(0, 5, to);
  CHECK_FALSE(receiving->wait_until(monotonic_now()));
  auto sending = first->send(1, 5, from);
  CHECK(sending->wait_until(monotonic_now()));
  CHECK(receiving->wait_until(monotonic_now()));
  CHECK(to == from);
}

TEST_CASE("a_send_completes_only_with_its_receive") {
  InProcessWorld world(2);
  const std::vector<Rank> members{Rank(0), Rank(1)};
  auto first = world.make_transport("pair", members, Rank(0));
  auto second = world.make_transport("pair", members, Rank(1));
  std::vector<std::byte> from(8);
  auto sending = first->send(1, 0, from);
  CHECK_FALSE(sending->wait_until(monotonic_now()));
  std::vector<std::byte> other_tag(8);
  auto other = second->receive(0, 1, other_tag);
  CHECK_FALSE(sending->wait_until(monotonic_now()));
  std::vector<std::byte> to(8);
  auto receiving = second->receive(0, 0, to);
  CHECK(sending->wait_until(monotonic_now()));
}

TEST_CASE("groups_made_after_a_failure_know_of_it") {
  InProcessWorld world(3);
  world.fail(Rank(1), "out of memory");
  auto with = world.make_transport("data.0", {Rank(0), Rank(1)}, Rank(0));
  std::vector<std::byte> data(4);
  auto pending = with->receive(1, 0, data);
  CHECK_THROWS_WITH_AS(pending->wait_until(monotonic_now()), "rank 1 (of the world) failed: out of memory", PeerError);
  auto without = world.make_transport("data.1", {Rank(0), Rank(2)}, Rank(0));
  auto other = without->receive(1, 0, data);
  CHECK_FALSE(other->wait_until(monotonic_now()));
}
