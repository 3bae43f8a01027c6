#include "data/batch.h"

#include <algorithm>

#include "base/error.h"

namespace scaletrain {

std::int64_t fill_batch(std::span<const std::int64_t> samples, std::int64_t context, const SampleReader& read,
                        const BatchTensors& batch) {
  const auto length = static_cast<std::size_t>(context);
  SCALETRAIN_CHECK(context > 0 && batch.positions.size() % length == 0);
  SCALETRAIN_CHECK(batch.ids.empty() || batch.ids.size() == batch.positions.size());
  SCALETRAIN_CHECK(batch.targets.empty() || batch.targets.size() == batch.positions.size());
  const std::size_t room = batch.positions.size() / length;
  SCALETRAIN_CHECK_LE(samples.size(), room);
  const bool is_read = !batch.ids.empty() || !batch.targets.empty();
  // A sample is read as a whole: what is not wanted of it goes here.
  std::vector<std::int32_t> unwanted(is_read && (batch.ids.empty() || batch.targets.empty()) ? length : 0);
  std::vector<std::int32_t> document_starts;
  for (std::size_t row = 0; row < room; ++row) {
    const auto place = [&](std::span<std::int32_t> tensor) {
      return tensor.empty() ? std::span(unwanted) : tensor.subspan(row * length, length);
    };
    const auto ids = place(batch.ids);
    const auto targets = place(batch.targets);
    if (row >= samples.size()) {
      std::fill(ids.begin(), ids.end(), 0);
      std::fill(targets.begin(), targets.end(), -1);
    } else if (is_read) {
      read(samples[row], ids, targets, document_starts);
    }
    std::int32_t position = 0;
    for (std::int32_t& value : batch.positions.subspan(row * length, length)) value = position++;
  }
  return std::count_if(batch.targets.begin(), batch.targets.end(), [](std::int32_t target) { return target >= 0; });
}

}  // namespace scaletrain
