#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "nn/init.h"
#include "support/models/small_model.h"
#include "support/ranks/host_stream.h"

using namespace scaletrain;
using small_model::RankModel;

TEST_CASE("the shard of any data, tensor and pipeline rank is initialised with the values of the whole model") {
  ParamTable plain = small_model::table(true);
  ParamTable table;  // the same parameters, drawn instead of zero
  for (const ParamUnit& unit : plain.units()) {
    table.begin_unit(unit.name);
    for (int index = unit.first_parameter; index < unit.first_parameter + unit.num_parameters; ++index) {
      Parameter parameter = plain.parameters()[static_cast<std::size_t>(index)];
      parameter.init = {.kind = InitialValues::Kind::normal, .deviation = 0.5};
      table.add(parameter);
    }
  }
  RankModel whole(table, Mesh(), Rank(0), nullptr, 0, false);
  initialise_parameters(whole.store, host_stream(), 9, 1);
  for (const Mesh& mesh : {Mesh(5, 1, 1), Mesh(2, 2, 2), Mesh(3, 4, 1)}) {
    std::int64_t compared = 0;
    for (std::int64_t rank = 0; rank < mesh.world(); ++rank) {
      RankModel part(table, mesh, Rank(rank), nullptr, 3, false);
      initialise_parameters(part.store, host_stream(), 9, 2);
      std::string wrong;
      for (const ParamRange& range : part.store.held(StateKind::master)) {
        const Parameter& parameter = table.parameters()[static_cast<std::size_t>(range.parameter)];
        const Box& box = part.layout.find(range.parameter)->box;
        const auto* found = part.store.values(StateKind::master, range).as<double>();
        const auto* expected = whole.store.master(parameter.name).as<double>();
        for (std::int64_t n = 0; n < range.count; ++n) {
          if (found[n] != expected[small_model::global_index(parameter.shape, box, range.first + n)])
            wrong = parameter.name;
        }
        compared += range.count;
      }
      CAPTURE(mesh.text());
      CHECK(wrong == "");
    }
    CHECK(compared >= table.num_parameters());
  }
}
