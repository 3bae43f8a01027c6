#include "launch/coordination/places.h"

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "support/text.h"

namespace scaletrain {
namespace {

ParallelConfig degrees(std::optional<std::int64_t> data, std::int64_t tensor, std::int64_t pipeline) {
  ParallelConfig config;
  config.data = data;
  config.tensor = tensor;
  config.pipeline = pipeline;
  return config;
}

LaunchConfig per_node(std::optional<std::int64_t> ranks) {
  LaunchConfig config;
  config.ranks_per_node = ranks;
  return config;
}

std::string refusal(const ParallelConfig& parallel, const LaunchConfig& launch, std::int64_t nodes,
                    std::int64_t processors = 64) {
  return message_of<UserError>([&] { lay_out_nodes(parallel, launch, nodes, processors); });
}

}  // namespace

TEST_CASE("given degrees are spread evenly over the nodes") {
  const PlaceLayout layout = lay_out_nodes(degrees(4, 2, 1), per_node({}), 4, 1);
  CHECK(layout.ranks_per_place == 2);
  CHECK(layout.replica == 2);
  CHECK(layout.data == 4);
  CHECK(layout.world() == 8);
  // A replica may span nodes.
  CHECK(lay_out_nodes(degrees(1, 1, 4), per_node({}), 4, 1).ranks_per_place == 1);
  CHECK(lay_out_nodes(degrees(2, 2, 2), per_node(4), 2, 1).ranks_per_place == 4);
}

TEST_CASE("data auto is one replica per node, or what ranks_per_node leaves") {
  const PlaceLayout one_each = lay_out_nodes(degrees({}, 2, 2), per_node({}), 3, 4);
  CHECK(one_each.ranks_per_place == 4);
  CHECK(one_each.data == 3);
  const PlaceLayout given = lay_out_nodes(degrees({}, 2, 1), per_node(8), 3, 1);
  CHECK(given.data == 12);
  CHECK(given.world() == 24);
  const PlaceLayout spanning = lay_out_nodes(degrees({}, 1, 4), per_node(2), 4, 1);
  CHECK(spanning.data == 2);
}

TEST_CASE("degrees that the nodes do not carry are refused with the remedy") {
  const std::string uneven = refusal(degrees(3, 1, 1), per_node({}), 2);
  CHECK(contains(uneven, "data 3 x tensor 1 x pipeline 1 = 3 ranks"));
  CHECK(contains(uneven, "2 nodes do not divide"));
  CHECK(contains(uneven, "parallel.data: auto"));
  const std::string too_few = refusal(degrees(4, 1, 1), per_node(1), 3);
  CHECK(contains(too_few, "= 4 ranks, but 3 nodes with launch.ranks_per_node: 1 make 3"));
  CHECK(contains(refusal(degrees({}, 2, 2), per_node({}), 3, 3), "more than the 3 processors"));
  CHECK(contains(refusal(degrees({}, 2, 2), per_node(3), 3), "are 9 ranks"));
}

TEST_CASE("remaining nodes carry as many whole replicas as they can") {
  const PlaceLayout layout{.ranks_per_place = 2, .replica = 2, .data = 4};
  const auto all = allot_ranks(layout, {0, 1, 2, 3}, 4);
  REQUIRE(all);
  CHECK(all->data == 4);
  CHECK(all->shares == std::vector<PlaceShare>{{0, 0, 2}, {1, 2, 2}, {2, 4, 2}, {3, 6, 2}});
  const auto less = allot_ranks(layout, {0, 1, 3}, 2);
  REQUIRE(less);
  CHECK(less->data == 3);
  CHECK(less->shares == std::vector<PlaceShare>{{0, 0, 2}, {1, 2, 2}, {3, 4, 2}});
  CHECK_FALSE(allot_ranks(layout, {0, 1, 3}, 4));
  CHECK_FALSE(allot_ranks(layout, {0}, 2));
  CHECK_FALSE(allot_ranks(layout, {}, 1));
}

TEST_CASE("nodes that no whole replica needs stay empty, and more nodes than ranks change nothing") {
  // Replicas of three ranks over nodes of two: of three nodes six places, of two nodes four.
  const PlaceLayout layout{.ranks_per_place = 2, .replica = 3, .data = 2};
  const auto two = allot_ranks(layout, {0, 2}, 1);
  REQUIRE(two);
  CHECK(two->data == 1);
  CHECK(two->shares == std::vector<PlaceShare>{{0, 0, 2}, {2, 2, 1}});
  const PlaceLayout wide{.ranks_per_place = 4, .replica = 1, .data = 4};
  const auto spare = allot_ranks(wide, {0, 1}, 1);
  REQUIRE(spare);
  CHECK(spare->data == 4);
  CHECK(spare->shares == std::vector<PlaceShare>{{0, 0, 4}});
}

}  // namespace scaletrain
