// What a run reads in which order, as plain values: its sources, their weights and caps, and how much of each had been
// read when the mix began. What a checkpoint keeps of a mix is this; the files are not needed to go on counting.
//
// A source is known by its content (not by its place in data.train nor by its path). So adding, removing and reordering
// sources and changing their weights and caps leaves what was read of each what it is. A source that gains files is
// still the same: the files that join do so in the epoch that is being read, which then ends later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace scaletrain {

// Of samples, epochs and orders: leaves room for what is added to such numbers.
inline constexpr std::int64_t kMostCounted = std::int64_t{1} << 61;

// Files that became part of a source together. They are laid end to end and cut into blocks by themselves, so that what
// was cut before stays as it is.
struct MixPart {
  std::vector<std::uint64_t> files{};  // what each holds, in the order in which they are laid
  std::int64_t samples = 0;
  // When they joined: after `position` samples of that epoch. 0: they have been there since an epoch's beginning.
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  bool operator==(const MixPart&) const = default;
};

struct MixSource {
  std::uint64_t identity = 0;
  // Names the key of its permutations. No two sources of a run have the same one; a source keeps it wherever it stands
  // and when it comes back after having been left out.
  std::int64_t order = 0;
  std::int64_t samples_per_epoch = 0;
  double weight = 1.0;                // 0: a phase of the run does not read it
  std::optional<std::int64_t> cap{};  // samples that the whole run may take of it
  // Samples that the run took of it before this mix began, counted as if its epochs had always had so many: the epochs
  // that were read times samples_per_epoch, and the samples of the epoch that is being read.
  std::int64_t taken = 0;
  std::vector<MixPart> parts{};  // in the order in which they joined; empty where an older program did not count them
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

// Of a source, as of data.train[].weight: sums of weights stay finite.
inline constexpr double kMostWeight = 1e12;

// Why no table can honour these weights, which are not all 0 and of which none is negative; empty: one can. `names`
// stand in it.
std::string weights_refusal(const std::vector<double>& weights, const std::vector<std::string>& names);

// Quotas with the smallest error over all table lengths up to kMaxMixTable, the shortest table among equals; sources
// with weight 0 get none. Each other source gets at least one slot; what weights_refusal() tells is a UserError.
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

// The weights among which the mix begins: 0 for a source that was read up to its cap.
std::vector<double> first_weights(const Mix& mix);

// All sources that a run has read from when the next sample is number `sample`, those of its mix first, as they then
// stand.
std::vector<MixSource> known_sources(const Mix& mix, std::int64_t sample);

// How the files of a run's sources are to be read, so that what was read of them stays read.
//
// sources: what each file of each source holds. Returned are, for each source, the places of its files in their parts:
// those of the known source that has the same files, whatever their names and order are now; else of the one with the
// most files whose files are all there, and one more part of the rest in their order; else one part of all. A known
// source goes on as one source only.
std::vector<std::vector<std::vector<std::size_t>>> parts_of_sources(
    const std::vector<std::vector<std::uint64_t>>& sources, const std::vector<MixSource>& known);

// The mix that follows `before` when the next sample is number `sample`: each source of `data` goes on where any mix
// of the run left it, new ones begin. So a phase of the run reads on where the phase before it ended. One whose first
// parts are all those of a known source goes on as that one; its other parts join the epoch of which the last sample
// was read. Where a source has another number of samples an epoch now (another context), as large a part of its epoch
// counts as read. Of equal sources the first goes on as the first. InputError if a source that goes on would have been
// read further than kMostCounted.
Mix following_mix(const Mix& before, std::int64_t sample, const std::vector<MixSource>& data);

}  // namespace scaletrain
