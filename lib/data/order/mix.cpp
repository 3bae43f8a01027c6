#include "data/order/mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {
namespace {

std::size_t as_index(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// Shares nearer than this to quota / length count as that ratio: far above the rounding of the division by the sum, and
// it takes 10^9 table lengths until the difference would amount to a sample.
constexpr double kExactQuota = 1e-9;

constexpr std::int64_t kNoCap = std::numeric_limits<std::int64_t>::max();

std::vector<double> shares_of(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  SCALETRAIN_CHECK(sum > 0.0 && std::isfinite(sum));
  std::vector<double> shares;
  shares.reserve(weights.size());
  for (const double weight : weights) shares.push_back(weight / sum);
  return shares;
}

std::int64_t num_positive(const std::vector<double>& weights) {
  return std::count_if(weights.begin(), weights.end(), [](double weight) { return weight > 0.0; });
}

// Quotas by largest remainder, each at least 1.
std::vector<std::int64_t> rounded_quotas(const std::vector<double>& shares, std::int64_t length) {
  std::vector<std::int64_t> quotas(shares.size());
  std::vector<std::pair<double, std::size_t>> remainders;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] == 0.0) continue;
    const double exact = shares[i] * static_cast<double>(length);
    quotas[i] = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(exact)));
    remainders.emplace_back(exact - static_cast<double>(quotas[i]), i);
    sum += quotas[i];
  }
  std::sort(remainders.begin(), remainders.end(), std::greater<>());
  for (std::size_t k = 0; sum < length; k = (k + 1) % remainders.size(), ++sum) ++quotas[remainders[k].second];
  while (sum > length) {
    --*std::max_element(quotas.begin(), quotas.end());
    --sum;
  }
  return quotas;
}

// Slots of a source among the first `length` of the endlessly repeated table.
std::int64_t slots_within(const MixTable& table, std::size_t source, std::int64_t length) {
  const auto& positions = table.positions[source];
  const auto rest = static_cast<std::int32_t>(length % table.length());
  return length / table.length() * static_cast<std::int64_t>(positions.size()) +
         (std::lower_bound(positions.begin(), positions.end(), rest) - positions.begin());
}

// How many samples a stretch has, which ends behind the first slot that takes a source to its cap; kNoCap: endless.
std::int64_t length_of_stretch(const MixTable& table, const std::vector<std::int64_t>& left) {
  std::int64_t length = kNoCap;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto& positions = table.positions[i];
    if (positions.empty() || left[i] == kNoCap) continue;
    const std::int64_t last = left[i] - 1;  // its last occurrence in this stretch
    const auto quota = static_cast<std::int64_t>(positions.size());
    const auto whole = try_mul(last / quota, table.length());
    const auto end = whole ? try_add(*whole, positions[as_index(last % quota)] + std::int64_t{1}) : std::nullopt;
    if (end) length = std::min(length, *end);
  }
  return length;
}

// A position in an epoch of `before` samples, where it has `now`: the first whose tokens are all behind those that were
// read, where both cut the same windows into pieces.
std::int64_t as_much(std::int64_t position, std::int64_t before, std::int64_t now) {
  if (before == now) return position;
  __extension__ using Wide = __int128;
  return std::min(static_cast<std::int64_t>((Wide{position} * now + (before - 1)) / before), now);
}

// MixSource::taken of a source that goes on. What a checkpoint says of its epochs may not fit those that it has now.
std::int64_t taken_in(std::int64_t epoch, std::int64_t samples_per_epoch, std::int64_t position) {
  const auto before = try_mul(epoch, samples_per_epoch);
  const auto taken = before ? try_add(*before, position) : std::nullopt;
  if (!taken || *taken > kMostCounted)
    throw InputError(
        fmt::format("the checkpoint's history does not fit data.train: {} epochs read of a source that now has {} "
                    "samples an epoch are more than a run can count. Resume from another checkpoint",
                    epoch, samples_per_epoch));
  return *taken;
}

// Has `source` go on where `before` was left, whose parts are its first ones.
void go_on_as(const MixSource& before, MixSource& source) {
  source.order = before.order;
  std::int64_t now = source.samples_per_epoch;  // an epoch of the parts that are not new
  std::int64_t least = 0;                       // the position in the epoch, at least
  const std::int64_t epoch = before.taken / before.samples_per_epoch;
  if (!before.parts.empty() && !source.parts.empty()) {
    std::int64_t then = 0;
    now = 0;
    for (std::size_t i = 0; i < before.parts.size(); ++i) {
      const MixPart& joined = before.parts[i];
      MixPart& part = source.parts[i];
      part.epoch = joined.epoch;
      part.position = joined.position;
      if (joined.position > 0) {
        part.position = as_much(joined.position, then, now);
        if (i > 0 && before.parts[i - 1].epoch == joined.epoch)
          part.position = std::max(part.position, source.parts[i - 1].position);
        if (joined.epoch == epoch) least = part.position;
      }
      then += joined.samples;
      now += part.samples;
    }
  }
  const std::int64_t position =
      std::max(least, as_much(before.taken % before.samples_per_epoch, before.samples_per_epoch, now));
  source.taken = taken_in(epoch, now, position);
  if (source.taken == 0 || source.parts.size() <= before.parts.size() || before.parts.empty()) return;
  // At an epoch's end they join the one that ends: else its cap could leave them unread.
  const std::int64_t joined_epoch = (source.taken - 1) / now;
  const std::int64_t joined_at = source.taken - joined_epoch * now;
  for (std::size_t i = before.parts.size(); i < source.parts.size(); ++i) {
    source.parts[i].epoch = joined_epoch;
    source.parts[i].position = joined_at;
  }
  source.taken = taken_in(joined_epoch, source.samples_per_epoch, joined_at);
}

std::vector<std::uint64_t> sorted_files(const MixSource& source) {
  std::vector<std::uint64_t> files;
  for (const MixPart& part : source.parts) files.insert(files.end(), part.files.begin(), part.files.end());
  std::sort(files.begin(), files.end());
  return files;
}

// The parts of `known` by the places of their files, and one of what is left, if anything is. All its files are there.
std::vector<std::vector<std::size_t>> parts_as_in(const MixSource& known, const std::vector<std::uint64_t>& files) {
  std::multimap<std::uint64_t, std::size_t> places;  // equal files in their order
  for (std::size_t i = 0; i < files.size(); ++i) places.emplace(files[i], i);
  std::vector<std::vector<std::size_t>> parts;
  for (const MixPart& part : known.parts) {
    std::vector<std::size_t>& out = parts.emplace_back();
    for (const std::uint64_t file : part.files) {
      const auto place = places.find(file);
      SCALETRAIN_CHECK(place != places.end());
      out.push_back(place->second);
      places.erase(place);
    }
  }
  std::vector<std::size_t> rest;
  for (const auto& place : places) rest.push_back(place.second);
  std::sort(rest.begin(), rest.end());
  if (!rest.empty()) parts.push_back(std::move(rest));
  return parts;
}

bool begins_with_parts_of(const MixSource& source, const MixSource& known) {
  return !known.parts.empty() && known.parts.size() < source.parts.size() &&
         std::equal(known.parts.begin(), known.parts.end(), source.parts.begin(),
                    [](const MixPart& a, const MixPart& b) { return a.files == b.files; });
}

// An identity is of so many parts, but a damaged checkpoint may give it to others. The files are not compared: one
// without tokens may come and go.
bool is_same_source(const MixSource& source, const MixSource& known) {
  return source.identity == known.identity &&
         (source.parts.empty() || known.parts.empty() || source.parts.size() == known.parts.size());
}

std::int64_t least_free(const std::set<std::int64_t>& used) {
  std::int64_t free = 0;
  for (const std::int64_t number : used) {
    if (number != free) break;
    ++free;
  }
  return free;
}

}  // namespace

std::string weights_refusal(const std::vector<double>& weights, const std::vector<std::string>& names) {
  SCALETRAIN_CHECK_EQ(weights.size(), names.size());
  constexpr double least = 0.5 / static_cast<double>(kMaxMixTable);
  const std::vector<double> shares = shares_of(weights);
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (weights[i] > 0.0 && shares[i] < least)
      return fmt::format(
          "{}: the weight {} is a share of {:.3g} of the mix; the smallest that can be honoured is {:.3g}", names[i],
          weights[i], shares[i], least);
  if (num_positive(weights) > kMaxMixTable) return fmt::format("data.train: more than {} sources", kMaxMixTable);
  return "";
}

std::vector<std::int64_t> mix_quotas(const std::vector<double>& weights, const std::vector<std::string>& names) {
  if (const std::string refusal = weights_refusal(weights, names); !refusal.empty())
    throw UserError(refusal + ". Raise it or leave the source out.");
  const std::vector<double> shares = shares_of(weights);

  std::vector<std::int64_t> best = rounded_quotas(shares, kMaxMixTable);
  double best_error = 1.0;
  std::vector<std::int64_t> quotas(shares.size());
  for (std::int64_t length = num_positive(weights); length <= kMaxMixTable; ++length) {
    const auto scale = static_cast<double>(length);
    double off = 0.0;  // the largest distance from a whole quota
    std::int64_t total = 0;
    bool usable = true;
    for (std::size_t i = 0; i < shares.size() && usable; ++i) {
      const double exact = shares[i] * scale;
      quotas[i] = std::llround(exact);
      total += quotas[i];
      off = std::max(off, std::abs(exact - static_cast<double>(quotas[i])));
      usable = off < best_error * scale && (quotas[i] > 0 || shares[i] == 0.0);
    }
    if (!usable || total != length) continue;
    best = quotas;
    best_error = off / scale;
    if (off < kExactQuota) break;
  }
  return best;
}

MixTable make_mix_table(const std::vector<std::int64_t>& quotas) {
  const std::int64_t length = std::accumulate(quotas.begin(), quotas.end(), std::int64_t{0});
  SCALETRAIN_CHECK(length > 0 && length <= kMaxMixTable);
  MixTable table;
  table.positions.resize(quotas.size());
  std::vector<std::vector<std::size_t>> released(
      as_index(length));  // sources whose next occurrence may stand here at the earliest
  for (std::size_t source = 0; source < quotas.size(); ++source) {
    SCALETRAIN_CHECK(quotas[source] >= 0);
    if (quotas[source] > 0) released[0].push_back(source);
  }
  using Candidate = std::pair<std::int64_t, std::size_t>;  // deadline, source
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto enter = [&](std::size_t source) {
    const auto occurrence = static_cast<std::int64_t>(table.positions[source].size());
    candidates.emplace(ceil_div((occurrence + 1) * length, quotas[source]), source);
  };
  for (std::int64_t slot = 0; slot < length; ++slot) {
    for (const std::size_t source : released[as_index(slot)]) enter(source);
    SCALETRAIN_CHECK(!candidates.empty());
    const auto [deadline, source] = candidates.top();
    candidates.pop();
    // Earliest deadline first meets all deadlines when the shares sum to one.
    SCALETRAIN_CHECK_LT(slot, deadline);
    auto& positions = table.positions[source];
    table.slots.push_back(static_cast<std::int32_t>(source));
    table.ranks.push_back(static_cast<std::int32_t>(positions.size()));
    positions.push_back(static_cast<std::int32_t>(slot));
    const auto next = static_cast<std::int64_t>(positions.size());
    if (next == quotas[source]) continue;
    const std::int64_t release = next * length / quotas[source];
    if (release <= slot) {
      enter(source);
    } else {
      released[as_index(release)].push_back(source);
    }
  }
  return table;
}

MixTurns::MixTurns(const Mix& mix, const std::vector<std::string>& names) : first_sample_(mix.first_sample) {
  SCALETRAIN_CHECK_EQ(names.size(), mix.sources.size());
  std::int64_t first = mix.first_sample;
  std::vector<std::int64_t> taken;
  for (const MixSource& source : mix.sources) taken.push_back(source.taken);
  for (;;) {
    std::vector<double> weights(mix.sources.size(), 0.0);
    std::vector<std::int64_t> left(mix.sources.size(), kNoCap);
    for (std::size_t i = 0; i < mix.sources.size(); ++i) {
      const MixSource& source = mix.sources[i];
      if (source.cap) left[i] = *source.cap - taken[i];
      if (left[i] > 0) weights[i] = source.weight;
    }
    if (std::all_of(weights.begin(), weights.end(), [](double w) { return w == 0.0; })) {
      end_ = first;
      taken_at_end_ = std::move(taken);
      return;
    }
    stretches_.push_back({first, taken, make_mix_table(mix_quotas(weights, names))});
    const MixTable& table = stretches_.back().table;
    const std::int64_t length = length_of_stretch(table, left);
    // Behind the last number that there is: as good as endless.
    const std::int64_t most_taken = *std::max_element(taken.begin(), taken.end());
    if (length == kNoCap || !try_add(first, length) || !try_add(most_taken, length)) return;
    for (std::size_t i = 0; i < taken.size(); ++i) taken[i] += slots_within(table, i, length);
    first += length;
  }
}

const MixTurns::Stretch& MixTurns::stretch_of(std::int64_t sample) const {
  const auto next = std::upper_bound(stretches_.begin(), stretches_.end(), sample,
                                     [](std::int64_t s, const Stretch& stretch) { return s < stretch.first; });
  return *std::prev(next);
}

MixTurns::Turn MixTurns::turn(std::int64_t sample) const {
  SCALETRAIN_CHECK(sample >= first_sample_ && !(end_ && sample >= *end_));
  const Stretch& stretch = stretch_of(sample);
  const MixTable& table = stretch.table;
  const std::int64_t cycle = (sample - stretch.first) / table.length();
  const std::size_t slot = as_index((sample - stretch.first) % table.length());
  const std::size_t source = as_index(table.slots[slot]);
  const std::int64_t index =
      stretch.taken[source] + cycle * static_cast<std::int64_t>(table.positions[source].size()) + table.ranks[slot];
  return {.source = static_cast<std::int64_t>(source), .index = index};
}

std::vector<std::int64_t> MixTurns::taken(std::int64_t sample) const {
  SCALETRAIN_CHECK(sample >= first_sample_);
  if (end_ && sample >= *end_) return taken_at_end_;
  const Stretch& stretch = stretch_of(sample);
  std::vector<std::int64_t> taken = stretch.taken;
  for (std::size_t i = 0; i < taken.size(); ++i) taken[i] += slots_within(stretch.table, i, sample - stretch.first);
  return taken;
}

std::vector<double> first_weights(const Mix& mix) {
  std::vector<double> weights;
  for (const MixSource& source : mix.sources)
    weights.push_back(source.cap && source.taken >= *source.cap ? 0.0 : source.weight);
  return weights;
}

std::vector<MixSource> known_sources(const Mix& mix, std::int64_t sample) {
  std::vector<MixSource> known = mix.sources;
  const MixTurns turns(mix, std::vector<std::string>(known.size(), "a source of the mix before"));
  const std::vector<std::int64_t> taken = turns.taken(sample);
  for (std::size_t i = 0; i < known.size(); ++i) known[i].taken = taken[i];
  known.insert(known.end(), mix.absent.begin(), mix.absent.end());
  return known;
}

std::vector<std::vector<std::vector<std::size_t>>> parts_of_sources(
    const std::vector<std::vector<std::uint64_t>>& sources, const std::vector<MixSource>& known) {
  std::vector<std::vector<std::uint64_t>> sorted = sources;
  for (auto& files : sorted) std::sort(files.begin(), files.end());
  std::vector<std::vector<std::uint64_t>> of_known;
  of_known.reserve(known.size());
  for (const MixSource& source : known) of_known.push_back(sorted_files(source));

  std::vector<std::vector<std::vector<std::size_t>>> parts(sources.size());
  std::vector<bool> is_used(known.size(), false);
  const auto read_as = [&](std::size_t source, std::size_t as) {
    parts[source] = parts_as_in(known[as], sources[source]);
    is_used[as] = true;
  };
  for (std::size_t i = 0; i < sources.size(); ++i) {
    for (std::size_t k = 0; k < known.size() && parts[i].empty(); ++k)
      if (!is_used[k] && !of_known[k].empty() && of_known[k] == sorted[i]) read_as(i, k);
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!parts[i].empty()) continue;
    std::size_t best = known.size();
    for (std::size_t k = 0; k < known.size(); ++k) {
      const bool is_part = !is_used[k] && known[k].taken > 0 && !of_known[k].empty() &&
                           std::includes(sorted[i].begin(), sorted[i].end(), of_known[k].begin(), of_known[k].end());
      if (is_part && (best == known.size() || of_known[k].size() > of_known[best].size())) best = k;
    }
    if (best < known.size()) {
      read_as(i, best);
    } else {
      parts[i].emplace_back(sources[i].size());
      std::iota(parts[i][0].begin(), parts[i][0].end(), std::size_t{0});
    }
  }
  return parts;
}

Mix following_mix(const Mix& before, std::int64_t sample, const std::vector<MixSource>& data) {
  std::vector<MixSource> known = known_sources(before, sample);
  Mix mix;
  mix.first_sample = sample;
  mix.sources = data;
  std::vector<bool> is_new(data.size(), true);
  std::set<std::int64_t> orders;  // in use
  for (const MixSource& source : known) orders.insert(source.order);
  const auto go_on = [&](std::size_t i, std::vector<MixSource>::iterator as) {
    go_on_as(*as, mix.sources[i]);
    is_new[i] = false;
    known.erase(as);
  };
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto same = std::find_if(known.begin(), known.end(),
                                   [&](const MixSource& other) { return is_same_source(data[i], other); });
    if (same != known.end()) go_on(i, same);
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    auto grown = known.end();
    for (auto other = known.begin(); other != known.end() && is_new[i]; ++other) {
      if (other->taken > 0 && begins_with_parts_of(data[i], *other) &&
          (grown == known.end() || other->parts.size() > grown->parts.size()))
        grown = other;
    }
    if (grown != known.end()) go_on(i, grown);
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (!is_new[i]) continue;
    MixSource& source = mix.sources[i];
    source.order = orders.contains(static_cast<std::int64_t>(i)) ? least_free(orders) : static_cast<std::int64_t>(i);
    source.taken = 0;
    orders.insert(source.order);
  }
  // What was never read is forgotten without loss.
  std::erase_if(known, [](const MixSource& source) { return source.taken == 0; });
  mix.absent = std::move(known);
  return mix;
}

}  // namespace scaletrain
