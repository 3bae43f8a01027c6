// Where groups lie, against an enumeration of all of them.
#include "plan/hosts.h"

#include <set>

#include "plan/save_size.h"
#include "plan_helpers.h"

using namespace scaletrain;

namespace {

// Looks at every group of the kind.
GroupReach enumerated(GroupKind kind, const Mesh& mesh, const GroupFacts& facts, std::int64_t ranks_per_host) {
  bool some_inside = false;
  bool some_across = false;
  for (std::int64_t rank = 0; rank < mesh.world(); ++rank) {
    const auto group = group_of(mesh, kind, Rank(rank), facts);
    if (!group) continue;
    std::set<std::int64_t> hosts;
    for (const Rank member : group->members) hosts.insert(member.value() / ranks_per_host);
    (hosts.size() == 1 ? some_inside : some_across) = true;
  }
  if (some_inside && some_across) return GroupReach::partly_inside;
  return some_across ? GroupReach::across_hosts : GroupReach::inside_host;
}

}  // namespace

TEST_CASE("groups lie inside hosts or across them as their members do") {
  const GroupFacts facts{.kv_heads = 2, .tied = true, .control = true};
  int compared = 0;
  for (const std::int64_t tensor : {1, 2, 4})
    for (const std::int64_t data : {1, 2, 3})
      for (const std::int64_t pipeline : {1, 2, 4}) {
        const Mesh mesh(data, tensor, pipeline);
        for (const std::int64_t size : {1, 2, 3, 4, 8, 12, 16, 48})
          for (const GroupKind kind : group_kinds) {
            if (!group_of(mesh, kind, Rank(0), facts)) continue;
            const std::string where =
                mesh.text() + ", hosts of " + std::to_string(size) + ": " + std::string(to_text(kind)) + " groups";
            CHECK_MESSAGE(reach_of(kind, mesh, facts, size) == enumerated(kind, mesh, facts, size), where);
            ++compared;
          }
      }
  CHECK(compared > 300);
}

TEST_CASE("without a word about hosts a cluster is planned with a tensor group on each") {
  Config config = planned_config();
  const Mesh mesh(4, 2, 2);
  CHECK(place_on_hosts(config, mesh, true).basis == HostPlacement::Basis::one_host);
  CHECK(place_on_hosts(config, mesh, true).ranks_per_host == 16);
  CHECK(place_on_hosts(config, mesh, false).basis == HostPlacement::Basis::assumed);
  CHECK(place_on_hosts(config, mesh, false).ranks_per_host == 2);
  config.launch.ranks_per_node = 8;
  CHECK(place_on_hosts(config, mesh, true).basis == HostPlacement::Basis::configured);
  CHECK(place_on_hosts(config, mesh, true).ranks_per_host == 8);
  config.launch.ranks_per_node = 64;
  CHECK(place_on_hosts(config, mesh, false).basis == HostPlacement::Basis::one_host);
}

TEST_CASE("no host is assumed that nobody has") {
  const Config config = planned_config();
  const auto assumed = [&](std::int64_t tensor) {
    return place_on_hosts(config, Mesh(4, tensor, 2), false).ranks_per_host;
  };
  CHECK(assumed(8) == 8);
  CHECK(assumed(128) == 8);
  CHECK(assumed(12) == 6);  // two of them are a tensor group
  CHECK(assumed(11) == 1);
  CHECK(reach_of(GroupKind::tensor, Mesh(1, 128, 1), {.kv_heads = 8, .tied = false}, assumed(128)) ==
        GroupReach::across_hosts);
}

TEST_CASE("the ranks of a host are counted by stage") {
  const Mesh mesh(3, 2, 2);  // six ranks a stage
  CHECK(ranks_by_stage(mesh, 0, 12) == std::map<std::int64_t, std::int64_t>{{0, 6}, {1, 6}});
  CHECK(ranks_by_stage(mesh, 4, 4) == std::map<std::int64_t, std::int64_t>{{0, 2}, {1, 2}});
  CHECK(ranks_by_stage(mesh, 8, 4) == std::map<std::int64_t, std::int64_t>{{1, 4}});
  Config config = planned_config();
  config.parallel.data = 3;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  const PhasePlan phase = make_run_plan(config, 61, std::nullopt).phases.front();
  CHECK(memory_of_ranks(phase, 4, 4, 9).total() ==
        2 * (phase.memory(Rank(0), 9).total() + phase.memory(Rank(6), 9).total()));
}

TEST_CASE("rank 0 needs memory for the manifest of many pieces, which counts for its host and no other") {
  Config config = preset_config("gpt2-124m");
  config.train.global_batch = 4096;
  config.train.micro_batch = 1;
  const auto phase_of = [&](std::int64_t data) {
    config.parallel.data = data;
    return make_run_plan(config, 50257, std::nullopt).phases.front();
  };
  const PhasePlan few = phase_of(4);
  CHECK(manifest_memory(save_size(few)) == 0);
  CHECK(memory_of_rank(few, Rank(0), 9).total() == few.memory(Rank(0), 9).total());
  CHECK(memory_of_ranks(few, 0, 4, 9).parts.size() == 1);
  const PhasePlan many = phase_of(4096);
  const std::uint64_t more = manifest_memory(save_size(many));
  REQUIRE(more > 0);
  const std::uint64_t each = many.memory(Rank(0), 9).total();
  CHECK(memory_of_rank(many, Rank(0), 9).total() == each + more);
  CHECK(contains(memory_of_rank(many, Rank(0), 9).text(), "checkpoint manifest"));
  CHECK(memory_of_rank(many, Rank(1), 9).total() == each);
  const HostMemory first = memory_of_ranks(many, 0, 8, 9);
  CHECK(first.total() == 8 * each + more);
  REQUIRE(first.parts.size() == 2);
  CHECK(first.parts[0].ranks == 1);
  CHECK(first.parts[1].ranks == 7);
  CHECK(memory_of_ranks(many, 0, 1, 9).parts.size() == 1);
  CHECK(memory_of_ranks(many, 8, 8, 9).total() == 8 * each);
  CHECK(most_memory_of_a_host(many.mesh, {each}, 8, more) == 8 * each + more);
}
