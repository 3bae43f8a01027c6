#include "optim/decay_spans.h"

#include <doctest/doctest.h>

#include "support/models/small_model.h"

using namespace scaletrain;

namespace {

const int every_unit[] = {0, 1, 2, 3};

}  // namespace

TEST_CASE("decay spans of any cut cover matrices and vectors with their own decay and leave padding out") {
  const ParamTable table = small_model::table(true);
  const ShardLayout layout(table, every_unit, Mesh(3, 1, 1), {});
  const FlatBuffer& buffer = layout.buffers()[0];
  std::vector<double> expected(static_cast<std::size_t>(buffer.num_elements), -1.0);  // padding
  for (const ParamSpan& span : layout.spans()) {
    for (std::int64_t at = span.offset; at < span.offset + span.count; ++at)
      expected[static_cast<std::size_t>(at)] =
          table.parameters()[static_cast<std::size_t>(span.parameter)].decays ? 0.1 : 0.0;
  }
  const std::int64_t cuts[] = {0, 7, buffer.shard_elements, 2 * buffer.shard_elements, buffer.num_elements};
  std::vector<double> found(expected.size(), -1.0);
  for (std::size_t cut = 0; cut + 1 < std::size(cuts); ++cut) {
    const FlatRange range{.buffer = 0, .first = cuts[cut], .count = cuts[cut + 1] - cuts[cut]};
    for (const DecaySpan& span : decay_spans(layout, table, range, 0.1)) {
      for (std::int64_t at = span.first; at < span.first + span.count; ++at) {
        double& value = found[static_cast<std::size_t>(cuts[cut] + at)];
        CHECK(value == -1.0);
        value = span.weight_decay;
      }
    }
  }
  CHECK(found == expected);
}
