#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "data/sampler.h"

namespace scaletrain {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// Shares nearer than this to quota / length count as that ratio: far above the rounding of the division by the sum, and
// it takes 10^9 table lengths until the difference would amount to a sample.
constexpr double kExactQuota = 1e-9;

constexpr std::int64_t kNoCap = std::numeric_limits<std::int64_t>::max();

std::int64_t cap_of(const SourceShape& source, std::int64_t samples_per_epoch) {
  if (!source.epochs) return kNoCap;
  const double samples = std::round(*source.epochs * static_cast<double>(samples_per_epoch));
  if (!(samples < 0x1p62)) return kNoCap;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(samples));
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

}  // namespace

std::vector<std::int64_t> mix_quotas(const std::vector<double>& weights, const std::vector<std::string>& names) {
  SCALETRAIN_CHECK_EQ(weights.size(), names.size());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  SCALETRAIN_CHECK(sum > 0.0 && std::isfinite(sum));
  std::vector<double> shares(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    shares[i] = weights[i] / sum;
    if (weights[i] > 0.0 && shares[i] * 2.0 * static_cast<double>(kMaxMixTable) < 1.0) {
      throw UserError(
          fmt::format("{}: the weight {} is a share of {:.3g} of the mix; the smallest that can be honoured is {:.3g}. "
                      "Raise it or leave "
                      "the source out.",
                      names[i], weights[i], shares[i], 0.5 / static_cast<double>(kMaxMixTable)));
    }
  }
  const auto num_positive = std::count_if(shares.begin(), shares.end(), [](double s) { return s > 0.0; });
  if (num_positive > kMaxMixTable) throw UserError(fmt::format("data.train: more than {} sources", kMaxMixTable));

  std::vector<std::int64_t> best = rounded_quotas(shares, kMaxMixTable);
  double best_error = 1.0;
  std::vector<std::int64_t> quotas(shares.size());
  for (std::int64_t length = num_positive; length <= kMaxMixTable; ++length) {
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
      at(length));  // sources whose next occurrence may stand here at the earliest
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
    for (const std::size_t source : released[at(slot)]) enter(source);
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
      released[at(release)].push_back(source);
    }
  }
  return table;
}

Mixture::Mixture(std::vector<SourceShape> sources, std::int64_t context, std::uint64_t seed, std::int64_t block_tokens)
    : sources_(std::move(sources)) {
  SCALETRAIN_CHECK(!sources_.empty());
  const std::int64_t block_samples = scaletrain::samples_per_block(context, block_tokens);
  std::vector<std::string> names;
  std::vector<std::int64_t> caps;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const SourceShape& source = sources_[i];
    names.push_back(source.name);
    if (!(source.weight > 0.0) || !std::isfinite(source.weight)) {
      throw UserError(fmt::format("{}: the weight {} is not a positive number", source.name, source.weight));
    }
    if (source.epochs && !(*source.epochs > 0.0)) {
      throw UserError(fmt::format("{}: epochs: {} is not a positive number", source.name, *source.epochs));
    }
    orders_.emplace_back(source, block_samples, philox_key(seed, fmt::format("data.train[{}]", i)));
    if (orders_.back().samples_per_epoch() == 0) {
      throw UserError(fmt::format("{}: the source holds no sample; it needs at least two tokens", source.name));
    }
    caps.push_back(cap_of(source, orders_.back().samples_per_epoch()));
  }

  std::int64_t first = 0;
  std::vector<std::int64_t> taken(sources_.size(), 0);
  for (;;) {
    std::vector<double> weights(sources_.size(), 0.0);
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      if (taken[i] < caps[i]) weights[i] = sources_[i].weight;
    }
    if (std::all_of(weights.begin(), weights.end(), [](double w) { return w == 0.0; })) {
      num_samples_ = first;
      return;
    }
    stretches_.push_back({first, taken, make_mix_table(mix_quotas(weights, names))});
    const MixTable& table = stretches_.back().table;
    // The stretch ends behind the first slot that takes a source to its cap.
    std::int64_t length = kNoCap;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      if (weights[i] == 0.0 || caps[i] == kNoCap) continue;
      const auto& positions = table.positions[i];
      const std::int64_t last = caps[i] - taken[i] - 1;  // its last occurrence in this stretch
      const auto quota = static_cast<std::int64_t>(positions.size());
      const auto whole = try_mul(last / quota, table.length());
      const auto end = whole ? try_add(*whole, positions[at(last % quota)] + std::int64_t{1}) : std::nullopt;
      if (end && try_add(first, *end)) length = std::min(length, *end);
    }
    if (length == kNoCap) return;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const auto& positions = table.positions[i];
      const auto rest = static_cast<std::int32_t>(length % table.length());
      taken[i] += length / table.length() * static_cast<std::int64_t>(positions.size()) +
                  (std::lower_bound(positions.begin(), positions.end(), rest) - positions.begin());
    }
    first += length;
  }
}

const Mixture::Stretch& Mixture::stretch_of(std::int64_t sample) const {
  const auto next = std::upper_bound(stretches_.begin(), stretches_.end(), sample,
                                     [](std::int64_t s, const Stretch& stretch) { return s < stretch.first; });
  return *std::prev(next);
}

SampleLocation Mixture::locate(std::int64_t sample) const {
  SCALETRAIN_CHECK(sample >= 0);
  if (num_samples_ && sample >= *num_samples_) {
    throw UserError(fmt::format(
        "the training data is used up: sample {} was asked for, but the epochs of data.train allow {} samples. Lower "
        "train.steps, raise data.train[].epochs, or leave one source without a cap.",
        sample, *num_samples_));
  }
  const Stretch& stretch = stretch_of(sample);
  const MixTable& table = stretch.table;
  const std::int64_t cycle = (sample - stretch.first) / table.length();
  const std::size_t slot = at((sample - stretch.first) % table.length());
  const std::size_t source = at(table.slots[slot]);
  const std::int64_t index =
      stretch.taken[source] + cycle * static_cast<std::int64_t>(table.positions[source].size()) + table.ranks[slot];
  SampleLocation out = orders_[source].locate(index);
  out.source = static_cast<std::int64_t>(source);
  return out;
}

std::vector<std::int64_t> Mixture::counts(std::int64_t sample) const {
  SCALETRAIN_CHECK(sample >= 0);
  const std::int64_t end = num_samples_ ? std::min(sample, *num_samples_) : sample;
  const Stretch& stretch = stretch_of(end);
  std::vector<std::int64_t> counts = stretch.taken;
  const std::int64_t length = stretch.table.length();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto& positions = stretch.table.positions[i];
    const auto rest = static_cast<std::int32_t>((end - stretch.first) % length);
    counts[i] += (end - stretch.first) / length * static_cast<std::int64_t>(positions.size()) +
                 (std::lower_bound(positions.begin(), positions.end(), rest) - positions.begin());
  }
  return counts;
}

}  // namespace scaletrain
