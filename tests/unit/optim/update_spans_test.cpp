#include "optim/update_spans.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "support/models/small_model.h"

using namespace scaletrain;

namespace {

const int every_unit[] = {0, 1, 2, 3};

}  // namespace

TEST_CASE("spans of any cut cover parameters with their own decay and learning rate and leave padding out") {
  ParamTable table = small_model::table(true);
  double next = 1;
  table.scale_learning_rates([&](const Parameter&) { return next *= 1.5; });
  int number = 0;
  table.scale_weight_decays([&](const Parameter&) { return 0.5 * (number++ % 4); });
  std::vector<double> factors;
  for (std::size_t index = 0; index < table.parameters().size(); ++index)
    factors.push_back(1.0 + 0.25 * static_cast<double>(index % 3));
  const ShardLayout layout(table, every_unit, Mesh(3, 1, 1), {});
  const FlatBuffer& buffer = layout.buffers()[0];
  // Of each element decay and factor; padding has neither.
  const std::pair<double, double> nothing{-1.0, -1.0};
  std::vector<std::pair<double, double>> expected(static_cast<std::size_t>(buffer.num_elements), nothing);
  for (const ParamSpan& span : layout.spans()) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(span.parameter)];
    for (std::int64_t at = span.offset; at < span.offset + span.count; ++at)
      expected[static_cast<std::size_t>(at)] = {
          parameter.decays ? 0.1 * parameter.decay_factor : 0.0,
          parameter.rate_factor * factors[static_cast<std::size_t>(span.parameter)]};
  }
  const std::int64_t cuts[] = {0, 7, buffer.shard_elements, 2 * buffer.shard_elements, buffer.num_elements};
  std::vector<std::pair<double, double>> found(expected.size(), nothing);
  for (std::size_t cut = 0; cut + 1 < std::size(cuts); ++cut) {
    const FlatRange range{.buffer = 0, .first = cuts[cut], .count = cuts[cut + 1] - cuts[cut]};
    for (const UpdateSpan& span : update_spans(layout, table, range, 0.1, factors)) {
      for (std::int64_t at = span.first; at < span.first + span.count; ++at) {
        std::pair<double, double>& value = found[static_cast<std::size_t>(cuts[cut] + at)];
        CHECK((value == nothing));
        value = {span.weight_decay, span.rate_factor};
      }
    }
  }
  CHECK((found == expected));
}
