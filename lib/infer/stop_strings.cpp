#include "infer/stop_strings.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace scaletrain {

std::string StopStrings::add(const std::string& piece) {
  pending_ += piece;
  std::size_t at = std::string::npos;
  for (const std::string& string : strings_) {
    const std::size_t place = pending_.find(string);
    if (place >= at) continue;
    at = place;
    found_ = string;
  }
  const std::size_t ready = found_ ? at : pending_.size() - held_length();
  std::string out = pending_.substr(0, ready);
  pending_.erase(0, found_ ? pending_.size() : ready);
  return out;
}

// Of the longest end of the pending text that a stop string begins with.
std::size_t StopStrings::held_length() const {
  std::size_t held = 0;
  for (const std::string& string : strings_) {
    for (std::size_t length = std::min(string.size() - 1, pending_.size()); length > held; --length) {
      if (!std::string_view(pending_).ends_with(std::string_view(string).substr(0, length))) continue;
      held = length;
      break;
    }
  }
  return held;
}

std::string StopStrings::finish() {
  return std::exchange(pending_, {});
}

}  // namespace scaletrain
