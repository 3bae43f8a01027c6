#include "data/batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace scaletrain {

namespace {

// Of one sample, whose first document begins at 0 whether the list has it or not.
void tell_documents_apart(std::span<const std::int32_t> starts, std::span<std::int32_t> positions,
                          std::span<std::int32_t> document_start) {
  std::int32_t start = 0;
  auto next = starts.begin();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (next != starts.end() && static_cast<std::size_t>(*next) == i) start = *next++;
    document_start[i] = start;
    positions[i] -= start;
  }
}

}  // namespace

std::int64_t fill_batch(std::span<const std::int64_t> samples, std::int64_t context, const SampleReader& read,
                        const BatchTensors& batch) {
  const auto length = static_cast<std::size_t>(context);
  SCALETRAIN_CHECK(context > 0 && batch.positions.size() % length == 0);
  SCALETRAIN_CHECK(batch.ids.empty() || batch.ids.size() == batch.positions.size());
  SCALETRAIN_CHECK(batch.targets.empty() || batch.targets.size() == batch.positions.size());
  SCALETRAIN_CHECK(batch.document_start.empty() || batch.document_start.size() == batch.positions.size());
  const std::size_t room = batch.positions.size() / length;
  SCALETRAIN_CHECK_LE(samples.size(), room);
  SCALETRAIN_CHECK(batch.samples.empty() || batch.samples.size() == room);
  if (!batch.samples.empty()) {
    const auto end = std::copy(samples.begin(), samples.end(), batch.samples.begin());
    std::fill(end, batch.samples.end(), -1);
  }
  const bool is_within = !batch.document_start.empty();
  const bool is_read = !batch.ids.empty() || !batch.targets.empty() || is_within;
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
      document_starts.clear();
    } else if (is_read) {
      read(samples[row], ids, targets, document_starts);
    }
    const auto positions = batch.positions.subspan(row * length, length);
    std::iota(positions.begin(), positions.end(), 0);
    if (is_within) tell_documents_apart(document_starts, positions, batch.document_start.subspan(row * length, length));
  }
  return std::count_if(batch.targets.begin(), batch.targets.end(), [](std::int32_t target) { return target >= 0; });
}

}  // namespace scaletrain
