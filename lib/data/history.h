// What training has consumed: all the state that the data of a run has. A checkpoint stores it; no rank keeps a cursor.
//
// The next batch is a pure function of (seed, data description, history). Sample numbers count in the mixture of their
// segment (sampler.h). A segment ends when the data, the context or the global batch changes; with the same data and
// context the numbers go on, otherwise the new mixture is entered at the number that the tokens consumed so far would
// have in it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

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
  std::vector<SkippedRange> skipped;  // ascending, disjoint, none before first_sample
  bool operator==(const HistorySegment&) const = default;

  // The number of the `index`-th sample that this segment trains on.
  std::int64_t sample_at(std::int64_t index) const;
};

class ConsumptionHistory {
 public:
  ConsumptionHistory() = default;

  // Says what the following steps train on: goes on in the last segment if nothing changed, else begins a new one.
  // Returns false if the data hash differs from the last segment's, so that the caller can say so.
  bool continue_with(std::uint64_t data_hash, std::int64_t context, std::int64_t global_batch);

  // One optimizer step was taken on batch().
  void consume_batch();
  // The samples [first, first + count) of the current segment are never trained on (again). Those before the next
  // sample are ignored.
  void skip(std::int64_t first, std::int64_t count);

  // The samples of the step that is `ahead` steps after the next one, in order. micro_batch_samples() says who
  // trains on which.
  std::vector<std::int64_t> batch(std::int64_t ahead = 0) const;

  // Of the whole run. A total beyond 2^63 - 1 is an InputError when the history is read and a bug when it grows.
  std::int64_t samples_consumed() const;
  std::int64_t tokens_consumed() const;
  // The number the next sample has.
  std::int64_t next_sample() const;

  const std::vector<HistorySegment>& segments() const { return segments_; }
  bool operator==(const ConsumptionHistory&) const = default;

  nlohmann::json to_json() const;
  // Every value is checked; `where` begins each message (InputError).
  static ConsumptionHistory from_json(const nlohmann::json& value, const std::string& where);

 private:
  const HistorySegment& current() const;

  std::vector<HistorySegment> segments_;
};

// The samples of one micro-batch: replica r of R takes the r-th of R runs of the batch, as even as may be and the
// longer ones first, and micro-batch m the run's m-th piece of `micro_batch` samples. Every replica has as many
// micro-batches as the longest run needs; where a run ends, a piece is short or empty. In order of replicas, then
// micro-batches, the pieces are the batch.
std::span<const std::int64_t> micro_batch_samples(std::span<const std::int64_t> batch, std::int64_t replicas,
                                                  std::int64_t replica, std::int64_t micro_batch, std::int64_t index);

}  // namespace scaletrain
