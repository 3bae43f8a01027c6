// Finding where a text that comes in pieces is to stop.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace scaletrain {

// Holds back what may be the beginning of a stop string, so that no part of one is ever given out.
class StopStrings {
 public:
  // None of them empty. No strings: nothing is held back.
  explicit StopStrings(std::vector<std::string> strings = {}) : strings_(std::move(strings)) {}

  // What may be given out now. Not to be called once something was found.
  std::string add(const std::string& piece);
  // The string that was found, of several the one that begins first; of those the first given.
  const std::optional<std::string>& found() const { return found_; }
  // What was held back, where the text ends without a stop string.
  std::string finish();

 private:
  std::size_t held_length() const;

  std::vector<std::string> strings_;
  std::string pending_;
  std::optional<std::string> found_;
};

}  // namespace scaletrain
