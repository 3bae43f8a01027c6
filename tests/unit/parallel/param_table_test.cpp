#include "parallel/param_table.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/error.h"

using namespace scaletrain;

namespace {

Parameter named(std::string name, Shape shape, Split split = {}) {
  Parameter out;
  out.name = std::move(name);
  out.shape = shape;
  out.split = split;
  return out;
}

// How often each element of the tensor is held, counting replicas of the same part once or all.
std::vector<int> coverage(const Parameter& of, std::int64_t degree, bool first_replicas_only) {
  std::vector<int> count(static_cast<std::size_t>(of.shape.num_elements()), 0);
  for (std::int64_t rank = 0; rank < degree; ++rank) {
    if (first_replicas_only && !ParamTable::is_first_replica(of, degree, rank)) continue;
    const Box box = ParamTable::box_of(of, degree, rank);
    for (std::int64_t i = 0; i < box.extent[0]; ++i) {
      for (std::int64_t j = 0; j < box.extent[1]; ++j)
        ++count[static_cast<std::size_t>((box.first[0] + i) * of.shape[1] + box.first[1] + j)];
    }
  }
  return count;
}

}  // namespace

TEST_CASE("the boxes of all tensor ranks tile a tensor exactly once when each part counts in its first replica") {
  const Parameter parameters[] = {
      named("replicated", {6, 5}),
      named("cut rows", {16, 3}, {.kind = Split::Kind::cut, .dim = 0}),
      named("cut columns", {3, 16}, {.kind = Split::Kind::cut, .dim = 1}),
      named("heads", {48, 2}, {.kind = Split::Kind::cut, .dim = 0, .pieces = 16}),
      named("vocabulary that does not divide", {257, 2}, {.kind = Split::Kind::cut, .dim = 0}),
      named("fewer rows than ranks", {3, 2}, {.kind = Split::Kind::cut, .dim = 0}),
      named("key heads, two", {8, 2}, {.kind = Split::Kind::grouped, .dim = 0, .pieces = 2}),
      named("key heads, sixteen", {32, 2}, {.kind = Split::Kind::grouped, .dim = 0, .pieces = 16}),
  };
  for (const Parameter& of : parameters) {
    for (const std::int64_t degree : {1, 2, 4, 8, 16}) {
      for (const int count : coverage(of, degree, true)) {
        if (count != 1) FAIL_CHECK(of.name << " over " << degree << " ranks: an element counts " << count << " times");
      }
      const auto replication = static_cast<int>(ParamTable::replication_degree(of, degree));
      for (const int count : coverage(of, degree, false)) {
        if (count != replication) FAIL_CHECK(of.name << " over " << degree << " ranks: held " << count << " times");
      }
    }
  }
}

TEST_CASE("key heads fewer than ranks are held by neighbours, whole") {
  const Parameter key = named("key", {2 * 4, 3}, {.kind = Split::Kind::grouped, .dim = 0, .pieces = 2});
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    const Box box = ParamTable::box_of(key, 8, rank);
    CHECK(box.first == std::vector<std::int64_t>{rank < 4 ? 0 : 4, 0});
    CHECK(box.extent == std::vector<std::int64_t>{4, 3});
    CHECK(ParamTable::is_first_replica(key, 8, rank) == (rank % 4 == 0));
  }
  CHECK_THROWS_AS(ParamTable::box_of(key, 3, 0), BugError);  // neither divides the other
}

TEST_CASE("the last vocabulary pieces are short, never overlapping") {
  const Parameter vocabulary = named("vocabulary", {10, 1}, {.kind = Split::Kind::cut, .dim = 0});
  const std::int64_t first[] = {0, 3, 6, 9};
  const std::int64_t extent[] = {3, 3, 3, 1};
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    CHECK(ParamTable::box_of(vocabulary, 4, rank).first[0] == first[rank]);
    CHECK(ParamTable::box_of(vocabulary, 4, rank).extent[0] == extent[rank]);
  }
  CHECK(ParamTable::box_of(vocabulary, 16, 15).num_elements() == 0);
}

TEST_CASE("a tied copy is stored and counted once") {
  ParamTable table;
  table.begin_unit("embedding");
  table.add(named("embedding.token.weight", {10, 4}));
  table.begin_unit("head");
  Parameter head = named("head.weight", {10, 4});
  head.tied_to = "embedding.token.weight";
  table.add(head);
  table.add(named("head.norm.weight", {4}));
  CHECK(table.num_parameters() == 44);
}

TEST_CASE("parameters are found by name and by unit") {
  ParamTable table;
  table.begin_unit("b");
  table.add(named("b.z", {1}));
  table.add(named("b.a", {2}));
  table.begin_unit("a");
  table.add(named("a.z", {3}));
  CHECK(table.find("b.a")->shape == Shape{2});
  CHECK(table.find("a.z")->unit == 1);
  CHECK(table.index_of("b.a") == 1);
  CHECK(table.find("a") == nullptr);
  CHECK(table.index_of("zz") == -1);
  CHECK(table.parameters_of(0).size() == 2);
  CHECK(table.parameters_of(1).front().name == "a.z");
}

TEST_CASE("tables that would mislead are refused") {
  ParamTable table;
  CHECK_THROWS_AS(table.add(named("early", {1})), BugError);  // no unit yet
  table.begin_unit("u");
  Parameter query = named("u.query", {4, 4});
  query.fused = "qkv";
  table.add(query);
  CHECK_THROWS_AS(table.add(query), BugError);  // the name is taken
  table.add(named("u.norm", {4}));
  Parameter key = named("u.key", {4, 4});
  key.fused = "qkv";
  CHECK_THROWS_AS(table.add(key), BugError);  // its group was left
  Parameter tied = named("u.tied", {5, 4});
  tied.tied_to = "u.query";
  CHECK_THROWS_AS(table.add(tied), BugError);  // another shape than its owner
  tied.tied_to = "u.nobody";
  CHECK_THROWS_AS(table.add(tied), BugError);
}

TEST_CASE("blocks of states in 8 bits follow from rows, or from eighths of those that ranks divide") {
  struct Row {
    Shape shape;
    std::int64_t divided = 0, whole = 0;  // the block with rows divided and without
  };
  const Row rows[] = {{{4, 1024}, 128, 256}, {{4, 768}, 32, 256}, {{4, 128}, 16, 128}, {{4, 64}, 0, 64},
                      {{4, 11008}, 32, 256}, {{4, 48}, 0, 16},    {{4, 24}, 0, 0},     {{4, 8192}, 256, 256}};
  for (const Row& row : rows) {
    CAPTURE(row.shape[1]);
    ParamTable table;
    table.begin_unit("u");
    table.add(named("divided", row.shape, {.kind = Split::Kind::cut, .dim = 1}));
    table.add(named("by row", row.shape, {.kind = Split::Kind::cut, .dim = 0}));
    table.add(named("replicated", row.shape));
    table.add(named("vector", {row.shape[1]}));
    Parameter frozen = named("frozen", row.shape);
    frozen.role = ParamRole::frozen;
    table.add(frozen);
    table.hold_states_in_blocks();
    CHECK(table.find("divided")->state_block == row.divided);
    CHECK(table.find("by row")->state_block == row.whole);
    CHECK(table.find("replicated")->state_block == row.whole);
    CHECK(table.find("vector")->state_block == 0);
    CHECK(table.find("frozen")->state_block == 0);
    for (const std::int64_t degree : {1, 2, 4, 8}) CHECK(table.cut_by(degree) == nullptr);
    const bool is_cut = row.divided > 0 && row.shape[1] / 16 % row.divided != 0;
    CHECK((table.cut_by(16) == table.find("divided")) == is_cut);
  }
}
