#include "data/order/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/numbers/checked.h"

namespace scaletrain {
namespace {

// 1 was a list of segments; 2 has what was read of each source, 3 the files of each.
constexpr std::int64_t kVersion = 3;
constexpr std::int64_t kVersionWithoutFiles = 2;

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

nlohmann::json segment_json(const HistorySegment& segment) {
  auto skipped = nlohmann::json::array();
  for (const SkippedRange& range : segment.skipped) skipped.push_back({range.first, range.count});
  return {
      {"data_hash", to_hex(segment.data_hash)}, {"context", segment.context}, {"global_batch", segment.global_batch},
      {"first_sample", segment.first_sample},   {"count", segment.count},     {"tokens", segment.tokens},
      {"skipped", std::move(skipped)}};
}

nlohmann::json parts_json(const std::vector<MixPart>& parts) {
  auto out = nlohmann::json::array();
  for (const MixPart& part : parts)
    out.push_back(
        {{"files", to_hex(part.files)}, {"samples", part.samples}, {"epoch", part.epoch}, {"position", part.position}});
  return out;
}

nlohmann::json mix_json(const Mix& mix) {
  const auto list = [](const std::vector<MixSource>& sources) {
    auto out = nlohmann::json::array();
    for (const MixSource& source : sources)
      out.push_back({{"identity", to_hex(source.identity)},
                     {"order", source.order},
                     {"samples_per_epoch", source.samples_per_epoch},
                     {"weight", source.weight},
                     {"cap", source.cap ? nlohmann::json(*source.cap) : nlohmann::json()},
                     {"taken", source.taken},
                     {"parts", parts_json(source.parts)}});
    return out;
  };
  return {{"first_sample", mix.first_sample}, {"sources", list(mix.sources)}, {"absent", list(mix.absent)}};
}

// first_version: without tokens, which were counted with the padding.
HistorySegment segment_from(const nlohmann::json& item, const std::string& where, bool first_version) {
  if (!item.is_object()) throw InputError(where + ": an object is expected");
  HistorySegment segment;
  segment.data_hash = json_hash(item, "data_hash", where);
  segment.context = integer_from(item, "context", 1, where);
  segment.global_batch = integer_from(item, "global_batch", 1, where);
  segment.first_sample = integer_from(item, "first_sample", 0, where);
  segment.count = integer_from(item, "count", 0, where);
  segment.skipped = ranges_from(json_member(item, "skipped", where), segment.first_sample, where + ": skipped");
  const auto tokens = try_mul(segment.count, segment.context);
  // Bounds every number that sample_at can reach for the samples consumed.
  auto last = try_add(segment.first_sample, segment.count);
  for (const SkippedRange& range : segment.skipped) last = last ? try_add(*last, range.count) : std::nullopt;
  if (!tokens || !last) throw InputError(where + ": the number of samples or tokens passes the 64-bit range");
  segment.tokens = first_version ? *tokens : integer_from(item, "tokens", 0, where);
  if (segment.tokens > *tokens)
    throw InputError(fmt::format("{}: {} tokens do not fit into {} samples of {}", where, segment.tokens, segment.count,
                                 segment.context));
  return segment;
}

// Of a source whose other values are read.
std::vector<MixPart> parts_from(const nlohmann::json& array, const MixSource& source, const std::string& where) {
  if (!array.is_array()) throw InputError(where + ": parts: a list is expected");
  std::vector<MixPart> parts;
  std::int64_t before = 0;  // samples of the parts before
  for (const auto& item : array) {
    const std::string place = fmt::format("{}: part {}", where, parts.size());
    if (!item.is_object()) throw InputError(place + ": an object is expected");
    MixPart part;
    if (!from_hex(json_string(item, "files", place), part.files))
      throw InputError(fmt::format("{}: files is no row of numbers of 16 hexadecimal digits", place));
    part.samples = integer_from(item, "samples", 0, place);
    part.epoch = integer_from(item, "epoch", 0, place);
    part.position = integer_from(item, "position", 0, place);
    const bool is_behind_last =
        parts.empty() ? part.epoch == 0 && part.position == 0
                      : std::pair(part.epoch, part.position) >= std::pair(parts.back().epoch, parts.back().position);
    const std::int64_t read = source.taken / source.samples_per_epoch;
    const bool is_read =
        part.epoch < read || (part.epoch == read && part.position <= source.taken % source.samples_per_epoch);
    if (!is_behind_last || part.position > before || !is_read)
      throw InputError(
          fmt::format("{}: it cannot have joined at sample {} of epoch {}", place, part.position, part.epoch));
    if (part.samples > source.samples_per_epoch - before)
      throw InputError(
          fmt::format("{}: {} samples do not fit into an epoch of {}", place, part.samples, source.samples_per_epoch));
    before += part.samples;
    parts.push_back(std::move(part));
  }
  if (!parts.empty() && before != source.samples_per_epoch)
    throw InputError(fmt::format("{}: parts: {} samples, of {} of an epoch", where, before, source.samples_per_epoch));
  return parts;
}

std::vector<MixSource> sources_from(const nlohmann::json& array, const std::string& where, bool has_files) {
  if (!array.is_array()) throw InputError(where + ": a list is expected");
  std::vector<MixSource> sources;
  for (const auto& item : array) {
    const std::string place = fmt::format("{} {}", where, sources.size());
    if (!item.is_object()) throw InputError(place + ": an object is expected");
    MixSource source;
    source.identity = json_hash(item, "identity", place);
    source.order = integer_from(item, "order", 0, place);
    source.samples_per_epoch = integer_from(item, "samples_per_epoch", 1, place);
    const nlohmann::json& weight = json_member(item, "weight", place);
    source.weight = weight.is_number() ? weight.get<double>() : 0.0;
    // 0: of a source that the run's phase does not read.
    if (!weight.is_number() || !(source.weight >= 0.0) || source.weight > kMostWeight)
      throw InputError(fmt::format("{}: the weight {} is no number from 0 to {}", place, weight.dump(), kMostWeight));
    if (!json_member(item, "cap", place).is_null()) source.cap = integer_from(item, "cap", 1, place);
    source.taken = integer_from(item, "taken", 0, place);
    if (std::max({source.order, source.samples_per_epoch, source.taken, source.cap.value_or(0)}) > kMostCounted)
      throw InputError(place + ": a number is beyond what a run can count");
    if (has_files) source.parts = parts_from(json_member(item, "parts", place), source, place);
    sources.push_back(std::move(source));
  }
  return sources;
}

// Of a run that trained by them: others are damage.
void check_weights(const Mix& mix, const std::string& where) {
  const std::vector<double> weights = first_weights(mix);
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 0.0; })) return;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < weights.size(); ++i) names.push_back(fmt::format("{}: source {}", where, i));
  if (const std::string refusal = weights_refusal(weights, names); !refusal.empty())
    throw InputError(refusal + ". The checkpoint is damaged; resume from another one");
}

Mix mix_from(const nlohmann::json& object, const std::string& where, bool has_files) {
  if (!object.is_object()) throw InputError(where + ": an object is expected");
  Mix mix;
  mix.first_sample = integer_from(object, "first_sample", 0, where);
  mix.sources = sources_from(json_member(object, "sources", where), where + ": source", has_files);
  mix.absent = sources_from(json_member(object, "absent", where), where + ": absent source", has_files);
  std::set<std::int64_t> orders;
  for (const auto* list : {&mix.sources, &mix.absent})
    for (const MixSource& source : *list)
      if (!orders.insert(source.order).second)
        throw InputError(fmt::format("{}: two sources have order {}", where, source.order));
  check_weights(mix, where);
  return mix;
}

// Of data with the hash of the last segment's and its context, whose sources are then those of the mix, unless the
// checkpoint is damaged.
void check_same_sources(const std::vector<MixSource>& mix, const std::vector<MixSource>& data) {
  const auto compare = [](const std::string& what, std::size_t then, std::size_t now) {
    if (then == now) return;
    throw InputError(
        fmt::format("the checkpoint's history does not fit data.train, whose hash is the one that it was trained on: "
                    "{}: {} in the checkpoint and {} now. The checkpoint is damaged; resume from another one",
                    what, then, now));
  };
  compare("sources", mix.size(), data.size());
  for (std::size_t i = 0; i < data.size(); ++i) {
    const std::string source = fmt::format("source {}", i);
    compare(source + ": samples per epoch", static_cast<std::size_t>(mix[i].samples_per_epoch),
            static_cast<std::size_t>(data[i].samples_per_epoch));
    compare(source + ": parts", mix[i].parts.size(), data[i].parts.size());
    for (std::size_t k = 0; k < data[i].parts.size(); ++k)
      compare(fmt::format("{}: samples of part {}", source, k), static_cast<std::size_t>(mix[i].parts[k].samples),
              static_cast<std::size_t>(data[i].parts[k].samples));
  }
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

bool ConsumptionHistory::continue_with(const DataDescription& data, std::int64_t context, std::int64_t global_batch) {
  SCALETRAIN_CHECK(context > 0 && global_batch > 0);
  if (segments_.empty()) {
    mix_ = following_mix({}, 0, data.sources);
    segments_.push_back({.data_hash = data.hash, .context = context, .global_batch = global_batch, .skipped = {}});
    return true;
  }
  const HistorySegment& last = segments_.back();
  const bool is_same_data = last.data_hash == data.hash;
  const bool is_of_older_program = mix_.sources.empty() && !data.sources.empty();
  if (is_same_data && last.context == context) {
    // An older program numbered the samples of each mix from 0.
    if (is_of_older_program) mix_ = following_mix({}, 0, data.sources);
    note_parts(data.sources);
    check_same_sources(mix_.sources, data.sources);
    change_batch(global_batch);
    return true;
  }
  if (is_of_older_program)
    throw InputError(
        "data.train is not what the checkpoint was trained on, and the checkpoint is of an older program, which did "
        "not count what it read of each source. Restore data.train as it was, let this program save a checkpoint, and "
        "change it then");
  const std::int64_t sample = next_sample();
  mix_ = following_mix(mix_, sample, data.sources);
  begin_segment({.data_hash = data.hash,
                 .context = context,
                 .global_batch = global_batch,
                 .first_sample = sample,
                 .skipped = {}});
  return is_same_data;
}

// Of the same sources: an older program did not know them.
void ConsumptionHistory::note_parts(const std::vector<MixSource>& sources) {
  if (sources.size() != mix_.sources.size()) return;
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (mix_.sources[i].parts.empty()) mix_.sources[i].parts = sources[i].parts;
}

void ConsumptionHistory::go_on_like(const ConsumptionHistory& now, std::int64_t next) {
  const HistorySegment& like = now.current();
  const bool is_same_mix = !segments_.empty() && mix_ == now.mix_ && current().data_hash == like.data_hash &&
                           current().context == like.context;
  if (is_same_mix) {
    change_batch(like.global_batch);
    skip(next_sample(), std::max<std::int64_t>(0, next - next_sample()));
    return;
  }
  mix_ = now.mix_;
  begin_segment({.data_hash = like.data_hash,
                 .context = like.context,
                 .global_batch = like.global_batch,
                 .first_sample = next,
                 .skipped = {}});
}

// The numbers go on, and ranges that are to be skipped stay so.
void ConsumptionHistory::change_batch(std::int64_t global_batch) {
  const HistorySegment& last = current();
  if (last.global_batch == global_batch) return;
  HistorySegment next{.data_hash = last.data_hash,
                      .context = last.context,
                      .global_batch = global_batch,
                      .first_sample = next_sample(),
                      .skipped = {}};
  std::copy_if(last.skipped.begin(), last.skipped.end(), std::back_inserter(next.skipped),
               [&next](const SkippedRange& range) { return range.first >= next.first_sample; });
  begin_segment(std::move(next));
}

void ConsumptionHistory::begin_segment(HistorySegment segment) {
  // A segment that trained on nothing says nothing.
  if (!segments_.empty() && current().count == 0 && current().skipped.empty()) segments_.pop_back();
  segments_.push_back(std::move(segment));
}

void ConsumptionHistory::consume_batch(std::int64_t tokens) {
  SCALETRAIN_CHECK(!segments_.empty() && tokens >= 0);
  HistorySegment& segment = segments_.back();
  segment.count = checked_add(segment.count, segment.global_batch);
  segment.tokens = checked_add(segment.tokens, tokens);
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

std::int64_t ConsumptionHistory::samples_of_steps(std::int64_t steps) const {
  std::int64_t samples = 0;
  for (const HistorySegment& segment : segments_) {
    const std::int64_t here = std::min(steps, segment.count / segment.global_batch);
    samples += here * segment.global_batch;
    steps -= here;
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
  for (const HistorySegment& segment : segments_) total = checked_add(total, segment.tokens);
  return total;
}

std::int64_t ConsumptionHistory::next_sample() const {
  return next_in(current());
}

std::vector<MixSource> ConsumptionHistory::sources_read() const {
  return segments_.empty() || mix_.sources.empty() ? std::vector<MixSource>() : known_sources(mix_, next_sample());
}

nlohmann::json ConsumptionHistory::to_json() const {
  auto segments = nlohmann::json::array();
  for (const HistorySegment& segment : segments_) segments.push_back(segment_json(segment));
  return {{"version", kVersion}, {"segments", std::move(segments)}, {"mix", mix_json(mix_)}};
}

ConsumptionHistory ConsumptionHistory::from_json(const nlohmann::json& value, const std::string& where) {
  ConsumptionHistory history;
  const bool is_first_version = value.is_array();
  if (!is_first_version) {
    if (!value.is_object()) throw InputError(where + ": the consumption history is an object");
    const std::int64_t version = json_integer(value, "version", where);
    if (version != kVersion && version != kVersionWithoutFiles)
      throw InputError(
          fmt::format("{}: version {} of the consumption history, this program reads up to {}: written by "
                      "a newer program?",
                      where, version, kVersion));
    history.mix_ = mix_from(json_member(value, "mix", where), where + ": mix", version == kVersion);
  }
  const nlohmann::json& segments = is_first_version ? value : json_member(value, "segments", where);
  if (!segments.is_array()) throw InputError(where + ": segments: a list is expected");
  std::int64_t tokens = 0;
  for (const auto& item : segments) {
    const std::string place = fmt::format("{}: segment {}", where, history.segments_.size());
    history.segments_.push_back(segment_from(item, place, is_first_version));
    const HistorySegment& segment = history.segments_.back();
    const auto total = try_add(tokens, segment.count * segment.context);
    if (!total) throw InputError(place + ": the number of tokens passes the 64-bit range");
    tokens = *total;
    if (next_in(segment) > kMostCounted)
      throw InputError(
          fmt::format("{}: its next sample is number {}, beyond what a run can count", place, next_in(segment)));
  }
  const std::int64_t first = history.segments_.empty() ? 0 : history.segments_.back().first_sample;
  if (history.mix_.first_sample > first)
    throw InputError(fmt::format("{}: mix: first_sample {} lies behind the last segment's, {}", where,
                                 history.mix_.first_sample, first));
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
