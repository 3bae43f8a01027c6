#include <doctest/doctest.h>

#include <array>
#include <memory>

#include "base/error.h"
#include "comm/communicator.h"
#include "support/ranks/host_stream.h"

using namespace scaletrain;

namespace {

template <std::size_t N>
View view(std::array<float, N>& values) {
  return {values.data(), DType::f32, Shape{static_cast<std::int64_t>(N)}};
}

}  // namespace

TEST_CASE("a group of one reduces and gathers by copying") {
  const auto group = make_single_communicator("data");
  CHECK(group->group_name() == "data");
  CHECK(group->size() == 1);
  CHECK(group->rank_in_group() == 0);
  std::array<float, 3> input{1, 2, 3};
  const std::array<std::int64_t, 1> counts{3};
  group->all_reduce(host_stream(), view(input), ReduceOp::sum).wait();
  group->all_reduce(host_stream(), view(input), ReduceOp::max).wait();
  CHECK(input == std::array<float, 3>{1, 2, 3});
  std::array<float, 3> output{};
  group->reduce_scatter(host_stream(), view(input), counts, view(output)).wait();
  CHECK(output == input);
  output = {};
  group->all_gather(host_stream(), view(input), counts, view(output)).wait();
  CHECK(output == input);
  output = {};
  group->all_to_all(host_stream(), view(input), counts, view(output), counts).wait();
  CHECK(output == input);
  group->all_gather(host_stream(), view(input), counts, view(input)).wait();  // in place
  CHECK(input == std::array<float, 3>{1, 2, 3});
}

TEST_CASE("a rank exchanges with itself, the n-th send meeting the n-th receive") {
  const auto group = make_single_communicator("pipeline");
  std::array<float, 2> a{1, 2};
  std::array<float, 2> b{3, 4};
  std::array<float, 2> to_a{};
  std::array<float, 2> to_b{};
  const std::array<Transfer, 4> transfers{{{Transfer::Direction::receive, 0, view(to_a)},
                                           {Transfer::Direction::send, 0, view(a)},
                                           {Transfer::Direction::send, 0, view(b)},
                                           {Transfer::Direction::receive, 0, view(to_b)}}};
  group->exchange(host_stream(), transfers).wait();
  CHECK(to_a == a);
  CHECK(to_b == b);
}

TEST_CASE("calls that do not fit a group of one are bugs") {
  const auto group = make_single_communicator("tensor");
  std::array<float, 2> values{};
  std::array<float, 3> longer{};
  const std::array<std::int64_t, 1> wrong{3};
  CHECK_THROWS_AS(group->all_gather(host_stream(), view(values), wrong, view(longer)), BugError);
  const std::array<Transfer, 1> unanswered{{{Transfer::Direction::send, 0, view(values)}}};
  CHECK_THROWS_AS(group->exchange(host_stream(), unanswered), BugError);
}

TEST_CASE("a ticket without work is complete") {
  Ticket ticket;
  ticket.wait();
  CHECK(true);
}
