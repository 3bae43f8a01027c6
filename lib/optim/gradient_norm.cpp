#include "optim/gradient_norm.h"

#include <vector>

#include "base/checked.h"
#include "base/error.h"

namespace scaletrain {

double gradient_sum_of_squares_share(Backend& backend, Stream& stream, const ParamStore& store) {
  const ShardLayout& layout = store.layout();
  const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
  std::vector<View> counted;
  for (const int unit : layout.units()) {
    for (const ParamRow& row : store.table().rows_of(unit)) {
      if (row.role != ParamRole::trained || row.tied_to) continue;
      if (!ParamTable::is_first_holder(row, tensor_degree, layout.position().tensor)) continue;
      const ParamSpan* span = layout.find(store.table().index_of(row.name));
      if (span->count == 0) continue;  // a rank beyond the last piece of a cut
      counted.push_back(store.gradient(row.name));
      SCALETRAIN_CHECK(static_cast<bool>(counted.back()));
    }
  }
  // One number per row, read only after the stream has run.
  std::vector<double> sums(counted.size(), 0.0);
  for (std::size_t index = 0; index < counted.size(); ++index)
    backend.run(stream, SumOfSquares{.values = counted[index], .result = &sums[index]});
  stream.synchronize();
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

void sum_over(std::span<double> numbers, Communicator& group) {
  if (numbers.empty()) return;
  const Shape shape{narrow<std::int64_t>(numbers.size())};
  group.all_reduce(View(numbers.data(), DType::f64, shape), ReduceOp::sum).wait();
}

double gradient_sum_of_squares(Backend& backend, Stream& stream, const ParamStore& store, Communicator& group) {
  double sum = gradient_sum_of_squares_share(backend, stream, store);
  sum_over({&sum, 1}, group);
  return sum;
}

}  // namespace scaletrain
