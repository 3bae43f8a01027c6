// What a run reads in which order, as plain values: its sources, their weights and caps, and how much of each had been
// read when the mix began. What a checkpoint keeps of a mix is this; the files are not needed to go on counting.
//
// A source is known by its identity (of its content and order, not of its place in data.train nor of its path). So
// adding, removing and reordering sources and changing their weights and caps leaves what was read of each what it is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace scaletrain {

struct MixSource {
  std::uint64_t identity = 0;
  // Names the key of its permutations. No two sources of a run have the same one; a source keeps it wherever it stands
  // and when it comes back after having been left out.
  std::int64_t order = 0;
  std::int64_t samples_per_epoch = 0;
  double weight = 1.0;
  std::optional<std::int64_t> cap{};  // samples that the whole run may take of it
  std::int64_t taken = 0;             // samples that the run took of it before this mix began
  bool operator==(const MixSource&) const = default;
};

struct Mix {
  std::int64_t first_sample = 0;   // the number of the first sample of this mix
  std::vector<MixSource> sources;  // in the order of data.train
  std::vector<MixSource> absent;   // of earlier mixes; their weights and caps mean nothing
  bool operator==(const Mix&) const = default;
};

// What a run is to read from now on: sources as in Mix, with `order` and `taken` as for a run that begins.
struct DataDescription {
  std::uint64_t hash = 0;  // of content, mix and tokenizer
  std::vector<MixSource> sources;
};

// Sources by quota: slot t of the endlessly repeated table belongs to slots[t].
struct MixTable {
  std::vector<std::int32_t> slots;                   // source per slot
  std::vector<std::int32_t> ranks;                   // how many earlier slots of the table have the same source
  std::vector<std::vector<std::int32_t>> positions;  // slots of each source
  std::int64_t length() const { return static_cast<std::int64_t>(slots.size()); }
};

inline constexpr std::int64_t kMaxMixTable = 65536;

// Quotas with the smallest error over all table lengths up to kMaxMixTable, the shortest table among equals; sources
// with weight 0 get none. Each other source gets at least one slot; a share below 1 / (2 kMaxMixTable) is a UserError.
std::vector<std::int64_t> mix_quotas(const std::vector<double>& weights, const std::vector<std::string>& names);
MixTable make_mix_table(const std::vector<std::int64_t>& quotas);

// Whose turn it is: the source of each sample of a mix, and which sample of that source it is. Weights are met by a
// repeating table (sampler.h); a source that was read up to its cap hands its weight to the rest.
class MixTurns {
 public:
  // `names` stand in messages. UserError as for mix_quotas().
  MixTurns(const Mix& mix, const std::vector<std::string>& names);

  struct Turn {
    std::int64_t source = 0;
    std::int64_t index = 0;  // of the source's samples, over all epochs and mixes of the run
  };
  // sample: from mix.first_sample on; before end().
  Turn turn(std::int64_t sample) const;
  // The number behind the last sample that the caps allow; nothing: some source has no cap.
  std::optional<std::int64_t> end() const { return end_; }
  // How many samples the run has taken of each source when `sample` is the next; the caps' end counts for what lies
  // behind it.
  std::vector<std::int64_t> taken(std::int64_t sample) const;

 private:
  // From sample `first` on, until the next stretch, the table decides; `taken` samples of each source went before.
  struct Stretch {
    std::int64_t first = 0;
    std::vector<std::int64_t> taken;
    MixTable table;
  };
  const Stretch& stretch_of(std::int64_t sample) const;

  std::vector<Stretch> stretches_;
  std::vector<std::int64_t> taken_at_end_;
  std::int64_t first_sample_ = 0;
  std::optional<std::int64_t> end_;
};

// The mix that follows `before` when the next sample is number `sample`: each source of `data` goes on where any mix
// of the run left it, new ones begin. Where a source has another number of samples an epoch now (another context), as
// large a part of its epoch counts as read. Of equal sources the first goes on as the first.
Mix following_mix(const Mix& before, std::int64_t sample, const std::vector<MixSource>& data);

}  // namespace scaletrain
