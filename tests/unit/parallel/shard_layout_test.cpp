#include "parallel/shard_layout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "base/error.h"

using namespace scaletrain;

namespace {

Parameter parameter(std::string name, Shape shape, bool decays, Split split = {}, std::string fused = "") {
  Parameter out;
  out.name = std::move(name);
  out.shape = shape;
  out.decays = decays;
  out.split = split;
  out.fused = std::move(fused);
  return out;
}

// A small grouped-query model with sizes that do not divide; the head is tied.
ParamTable layout_table() {
  const Split by_row{.kind = Split::Kind::cut, .dim = 0};
  const Split by_column{.kind = Split::Kind::cut, .dim = 1};
  const Split query{.kind = Split::Kind::cut, .dim = 0, .pieces = 8};
  const Split key{.kind = Split::Kind::grouped, .dim = 0, .pieces = 2};
  ParamTable table;
  table.begin_unit("embedding");
  table.add(parameter("embedding.token.weight", {29, 24}, true, by_row));
  for (int block = 0; block < 3; ++block) {
    const std::string prefix = "blocks." + std::to_string(block);
    table.begin_unit(prefix);
    table.add(parameter(prefix + ".norm.weight", {24}, false));
    table.add(parameter(prefix + ".query.weight", {24, 24}, true, query, "qkv.weight"));
    table.add(parameter(prefix + ".key.weight", {6, 24}, true, key, "qkv.weight"));
    table.add(parameter(prefix + ".value.weight", {6, 24}, true, key, "qkv.weight"));
    table.add(parameter(prefix + ".query.bias", {24}, false, query, "qkv.bias"));
    table.add(parameter(prefix + ".key.bias", {6}, false, key, "qkv.bias"));
    table.add(parameter(prefix + ".value.bias", {6}, false, key, "qkv.bias"));
    table.add(parameter(prefix + ".output.weight", {24, 24}, true, by_column));
  }
  table.begin_unit("head");
  table.add(parameter("head.norm.weight", {24}, false));
  Parameter head = parameter("head.weight", {29, 24}, true, by_row);
  head.tied_to = "embedding.token.weight";
  table.add(head);
  return table;
}

const int every_unit[] = {0, 1, 2, 3, 4};

}  // namespace

TEST_CASE("spans tile each flat buffer without overlap, aligned, and shards are equal and aligned") {
  const ParamTable table = layout_table();
  for (const std::int64_t data : {1, 2, 3, 8}) {
    for (const std::int64_t tensor : {1, 2, 4, 8}) {
      const Mesh mesh(data, tensor, 1);
      for (std::int64_t rank = 0; rank < tensor; ++rank) {
        const ShardLayout layout(table, every_unit, mesh, {.tensor = rank});
        REQUIRE(layout.buffers().size() == 1);
        const FlatBuffer& buffer = layout.buffers()[0];
        CHECK(buffer.name == "trained.data.F32");
        CHECK(buffer.shard_elements % 16 == 0);
        CHECK(buffer.num_elements == buffer.shard_elements * data);
        std::int64_t end = 0;
        std::int64_t held = 0;
        for (const ParamSpan& span : layout.spans()) {
          CHECK(span.offset >= end);
          const Bucket& bucket = layout.buckets()[static_cast<std::size_t>(layout.bucket_at(0, span.offset))];
          CHECK(span.offset - std::max(end, bucket.first) < 16);  // padding is for alignment, or ends a bucket
          CHECK(span.count == span.box.num_elements());
          const Parameter& of = table.parameters()[static_cast<std::size_t>(span.parameter)];
          CHECK(span.box == ParamTable::box_of(of, tensor, rank));
          end = span.offset + span.count;
          held += span.count;
        }
        CHECK(end <= buffer.num_elements);
        CHECK(layout.num_elements(ParamRole::trained) == held);
        CHECK(layout.num_elements(ParamRole::frozen) == 0);
      }
    }
  }
}

TEST_CASE("parameters of a fused group lie side by side and groups start aligned") {
  const ParamTable table = layout_table();
  const ShardLayout layout(table, every_unit, Mesh(2, 2, 1), {.tensor = 1});
  const auto place = [&](const char* name) { return *layout.find(table.index_of(name)); };
  for (const char* part : {".weight", ".bias"}) {
    const ParamSpan query = place((std::string("blocks.1.query") + part).c_str());
    const ParamSpan key = place((std::string("blocks.1.key") + part).c_str());
    const ParamSpan value = place((std::string("blocks.1.value") + part).c_str());
    CHECK(query.offset % 16 == 0);
    CHECK(key.offset == query.offset + query.count);
    CHECK(value.offset == key.offset + key.count);
  }
  CHECK(place("blocks.1.key.bias").count == 3);
  CHECK(place("blocks.1.norm.weight").offset % 16 == 0);
}

TEST_CASE("a tied parameter shares its owner's place on the same rank and has its own on another stage") {
  const ParamTable table = layout_table();
  const int head = table.index_of("head.weight");
  const int owner = table.index_of("embedding.token.weight");
  const ShardLayout whole(table, every_unit, Mesh(), {});
  CHECK(whole.find(head)->offset == whole.find(owner)->offset);
  CHECK(whole.find(head)->parameter == head);
  CHECK(whole.num_elements(ParamRole::trained) == table.num_parameters());
  const int last_stage[] = {3, 4};
  const ShardLayout last(table, last_stage, Mesh(1, 1, 2), {.pipeline = 1});
  CHECK(last.find(owner) == nullptr);
  REQUIRE(last.find(head) != nullptr);
  CHECK(last.find(head)->count == 29 * 24);
  const auto of_unit = [&](int unit) {
    return std::count_if(last.spans().begin(), last.spans().end(), [&](const ParamSpan& span) {
      return table.parameters()[static_cast<std::size_t>(span.parameter)].unit == unit;
    });
  };
  CHECK(of_unit(4) == 2);
  CHECK(of_unit(0) == 0);
}

TEST_CASE("roles and types have buffers of their own") {
  ParamTable table;
  table.begin_unit("u");
  table.add(parameter("u.a", {4, 4}, true));
  Parameter frozen = parameter("u.frozen", {4, 4}, false);
  frozen.role = ParamRole::frozen;
  frozen.dtype = DType::bf16;
  table.add(frozen);
  table.add(parameter("u.b", {4}, false));
  const int units[] = {0};
  const ShardLayout layout(table, units, Mesh(), {});
  REQUIRE(layout.buffers().size() == 2);
  CHECK(layout.buffers()[1].name == "frozen.BF16");
  const auto in_buffer = [&](int buffer) {
    return std::count_if(layout.spans().begin(), layout.spans().end(),
                         [&](const ParamSpan& span) { return span.buffer == buffer; });
  };
  CHECK(in_buffer(0) == 2);
  CHECK(in_buffer(1) == 1);
  CHECK(layout.num_elements(ParamRole::frozen) == 16);
}

TEST_CASE("a flat range of a box is at most 2d-1 boxes that tile it in order") {
  std::mt19937 random(7);  // NOLINT: the same cases on every run
  const auto number = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  for (int trial = 0; trial < 3000; ++trial) {
    const auto num_dims = static_cast<std::size_t>(number(1, 4));
    Box box;
    for (std::size_t dim = 0; dim < num_dims; ++dim) {
      box.first.push_back(number(0, 9));
      box.extent.push_back(number(1, 5));
    }
    const std::int64_t size = box.num_elements();
    const std::int64_t first = number(0, size);
    const std::int64_t count = number(0, size - first);
    const auto boxes = boxes_of_range(box, first, count);
    if (boxes.size() > 2 * num_dims - 1) FAIL_CHECK(boxes.size() << " boxes of " << num_dims << " dims");
    // Walking the boxes one after the other must walk the flat range.
    std::int64_t next = first;
    for (const Box& piece : boxes) {
      for (std::int64_t inside = 0; inside < piece.num_elements(); ++inside) {
        std::int64_t left = inside;
        std::int64_t flat = 0;
        std::int64_t scale = 1;
        for (std::size_t dim = num_dims; dim-- > 0;) {
          const std::int64_t index = piece.first[dim] + left % piece.extent[dim] - box.first[dim];
          left /= piece.extent[dim];
          flat += index * scale;
          scale *= box.extent[dim];
        }
        if (flat != next) FAIL_CHECK("element " << flat << " where " << next << " was due");
        ++next;
      }
    }
    if (next != first + count) FAIL_CHECK("ends at " << next << ", not " << first + count);
  }
}

TEST_CASE("zero stages shard one more thing each") {
  CHECK(ZeroPolicy::of_stage(0) == ZeroPolicy{});
  CHECK(ZeroPolicy::of_stage(1) == ZeroPolicy{.shard_optimizer = true});
  CHECK(ZeroPolicy::of_stage(2) == ZeroPolicy{.shard_optimizer = true, .shard_gradients = true});
  CHECK(ZeroPolicy::of_stage(3) ==
        ZeroPolicy{.shard_optimizer = true, .shard_gradients = true, .shard_parameters = true});
  CHECK_THROWS_AS(ZeroPolicy::of_stage(4), BugError);
}
