#include "data/tokens/bpe/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "data/tokens/bpe/unicode.h"

namespace scaletrain {
namespace {

char32_t last_of(std::string_view text) {
  return decode_utf8(previous_utf8(text.data() + text.size())).code_point;
}
char32_t first_of(std::string_view text) {
  return decode_utf8(text.data()).code_point;
}

std::size_t without_trailing_space(std::string_view text) {
  const char* end = text.data() + text.size();
  while (end != text.data()) {
    const char* const before = previous_utf8(end);
    if (!CodePoints::get().is_space(decode_utf8(before).code_point)) break;
    end = before;
  }
  return static_cast<std::size_t>(end - text.data());
}

std::size_t leading_space(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Decoded at = decode_utf8(text.data() + length);
    if (!CodePoints::get().is_space(at.code_point)) break;
    length += static_cast<std::size_t>(at.length);
  }
  return length;
}

bool has(const std::vector<char32_t>& characters, char32_t c) {
  return std::find(characters.begin(), characters.end(), c) != characters.end();
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    std::size_t node = 0;
    for (const char c : token.content) {
      const auto byte = static_cast<unsigned char>(c);
      auto& children = nodes_[node].children;
      const auto child =
          std::find_if(children.begin(), children.end(), [byte](const auto& entry) { return entry.first == byte; });
      if (child != children.end()) {
        node = child->second;
        continue;
      }
      children.emplace_back(byte, static_cast<std::uint32_t>(nodes_.size()));
      node = nodes_.size();
      nodes_.emplace_back();
    }
    nodes_[node].token = static_cast<std::int32_t>(i);
    begins_[static_cast<unsigned char>(token.content.front())] = true;
    for (std::size_t at = 0; at < token.content.size();) {
      const Decoded x = decode_utf8(token.content.data() + at);
      at += static_cast<std::size_t>(x.length);
      if (at < token.content.size())
        neighbours_.emplace_back(x.code_point, decode_utf8(token.content.data() + at).code_point);
    }
    if (!token.strips_left && !token.strips_right && !token.is_single_word) continue;
    flagged_first_.push_back(first_of(token.content));
    flagged_last_.push_back(last_of(token.content));
  }
  std::sort(neighbours_.begin(), neighbours_.end());
  neighbours_.erase(std::unique(neighbours_.begin(), neighbours_.end()), neighbours_.end());
  if (std::count(begins_.begin(), begins_.end(), true) == 1)
    only_begin_ = static_cast<char>(std::find(begins_.begin(), begins_.end(), true) - begins_.begin());
}

std::size_t AddedTokenFinder::next_candidate(std::string_view text, std::size_t at) const {
  if (only_begin_) {
    const void* found = std::memchr(text.data() + at, *only_begin_, text.size() - at);
    return found == nullptr ? text.size() : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  }
  while (at < text.size() && !begins_[static_cast<unsigned char>(text[at])]) ++at;
  return at;
}

std::int32_t AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
  std::int32_t longest = -1;
  const Node* node = nodes_.data();
  for (; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto child = std::find_if(node->children.begin(), node->children.end(),
                                    [byte](const auto& entry) { return entry.first == byte; });
    if (child == node->children.end()) break;
    node = &nodes_[child->second];
    if (node->token >= 0) longest = node->token;
  }
  return longest;
}

void AddedTokenFinder::split(std::string_view text, std::vector<Part>& parts) const {
  std::size_t done = 0;  // up to here the text is in parts
  const CodePoints& points = CodePoints::get();
  const auto add = [&](std::size_t begin, std::size_t end, std::optional<std::int32_t> token) {
    if (begin < end) parts.push_back({text.substr(begin, end - begin), token});
  };
  for (std::size_t at = tokens_.empty() ? text.size() : next_candidate(text, 0); at < text.size();) {
    const std::int32_t found = longest_at(text, at);
    if (found < 0) {
      at = next_candidate(text, at + 1);
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(found)];
    std::size_t begin = at;
    std::size_t end = at + token.content.size();
    at = end < text.size() ? next_candidate(text, end) : end;
    if (token.is_single_word && ((begin > 0 && points.is_word(last_of(text.substr(0, begin)))) ||
                                 (end < text.size() && points.is_word(first_of(text.substr(end))))))
      continue;
    if (token.strips_left) begin = std::max(without_trailing_space(text.substr(0, begin)), done);
    if (token.strips_right) end += leading_space(text.substr(end));
    add(done, begin, std::nullopt);
    add(begin, end, token.id);
    done =
        end;  // may lie before `begin` of the next: a token of white space that another one has taken is found anyway
  }
  add(done, text.size(), std::nullopt);
}

bool AddedTokenFinder::may_straddle(char32_t x, char32_t y) const {
  if (std::binary_search(neighbours_.begin(), neighbours_.end(), std::pair(x, y))) return true;
  if (flagged_first_.empty()) return false;
  return CodePoints::get().is_space(x) || has(flagged_last_, x) || has(flagged_first_, y);
}

}  // namespace scaletrain
