#include "optim/gradient_norm.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

double gradient_sum_of_squares_share(Backend& backend, Stream& stream, const ParamStore& store) {
  const ShardLayout& layout = store.layout();
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  std::vector<ParamRange> counted = layout.shard_ranges(layout.position().data);
  std::erase_if(counted, [&](const ParamRange& range) {
    const Parameter& parameter = store.table().parameters()[static_cast<std::size_t>(range.parameter)];
    return parameter.role != ParamRole::trained || parameter.tied_to ||
           !ParamTable::is_first_replica(parameter, tensor_degree, layout.position().tensor);
  });
  std::sort(counted.begin(), counted.end(),
            [](const ParamRange& a, const ParamRange& b) { return a.parameter < b.parameter; });
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

}  // namespace scaletrain
