// Byte-pair encoding of one piece: its bytes, of which neighbouring pairs are merged, the pair of the lowest rank first
// and of equal ones the leftmost, until no pair has a merge (Sennrich et al. 2016; over bytes as in GPT-2).
//
// Immutable; any number of threads may encode at once, each with a Workspace of its own. A short piece costs time
// quadratic in its few bytes, a long one O(n log n).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace scaletrain {

struct BpeMerge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t whole;
};

struct BpeModel {
  // Of each id, the bytes that the token stands for; nothing for ids that the model does not have, and for tokens whose
  // text is no sequence of bytes (those are special tokens).
  std::vector<std::optional<std::string>> tokens;
  std::vector<BpeMerge> merges;         // in the order of their ranks; of a pair that occurs twice the later one counts
  std::optional<std::int32_t> unknown;  // for bytes without a token of their own; without it, each byte must have one
  bool fuses_unknown = false;           // neighbouring unknown bytes make one unknown token
  bool ignores_merges = false;          // a piece that is a token is that token, whatever the merges make
};

class BpeMerges {
 public:
  class Workspace;

  static constexpr std::size_t kMaxMerges = std::size_t{1} << 24;

  // Every byte has a token, or there is an unknown one and there are at most kMaxMerges (whoever read the model has
  // checked both).
  explicit BpeMerges(const BpeModel& model);

  // Appends the tokens of `piece`. Up to `readable_end` the memory may be read (piece.end() or more).
  void encode(std::string_view piece, const char* readable_end, Workspace& workspace,
              std::vector<std::int32_t>& tokens) const;

 private:
  struct Slot {
    std::uint64_t pair = ~0ull;  // no pair has this
    std::int32_t rank = 0;
    std::int32_t whole = 0;
  };
  static constexpr std::int32_t kNoRank = INT32_MAX;

  const Slot* find(std::int32_t left, std::int32_t right) const;
  std::int32_t rank_of(std::int32_t left, std::int32_t right) const;
  void encode_uncached(std::string_view piece, Workspace& workspace, std::vector<std::int32_t>& tokens) const;
  void merge_short(Workspace& workspace) const;
  void merge_long(Workspace& workspace) const;

  std::array<std::int32_t, 256> byte_tokens_{};  // -1: none
  std::optional<std::int32_t> unknown_;
  bool fuses_unknown_;
  std::vector<Slot> slots_;  // open addressing, a power of two of them
  unsigned shift_ = 0;
  // Keys of a model that ignores merges; empty otherwise. They view `kept_`.
  std::unordered_map<std::string_view, std::int32_t> whole_tokens_;
  std::vector<std::string> kept_;
};

// What one thread needs to encode: buffers, and the tokens of pieces that it has met (2 MiB, of the latest in each
// place).
class BpeMerges::Workspace {
 public:
  Workspace();

 private:
  friend class BpeMerges;

  static constexpr std::size_t kKeyBytes = 31;  // words in most scripts; the last byte holds the length
  static constexpr std::size_t kKeptTokens = 7;
  struct alignas(64) Kept {
    std::array<std::uint64_t, 4> key{};  // zero: nothing, since a length is above 0
    std::array<std::int32_t, kKeptTokens> tokens{};
    std::uint32_t count = 0;
  };
  static constexpr std::size_t kPlacesLog2 = 14;  // of two pieces each

  std::vector<Kept> kept_;
  std::vector<std::int32_t> symbols_;
  std::vector<std::int32_t> ranks_;  // of each symbol with its right neighbour
  std::vector<std::size_t> left_;
  std::vector<std::size_t> right_;
  std::vector<std::uint64_t> queue_;
};

}  // namespace scaletrain
