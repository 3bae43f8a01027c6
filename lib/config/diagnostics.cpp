#include "config/diagnostics.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace scaletrain {

namespace {
// An override as the user typed it, unless it is long or holds bytes that a terminal would act on.
std::string shown_override(const std::string& text) {
  const std::string safe = quoted(text);
  return safe == '"' + text + '"' ? text : safe;
}
}  // namespace

Diagnostics::Diagnostics(std::string file, std::vector<std::string> overrides)
    : file_(std::move(file)), overrides_(std::move(overrides)) {}

void Diagnostics::add(Place place, std::string message) {
  errors_.push_back({place, std::move(message)});
}

std::string Diagnostics::line(Place place, std::string_view message) const {
  if (place.source > 0) {
    return fmt::format("--set {}: {}", shown_override(overrides_.at(static_cast<std::size_t>(place.source) - 1)),
                       message);
  }
  if (place.line == 0) return fmt::format("{}: {}", file_, message);
  return fmt::format("{}:{}:{}: {}", file_, place.line, place.column, message);
}

std::string Diagnostics::report() const {
  std::vector<Error> sorted = errors_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Error& a, const Error& b) { return a.place < b.place; });
  std::string out;
  for (std::size_t i = 0; i < std::min(sorted.size(), kShown); ++i) {
    if (i > 0) out += '\n';
    out += line(sorted[i].place, sorted[i].message);
  }
  if (sorted.size() > kShown) out += fmt::format("\n... and {} more errors", sorted.size() - kShown);
  return out;
}

}  // namespace scaletrain
