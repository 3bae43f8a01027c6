#include "parallel/mesh/mesh.h"

#include <doctest/doctest.h>

#include <set>

#include "base/error.h"

using namespace scaletrain;

TEST_CASE("ranks and positions are a bijection up to 65,536 ranks") {
  const Mesh meshes[] = {Mesh(), Mesh(3, 5, 7), Mesh(1, 8, 1), Mesh(64, 1, 1), Mesh(1, 1, 16), Mesh(512, 8, 16)};
  CHECK(meshes[5].world() == 65536);
  for (const Mesh& mesh : meshes) {
    std::int64_t expected = 0;
    // Tensor is fastest, then data, then pipeline.
    for (std::int64_t pipeline = 0; pipeline < mesh.degree(Axis::pipeline); ++pipeline) {
      for (std::int64_t data = 0; data < mesh.degree(Axis::data); ++data) {
        for (std::int64_t tensor = 0; tensor < mesh.degree(Axis::tensor); ++tensor) {
          const MeshPosition position{.tensor = tensor, .data = data, .pipeline = pipeline};
          if (mesh.rank_of(position) != Rank(expected)) FAIL_CHECK(mesh.text() << " rank " << expected);
          if (!(mesh.position_of(Rank(expected)) == position)) FAIL_CHECK(mesh.text() << " rank " << expected);
          ++expected;
        }
      }
    }
    CHECK(expected == mesh.world());
  }
}

TEST_CASE("the groups of an axis partition the world, and a tensor group is neighbours") {
  const Mesh mesh(3, 4, 2);
  for (const Axis axis : {Axis::tensor, Axis::data, Axis::pipeline}) {
    std::multiset<std::int64_t> seen;
    for (std::int64_t rank = 0; rank < mesh.world(); ++rank) {
      const std::vector<Rank> group = mesh.group(axis, Rank(rank));
      CHECK(static_cast<std::int64_t>(group.size()) == mesh.degree(axis));
      if (group.front() != Rank(rank)) continue;
      for (const Rank member : group) {
        seen.insert(member.value());
        CHECK(mesh.group(axis, member) == group);
      }
    }
    CHECK(seen.size() == static_cast<std::size_t>(mesh.world()));
    CHECK(std::set<std::int64_t>(seen.begin(), seen.end()).size() == seen.size());
  }
  CHECK(mesh.group(Axis::tensor, Rank(6)) == std::vector<Rank>{Rank(4), Rank(5), Rank(6), Rank(7)});
  CHECK(mesh.group(Axis::data, Rank(6)) == std::vector<Rank>{Rank(2), Rank(6), Rank(10)});
  CHECK(mesh.group(Axis::pipeline, Rank(6)) == std::vector<Rank>{Rank(6), Rank(18)});
  CHECK(mesh.text() == "data 3 x tensor 4 x pipeline 2");
}

TEST_CASE("ranks and positions outside the mesh are bugs") {
  const Mesh mesh(2, 2, 1);
  CHECK_THROWS_AS(mesh.position_of(Rank(4)), BugError);
  CHECK_THROWS_AS(mesh.position_of(Rank(-1)), BugError);
  CHECK_THROWS_AS(mesh.rank_of({.tensor = 2, .data = 0, .pipeline = 0}), BugError);
  CHECK_THROWS_AS(Mesh(0, 1, 1), BugError);
}
