// Where a value of a config stands, and the errors found in one, reported together.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace scaletrain {

// Source 0 is the file; source k is the k-th override, which has no line worth naming. Lines and columns count from 1,
// columns in bytes; line 0 is the file as a whole.
struct Place {
  int source = 0;
  int line = 1;
  int column = 1;

  bool operator==(const Place&) const = default;
  bool operator<(const Place& other) const {
    return std::tie(source, line, column) < std::tie(other.source, other.line, other.column);
  }
};

// Collects errors and prints them in the order of their places. One thread.
class Diagnostics {
 public:
  // `file` is the name in messages; `overrides` are the texts of --set.
  Diagnostics(std::string file, std::vector<std::string> overrides);

  void add(Place place, std::string message);
  bool empty() const { return errors_.empty(); }
  // More errors than the report shows: what helps to mend one more is not worth computing.
  bool is_crowded() const { return errors_.size() > kShown; }
  // "config.yaml:3:5: message", or "--set train.steps=abc: message".
  std::string line(Place place, std::string_view message) const;
  // One line per error, ordered by place, at most 100 of them and the count of the rest; no newline at the end.
  std::string report() const;

 private:
  static constexpr std::size_t kShown = 100;  // a person mends the first few and runs again
  struct Error {
    Place place;
    std::string message;
  };
  std::string file_;
  std::vector<std::string> overrides_;
  std::vector<Error> errors_;
};

}  // namespace scaletrain
