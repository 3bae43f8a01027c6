#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "data/order/sampler.h"

namespace scaletrain {
namespace {

// What a derived key is for. Each use of the source's key has its own stream.
enum class KeyUse : std::uint32_t { blocks = 1, documents = 2, stretch = 3 };

PhiloxKey derive_key(PhiloxKey key, KeyUse use, std::int64_t epoch, std::int64_t block) {
  const auto b = static_cast<std::uint64_t>(block);
  const auto e = static_cast<std::uint64_t>(epoch);
  // Block numbers stay far below 2^56, so the use fits above them.
  const auto words = philox(
      key, {static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32) | static_cast<std::uint32_t>(use) << 24,
            static_cast<std::uint32_t>(e), static_cast<std::uint32_t>(e >> 32)});
  return {words[0], words[1]};
}

std::size_t place(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

// The blocks of an epoch, laid end to end in their permuted order, are runs of full blocks with short ones between
// them.
struct SourceOrder::EpochOrder {
  struct ShortBlock {
    std::int64_t rank = 0;   // in the permuted order of all blocks
    std::int64_t first = 0;  // its first sample's position in the epoch
    std::int64_t samples = 0;
  };
  KeyedPermutation blocks;
  std::vector<ShortBlock> short_blocks;  // ascending
};

struct SourceOrder::EpochCache {
  struct Entry {
    std::int64_t epoch = -1;
    std::shared_ptr<const EpochOrder> order;
  };
  std::mutex mutex;
  // Two: around the turn of an epoch a batch has samples of both.
  std::array<Entry, 2> entries;
};

SourceOrder::SourceOrder(const SourceShape& shape, std::int64_t samples_per_block, PhiloxKey key)
    : samples_per_block_(samples_per_block), key_(key), cache_(std::make_unique<EpochCache>()) {
  SCALETRAIN_CHECK(samples_per_block > 0);
  std::int64_t blocks = 0;
  for (const PartShape& part : shape.parts) {
    SCALETRAIN_CHECK(part.full_blocks >= 0 && part.last_samples >= 0 && part.last_samples < samples_per_block);
    first_block_.push_back(blocks);
    short_samples_.push_back(part.last_samples);
    blocks = checked_add(blocks, part.full_blocks + (part.last_samples > 0 ? 1 : 0));
    samples_per_epoch_ = checked_add(samples_per_epoch_, checked_mul(part.full_blocks, samples_per_block));
    samples_per_epoch_ = checked_add(samples_per_epoch_, part.last_samples);
  }
  first_block_.push_back(blocks);
}

SourceOrder::~SourceOrder() = default;
SourceOrder::SourceOrder(SourceOrder&&) noexcept = default;
SourceOrder& SourceOrder::operator=(SourceOrder&&) noexcept = default;

std::shared_ptr<const SourceOrder::EpochOrder> SourceOrder::epoch_order(std::int64_t epoch) const {
  auto& entry = cache_->entries[place(epoch % 2)];
  {
    const std::lock_guard lock(cache_->mutex);
    if (entry.epoch == epoch) return entry.order;
  }
  auto order = std::make_shared<EpochOrder>(
      EpochOrder{KeyedPermutation(derive_key(key_, KeyUse::blocks, epoch, 0), first_block_.back()), {}});
  auto& blocks = order->short_blocks;
  for (std::size_t part = 0; part < short_samples_.size(); ++part) {
    if (short_samples_[part] == 0) continue;
    blocks.push_back({.rank = order->blocks.inverse(first_block_[part + 1] - 1), .samples = short_samples_[part]});
  }
  std::sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  std::int64_t missing = 0;  // samples by which the short blocks so far fall short of full ones
  for (auto& block : blocks) {
    block.first = block.rank * samples_per_block_ - missing;
    missing += samples_per_block_ - block.samples;
  }
  const std::lock_guard lock(cache_->mutex);
  entry = {epoch, order};
  return order;
}

SampleLocation SourceOrder::locate(std::int64_t index) const {
  SCALETRAIN_CHECK(index >= 0 && samples_per_epoch_ > 0);
  SampleLocation out;
  out.epoch = index / samples_per_epoch_;
  out.position = index % samples_per_epoch_;
  // The windows of a stretch are permuted first; the order of blocks then says where each of them lies.
  const std::int64_t stretch = checked_mul(samples_per_block_, kShuffledBlocks);
  const std::int64_t first = out.position / stretch * stretch;
  const KeyedPermutation shuffle(derive_key(key_, KeyUse::stretch, out.epoch, out.position / stretch),
                                 std::min(stretch, samples_per_epoch_ - first));
  const std::int64_t position = first + shuffle.forward(out.position - first);
  const auto order = epoch_order(out.epoch);
  const auto& short_blocks = order->short_blocks;
  const auto after =
      std::upper_bound(short_blocks.begin(), short_blocks.end(), position,
                       [](std::int64_t at_position, const auto& block) { return at_position < block.first; });
  std::int64_t rank = position / samples_per_block_;
  std::int64_t slot = position % samples_per_block_;
  if (after != short_blocks.begin()) {
    const auto& block = *std::prev(after);
    const std::int64_t beyond = position - block.first - block.samples;
    rank = beyond < 0 ? block.rank : block.rank + 1 + beyond / samples_per_block_;
    slot = beyond < 0 ? position - block.first : beyond % samples_per_block_;
  }
  const std::int64_t id = order->blocks.forward(rank);
  const auto next_part = std::upper_bound(first_block_.begin(), first_block_.end(), id);
  out.part = next_part - first_block_.begin() - 1;
  out.block = id - first_block_[place(out.part)];
  out.window = slot;
  return out;
}

PhiloxKey SourceOrder::document_key(std::int64_t epoch, std::int64_t part, std::int64_t block) const {
  return derive_key(key_, KeyUse::documents, epoch, first_block_[place(part)] + block);
}

}  // namespace scaletrain
