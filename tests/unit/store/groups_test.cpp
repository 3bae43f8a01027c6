// Groups of ranks against brute force: who is in a group with whom follows from positions alone.
#include "store/rank_groups.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "support/near.h"
#include "support/ranks/host_stream.h"
#include "support/ranks/ranks.h"

using namespace scaletrain;

namespace {

bool together_in_data(const MeshPosition& a, const MeshPosition& b) {
  return a.tensor == b.tensor && a.pipeline == b.pipeline;
}

// Do two ranks belong together, by the definition of the kind?
bool together(const Mesh& mesh, GroupKind kind, Rank first, Rank second, const GroupFacts& facts) {
  const MeshPosition a = mesh.position_of(first);
  const MeshPosition b = mesh.position_of(second);
  const std::int64_t last = mesh.degree(Axis::pipeline) - 1;
  switch (kind) {
    case GroupKind::tensor:
      return a.data == b.data && a.pipeline == b.pipeline;
    case GroupKind::replication:
      // The key/value head that a tensor rank's share of the heads begins with.
      return a.data == b.data && a.pipeline == b.pipeline && facts.kv_heads < mesh.degree(Axis::tensor) &&
             a.tensor * facts.kv_heads / mesh.degree(Axis::tensor) ==
                 b.tensor * facts.kv_heads / mesh.degree(Axis::tensor);
    case GroupKind::data:
      return together_in_data(a, b) && !(mesh.is_hierarchical() && facts.control);
    case GroupKind::shard:
    case GroupKind::copies: {
      if (!mesh.is_hierarchical() || !together_in_data(a, b)) return false;
      const bool is_same_copy = a.data / mesh.shards() == b.data / mesh.shards();
      return kind == GroupKind::shard ? is_same_copy : a.data % mesh.shards() == b.data % mesh.shards();
    }
    case GroupKind::pipeline:
      return a.tensor == b.tensor && a.data == b.data;
    case GroupKind::tied:
      return facts.tied && a.tensor == b.tensor && a.data == b.data &&
             a.pipeline % std::max<std::int64_t>(last, 1) == 0 && b.pipeline % std::max<std::int64_t>(last, 1) == 0;
    case GroupKind::tensor_control:
      return facts.control && together(mesh, GroupKind::tensor, first, second, facts);
    case GroupKind::data_control:
      return facts.control && together_in_data(a, b);
    case GroupKind::pipeline_control:
      return facts.control && together(mesh, GroupKind::pipeline, first, second, facts);
  }
  return false;
}

std::vector<Rank> brute_force(const Mesh& mesh, GroupKind kind, Rank rank, const GroupFacts& facts) {
  std::vector<Rank> members;
  if (!together(mesh, kind, rank, rank, facts)) return members;
  for (std::int64_t other = 0; other < mesh.world(); ++other) {
    if (together(mesh, kind, rank, Rank(other), facts)) members.emplace_back(other);
  }
  return members;
}

// True if every group of the mesh is as brute force finds it, and names belong to one set of members.
bool groups_agree(const Mesh& mesh, const GroupFacts& facts) {
  std::map<std::string, std::vector<Rank>> names;
  for (const GroupKind kind : group_kinds) {
    for (std::int64_t rank = 0; rank < mesh.world(); ++rank) {
      const auto expected = brute_force(mesh, kind, Rank(rank), facts);
      const auto spec = group_of(mesh, kind, Rank(rank), facts);
      if (spec.has_value() != (expected.size() > 1)) return false;
      if (!spec) continue;
      if (spec->kind != kind || spec->members != expected) return false;
      if (spec->members[static_cast<std::size_t>(spec->index)] != Rank(rank)) return false;
      if (names.emplace(spec->name, expected).first->second != expected) return false;
    }
  }
  for (const auto& [name, members] : names) {
    if (name != std::string(name.substr(0, name.find('.'))) + "." + std::to_string(members.front().value()))
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("groups_are_those_that_positions_define_on_every_mesh") {
  for (const std::int64_t data : {1, 2, 3, 4}) {
    for (const std::int64_t tensor : {1, 2, 4, 8}) {
      for (const std::int64_t pipeline : {1, 2, 3, 4, 5}) {
        for (const std::int64_t kv_heads : {1, 2, 4, 8, 16}) {
          const Mesh mesh(data, tensor, pipeline);
          CAPTURE(mesh.text());
          CAPTURE(kv_heads);
          CHECK(groups_agree(mesh, {.kv_heads = kv_heads, .tied = kv_heads != 2, .control = kv_heads > 2}));
        }
      }
    }
  }
}

TEST_CASE("replicas_that_divide_state_in_groups_are_in_a_group_of_their_copy_and_one_of_their_shard") {
  for (const std::int64_t data : {2, 4, 6, 12}) {
    for (std::int64_t shards = 1; shards <= data; ++shards) {
      if (data % shards != 0) continue;
      for (const bool control : {false, true}) {
        const Mesh mesh(data, 2, 3, shards);
        CAPTURE(mesh.text());
        CHECK(groups_agree(mesh, {.kv_heads = 1, .tied = true, .control = control}));
      }
    }
  }
  // Neighbours share a copy, so that it lies on one host.
  const Mesh mesh(4, 2, 1, 2);
  CHECK(group_of(mesh, GroupKind::shard, Rank(5), {})->members == std::vector<Rank>{Rank(5), Rank(7)});
  CHECK(group_of(mesh, GroupKind::copies, Rank(5), {})->members == std::vector<Rank>{Rank(1), Rank(5)});
  CHECK(mesh.text() == "data 4 (2 copies of 2 shards) x tensor 2 x pipeline 1");
}

TEST_CASE("middle_stages_have_no_tied_group") {
  const Mesh mesh(1, 2, 4);  // stages of two ranks: 0 1 | 2 3 | 4 5 | 6 7
  const GroupFacts facts{.kv_heads = 2, .tied = true};
  for (const std::int64_t middle : {2, 3, 4, 5}) CHECK(!group_of(mesh, GroupKind::tied, Rank(middle), facts));
  const auto last = group_of(mesh, GroupKind::tied, Rank(7), facts);
  REQUIRE(last.has_value());
  CHECK(last->name == "tied.1");
  CHECK(last->members == std::vector<Rank>{Rank(1), Rank(7)});
  CHECK(last->index == 1);
  CHECK(!group_of(mesh, GroupKind::tied, Rank(7), {.kv_heads = 2, .tied = false}));
}

TEST_CASE("neighbours_that_hold_the_same_heads_are_a_group") {
  const Mesh mesh(1, 8, 1);
  const auto two_heads = group_of(mesh, GroupKind::replication, Rank(6), {.kv_heads = 2, .tied = false});
  REQUIRE(two_heads.has_value());
  CHECK(two_heads->name == "replication.4");
  CHECK(two_heads->members == std::vector<Rank>{Rank(4), Rank(5), Rank(6), Rank(7)});
  CHECK(two_heads->index == 2);
  CHECK(!group_of(mesh, GroupKind::replication, Rank(6), {.kv_heads = 8, .tied = false}));
  CHECK(!group_of(mesh, GroupKind::replication, Rank(6), {.kv_heads = 16, .tied = false}));
}

TEST_CASE("a_rank_gets_the_communicators_of_its_groups_and_no_others") {
  std::vector<std::string> made;
  const Mesh mesh(2, 4, 2);
  const GroupFacts facts{.kv_heads = 2, .tied = true, .control = true};
  const RankGroups groups = make_groups(mesh, Rank(9), facts, [&](const GroupSpec& spec) {
    made.push_back(spec.name);
    return make_single_communicator(spec.name);
  });
  CHECK(made == std::vector<std::string>{"tensor.8", "replication.8", "data.9", "pipeline.1", "tied.1",
                                         "tensor-control.8", "data-control.9", "pipeline-control.1"});
  for (const GroupKind kind : group_kinds) {
    if (kind == GroupKind::shard || kind == GroupKind::copies) {
      CHECK(groups.find(kind) == nullptr);
      continue;
    }
    REQUIRE(groups.find(kind) != nullptr);
    CHECK(groups.find(kind)->group_name().find(to_text(kind)) == 0);
  }
  made.clear();
  const RankGroups alone = make_groups(Mesh(), Rank(0), facts, [&](const GroupSpec& spec) {
    made.push_back(spec.name);
    return make_single_communicator(spec.name);
  });
  CHECK(made.empty());
  for (const GroupKind kind : group_kinds) CHECK(alone.find(kind) == nullptr);
}

TEST_CASE("ranks_as_threads_reduce_over_every_group_of_a_mesh") {
  const Mesh mesh(4, 2, 2, 2);
  const GroupFacts facts{.kv_heads = 1, .tied = true, .control = true};
  std::vector<std::vector<std::int64_t>> sums(16);
  std::vector<Trace> traces;
  run_ranks(mesh, facts,
            [&](Rank rank, RankGroups& groups, InProcessWorld& world) {
              auto& own = sums[static_cast<std::size_t>(rank.value())];
              own.assign(group_kinds.size(), rank.value());
              std::vector<Ticket> tickets;
              for (std::size_t index = 0; index < group_kinds.size(); ++index) {
                if (groups.find(group_kinds[index]) == nullptr) continue;
                tickets.push_back(
                    groups.find(group_kinds[index])
                        ->all_reduce(host_stream(), {&own[index], DType::i64, Shape{1}, Space::pinned}, ReduceOp::sum));
              }
              for (Ticket& ticket : tickets) ticket.wait();
              if (world.size() != 16) throw BugError("a world of another size");
            },
            {.deadline = 60.0, .traces = &traces, .mode = {}});
  for (std::int64_t rank = 0; rank < 16; ++rank) {
    for (std::size_t index = 0; index < group_kinds.size(); ++index) {
      const auto members = brute_force(mesh, group_kinds[index], Rank(rank), facts);
      CHECK(members.empty() == (group_kinds[index] == GroupKind::data));  // which control groups replace
      std::int64_t expected = members.empty() ? rank : 0;
      for (const Rank member : members) expected += member.value();
      CHECK(sums[static_cast<std::size_t>(rank)][index] == expected);
    }
  }
  CHECK(compare_traces(rank_traces(mesh, facts, traces)) == "");
}

TEST_CASE("numbers_are_summed_over_the_world_with_the_same_bits_on_all_ranks") {
  for (const Mesh& mesh : {Mesh(3, 2, 2), Mesh(1, 4, 1), Mesh(5, 1, 1), Mesh(1, 1, 3), Mesh(1, 1, 1)}) {
    // By the groups of training, and by groups for the host's numbers beside them: fenced ones refuse what is not
    // theirs.
    for (const bool control : {false, true}) {
      CAPTURE(control);
      std::vector<std::vector<double>> sums(static_cast<std::size_t>(mesh.world()));
      run_ranks(mesh, {.control = control}, [&](Rank rank, RankGroups& groups, InProcessWorld&) {
        auto& own = sums[static_cast<std::size_t>(rank.value())];
        own = {1.0 / (3.0 + static_cast<double>(rank.value())), 1.0, static_cast<double>(rank.value())};
        sum_over_world(groups, own);
        sum_over_world(groups, {});
      });
      double fractions = 0.0;
      for (std::int64_t rank = 0; rank < mesh.world(); ++rank) fractions += 1.0 / (3.0 + static_cast<double>(rank));
      CHECK(sums[0][0] == Near(fractions).epsilon(1e-14));
      CHECK(sums[0][1] == static_cast<double>(mesh.world()));
      const std::int64_t sum_of_ranks = mesh.world() * (mesh.world() - 1) / 2;
      CHECK(sums[0][2] == static_cast<double>(sum_of_ranks));
      for (const auto& of_rank : sums) CHECK(of_rank == sums[0]);
    }
  }
}

TEST_CASE("a_group_of_devices_takes_no_number_of_the_host_and_one_of_hosts_none_of_a_device") {
  run_ranks(Mesh(2, 1, 1), {.control = true}, [&](Rank, RankGroups& groups, InProcessWorld&) {
    double number = 1.0;
    const auto sum = [&](Communicator& group, Space space) {
      group.all_reduce(host_stream(), View(&number, DType::f64, {1}, space), ReduceOp::sum).wait();
    };
    const auto refuses = [&](Communicator& group, Space space) {
      try {
        sum(group, space);
      } catch (const BugError&) {
        return;
      }
      throw InputError("taken");
    };
    refuses(*groups.find(GroupKind::data), Space::host);
    refuses(*groups.find(GroupKind::data_control), Space::device);
    sum(*groups.find(GroupKind::data), Space::pinned);
    sum(*groups.find(GroupKind::data_control), Space::host);
    if (number != 4.0) throw InputError("a wrong sum");
  });
}

TEST_CASE("the_helper_for_ranks_rethrows_the_cause_and_not_its_echo") {
  for (const int culprit : {0, 3}) {
    CHECK_THROWS_WITH_AS(run_ranks(Mesh(4, 1, 1), {},
                                   [&](Rank rank, RankGroups& groups, InProcessWorld&) {
                                     if (rank == Rank(culprit)) throw InputError("a bad shard");
                                     std::vector<float> values(3);
                                     groups.find(GroupKind::data)
                                         ->all_reduce(host_stream(), {values.data(), DType::f32, Shape{3}},
                                                      ReduceOp::sum)
                                         .wait();
                                   }),
                         "a bad shard", InputError);
  }
}
