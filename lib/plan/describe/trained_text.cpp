#include "plan/describe/trained_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "base/text.h"

namespace scaletrain {
namespace {

using Choice = std::function<bool(const Parameter&)>;

struct Sum {
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;
};

Sum sum_of(const ParamTable& table, const Choice& is_chosen) {
  Sum sum;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.tied_to || !is_chosen(parameter)) continue;
    ++sum.tensors;
    sum.parameters += parameter.shape.num_elements();
  }
  return sum;
}

std::string digits(std::int64_t count) {
  return grouped_digits(static_cast<std::uint64_t>(count));
}

// Units of which the same is to be said: "blocks.0" to "blocks.7".
struct UnitRange {
  std::string first;
  std::string last;
  bool is_whole = false;
};

// "blocks." of "blocks.7"; empty: no number ends the name.
std::string series_of(const std::string& unit) {
  const std::size_t end = unit.find_last_not_of("0123456789");
  return end == std::string::npos || end + 1 == unit.size() ? std::string() : unit.substr(0, end + 1);
}

std::string text_of(const UnitRange& range) {
  const std::string part = range.is_whole ? "" : range.first == range.last ? "part of " : "parts of ";
  return part + (range.first == range.last ? range.first : fmt::format("{} to {}", range.first, range.last));
}

// The units that hold what is chosen, or a part of it; those of a series that follow each other as one.
std::string units_text(const ParamTable& table, const Choice& is_chosen) {
  std::vector<UnitRange> ranges;
  bool goes_on = false;  // the unit before this one is the last of the ranges
  for (int unit = 0; unit < static_cast<int>(table.units().size()); ++unit) {
    bool has_chosen = false;
    bool is_whole = true;
    for (const Parameter& parameter : table.parameters_of(unit)) {
      if (parameter.tied_to) continue;
      const bool is_of_it = is_chosen(parameter);
      has_chosen = has_chosen || is_of_it;
      is_whole = is_whole && is_of_it;
    }
    const std::string& name = table.units()[static_cast<std::size_t>(unit)].name;
    if (has_chosen) {
      const bool joins = goes_on && ranges.back().is_whole == is_whole && !series_of(name).empty() &&
                         series_of(name) == series_of(ranges.back().last);
      if (joins) {
        ranges.back().last = name;
      } else {
        ranges.push_back({.first = name, .last = name, .is_whole = is_whole});
      }
    }
    goes_on = has_chosen;
  }
  std::string text;
  for (const UnitRange& range : ranges) text += (text.empty() ? "" : ", ") + text_of(range);
  return text;
}

}  // namespace

std::string trained_text(const ParamTable& table, std::int64_t steps) {
  const Choice is_frozen = [](const Parameter& parameter) { return parameter.role == ParamRole::frozen; };
  const auto joins_after = [](std::int64_t updates) -> Choice {
    return [updates](const Parameter& parameter) {
      return parameter.role == ParamRole::trained && parameter.joins_after == updates;
    };
  };
  const Sum all = sum_of(table, [](const Parameter&) { return true; });
  const Sum now = sum_of(table, [steps](const Parameter& parameter) {
    return parameter.role == ParamRole::trained && parameter.joins_after <= steps;
  });
  if (now.tensors == all.tensors) return {};
  std::string text = fmt::format("{} of {} tensors, {} of {} parameters", digits(now.tensors), digits(all.tensors),
                                 digits(now.parameters), digits(all.parameters));
  std::set<std::int64_t> joining;
  for (const Parameter& parameter : table.parameters())
    if (parameter.joins_after > steps) joining.insert(parameter.joins_after);
  for (const std::int64_t updates : joining)
    text +=
        fmt::format("; after {} also {} ({} parameters)", grouped_count(static_cast<std::uint64_t>(updates), "step"),
                    units_text(table, joins_after(updates)), digits(sum_of(table, joins_after(updates)).parameters));
  const std::string frozen = units_text(table, is_frozen);
  if (frozen.empty()) return text;
  return text + fmt::format("; frozen: {} ({} parameters)", frozen, digits(sum_of(table, is_frozen).parameters));
}

}  // namespace scaletrain
