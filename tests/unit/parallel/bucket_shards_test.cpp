// How the layout divides the buffers among data ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "parallel/shard_layout.h"
#include "support/models/small_model.h"

using namespace scaletrain;

namespace {

// A model of random sizes: units of a few parameters each, one of them tied by the last unit.
ParamTable random_table(std::mt19937& random) {
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  ParamTable table;
  const std::int64_t num_units = number(1, 5);
  const Shape tied{number(1, 60), number(1, 20)};
  const Split by_row{.kind = Split::Kind::cut, .dim = 0, .pieces = 0};
  for (std::int64_t unit = 0; unit < num_units; ++unit) {
    const std::string prefix = "u" + std::to_string(unit);
    table.begin_unit(prefix);
    const std::int64_t num_parameters = number(unit == 0 ? 0 : 1, 4);
    for (std::int64_t index = 0; index < num_parameters; ++index) {
      const std::string name = prefix + ".r" + std::to_string(index);
      Parameter parameter =
          small_model::parameter(name, {number(1, 40), number(1, 17)}, number(0, 1) == 0 ? Split{} : by_row);
      if (number(0, 3) == 0) parameter.role = ParamRole::frozen;
      table.add(parameter);
    }
    if (unit == 0) table.add(small_model::parameter("u0.tied", tied, by_row));
    if (unit + 1 == num_units && unit > 0) {
      Parameter copy = small_model::parameter(prefix + ".copy", tied, by_row);
      copy.tied_to = "u0.tied";
      table.add(copy);
    }
  }
  return table;
}

std::vector<int> units_between(int first, int end) {
  std::vector<int> units;
  for (int unit = first; unit < end; ++unit) units.push_back(unit);
  return units;
}

// Counts how often each element of the rank's parameters is in a range of a data rank, and checks where the ranges lie:
// of shards, which as many ranks hold as there are copies, or of pieces, which are of one.
std::string check_ranges(const ShardLayout& layout, bool of_pieces) {
  const Mesh& mesh = layout.mesh();
  const std::int64_t data = mesh.degree(Axis::data);
  const int held_by = of_pieces ? 1 : static_cast<int>(mesh.copies());
  std::vector<std::vector<int>> counts(layout.spans().size());
  for (std::size_t index = 0; index < counts.size(); ++index)
    counts[index].assign(static_cast<std::size_t>(layout.spans()[index].count), 0);
  for (std::int64_t rank = 0; rank < data; ++rank) {
    std::vector<std::int64_t> end(layout.buffers().size(), 0);  // of the ranges so far in each shard
    for (const ParamRange& range : of_pieces ? layout.piece_ranges(rank) : layout.shard_ranges(rank)) {
      const ParamSpan& span = *layout.find(range.parameter);
      const auto buffer = static_cast<std::size_t>(range.buffer);
      if (range.count < 1) return "an empty range";
      if (range.flat_offset != span.offset + range.first) return "flat offset";
      if (range.shard_offset < end[buffer]) return "ranges overlap in the shard, or are out of order";
      end[buffer] = range.shard_offset + range.count;
      if (end[buffer] > layout.buffers()[buffer].shard_elements) return "outside the shard";
      const Bucket& bucket =
          layout.buckets()[static_cast<std::size_t>(layout.bucket_at(range.buffer, range.flat_offset))];
      const std::int64_t in_shard = range.flat_offset - bucket.first - rank % mesh.shards() * bucket.shard_elements;
      if (in_shard < 0 || in_shard + range.count > bucket.shard_elements) return "not in the rank's shard";
      const std::int64_t in_piece = in_shard - rank / mesh.shards() * bucket.piece_elements;
      if (of_pieces && (in_piece < 0 || in_piece + range.count > bucket.piece_elements)) return "not in its piece";
      if (range.shard_offset != bucket.shard_first + in_shard) return "shard offset";
      const auto index = static_cast<std::size_t>(&span - layout.spans().data());
      for (std::int64_t n = range.first; n < range.first + range.count; ++n)
        ++counts[index][static_cast<std::size_t>(n)];
    }
  }
  for (const auto& of_parameter : counts) {
    if (!std::all_of(of_parameter.begin(), of_parameter.end(), [=](int count) { return count == held_by; }))
      return "not held as often as it should be";
  }
  return "";
}

std::string check_shards(const ShardLayout& layout) {
  const std::string of_shards = check_ranges(layout, false);
  return of_shards.empty() ? check_ranges(layout, true) : of_shards;
}

std::string check_buckets(const ShardLayout& layout) {
  std::vector<std::int64_t> end(layout.buffers().size(), 0);
  std::vector<std::int64_t> shard_end(layout.buffers().size(), 0);
  for (const Bucket& bucket : layout.buckets()) {
    const auto buffer = static_cast<std::size_t>(bucket.buffer);
    if (bucket.first != end[buffer] || bucket.shard_first != shard_end[buffer]) return "buckets do not tile";
    if (bucket.piece_elements <= 0 || bucket.piece_elements % 16 != 0) return "piece is not aligned";
    if (bucket.shard_elements != bucket.piece_elements * layout.mesh().copies()) return "pieces are not equal";
    if (bucket.count != bucket.shard_elements * layout.mesh().shards()) return "shards are not equal";
    end[buffer] += bucket.count;
    shard_end[buffer] += bucket.shard_elements;
  }
  for (std::size_t buffer = 0; buffer < end.size(); ++buffer) {
    const FlatBuffer& flat = layout.buffers()[buffer];
    if (flat.num_elements != end[buffer] || flat.shard_elements != shard_end[buffer])
      return "buffer is not its buckets";
  }
  return "";
}

}  // namespace

TEST_CASE("every element of every parameter is in one rank's piece, and held once in every copy, whatever the sizes") {
  std::mt19937 random(3);  // NOLINT: the same cases on every run
  for (int trial = 0; trial < 300; ++trial) {
    const ParamTable table = random_table(random);
    const auto data = static_cast<std::int64_t>(1 + random() % 9);
    const auto tensor = static_cast<std::int64_t>(1 + random() % 4);
    std::int64_t shards = data;
    if (trial % 2 == 1) do {
        shards = static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(data));
      } while (data % shards != 0);
    const Mesh mesh(data, tensor, 1, shards);
    const std::vector<int> units = units_between(0, static_cast<int>(table.units().size()));
    for (std::int64_t rank = 0; rank < tensor; ++rank) {
      const ShardLayout layout(table, units, mesh, {.tensor = rank});
      const std::string shards = check_shards(layout);
      const std::string buckets = check_buckets(layout);
      if (!shards.empty() || !buckets.empty()) FAIL_CHECK("trial " << trial << ": " << shards << " " << buckets);
    }
  }
}

TEST_CASE("a unit is one bucket of a buffer, and a tied tensor a bucket of its own on every stage") {
  const ParamTable table = small_model::table(true);
  const Mesh mesh(3, 2, 2);
  const std::vector<int> all{0, 1, 2, 3};
  const ShardLayout together(table, all, Mesh(3, 2, 1), {});
  // token; position; two blocks; head norm.
  REQUIRE(together.buckets().size() == 5);
  CHECK(together.buckets()[0].tied);
  CHECK(together.buckets_used_by(0) == std::vector<int>{0, 1});
  CHECK(together.buckets_used_by(2) == std::vector<int>{3});
  CHECK(together.buckets_used_by(3) == std::vector<int>{4, 0});  // with its owner's
  const ShardLayout last(table, small_model::units_of(mesh, 1), mesh, {.pipeline = 1});
  REQUIRE(last.buckets().size() == 3);
  CHECK(last.buckets_used_by(3) == std::vector<int>{1, 2});
  CHECK(last.buckets()[1].tied);
  CHECK_FALSE(last.buckets()[2].tied);
}

TEST_CASE("the shards of a tied tensor lie alike on both stages that hold it") {
  for (const std::int64_t vocab : {1, 29, 257}) {
    const ParamTable table = small_model::table(true, vocab);
    for (const std::int64_t data : {1, 2, 3, 7}) {
      for (const std::int64_t tensor : {1, 2, 4}) {
        const Mesh mesh(data, tensor, 2);
        for (std::int64_t rank = 0; rank < tensor; ++rank) {
          const ShardLayout first(table, small_model::units_of(mesh, 0), mesh, {.tensor = rank});
          const ShardLayout last(table, small_model::units_of(mesh, 1), mesh, {.tensor = rank, .pipeline = 1});
          const ParamSpan& owner = *first.find(table.index_of("embedding.token.weight"));
          const ParamSpan& copy = *last.find(table.index_of("head.weight"));
          CHECK(owner.box == copy.box);
          if (owner.count == 0) continue;
          const Bucket& of_owner = first.buckets()[static_cast<std::size_t>(first.bucket_at(0, owner.offset))];
          const Bucket& of_copy = last.buckets()[static_cast<std::size_t>(last.bucket_at(0, copy.offset))];
          CHECK(of_owner.tied);
          CHECK(of_copy.tied);
          CHECK(of_owner.shard_elements == of_copy.shard_elements);
          CHECK(owner.offset - of_owner.first == copy.offset - of_copy.first);
        }
      }
    }
  }
}

TEST_CASE("the place of a tied owner does not depend on whether its copy is on the same rank") {
  const ParamTable table = small_model::table(true);
  const ShardLayout whole(table, small_model::units_of(Mesh(), 0), Mesh(5, 1, 1), {});
  const ShardLayout first(table, small_model::units_of(Mesh(5, 1, 2), 0), Mesh(5, 1, 2), {});
  CHECK(whole.buckets()[0].shard_elements == first.buckets()[0].shard_elements);
  CHECK(whole.buckets()[0].tied == first.buckets()[0].tied);
}

TEST_CASE("unsharded ranges are the parameters in the order of the buffers, without copies that share a place") {
  const ParamTable table = small_model::table(true);
  const ShardLayout layout(table, small_model::units_of(Mesh(), 0), Mesh(), {});
  const std::vector<ParamRange> ranges = layout.unsharded_ranges();
  CHECK(ranges.size() == table.parameters().size() - 1);
  std::int64_t elements = 0;
  for (const ParamRange& range : ranges) {
    CHECK(range.first == 0);
    CHECK(range.flat_offset == layout.find(range.parameter)->offset);
    elements += range.count;
  }
  CHECK(elements == table.num_parameters());
}

TEST_CASE("no shard and no piece cuts a block of states in 8 bits, and a block of a parameter is one of its buffer") {
  ParamTable table;
  table.begin_unit("u");
  const Split by_row{.kind = Split::Kind::cut, .dim = 0, .pieces = 0};
  for (const std::int64_t columns : {256, 48, 128, 24})
    for (const char* part : {"a", "b"}) {
      Parameter parameter = small_model::parameter("u." + std::to_string(columns) + "." + part, {12, columns}, by_row);
      parameter.fused = "u." + std::to_string(columns);
      table.add(parameter);
    }
  table.add(small_model::parameter("u.vector", {7}, {}));
  table.hold_states_in_blocks();
  const int units[] = {0};
  for (const auto& [data, tensor, shards] : {std::tuple{1, 1, 1}, {3, 1, 3}, {5, 2, 5}, {4, 3, 2}, {8, 4, 2}}) {
    const ShardLayout layout(table, units, Mesh(data, tensor, 1, shards), {.tensor = tensor - 1});
    for (std::int64_t rank = 0; rank < data; ++rank)
      for (const auto& ranges : {layout.shard_ranges(rank), layout.piece_ranges(rank)})
        for (const ParamRange& range : ranges) {
          const std::int64_t block = table.parameters()[static_cast<std::size_t>(range.parameter)].state_block;
          CHECK(layout.buffers()[static_cast<std::size_t>(range.buffer)].state_block == block);
          if (block == 0) continue;
          for (const std::int64_t place : {range.first, range.count, range.flat_offset, range.shard_offset})
            CHECK(place % block == 0);
        }
  }
}
