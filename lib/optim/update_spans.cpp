#include "optim/update_spans.h"

#include <algorithm>

namespace scaletrain {

std::vector<SpanPart> parts_in(const ShardLayout& layout, const ParamTable& table, const FlatRange& range) {
  std::vector<SpanPart> parts;
  for (const ParamSpan& span : layout.spans()) {
    if (span.buffer != range.buffer) continue;
    const std::int64_t begin = std::max(span.offset, range.first);
    const std::int64_t end = std::min(span.offset + span.count, range.first + range.count);
    if (begin >= end) continue;
    parts.push_back({.span = span,
                     .parameter = table.parameters()[static_cast<std::size_t>(span.parameter)],
                     .first = begin - range.first,
                     .count = end - begin});
  }
  return parts;
}

std::vector<UpdateSpan> update_spans(const ShardLayout& layout, const ParamTable& table, const FlatRange& range,
                                     double weight_decay, std::span<const double> factors, std::int64_t joins_after,
                                     const ParameterChoice& is_chosen) {
  std::vector<UpdateSpan> out;
  for (const SpanPart& part : parts_in(layout, table, range)) {
    const Parameter& parameter = part.parameter;
    if (parameter.joins_after != joins_after || (is_chosen && !is_chosen(parameter))) continue;
    const double decay = parameter.decays ? weight_decay * parameter.decay_factor : 0.0;
    const double factor = factors.empty() ? 1.0 : factors[static_cast<std::size_t>(part.span.parameter)];
    const double rate_factor = parameter.rate_factor * factor;
    if (!out.empty() && out.back().weight_decay == decay && out.back().rate_factor == rate_factor &&
        out.back().first + out.back().count == part.first) {
      out.back().count += part.count;
    } else {
      out.push_back({.first = part.first, .count = part.count, .weight_decay = decay, .rate_factor = rate_factor});
    }
  }
  return out;
}

}  // namespace scaletrain
