// The collectives over in-process transport, against plain sums in the order of the ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "comm/collective/ordered_reduction.h"
#include "support/ranks/host_stream.h"
#include "support/ranks/ranks.h"
#include "support/values_to_sum.h"

using namespace scaletrain;

namespace {

using Mode = DirectOptions::Mode;
using Counts = std::vector<std::int64_t>;

template <class T>
View view(std::vector<T>& values) {
  return {values.data(), dtype_of<T>(), Shape{static_cast<std::int64_t>(values.size())}};
}

std::size_t at(Rank rank) {
  return static_cast<std::size_t>(rank.value());
}

template <class T>
std::vector<std::vector<T>> operands(int ranks, std::int64_t count) {
  std::vector<std::vector<T>> all;
  all.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) all.push_back(values_to_sum<T>(rank, count));
  return all;
}

// Halves are summed in f32 and rounded once.
template <class T>
std::vector<T> plain(const std::vector<std::vector<T>>& all, ReduceOp op) {
  using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
  std::vector<T> result;
  for (std::size_t i = 0; i < all[0].size(); ++i) {
    auto value = static_cast<Wide>(all[0][i]);
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const auto next = static_cast<Wide>(all[rank][i]);
      value = op == ReduceOp::sum ? value + next : std::max(value, next);
    }
    result.push_back(static_cast<T>(value));
  }
  return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
std::vector<T> piece(const std::vector<T>& all, const Counts& counts, std::size_t index) {
  const auto first = all.begin() + std::accumulate(counts.begin(), counts.begin() + static_cast<long>(index), 0L);
  return {first, first + counts[index]};
}

// Runs function(rank, communicator) on every rank of a group.
template <class Function>
void run_group(int ranks, Mode mode, Function function, double deadline = 60.0) {
  InProcessWorld world(ranks);
  std::vector<std::unique_ptr<Communicator>> groups(static_cast<std::size_t>(ranks));
  run_threads(world, [&](Rank rank) {
    groups[at(rank)] = make_world_group(world, rank, mode, deadline);
    function(rank, *groups[at(rank)]);
  });
}

template <class T>
void check_all_reduce(int ranks, std::int64_t count, ReduceOp op, Mode mode) {
  auto values = operands<T>(ranks, count);
  const auto expected = plain(values, op);
  run_group(ranks, mode, [&](Rank rank, Communicator& group) {
    group.all_reduce(host_stream(), view(values[at(rank)]), op).wait();
  });
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    CHECK(same_bits(values[static_cast<std::size_t>(rank)], expected));
  }
}

template <class T>
void check_reduce_scatter(const Counts& counts, bool in_place, Mode mode) {
  const int ranks = static_cast<int>(counts.size());
  auto values = operands<T>(ranks, std::accumulate(counts.begin(), counts.end(), 0L));
  const auto expected = plain(values, ReduceOp::sum);
  std::vector<std::vector<T>> results(counts.size());
  run_group(ranks, mode, [&](Rank rank, Communicator& group) {
    auto& own = values[at(rank)];
    auto& result = results[at(rank)];
    result.resize(static_cast<std::size_t>(counts[at(rank)]));
    const auto before = std::accumulate(counts.begin(), counts.begin() + rank.value(), 0L);
    const View output = in_place ? View(own.data() + before, dtype_of<T>(), Shape{counts[at(rank)]}) : view(result);
    group.reduce_scatter(host_stream(), view(own), counts, output).wait();
    if (in_place) result.assign(own.begin() + before, own.begin() + before + counts[at(rank)]);
  });
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    CAPTURE(rank);
    CHECK(same_bits(results[rank], piece(expected, counts, rank)));
  }
}

}  // namespace

TEST_CASE("all_reduce_adds_in_the_order_of_the_ranks") {
  // 2048 f32 are the last that travel at once; 300,000 and more take several stretches.
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const std::int64_t count : {0, 1, 7, 1025, 2048, 2049, 20011}) {
      CAPTURE(ranks);
      CAPTURE(count);
      check_all_reduce<float>(ranks, count, ReduceOp::sum, ranks % 2 == 0 ? Mode::queue : Mode::caller);
    }
  }
  check_all_reduce<float>(2, 1'300'001, ReduceOp::sum, Mode::queue);
  check_all_reduce<float>(3, 2'000'003, ReduceOp::sum, Mode::caller);
}

TEST_CASE("all_reduce_takes_every_type_and_operation") {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
    for (const std::int64_t count : {5, 5003}) {
      for (const int ranks : {2, 5}) {
        check_all_reduce<float>(ranks, count, op, Mode::queue);
        check_all_reduce<double>(ranks, count, op, Mode::queue);
        check_all_reduce<std::int64_t>(ranks, count, op, Mode::queue);
        check_all_reduce<Bf16>(ranks, count, op, Mode::queue);
        check_all_reduce<F16>(ranks, count, op, Mode::queue);
      }
    }
  }
}

TEST_CASE("a_maximum_with_a_nan_is_nan_whoever_has_it") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t holder = 0; holder < 3; ++holder) {
    std::vector<std::vector<float>> values(3, std::vector<float>(3000, 1.0f));
    values[holder][0] = nan;
    values[holder][2999] = nan;
    run_group(3, Mode::caller, [&](Rank rank, Communicator& group) {
      group.all_reduce(host_stream(), view(values[at(rank)]), ReduceOp::max).wait();
    });
    for (const auto& result : values) {
      CHECK(std::isnan(result[0]));
      CHECK(result[1] == 1.0f);
      CHECK(std::isnan(result[2999]));
    }
  }
}

TEST_CASE("reduce_scatter_gives_each_rank_its_piece_of_any_length") {
  for (const bool in_place : {false, true}) {
    check_reduce_scatter<float>({3}, in_place, Mode::caller);
    check_reduce_scatter<float>({3, 5}, in_place, Mode::queue);
    check_reduce_scatter<float>({0, 0, 0}, in_place, Mode::queue);
    check_reduce_scatter<float>({0, 4097, 1, 0}, in_place, Mode::queue);
    check_reduce_scatter<double>({1000, 0, 3000}, in_place, Mode::caller);
    check_reduce_scatter<std::int64_t>({1, 2, 3, 4, 5, 6, 7, 8}, in_place, Mode::queue);
    check_reduce_scatter<float>({700'001, 3, 530'000}, in_place, Mode::queue);  // three stretches, one, three
  }
}

TEST_CASE("all_gather_joins_pieces_of_any_length_and_type_in_place_too") {
  for (const Counts& counts : {Counts{4}, Counts{1, 2}, Counts{0, 3, 0, 5}, Counts{30000, 1, 70001}}) {
    for (const bool in_place : {false, true}) {
      const auto total = static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), 0L));
      std::vector<std::uint16_t> expected(total);
      std::iota(expected.begin(), expected.end(), std::uint16_t{0});
      std::vector<std::vector<std::uint16_t>> results(counts.size());
      run_group(static_cast<int>(counts.size()), Mode::queue, [&](Rank rank, Communicator& group) {
        auto own = piece(expected, counts, at(rank));
        auto& result = results[at(rank)];
        result.assign(total, 9);
        const auto before = std::accumulate(counts.begin(), counts.begin() + rank.value(), 0L);
        const View place(result.data() + before, DType::u16, Shape{counts[at(rank)]});
        if (in_place) std::copy(own.begin(), own.end(), result.begin() + before);
        group.all_gather(host_stream(), in_place ? place : view(own), counts, view(result)).wait();
      });
      for (const auto& result : results) CHECK(result == expected);
    }
  }
}

TEST_CASE("all_reduce_and_reduce_scatter_with_all_gather_agree_to_the_bit_for_any_division_into_buckets") {
  constexpr int ranks = 3;
  constexpr std::int64_t count = 9001;
  const auto values = operands<float>(ranks, count);
  const auto expected = plain(values, ReduceOp::sum);
  auto whole = values;
  auto buckets = values;
  std::vector<std::vector<float>> scattered(ranks, std::vector<float>(count));
  const Counts counts{1000, 8001, 0};
  run_group(ranks, Mode::queue, [&](Rank rank, Communicator& group) {
    const std::size_t own = at(rank);
    std::vector<Ticket> tickets;
    tickets.push_back(group.all_reduce(host_stream(), view(whole[own]), ReduceOp::sum));
    std::int64_t first = 0;
    for (const std::int64_t size : {1L, 2500L, 17L, 0L, 6483L}) {  // small and large ones
      tickets.push_back(
          group.all_reduce(host_stream(), {buckets[own].data() + first, DType::f32, Shape{size}}, ReduceOp::sum));
      first += size;
    }
    auto input = values[own];
    const auto before = std::accumulate(counts.begin(), counts.begin() + rank.value(), 0L);
    const View piece_view(scattered[own].data() + before, DType::f32, Shape{counts[own]});
    tickets.push_back(group.reduce_scatter(host_stream(), view(input), counts, piece_view));
    tickets.push_back(group.all_gather(host_stream(), piece_view, counts, view(scattered[own])));
    for (Ticket& ticket : tickets) ticket.wait();
  });
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    CHECK(same_bits(whole[rank], expected));
    CHECK(same_bits(buckets[rank], expected));
    CHECK(same_bits(scattered[rank], expected));
  }
}

TEST_CASE("all_to_all_moves_any_amounts") {
  constexpr int ranks = 4;
  // Rank r sends r*p numbers to rank p, each r*1000 + p*100 + place.
  std::vector<std::vector<std::int64_t>> results(ranks);
  run_group(ranks, Mode::queue, [&](Rank rank, Communicator& group) {
    const std::int64_t own = rank.value();
    Counts counts;
    std::vector<std::int64_t> input;
    for (std::int64_t peer = 0; peer < ranks; ++peer) {
      counts.push_back(own * peer);
      for (std::int64_t i = 0; i < own * peer; ++i) input.push_back(own * 1000 + peer * 100 + i);
    }
    auto& output = results[at(rank)];
    output.resize(input.size());  // p*r from rank p: as much as is sent
    group.all_to_all(host_stream(), view(input), counts, view(output), counts).wait();
  });
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::int64_t> expected;
    for (std::int64_t peer = 0; peer < ranks; ++peer) {
      for (std::int64_t i = 0; i < rank * peer; ++i) expected.push_back(peer * 1000 + rank * 100 + i);
    }
    CHECK(results[static_cast<std::size_t>(rank)] == expected);
  }
}

TEST_CASE("queued_calls_run_in_the_order_of_issue") {
  // Each call reads what the one before has written; nobody waits in between.
  constexpr int ranks = 4;
  constexpr int rounds = 30;
  std::vector<std::vector<std::int64_t>> values(ranks, std::vector<std::int64_t>(3, 1));
  run_group(ranks, Mode::queue, [&](Rank rank, Communicator& group) {
    std::vector<Ticket> tickets;
    tickets.reserve(rounds);
    for (int round = 0; round < rounds; ++round) {
      tickets.push_back(group.all_reduce(host_stream(), view(values[at(rank)]), ReduceOp::sum));
    }
    tickets.back().wait();
  });
  for (const auto& result : values) CHECK(result == std::vector<std::int64_t>(3, std::int64_t{1} << (2 * rounds)));
}

TEST_CASE("exchange_in_both_directions_at_once_does_not_deadlock") {
  for (const Mode mode : {Mode::queue, Mode::caller}) {
    constexpr int ranks = 3;
    std::vector<std::vector<float>> from_before(ranks, std::vector<float>(70000));
    std::vector<std::vector<float>> from_after(ranks, std::vector<float>(70000));
    run_group(ranks, mode, [&](Rank rank, Communicator& group) {
      const int own = static_cast<int>(rank.value());
      const int after = (own + 1) % ranks;
      const int before = (own + ranks - 1) % ranks;
      std::vector<float> data(70000, static_cast<float>(own));
      // Rank 0 names its sends last: only the order between a pair matters.
      std::vector<Transfer> transfers{{Transfer::Direction::send, after, view(data)},
                                      {Transfer::Direction::send, before, view(data)},
                                      {Transfer::Direction::receive, before, view(from_before[at(rank)])},
                                      {Transfer::Direction::receive, after, view(from_after[at(rank)])}};
      if (own == 0) std::reverse(transfers.begin(), transfers.end());
      group.exchange(host_stream(), transfers).wait();
    });
    for (int rank = 0; rank < ranks; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      CHECK(from_before[index] == std::vector<float>(70000, static_cast<float>((rank + ranks - 1) % ranks)));
      CHECK(from_after[index] == std::vector<float>(70000, static_cast<float>((rank + 1) % ranks)));
    }
  }
}

TEST_CASE("exchanged_messages_meet_in_order_per_pair_however_they_are_batched") {
  std::vector<float> got(4);
  run_group(2, Mode::queue, [&](Rank rank, Communicator& group) {
    std::vector<float> data{1, 2, 3, 4};
    const auto one = [&](Transfer::Direction direction, std::vector<float>& values, int place) {
      return Transfer{direction, 1 - static_cast<int>(rank.value()), {values.data() + place, DType::f32, Shape{1}}};
    };
    std::vector<Ticket> tickets;
    if (rank == Rank(0)) {
      const std::vector<Transfer> all{one(Transfer::Direction::send, data, 0), one(Transfer::Direction::send, data, 1),
                                      one(Transfer::Direction::send, data, 2)};
      tickets.push_back(group.exchange(host_stream(), all));
      tickets.push_back(group.exchange(host_stream(), std::vector<Transfer>{one(Transfer::Direction::send, data, 3)}));
    } else {
      for (int place = 0; place < 4; ++place) {
        tickets.push_back(
            group.exchange(host_stream(), std::vector<Transfer>{one(Transfer::Direction::receive, got, place)}));
      }
      std::reverse(tickets.begin(), tickets.end());  // in whatever order they are waited for
    }
    for (Ticket& ticket : tickets) ticket.wait();
  });
  CHECK(got == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("exchange_is_not_held_up_by_queued_collectives") {
  // Rank 0 queues a collective that rank 1 joins only after it has the message that rank 0 exchanges later.
  std::vector<float> got(1);
  std::vector<std::vector<float>> sums(2, std::vector<float>(4, 1.0f));
  run_group(2, Mode::queue, [&](Rank rank, Communicator& group) {
    std::vector<float> data{42};
    if (rank == Rank(0)) {
      Ticket sum = group.all_reduce(host_stream(), view(sums[0]), ReduceOp::sum);
      group.exchange(host_stream(), std::vector<Transfer>{{Transfer::Direction::send, 1, view(data)}}).wait();
      sum.wait();
    } else {
      group.exchange(host_stream(), std::vector<Transfer>{{Transfer::Direction::receive, 0, view(got)}}).wait();
      group.all_reduce(host_stream(), view(sums[1]), ReduceOp::sum).wait();
    }
  });
  CHECK(got == std::vector<float>{42});
  CHECK(sums[0] == std::vector<float>(4, 2.0f));
}

TEST_CASE("a_rank_exchanges_with_itself_in_a_larger_group_too") {
  std::vector<std::vector<float>> got(2, std::vector<float>(1));
  run_group(2, Mode::queue, [&](Rank rank, Communicator& group) {
    std::vector<float> data{static_cast<float>(rank.value()) + 5};
    const int own = static_cast<int>(rank.value());
    group
        .exchange(host_stream(), std::vector<Transfer>{{Transfer::Direction::receive, own, view(got[at(rank)])},
                                                       {Transfer::Direction::send, own, view(data)}})
        .wait();
  });
  CHECK(got[0][0] == 5.0f);
  CHECK(got[1][0] == 6.0f);
}

TEST_CASE("calls_that_do_not_fit_are_bugs_and_harm_nothing") {
  std::vector<int> refused(2);
  std::vector<std::vector<float>> sums(2, std::vector<float>(3, 1.0f));
  run_group(2, Mode::queue, [&](Rank rank, Communicator& group) {
    auto& own = sums[at(rank)];
    const auto refuses = [&](auto call) {
      try {
        call();
      } catch (const BugError&) {
        ++refused[at(rank)];
      }
    };
    std::vector<std::uint16_t> halves(3);
    std::vector<float> wide(9);
    refuses([&] { group.all_reduce(host_stream(), view(halves), ReduceOp::sum); });
    refuses([&] { group.reduce_scatter(host_stream(), view(wide), Counts{3, 3}, view(own)); });
    refuses([&] { group.reduce_scatter(host_stream(), view(wide), Counts{6, 2, 1}, view(own)); });
    refuses([&] { group.all_gather(host_stream(), view(own), Counts{4, 5}, view(wide)); });
    refuses([&] { group.exchange(host_stream(), std::vector<Transfer>{{Transfer::Direction::send, 2, view(own)}}); });
    group.all_reduce(host_stream(), view(own), ReduceOp::sum).wait();
  });
  CHECK(refused == std::vector<int>{5, 5});
  CHECK(sums[0] == std::vector<float>(3, 2.0f));
}

TEST_CASE("staging_memory_is_bounded_for_any_group") {
  const auto most = [](int size) { return direct_reduce_scatter_staging(DType::f32, 1'000'000'000, size); };
  CHECK(most(2) == std::size_t{2} << 20);
  CHECK(most(8) == std::size_t{14} << 20);
  for (const int size : {16, 64, 256}) CHECK(most(size) <= std::size_t{32} << 20);
  CHECK(most(1024) <= std::size_t{128} << 20);
}

TEST_CASE("a_call_stages_at_most_two_stretches_of_each_peer") {
  // A short piece once from each of two peers; 2.4 MB in two stretches of 1 MiB; a small all-reduce whole, of all
  // ranks.
  CHECK(direct_reduce_scatter_staging(DType::f32, 10, 3) == 2 * 10 * 4);
  CHECK(direct_reduce_scatter_staging(DType::f32, 600'000, 2) == std::size_t{2} << 20);
  CHECK(direct_reduce_scatter_staging(DType::f32, 0, 4) == 0);
  CHECK(direct_all_reduce_staging(DType::f64, 5, 4, 1) == 4 * 5 * 8);
  CHECK(direct_all_reduce_staging(DType::f32, 9'001, 3, 2) == 2 * 2'999 * 4);  // the last rank's piece is shorter
  CHECK(direct_all_reduce_staging(DType::f32, 9'001, 1, 0) == 0);
}

TEST_CASE("volume_of_a_large_all_reduce_is_that_of_a_ring") {
  // 2·S·(N-1)/N where N divides S.
  for (const int size : {2, 4, 8}) {
    for (int rank = 0; rank < size; ++rank) {
      CHECK(direct_all_reduce_sent(DType::f32, 8000, size, rank) == 2 * 8000 / size * (size - 1));
    }
  }
  CHECK(direct_all_reduce_sent(DType::f32, 100, 4, 2) == 300);
  CHECK(direct_all_reduce_sent(DType::f32, 8000, 1, 0) == 0);
}

TEST_CASE("a sum of halves that overflows is infinite and one with a NaN is NaN, in long and short messages") {
  const auto check = [](auto largest) {
    using T = decltype(largest);
    const T nan(std::numeric_limits<double>::quiet_NaN());
    for (const std::size_t count : {3, 5000}) {
      std::vector<T> a(count, largest);
      std::vector<T> b(count, largest);
      a[1] = nan;
      a[2] = T(1.0);
      b[2] = T(-1.0);
      const std::vector<const std::byte*> both{reinterpret_cast<const std::byte*>(a.data()),
                                               reinterpret_cast<const std::byte*>(b.data())};
      reduce_in_order(dtype_of<T>(), ReduceOp::sum, both, reinterpret_cast<std::byte*>(a.data()),
                      static_cast<std::int64_t>(count));
      CHECK(double(a[0]) == std::numeric_limits<double>::infinity());
      CHECK(std::isnan(double(a[1])));
      CHECK(double(a[2]) == 0.0);
    }
  };
  check(Bf16(3.3e38));
  check(F16(65504.0));
}

TEST_CASE("integer_sums_wrap_as_the_hardware_does") {
  std::vector<std::int64_t> a(3, std::numeric_limits<std::int64_t>::max());
  std::vector<std::int64_t> b(3, 1);
  const std::vector<const std::byte*> both{reinterpret_cast<const std::byte*>(a.data()),
                                           reinterpret_cast<const std::byte*>(b.data())};
  reduce_in_order(DType::i64, ReduceOp::sum, both, reinterpret_cast<std::byte*>(a.data()), 3);
  CHECK(a == std::vector<std::int64_t>(3, std::numeric_limits<std::int64_t>::min()));
}
