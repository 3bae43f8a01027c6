#include "launch/watch/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace scaletrain {

SlowRanks::SlowRanks(std::vector<std::int64_t> classes)
    : classes_(std::move(classes)), window_begin_(classes_.size()), slow_windows_(classes_.size(), 0) {}

std::vector<SlowRanks::Slow> SlowRanks::observe(const std::vector<Pace>& paces, double now) {
  SCALETRAIN_CHECK_EQ(paces.size(), classes_.size());
  if (now - begin_seconds_ < window_seconds) return {};
  std::vector<double> means;
  for (std::size_t i = 0; i < paces.size(); ++i) {
    const std::int64_t steps = paces[i].steps - window_begin_[i].steps;
    if (steps < window_steps) return {};
    means.push_back((paces[i].busy_seconds - window_begin_[i].busy_seconds) / static_cast<double>(steps));
  }
  window_begin_ = paces;
  begin_seconds_ = now;
  std::vector<Slow> found;
  for (std::size_t i = 0; i < means.size(); ++i) {
    std::vector<double> peers;
    for (std::size_t other = 0; other < means.size(); ++other)
      if (other != i && classes_[other] == classes_[i]) peers.push_back(means[other]);
    if (peers.empty()) continue;
    const auto middle = peers.begin() + static_cast<std::ptrdiff_t>(peers.size() / 2);
    std::nth_element(peers.begin(), middle, peers.end());
    slow_windows_[i] = means[i] > ratio * *middle ? slow_windows_[i] + 1 : 0;
    if (slow_windows_[i] == 2) found.push_back({.index = i, .busy_seconds = means[i], .peers_seconds = *middle});
  }
  return found;
}

std::vector<std::int64_t> classes_of_stages(std::int64_t world, std::int64_t stages) {
  SCALETRAIN_CHECK(stages >= 1 && world >= stages && world % stages == 0);
  std::vector<std::int64_t> classes;
  classes.reserve(static_cast<std::size_t>(world));
  for (std::int64_t rank = 0; rank < world; ++rank) classes.push_back(rank / (world / stages));
  return classes;
}

std::string slow_rank_text(std::int64_t rank, const SlowRanks::Slow& slow) {
  return fmt::format(
      "rank {} is slow: it computes {:.3g} s in a step, its peers {:.3g} s, and all wait for it; look for what else "
      "runs on its processors or its GPU, or for one that is throttled",
      rank, slow.busy_seconds, slow.peers_seconds);
}

}  // namespace scaletrain
