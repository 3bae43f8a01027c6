#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "data/order/sampler.h"

namespace scaletrain {
namespace {

// What a derived key is for. Each use of the source's key has its own stream.
enum class KeyUse : std::uint32_t { blocks = 1, documents = 2, stretch = 3, joined = 4 };

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

std::int64_t blocks_of(const PartShape& part) {
  return part.full_blocks + (part.last_samples > 0 ? 1 : 0);
}

// How many of `items` have had their turn after `turn` of `turns`, spread evenly.
std::int64_t share_of(std::int64_t items, std::int64_t turn, std::int64_t turns) {
  __extension__ using Wide = __int128;
  return static_cast<std::int64_t>(static_cast<Wide>(items) * turn / turns);
}

}  // namespace

// Every epoch has the order of its own of these parts' blocks and windows.
class SourceOrder::Strand {
 public:
  // parts: of the source, beginning with part `first_part`.
  Strand(std::span<const PartShape> parts, std::size_t first_part, std::int64_t samples_per_block, PhiloxKey key);

  std::int64_t samples() const { return samples_; }
  // Of an epoch's samples the one at `position`; source is left 0.
  SampleLocation locate(std::int64_t epoch, std::int64_t position) const;

 private:
  // The blocks of an epoch, laid end to end in their permuted order, are runs of full blocks with short ones between
  // them.
  struct EpochOrder {
    struct ShortBlock {
      std::int64_t rank = 0;   // in the permuted order of all blocks
      std::int64_t first = 0;  // its first sample's position in the epoch
      std::int64_t samples = 0;
    };
    KeyedPermutation blocks;
    std::vector<ShortBlock> short_blocks;  // ascending
  };
  struct Entry {
    std::int64_t epoch = -1;
    std::shared_ptr<const EpochOrder> order;
  };
  // Kept for the epochs used last, because it costs O(parts) to find.
  std::shared_ptr<const EpochOrder> epoch_order(std::int64_t epoch) const;

  std::int64_t first_part_;
  std::int64_t samples_per_block_;
  PhiloxKey key_;
  std::vector<std::int64_t> first_block_;    // of each part, in the numbering of all blocks; one more at the end
  std::vector<std::int64_t> short_samples_;  // of each part's last block if it is short, else 0
  std::int64_t samples_ = 0;
  mutable std::mutex mutex_;
  mutable std::array<Entry, 2> entries_;  // two: around the turn of an epoch a batch has samples of both
};

SourceOrder::Strand::Strand(std::span<const PartShape> parts, std::size_t first_part, std::int64_t samples_per_block,
                            PhiloxKey key)
    : first_part_(static_cast<std::int64_t>(first_part)), samples_per_block_(samples_per_block), key_(key) {
  std::int64_t blocks = 0;
  for (const PartShape& part : parts) {
    SCALETRAIN_CHECK(part.full_blocks >= 0 && part.last_samples >= 0 && part.last_samples < samples_per_block);
    first_block_.push_back(blocks);
    short_samples_.push_back(part.last_samples);
    blocks = checked_add(blocks, blocks_of(part));
    samples_ = checked_add(samples_, checked_mul(part.full_blocks, samples_per_block));
    samples_ = checked_add(samples_, part.last_samples);
  }
  first_block_.push_back(blocks);
}

std::shared_ptr<const SourceOrder::Strand::EpochOrder> SourceOrder::Strand::epoch_order(std::int64_t epoch) const {
  auto& entry = entries_[place(epoch % 2)];
  {
    const std::lock_guard lock(mutex_);
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
  const std::lock_guard lock(mutex_);
  entry = {epoch, order};
  return order;
}

SampleLocation SourceOrder::Strand::locate(std::int64_t epoch, std::int64_t at) const {
  // The windows of a stretch are permuted first; the order of blocks then says where each of them lies.
  const std::int64_t stretch = checked_mul(samples_per_block_, kShuffledBlocks);
  const std::int64_t first = at / stretch * stretch;
  const KeyedPermutation shuffle(derive_key(key_, KeyUse::stretch, epoch, at / stretch),
                                 std::min(stretch, samples_ - first));
  const std::int64_t position = first + shuffle.forward(at - first);
  const auto order = epoch_order(epoch);
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
  const auto part = next_part - first_block_.begin() - 1;
  return {.epoch = epoch,
          .position = at,
          .part = first_part_ + part,
          .block = id - first_block_[place(part)],
          .window = slot};
}

SourceOrder::SourceOrder(const SourceShape& shape, std::span<const MixPart> joined, std::int64_t samples_per_block,
                         PhiloxKey key)
    : samples_per_block_(samples_per_block), key_(key) {
  SCALETRAIN_CHECK(samples_per_block > 0);
  SCALETRAIN_CHECK(joined.empty() || joined.size() == shape.parts.size());
  std::int64_t blocks = 0;
  for (const PartShape& part : shape.parts) {
    first_block_.push_back(blocks);
    blocks = checked_add(blocks, blocks_of(part));
  }
  first_block_.push_back(blocks);
  const std::span parts(shape.parts);
  all_ = std::make_unique<const Strand>(parts, 0, samples_per_block, key);
  if (joined.empty() || joined.back().position == 0) return;
  joined_epoch_ = joined.back().epoch;
  const auto is_of_last = [this](const MixPart& part) { return part.position > 0 && part.epoch == joined_epoch_; };
  const auto num_first =
      static_cast<std::size_t>(std::find_if(joined.begin(), joined.end(), is_of_last) - joined.begin());
  first_ = std::make_unique<const Strand>(parts.first(num_first), 0, samples_per_block, key);
  std::int64_t before = first_->samples();
  for (std::size_t i = num_first; i < joined.size(); ++i) {
    SCALETRAIN_CHECK(is_of_last(joined[i]) && joined[i].position <= before);
    joined_.push_back(
        {.position = joined[i].position,
         .before = before,
         .strand = std::make_unique<const Strand>(parts.subspan(i, 1), i, samples_per_block,
                                                  derive_key(key, KeyUse::joined, 0, static_cast<std::int64_t>(i)))});
    before = checked_add(before, joined_.back().strand->samples());
  }
}

SourceOrder::~SourceOrder() = default;
SourceOrder::SourceOrder(SourceOrder&&) noexcept = default;
SourceOrder& SourceOrder::operator=(SourceOrder&&) noexcept = default;

std::int64_t SourceOrder::samples_per_epoch() const {
  return all_->samples();
}

std::int64_t SourceOrder::samples_in_use() const {
  return checked_mul(std::ssize(joined_) + 1, checked_mul(kShuffledBlocks + 2, samples_per_block_));
}

SampleLocation SourceOrder::locate(std::int64_t index) const {
  SCALETRAIN_CHECK(index >= 0 && samples_per_epoch() > 0);
  const std::int64_t epoch = index / samples_per_epoch();
  const std::int64_t position = index % samples_per_epoch();
  if (epoch != joined_epoch_) return all_->locate(epoch, position);
  // From the part that joined last to the first: whose turn it is, and how many turns it has had.
  std::int64_t at = position;
  for (auto join = joined_.rbegin(); join != joined_.rend(); ++join) {
    if (at < join->position) continue;
    const std::int64_t turn = at - join->position;
    const std::int64_t left = join->before - join->position;  // of those before it
    const std::int64_t turns = left + join->strand->samples();
    const std::int64_t taken = share_of(left, turn, turns);
    if (share_of(left, turn + 1, turns) == taken) {
      SampleLocation out = join->strand->locate(epoch, turn - taken);
      out.position = position;
      return out;
    }
    at = join->position + taken;
  }
  SampleLocation out = first_->locate(epoch, at);
  out.position = position;
  return out;
}

PhiloxKey SourceOrder::document_key(std::int64_t epoch, std::int64_t part, std::int64_t block) const {
  return derive_key(key_, KeyUse::documents, epoch, first_block_[place(part)] + block);
}

}  // namespace scaletrain
