#include "plan/describe/source_draws.h"

#include <cstddef>

namespace scaletrain {

SourceDraws draw_samples(const std::vector<DrawnSource>& sources, double samples) {
  SourceDraws draws{.samples = std::vector<double>(sources.size(), 0.0), .allowed = 0.0};
  for (const DrawnSource& source : sources)
    if (source.weight > 0)
      draws.allowed = draws.allowed && source.cap ? std::optional(*draws.allowed + *source.cap) : std::nullopt;
  // A share beyond its source's cap is the cap, and the rest is shared again by the others: their shares only grow.
  std::vector<bool> is_full;
  is_full.reserve(sources.size());
  for (const DrawnSource& source : sources) is_full.push_back(source.weight == 0);
  for (bool is_settled = false; !is_settled;) {
    is_settled = true;
    double weights = 0;
    for (std::size_t i = 0; i < sources.size(); ++i)
      if (!is_full[i]) weights += sources[i].weight;
    double taken = 0;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (is_full[i]) continue;
      const double share = samples * (sources[i].weight / weights);
      draws.samples[i] = share;
      if (!sources[i].cap || share <= *sources[i].cap) continue;
      draws.samples[i] = *sources[i].cap;
      taken += *sources[i].cap;
      is_full[i] = true;
      is_settled = false;
    }
    samples -= taken;
  }
  return draws;
}

}  // namespace scaletrain
