// One rank's part of a model with all that it needs to exist: the table, what of it the rank holds, a backend and the
// store. What tests need beyond that (values, layers, files) they add to it.
#pragma once

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "store/param_store.h"

namespace scaletrain {

inline std::vector<int> all_units(const ParamTable& table) {
  std::vector<int> units(table.units().size());
  std::iota(units.begin(), units.end(), 0);
  return units;
}

// Which part of the model the rank has; by default all of it.
struct RankPlace {
  Mesh mesh{};
  MeshPosition position{};
  std::vector<int> units{};  // empty: all
};

struct ModelStore {
  // Masters, gradients and states are of the type that the backend sums in, zero-filled.
  ModelStore(ParamTable made_table, std::unique_ptr<Backend> used_backend, ParamStore::Options options,
             const RankPlace& place = {})
      : table(std::move(made_table)),
        layout(table, place.units.empty() ? all_units(table) : place.units, place.mesh, place.position),
        backend(std::move(used_backend)),
        stream(backend->make_stream()),
        store(*backend, table, layout, of_type(backend->compute_type(), std::move(options))) {}
  ModelStore(const ModelStore&) = delete;
  ModelStore& operator=(const ModelStore&) = delete;

  ParamTable table;
  ShardLayout layout;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  ParamStore store;

 private:
  static ParamStore::Options of_type(DType compute, ParamStore::Options options) {
    options.dtype = accumulator_type(compute);
    if (!options.compute) options.compute = compute;
    return options;
  }
};

}  // namespace scaletrain
