// Which tokens make up training sample number n: a pure function of (seed, description of the sources, context, n).
//
// A source is one part (a token stream with documents), and one more for each time that files joined it. Each part is
// cut into blocks (BlockTable). A full block yields exactly `samples_per_block` samples, the last block of a part what
// is left. In every epoch of a source all its blocks come in a new order, in each block its documents come in a new
// order, and so do the windows of each stretch of kShuffledBlocks blocks: keyed permutations, so no order is ever
// stored. Stride = context; the last window of a block is padded and masked.
//
// A part that joins while an epoch is being read (MixPart) becomes part of it: the samples that are left, in the order
// that they have, and those of the part, in an order of their own, take turns as evenly as they may until the epoch
// ends, which so has each sample once. From the next epoch on all blocks are permuted together.
//
// Sources are mixed by a repeating table: with weights quantised to quotas q of a table of length L <= 65536 (exactly,
// where the weights are in such a ratio), occurrence j of a source is placed in the slots [floor(j L / q), ceil((j + 1)
// L / q)), earliest deadline first (Baruah et al., "Proportionate progress", 1996), so that every prefix holds each
// source within one sample of its share. When a source reaches its cap of epochs a new stretch begins with a table of
// the remaining ones.
//
// A phase of the run with a shorter context reads pieces: each window is cut into model.context / context equal ones,
// which follow each other as the samples of that context. So the order of a source's tokens is the same in all phases,
// and each goes on at the first sample whose tokens were not read. What a batch lacks in different places it has as
// well at the full context, with as many tokens.
//
// Memory: one number per block. Time of a look-up: O(log(parts) + log(stretches) + parts that joined in one epoch).
// Const members may be called concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/numbers/philox.h"
#include "data/order/mix.h"
#include "data/tokens/token_file.h"

namespace scaletrain {

// A permutation of 0 .. size - 1 chosen by a key: a Feistel network over the next power of two, walked until it lands
// inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). O(1), no state.
class KeyedPermutation {
 public:
  KeyedPermutation(PhiloxKey key, std::int64_t size);
  std::int64_t size() const { return size_; }
  std::int64_t forward(std::int64_t index) const;
  std::int64_t inverse(std::int64_t index) const;

 private:
  std::uint64_t walk(std::uint64_t value, bool backward) const;

  PhiloxKey key_;
  std::int64_t size_;
  int left_bits_ = 0;
  int right_bits_ = 0;
};

// How one part is cut into blocks. Block b starts at starts[b] and reaches to starts[b + 1] (num_tokens at the end). It
// ends at a document's end if there is one within the last window, else inside a document; then the first token of the
// next block is also the last target of this one.
struct BlockTable {
  std::vector<std::int64_t> starts;
  std::int64_t num_tokens = 0;
  std::int64_t full_blocks = 0;   // blocks with samples_per_block samples; at most one block follows them
  std::int64_t last_samples = 0;  // samples of that one; 0: there is none

  std::int64_t end(std::int64_t block) const {
    return static_cast<std::size_t>(block) + 1 < starts.size() ? starts[static_cast<std::size_t>(block) + 1]
                                                               : num_tokens;
  }
};

// Tokens of a block, about: large enough that a block is read with few seeks, small enough that its documents fit in
// memory.
inline constexpr std::int64_t kBlockTokens = std::int64_t{2} << 20;

// Windows are drawn from this many blocks at a time: neighbouring samples come from unrelated places, while reads stay
// within a stretch of some tens of millions of tokens. One alone would let a small corpus be read file by file.
inline constexpr std::int64_t kShuffledBlocks = 16;

// max(1, block_tokens / context).
std::int64_t samples_per_block(std::int64_t context, std::int64_t block_tokens = kBlockTokens);

// O(blocks * log documents). UserError if context < 2: a window then holds no pair of tokens of one document.
BlockTable make_block_table(const DocumentIndex& index, std::int64_t context, std::int64_t block_tokens = kBlockTokens);

// Whether a block ends inside a document. O(log documents).
bool ends_within_document(const DocumentIndex& index, const BlockTable& table, std::int64_t block);

// The targets that a window of a block has: `context`, fewer where the last window is padded. O(log documents).
std::int64_t window_targets(const DocumentIndex& index, const BlockTable& table, std::int64_t context,
                            std::int64_t block, std::int64_t window, std::int64_t block_tokens = kBlockTokens);

// The targets that all windows of a part have. O(blocks * log documents).
std::int64_t all_targets(const DocumentIndex& index, const BlockTable& table);

// What the order of samples depends on, and nothing else.
struct PartShape {
  std::int64_t full_blocks = 0;
  std::int64_t last_samples = 0;
  std::vector<std::uint64_t> files{};  // see MixPart
};

struct SourceShape {
  std::vector<PartShape> parts;
  double weight = 1.0;
  std::optional<double> epochs;  // cap; may be fractional
  std::string name;              // for messages
  std::uint64_t identity = 0;    // of what is read and its order
};

struct SampleLocation {
  std::int64_t source = 0;
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // within the source's epoch
  std::int64_t part = 0;
  std::int64_t block = 0;  // of the part
  // Of the block: the tokens [window * context, (window + 1) * context] of its permuted documents.
  std::int64_t window = 0;
  std::int64_t piece = 0;  // of the window, where it is cut into several
};

// The order of one source's samples.
class SourceOrder {
 public:
  // joined: for each part of the shape when it joined; none: all of them have been there from the beginning.
  SourceOrder(const SourceShape& shape, std::span<const MixPart> joined, std::int64_t samples_per_block, PhiloxKey key);
  ~SourceOrder();
  SourceOrder(SourceOrder&&) noexcept;
  SourceOrder& operator=(SourceOrder&&) noexcept;

  std::int64_t samples_per_epoch() const;
  // How many samples the blocks hold that samples are drawn from at one time, at the most: those of a stretch, with the
  // two that its ends cut; as many again for each part that joined in the last epoch in which some did, and none for
  // those before. No number of blocks would do, since any number of short ones may lie in a stretch.
  std::int64_t samples_in_use() const;
  // The `index`-th sample that is taken from this source, counted over all epochs (MixSource::taken); source is left 0.
  // Not of what was read before the last part joined.
  SampleLocation locate(std::int64_t index) const;
  // The key for the documents of a block in an epoch.
  PhiloxKey document_key(std::int64_t epoch, std::int64_t part, std::int64_t block) const;

 private:
  // Parts whose blocks are permuted together.
  class Strand;
  // Of the last epoch in which parts joined.
  struct Joined {
    std::int64_t position = 0;  // in the epoch
    std::int64_t before = 0;    // samples of the epoch as it was until then
    std::unique_ptr<const Strand> strand;
  };

  std::int64_t samples_per_block_;
  PhiloxKey key_;
  std::vector<std::int64_t> first_block_;  // of each part, in the numbering of all blocks; one more at the end
  std::unique_ptr<const Strand> all_;
  std::int64_t joined_epoch_ = -1;
  std::unique_ptr<const Strand> first_;  // the parts that joined before joined_epoch_
  std::vector<Joined> joined_;
};

// What such a source is in samples that are pieces of its windows: `source` is one of a run that begins.
MixSource in_pieces(MixSource source, std::int64_t pieces, std::optional<double> epochs);

// Samples that a cap allows; nothing: no cap, or one that no run reaches.
std::optional<std::int64_t> cap_in_samples(std::optional<double> epochs, std::int64_t samples_per_epoch);

class Mixture {
 public:
  // Of a run that begins. UserError if a weight is not a positive number or a source holds no sample.
  Mixture(std::vector<SourceShape> sources, std::int64_t context, std::uint64_t seed,
          std::int64_t block_tokens = kBlockTokens);

  // From now on the samples are those of `mix`, whose sources are this mixture's. Not while others use it.
  // pieces: into how many samples each window is cut; those of the mix are such.
  void enter(Mix mix, std::int64_t pieces = 1);
  std::int64_t pieces() const { return pieces_; }
  const Mix& mix() const { return mix_; }

  // The number behind the last sample that there is; nothing: endlessly many (some source has no cap).
  std::optional<std::int64_t> num_samples() const { return turns_->end(); }
  const SourceOrder& order(std::int64_t source) const { return orders_[static_cast<std::size_t>(source)]; }

  // Before the mix's first sample is a bug; beyond num_samples() a UserError that says which keys give more.
  SampleLocation locate(std::int64_t sample) const;
  // The `index`-th sample that is taken from a source, counted over all epochs.
  SampleLocation locate(std::int64_t source, std::int64_t index) const;
  // How many samples the run has taken of each source when `sample` is the next.
  std::vector<std::int64_t> counts(std::int64_t sample) const { return turns_->taken(sample); }

 private:
  SourceOrder make_order(std::size_t source, std::int64_t order, std::span<const MixPart> joined) const;

  std::vector<SourceShape> sources_;
  std::vector<std::string> names_;
  std::int64_t samples_per_block_;
  std::uint64_t seed_;
  std::vector<SourceOrder> orders_;
  Mix mix_;
  std::int64_t pieces_ = 1;
  std::optional<MixTurns> turns_;
};

}  // namespace scaletrain
