// How much a run draws from each of its sources, as data/order/sampler.h shares it out, but in fractions of samples and
// by estimated sizes. Internal to plan.
#pragma once

#include <optional>
#include <vector>

namespace scaletrain {

struct DrawnSource {
  double weight = 1.0;          // 0: nothing is drawn from it
  std::optional<double> cap{};  // samples; nothing: it has none, or how many it allows is not known
};

struct SourceDraws {
  std::vector<double> samples;      // of each source; together fewer than asked for where the caps end before
  std::optional<double> allowed{};  // by all caps together; nothing where a source has none
};
SourceDraws draw_samples(const std::vector<DrawnSource>& sources, double samples);

}  // namespace scaletrain
