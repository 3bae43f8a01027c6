// The regular expressions by which tokenizers cut text into pieces, as a matcher of our own: the constructs that
// published tokenizers use, over code points, with the meaning that they have in Oniguruma (which `tokenizers` uses):
// the leftmost match, of its alternatives the first that matches, repetitions as long as possible.
//
//   literals, escapes (\r \n \t \f \v \\ \. ..., \xHH, \uHHHH), `.`, \s \S \d \D, \p{L} \P{Lu} \p{^N} (general
//   categories) [classes] of these with ranges and ^            (?:groups), (groups), a|b, (?i:...) around ASCII text
//   ? * + {n} {n,} {,m} {n,m}; possessive ?+ *+ ++  (?!x) and (?=x) where x is one character or class
//
// Everything else is refused: lookbehind, anchors, back references, lazy repetition, \w, \b, scripts, [a&&b], a group
// that repeats without end, a pattern that matches nothing at all. A match at a place depends on the text from there on
// only.
//
// Immutable, so that any number of threads may match at once. Time is linear in the text for the patterns of published
// tokenizers. It is quadratic in a run of characters that a pattern reads to its end without a match, from each of them
// anew: letters with \p{L}+\d; as with any backtracking matcher one can write worse.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "data/tokens/bpe/unicode.h"

namespace scaletrain {

// What is wrong with a pattern, and where in it; whoever read the pattern knows the file.
class PatternError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class SplitPattern {
 public:
  // PatternError: a construct that is not supported or no regular expression.
  explicit SplitPattern(std::string_view pattern);
  // Matches this text and nothing else.
  static SplitPattern literal(std::string_view text);

  // The end of the match that begins at `begin`; nullptr if none does. Of valid UTF-8; begin < end.
  const char* match(const char* begin, const char* end) const;

  // Whether some match may hold x followed by y, or look behind an x at a y. Where neither is so, matches up to between
  // the two are the same whether the text goes on with y or ends behind x.
  bool may_straddle(char32_t x, char32_t y) const;
  // Whether the text x has a match whatever follows it that may_straddle() allows.
  bool matches_alone(char32_t x) const;

 private:
  friend class PatternCompiler;

  // A set of code points: categories and ranges, or all but these.
  struct Set {
    struct Range {
      char32_t first;
      char32_t last;
      bool operator==(const Range&) const = default;
    };
    std::uint32_t categories = 0;
    std::vector<Range> ranges;
    bool is_negated = false;
    bool contains(char32_t c) const;
    bool operator==(const Set&) const = default;
  };

  struct Node {
    enum class Kind { accept, run, choice, look } kind = Kind::accept;
    int set = 0;                     // run, look
    std::int64_t min = 0;            // run
    std::int64_t max = 0;            // run
    bool is_possessive = false;      // run
    bool is_negative = false;        // look
    int next = 0;                    // of all but accept
    std::vector<int> branches = {};  // choice; each leads on by itself
  };

  // What may come first, from a node on.
  struct First {
    std::uint64_t sets = 0;    // sets of which a character may be consumed
    std::uint64_t looks = 0;   // sets that a lookahead asks for
    bool accepts = false;      // by consuming nothing, behind no lookahead
    bool is_nullable = false;  // by consuming nothing
  };

  SplitPattern() = default;
  std::uint64_t sets_of(char32_t c) const;
  const char* run(int node, const char* at, const char* end) const;
  static First first_of(const Node& node, const std::vector<First>& firsts);
  void finish(const std::vector<int>& alternatives);

  std::vector<Set> sets_;  // at most 64
  std::vector<Node> nodes_;
  std::vector<int> alternatives_;                        // at most 32
  std::vector<std::uint64_t> first_sets_;                // of each alternative
  std::array<std::uint64_t, 128> ascii_sets_{};          // of each character, the sets that hold it
  std::array<std::uint32_t, 128> ascii_alternatives_{};  // those that may match where it stands
  std::array<std::uint64_t, kNumCategories> category_sets_{};
  std::uint64_t exact_sets_ = 0;        // those that a category does not decide beyond ASCII
  std::vector<std::uint64_t> follows_;  // of each set, those of which a character may follow or be looked at
  std::uint64_t alone_sets_ = 0;
  const CodePoints* points_ = nullptr;
};

}  // namespace scaletrain
