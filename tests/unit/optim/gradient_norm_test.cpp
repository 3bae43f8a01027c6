#include "optim/gradient_norm.h"
#include "support/models/gradient_share.h"
#include "support/near.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

using namespace scaletrain;

namespace {

Parameter parameter(std::string name, Shape shape, Split split = {}) {
  Parameter out;
  out.name = std::move(name);
  out.shape = shape;
  out.split = split;
  return out;
}

// Embedding and tied head on the ends, a replicated norm, cut and grouped matrices.
ParamTable table_with_every_split() {
  const Split by_row{.kind = Split::Kind::cut, .dim = 0};
  ParamTable table;
  table.begin_unit("embedding");
  table.add(parameter("embedding.token.weight", {11, 4}, by_row));
  table.begin_unit("blocks.0");
  table.add(parameter("blocks.0.norm.weight", {4}));
  table.add(parameter("blocks.0.query.weight", {8, 4}, by_row));
  table.add(parameter("blocks.0.key.weight", {4, 4}, {.kind = Split::Kind::grouped, .dim = 0, .pieces = 2}));
  table.add(parameter("blocks.0.output.weight", {4, 8}, {.kind = Split::Kind::cut, .dim = 1}));
  table.begin_unit("head");
  Parameter head = parameter("head.weight", {11, 4}, by_row);
  head.tied_to = "embedding.token.weight";
  table.add(head);
  return table;
}

// The value of an element of the whole gradient, by parameter and place, so that any rank can fill its part.
double element(std::string_view name, std::int64_t index) {
  return std::sin(static_cast<double>(name.size()) * 1.7 + static_cast<double>(index));
}

void fill(const ParamStore& store) {
  for (const ParamSpan& span : store.layout().spans()) {
    if (span.count == 0) continue;
    const Parameter& of = store.table().parameters()[static_cast<std::size_t>(span.parameter)];
    const std::string& owner = of.tied_to ? *of.tied_to : of.name;  // copies hold the same sum after their reduction
    auto* values = store.gradient(of.name).as<double>();
    const std::int64_t columns = span.box.extent.size() == 2 ? span.box.extent[1] : 1;
    for (std::int64_t at = 0; at < span.count; ++at) {
      const std::int64_t global_columns = of.shape.num_dims() == 2 ? of.shape[1] : 1;
      const std::int64_t first_column = span.box.first.size() == 2 ? span.box.first[1] : 0;
      values[at] = element(owner, (span.box.first[0] + at / columns) * global_columns + first_column + at % columns);
    }
  }
}

double share(Backend& backend, const ParamTable& table, std::span<const int> units, const Mesh& mesh,
             const MeshPosition& position) {
  const auto stream = backend.make_stream();
  const ShardLayout layout(table, units, mesh, position);
  const ParamStore store(backend, table, layout, {.state_names = {}, .gradients = true, .dtype = DType::f64});
  fill(store);
  return gradient_share(backend, *stream, store);
}

}  // namespace

TEST_CASE("the shares of all ranks sum to every element once: tied, replicated and grouped ones too") {
  const auto backend = make_reference_backend(DType::f64);
  const ParamTable table = table_with_every_split();
  double expected = 0;
  for (const Parameter& of : table.parameters()) {
    if (of.tied_to) continue;
    for (std::int64_t index = 0; index < of.shape.num_elements(); ++index)
      expected += element(of.name, index) * element(of.name, index);
  }
  const std::array<int, 3> all{0, 1, 2};
  CHECK(share(*backend, table, all, Mesh(), {}) == Near(expected).epsilon(1e-12));
  const std::array<int, 2> first{0, 1};
  const std::array<int, 1> last{2};
  for (const std::int64_t tensor : {1, 2, 4, 8}) {
    const Mesh mesh(1, tensor, 2);
    double sum = 0;
    for (std::int64_t rank = 0; rank < tensor; ++rank) {
      sum += share(*backend, table, first, mesh, {.tensor = rank, .data = 0, .pipeline = 0});
      sum += share(*backend, table, last, mesh, {.tensor = rank, .data = 0, .pipeline = 1});
    }
    CHECK(sum == Near(expected).epsilon(1e-12));
  }
}

TEST_CASE("the share of a rank without parameters is zero") {
  const auto backend = make_reference_backend(DType::f64);
  const auto stream = backend->make_stream();
  const ParamTable table = table_with_every_split();
  const ShardLayout none(table, {}, Mesh(1, 1, 4), {.tensor = 0, .data = 0, .pipeline = 3});
  const ParamStore empty(*backend, table, none, {.state_names = {}, .gradients = true, .dtype = DType::f64});
  CHECK(gradient_share(*backend, *stream, empty) == 0.0);
}

TEST_CASE("the share is summed in the order of the table where a tied tensor lies before the rest of its unit") {
  ParamTable table;
  table.begin_unit("embedding");
  for (const char* const name : {"embedding.type.weight", "embedding.position.weight", "embedding.token.weight"})
    table.add(parameter(name, {1}));
  table.begin_unit("head");
  Parameter head = parameter("head.weight", {1});
  head.tied_to = "embedding.token.weight";
  table.add(head);
  const auto backend = make_reference_backend(DType::f64);
  const auto stream = backend->make_stream();
  const std::array<int, 2> all{0, 1};
  const ShardLayout layout(table, all, Mesh(), {});
  const ParamStore store(*backend, table, layout, {.state_names = {}, .gradients = true, .dtype = DType::f64});
  const auto gradient = [&](std::string_view name) { return store.gradient(name).as<double>(); };
  REQUIRE(gradient("embedding.token.weight") < gradient("embedding.type.weight"));
  *gradient("embedding.type.weight") = 1;
  *gradient("embedding.position.weight") = 1e8;
  *gradient("embedding.token.weight") = 1;
  CHECK(gradient_share(*backend, *stream, store) == 1e16);  // in the order of memory: 1e16 + 2
}
