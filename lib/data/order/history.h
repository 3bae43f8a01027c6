// What training has consumed: all the state that the data of a run has. A checkpoint stores it; no rank keeps a cursor.
//
// The next batch is a pure function of (seed, data description, history). Samples are numbered through the whole run; a
// mix (mix.h) says which sample of which source a number is. A segment ends when the data, the context or the global
// batch changes. While data and context stay the mix stays; where they change a new one begins with the next number,
// in which each source goes on where the run left it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "data/order/mix.h"

namespace scaletrain {

// Samples that are passed over, by policy (a loss spike) or by the user.
struct SkippedRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const SkippedRange&) const = default;
};

struct HistorySegment {
  std::uint64_t data_hash = 0;
  std::int64_t context = 0;       // tokens per sample
  std::int64_t global_batch = 0;  // samples per step
  std::int64_t first_sample = 0;
  std::int64_t count = 0;             // samples trained on, without the skipped ones
  std::int64_t tokens = 0;            // of those, without padding
  std::vector<SkippedRange> skipped;  // ascending, disjoint, none before first_sample
  bool operator==(const HistorySegment&) const = default;

  // The number of the `index`-th sample that this segment trains on.
  std::int64_t sample_at(std::int64_t index) const;
};

class ConsumptionHistory {
 public:
  ConsumptionHistory() = default;

  // Says what the following steps train on: goes on in the last segment if nothing changed, else begins a new one.
  // Returns false if data.hash differs from the last segment's, so that the caller can say so. InputError for other
  // data than before where the history is of an older program, which did not count by source; and where what a
  // checkpoint says of the sources does not fit the data: it is damaged.
  bool continue_with(const DataDescription& data, std::int64_t context, std::int64_t global_batch);
  // Goes on in the mix and the batch of `now` with its sample number `next`, as if those before it were skipped: for a
  // history that went back. What was trained on stays what this one says.
  void go_on_like(const ConsumptionHistory& now, std::int64_t next);

  // The samples of the steps from here on.
  void change_batch(std::int64_t global_batch);
  // One optimizer step was taken on batch(), which held so many tokens.
  void consume_batch(std::int64_t tokens);
  // The samples [first, first + count) of the current segment are never trained on (again). Those before the next
  // sample are ignored.
  void skip(std::int64_t first, std::int64_t count);

  // The samples of the step that is `ahead` steps after the next one, in order. micro_batch_samples() says who
  // trains on which.
  std::vector<std::int64_t> batch(std::int64_t ahead = 0) const;

  // Samples of the first `steps` steps, of which at most as many are counted as were taken.
  std::int64_t samples_of_steps(std::int64_t steps) const;
  // Of the whole run. A total beyond 2^63 - 1 is an InputError when the history is read and a bug when it grows.
  std::int64_t samples_consumed() const;
  std::int64_t tokens_consumed() const;  // without padding
  // The number the next sample has.
  std::int64_t next_sample() const;

  const std::vector<HistorySegment>& segments() const { return segments_; }
  // Of the last segment. In a history of an older program it is empty until continue_with().
  const Mix& mix() const { return mix_; }
  // What was read of every source so far; see known_sources(). Empty before continue_with().
  std::vector<MixSource> sources_read() const;
  bool operator==(const ConsumptionHistory&) const = default;

  nlohmann::json to_json() const;
  // Version 3; 2, which does not know the files of a source; or 1: an array of segments without a mix. Every value is
  // checked; `where` begins each message (InputError).
  static ConsumptionHistory from_json(const nlohmann::json& value, const std::string& where);

 private:
  const HistorySegment& current() const;
  void note_parts(const std::vector<MixSource>& sources);
  void begin_segment(HistorySegment segment);

  std::vector<HistorySegment> segments_;
  Mix mix_;
};

// The samples of one micro-batch: replica r of R takes the r-th of R runs of the batch, as even as may be and the
// longer ones first, and micro-batch m the run's m-th piece of `micro_batch` samples. Every replica has as many
// micro-batches as the longest run needs; where a run ends, a piece is short or empty. In order of replicas, then
// micro-batches, the pieces are the batch.
std::span<const std::int64_t> micro_batch_samples(std::span<const std::int64_t> batch, std::int64_t replicas,
                                                  std::int64_t replica, std::int64_t micro_batch, std::int64_t index);

}  // namespace scaletrain
