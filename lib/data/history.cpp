#include "data/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"

namespace scaletrain {
namespace {

// The number that follows the last sample trained on and the skipped ones behind it.
std::int64_t next_in(const HistorySegment& segment) {
  return segment.sample_at(segment.count);
}

// Keeps ranges ascending and disjoint.
void add_range(std::vector<SkippedRange>& ranges, SkippedRange added) {
  std::vector<SkippedRange> merged;
  for (const SkippedRange& range : ranges) {
    const std::int64_t range_end = range.first + range.count;
    const std::int64_t added_end = added.first + added.count;
    if (range_end < added.first || range.first > added_end) {
      merged.push_back(range);
    } else {
      added.first = std::min(added.first, range.first);
      added.count = std::max(added_end, range_end) - added.first;
    }
  }
  merged.push_back(added);
  std::sort(merged.begin(), merged.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  ranges = std::move(merged);
}

std::int64_t integer_from(const nlohmann::json& object, const char* key, std::int64_t least, const std::string& where) {
  const std::int64_t value = json_integer(object, key, where);
  if (value < least) throw InputError(fmt::format("{}: {} is {}; at least {} is expected", where, key, value, least));
  return value;
}

std::vector<SkippedRange> ranges_from(const nlohmann::json& array, std::int64_t first_sample,
                                      const std::string& where) {
  if (!array.is_array()) throw InputError(where + ": a list of [first, count] is expected");
  std::vector<SkippedRange> ranges;
  std::int64_t least = first_sample;
  for (const auto& item : array) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_number_integer() || !item[1].is_number_integer()) {
      throw InputError(fmt::format("{}: {} is no pair [first, count] of integers", where, item.dump()));
    }
    for (const auto& number : item) {
      if (number.is_number_unsigned() && number.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
        throw InputError(fmt::format("{}: {} is beyond the 64-bit range", where, number.dump()));
      }
    }
    const SkippedRange range{item[0].get<std::int64_t>(), item[1].get<std::int64_t>()};
    const auto end = try_add(range.first, range.count);
    if (range.first < least || range.count < 1 || !end) {
      throw InputError(fmt::format("{}: {} is no range of samples behind {}", where, item.dump(), least));
    }
    least = *end;
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace

std::int64_t HistorySegment::sample_at(std::int64_t index) const {
  SCALETRAIN_CHECK(index >= 0);
  std::int64_t sample = checked_add(first_sample, index);
  for (const SkippedRange& range : skipped) {
    if (range.first > sample) break;
    sample = checked_add(sample, range.count);
  }
  return sample;
}

const HistorySegment& ConsumptionHistory::current() const {
  SCALETRAIN_CHECK(!segments_.empty());
  return segments_.back();
}

bool ConsumptionHistory::continue_with(std::uint64_t data_hash, std::int64_t context, std::int64_t global_batch) {
  SCALETRAIN_CHECK(context > 0 && global_batch > 0);
  HistorySegment next;
  next.data_hash = data_hash;
  next.context = context;
  next.global_batch = global_batch;
  if (segments_.empty()) {
    segments_.push_back(std::move(next));
    return true;
  }
  const HistorySegment& last = segments_.back();
  const bool same_data = last.data_hash == data_hash;
  if (same_data && last.context == context) {
    if (last.global_batch == global_batch) return true;
    next.first_sample = next_in(last);
    for (const SkippedRange& range : last.skipped) {
      if (range.first >= next.first_sample) next.skipped.push_back(range);
    }
  } else {
    next.first_sample = tokens_consumed() / context;
  }
  // A segment that trained on nothing says nothing.
  if (last.count == 0 && last.skipped.empty()) segments_.pop_back();
  segments_.push_back(std::move(next));
  return same_data;
}

void ConsumptionHistory::consume_batch() {
  SCALETRAIN_CHECK(!segments_.empty());
  HistorySegment& segment = segments_.back();
  segment.count = checked_add(segment.count, segment.global_batch);
  static_cast<void>(tokens_consumed());  // the total still fits
}

void ConsumptionHistory::skip(std::int64_t first, std::int64_t count) {
  SCALETRAIN_CHECK(!segments_.empty() && count >= 0);
  const std::int64_t end = checked_add(first, count);
  const std::int64_t begin = std::max(first, next_sample());
  if (begin >= end) return;
  add_range(segments_.back().skipped, {begin, end - begin});
}

std::vector<std::int64_t> ConsumptionHistory::batch(std::int64_t ahead) const {
  SCALETRAIN_CHECK(ahead >= 0);
  const HistorySegment& segment = current();
  const std::int64_t first = checked_add(segment.count, checked_mul(ahead, segment.global_batch));
  std::vector<std::int64_t> samples(static_cast<std::size_t>(segment.global_batch));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i] = segment.sample_at(checked_add(first, static_cast<std::int64_t>(i)));
  }
  return samples;
}

std::int64_t ConsumptionHistory::samples_consumed() const {
  std::int64_t total = 0;
  for (const HistorySegment& segment : segments_) total = checked_add(total, segment.count);
  return total;
}

std::int64_t ConsumptionHistory::tokens_consumed() const {
  std::int64_t total = 0;
  for (const HistorySegment& segment : segments_) {
    total = checked_add(total, checked_mul(segment.count, segment.context));
  }
  return total;
}

std::int64_t ConsumptionHistory::next_sample() const {
  return next_in(current());
}

nlohmann::json ConsumptionHistory::to_json() const {
  auto out = nlohmann::json::array();
  for (const HistorySegment& segment : segments_) {
    auto skipped = nlohmann::json::array();
    for (const SkippedRange& range : segment.skipped) skipped.push_back({range.first, range.count});
    out.push_back({{"data_hash", to_hex(segment.data_hash)},
                   {"context", segment.context},
                   {"global_batch", segment.global_batch},
                   {"first_sample", segment.first_sample},
                   {"count", segment.count},
                   {"skipped", std::move(skipped)}});
  }
  return out;
}

ConsumptionHistory ConsumptionHistory::from_json(const nlohmann::json& value, const std::string& where) {
  if (!value.is_array()) throw InputError(where + ": the consumption history is a list of segments");
  ConsumptionHistory history;
  std::int64_t tokens = 0;
  for (const auto& item : value) {
    const std::string place = fmt::format("{}: segment {}", where, history.segments_.size());
    if (!item.is_object()) throw InputError(place + ": an object is expected");
    HistorySegment segment;
    const std::string hash = json_string(item, "data_hash", place);
    if (!from_hex(hash, segment.data_hash)) {
      throw InputError(fmt::format("{}: data_hash {} is not 16 hexadecimal digits", place, hash));
    }
    segment.context = integer_from(item, "context", 1, place);
    segment.global_batch = integer_from(item, "global_batch", 1, place);
    segment.first_sample = integer_from(item, "first_sample", 0, place);
    segment.count = integer_from(item, "count", 0, place);
    segment.skipped = ranges_from(json_member(item, "skipped", place), segment.first_sample, place + ": skipped");
    const auto here = try_mul(segment.count, segment.context);
    const auto total = here ? try_add(tokens, *here) : std::nullopt;
    // Bounds every number that sample_at can reach for the samples consumed.
    auto last = try_add(segment.first_sample, segment.count);
    for (const SkippedRange& range : segment.skipped) last = last ? try_add(*last, range.count) : std::nullopt;
    if (!total || !last) throw InputError(place + ": the number of samples or tokens passes the 64-bit range");
    tokens = *total;
    history.segments_.push_back(std::move(segment));
  }
  return history;
}

std::span<const std::int64_t> micro_batch_samples(std::span<const std::int64_t> batch, std::int64_t replicas,
                                                  std::int64_t replica, std::int64_t micro_batch, std::int64_t index) {
  SCALETRAIN_CHECK(replicas > 0 && replica >= 0 && replica < replicas && micro_batch > 0 && index >= 0);
  const auto size = static_cast<std::int64_t>(batch.size());
  const std::int64_t least = size / replicas;
  const std::int64_t longer = size % replicas;  // runs with one sample more
  SCALETRAIN_CHECK_LT(index, ceil_div(ceil_div(size, replicas), micro_batch));
  const std::int64_t first = replica * least + std::min(replica, longer);
  const std::int64_t count = least + (replica < longer ? 1 : 0);
  const std::int64_t begin = std::min(index * micro_batch, count);
  return batch.subspan(static_cast<std::size_t>(first + begin),
                       static_cast<std::size_t>(std::min(micro_batch, count - begin)));
}

}  // namespace scaletrain
