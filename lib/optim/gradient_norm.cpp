#include "optim/gradient_norm.h"

#include <algorithm>
#include <vector>

#include "base/checked.h"
#include "base/error.h"

namespace scaletrain {

double gradient_sum_of_squares_share(Backend& backend, Stream& stream, const ParamStore& store) {
  const ShardLayout& layout = store.layout();
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  std::vector<RowRange> counted = layout.shard_ranges(layout.position().data);
  std::erase_if(counted, [&](const RowRange& range) {
    const ParamRow& row = store.table().rows()[static_cast<std::size_t>(range.row)];
    return row.role != ParamRole::trained || row.tied_to ||
           !ParamTable::is_first_holder(row, tensor_degree, layout.position().tensor);
  });
  std::sort(counted.begin(), counted.end(), [](const RowRange& a, const RowRange& b) { return a.row < b.row; });
  // One number per range, read only after the stream has run.
  std::vector<double> sums(counted.size(), 0.0);
  for (std::size_t index = 0; index < counted.size(); ++index) {
    const View gradient = store.values(StateKind::gradient, counted[index]);
    backend.run(stream, SumOfSquares{.values = gradient, .result = &sums[index]});
  }
  stream.synchronize();
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

double gradient_sum_of_squares(Backend& backend, Stream& stream, const ParamStore& store, const RankGroups& groups) {
  double sum = gradient_sum_of_squares_share(backend, stream, store);
  sum_over_world(groups, {&sum, 1});
  return sum;
}

}  // namespace scaletrain
