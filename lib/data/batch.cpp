#include "data/batch.h"

#include <algorithm>

#include "base/error.h"

namespace scaletrain {

std::int64_t fill_batch(std::span<const std::int64_t> samples, std::int64_t context, const SampleReader& read,
                        const BatchTensors& batch) {
  const auto length = static_cast<std::size_t>(context);
  SCALETRAIN_CHECK(context > 0 && batch.ids.size() % length == 0);
  SCALETRAIN_CHECK(batch.targets.size() == batch.ids.size() && batch.positions.size() == batch.ids.size());
  const std::size_t room = batch.ids.size() / length;
  SCALETRAIN_CHECK_LE(samples.size(), room);
  std::vector<std::int32_t> document_starts;
  for (std::size_t row = 0; row < room; ++row) {
    const auto ids = batch.ids.subspan(row * length, length);
    const auto targets = batch.targets.subspan(row * length, length);
    if (row < samples.size()) {
      read(samples[row], ids, targets, document_starts);
    } else {
      std::fill(ids.begin(), ids.end(), 0);
      std::fill(targets.begin(), targets.end(), -1);
    }
    std::int32_t position = 0;
    for (std::int32_t& value : batch.positions.subspan(row * length, length)) value = position++;
  }
  return std::count_if(batch.targets.begin(), batch.targets.end(), [](std::int32_t target) { return target >= 0; });
}

}  // namespace scaletrain
