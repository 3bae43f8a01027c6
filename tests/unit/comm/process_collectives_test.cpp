// The collectives of direct_communicator.h over memory, Gloo and the TCP rendezvous: what a run of several processes
// uses.
#include <doctest/doctest.h>

#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "comm/collective/direct_communicator.h"
#include "comm/rendezvous/rendezvous.h"
#include "network_world.h"
#include "support/ranks/host_stream.h"
#include "tensor/view.h"

using namespace scaletrain;

namespace {

View view(std::vector<float>& values) {
  return {values.data(), DType::f32, Shape{static_cast<std::int64_t>(values.size())}};
}

template <class Ways>
std::unique_ptr<Communicator> communicator_of(NetworkWorld<Ways>& world, int rank, double deadline) {
  return make_direct_communicator(
      std::move(world.transports[static_cast<std::size_t>(rank)]),
      {.group_name = "data", .ranks = world_ranks(static_cast<int>(world.transports.size())), .deadline = deadline});
}

}  // namespace

TEST_CASE_TEMPLATE("collectives among processes give the sums and pieces of all ranks", Ways, ByMemory, ByTcp, ByBoth) {
  for (const int num_ranks : {2, 4, 8}) {
    CAPTURE(num_ranks);
    RendezvousServer server({.secret = "secret"});
    std::vector<int> wrong(static_cast<std::size_t>(num_ranks));
    const auto errors = run_each(num_ranks, [&](int rank) {
      int& differences = wrong[static_cast<std::size_t>(rank)];
      const auto store = connect_store(server.address(), "secret", 60.0);
      const auto network = make_network(Ways::uses_memory(rank));
      const auto group =
          make_direct_communicator(network->connect(*store, "data", world_ranks(num_ranks), Rank(10 + rank), 60.0),
                                   {.group_name = "data", .ranks = world_ranks(num_ranks), .deadline = 60.0});
      // Small, odd, and larger than a stretch. Element i of rank r is (r + 1) * (i % 100): sums are exact, and
      // 1 + 2 + ... + N = N (N + 1) / 2.
      const int triangle = num_ranks * (num_ranks + 1) / 2;
      for (const int count : {1, 7, 1000, 600001}) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i)
          values[static_cast<std::size_t>(i)] = static_cast<float>((rank + 1) * (i % 100));
        group->all_reduce(host_stream(), view(values), ReduceOp::sum).wait();
        for (int i = 0; i < count; ++i) {
          differences += values[static_cast<std::size_t>(i)] != static_cast<float>(triangle * (i % 100));
        }
      }
      // Uneven pieces, one of them empty: rank r holds r elements.
      std::vector<std::int64_t> counts(static_cast<std::size_t>(num_ranks));
      std::iota(counts.begin(), counts.end(), 0);
      const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      std::vector<float> own(static_cast<std::size_t>(rank), static_cast<float>(rank));
      std::vector<float> all(static_cast<std::size_t>(total));
      group->all_gather(host_stream(), view(own), counts, view(all)).wait();
      std::size_t at = 0;
      for (int piece = 0; piece < num_ranks; ++piece) {
        for (int i = 0; i < piece; ++i) differences += all[at++] != static_cast<float>(piece);
      }
      group->reduce_scatter(host_stream(), view(all), counts, view(own)).wait();
      for (const float value : own) differences += value != static_cast<float>(rank * num_ranks);
      // Round the ring: to the next, from the one before.
      std::vector<float> out(5, static_cast<float>(rank));
      std::vector<float> in(5);
      const std::vector<Transfer> transfers{
          {.direction = Transfer::Direction::send, .peer = (rank + 1) % num_ranks, .data = view(out)},
          {.direction = Transfer::Direction::receive, .peer = (rank + num_ranks - 1) % num_ranks, .data = view(in)}};
      group->exchange(host_stream(), transfers).wait();
      for (const float value : in) differences += value != static_cast<float>((rank + num_ranks - 1) % num_ranks);
    });
    for (const auto& error : errors) CHECK(error == "");
    for (const int differences : wrong) CHECK(differences == 0);
  }
}

TEST_CASE_TEMPLATE("the others of a group learn soon that a member is gone", Ways, ByMemory, ByTcp, ByBoth) {
  NetworkWorld<Ways> world(4);
  const MonotonicTime start = monotonic_now();
  const auto errors = run_each(4, [&](int rank) {
    const auto group = communicator_of(world, rank, 600.0);
    if (rank == 2) return;  // its communicator goes
    std::vector<float> values(1000);
    for (;;) group->all_reduce(host_stream(), view(values), ReduceOp::sum).wait();
  });
  CHECK(seconds_since(start) < 120.0);  // far from the deadline
  for (const int rank : {0, 1, 3}) {
    CAPTURE(errors[static_cast<std::size_t>(rank)]);
    const std::string& error = errors[static_cast<std::size_t>(rank)];
    CHECK(contains(error, "group data: all_reduce #0: the connection to rank "));
    CHECK(contains(error, "is lost"));
    CHECK(error.find("group", 1) == std::string::npos);  // said once
  }
}

TEST_CASE_TEMPLATE("a silent member is named at the deadline, and only that one", Ways, ByMemory, ByTcp, ByBoth) {
  NetworkWorld<Ways> world(4);
  std::vector<std::unique_ptr<Communicator>> groups;
  groups.reserve(4);
  for (int rank = 0; rank < 4; ++rank) groups.push_back(communicator_of(world, rank, 2.0));
  const auto errors = run_each(4, [&](int rank) {
    if (rank == 2) return;  // there, and does nothing
    std::vector<float> values(1000);
    groups[static_cast<std::size_t>(rank)]->all_reduce(host_stream(), view(values), ReduceOp::sum).wait();
  });
  for (const int rank : {0, 1, 3}) {
    const auto& error = errors[static_cast<std::size_t>(rank)];
    CAPTURE(error);
    CHECK(contains(error, "all_reduce #0"));
    CHECK(contains(error, "rank 12 "));
  }
}
