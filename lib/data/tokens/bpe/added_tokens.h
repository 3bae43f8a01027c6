// Tokens that are found in the text as they are, before anything else looks at it: special tokens and those that were
// added to a vocabulary. Of several that begin at a place the longest is taken.
//
// Follows `tokenizers`' AddedVocabulary, with its flags; immutable, to be used by any number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace scaletrain {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool is_special = false;   // decodes to nothing
  bool strips_left = false;  // white space before it belongs to it
  bool strips_right = false;
  bool is_normalized = false;   // looked for in the normalised text, by its normalised content
  bool is_single_word = false;  // only between characters that are no \w
};

// Looks for some of the added tokens.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  struct Part {
    std::string_view text;
    std::optional<std::int32_t> token;  // nothing: text between tokens
  };
  // The text in parts, none of them empty.
  void split(std::string_view text, std::vector<Part>& parts) const;

  // Whether a token or what is next to it could lie across x and y (x before y), so that a text cut between the two
  // might be split otherwise.
  bool may_straddle(char32_t x, char32_t y) const;

 private:
  struct Node {
    std::int32_t token = -1;  // place in tokens_
    std::vector<std::pair<unsigned char, std::uint32_t>> children;
  };

  // The longest token that begins at `at`: its place, or -1.
  std::int32_t longest_at(std::string_view text, std::size_t at) const;
  std::size_t next_candidate(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie; the root is the first
  std::array<bool, 256> begins_{};
  std::optional<char> only_begin_;
  std::vector<std::pair<char32_t, char32_t>> neighbours_;  // within some token; sorted
  // Of tokens with flags that look at their surroundings.
  std::vector<char32_t> flagged_first_;
  std::vector<char32_t> flagged_last_;
};

}  // namespace scaletrain
