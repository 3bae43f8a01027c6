#include "data/tokens/bpe/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/error.h"

namespace scaletrain {
namespace {

// Up to here shifting the rest of a piece at each merge is cheaper than a queue.
constexpr std::size_t kShortSymbols = 64;

constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15ull;  // 2^64 divided by the golden ratio

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

// The bits of a word that its first `bytes` bytes make, of a little-endian load.
constexpr std::uint64_t low_bytes(std::size_t bytes) {
  return bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1;
}

// A queued merge: rank above position, so that the smallest number is the next merge.
constexpr unsigned kPositionBits = 40;
constexpr std::uint64_t kPositionMask = (1ull << kPositionBits) - 1;
static_assert(BpeMerges::kMaxMerges <= 1ull << (64 - kPositionBits));

}  // namespace

BpeMerges::Workspace::Workspace() : kept_(std::size_t{2} << kPlacesLog2) {}

BpeMerges::BpeMerges(const BpeModel& model) : unknown_(model.unknown), fuses_unknown_(model.fuses_unknown) {
  SCALETRAIN_CHECK(model.merges.size() <= kMaxMerges);
  byte_tokens_.fill(-1);
  for (std::size_t id = 0; id < model.tokens.size(); ++id) {
    const auto& token = model.tokens[id];
    if (token && token->size() == 1)
      byte_tokens_[static_cast<unsigned char>(token->front())] = static_cast<std::int32_t>(id);
  }
  const std::size_t size = std::bit_ceil(2 * model.merges.size() + 2);
  shift_ = 64 - static_cast<unsigned>(std::countr_zero(size));
  slots_.resize(size);
  for (std::size_t rank = 0; rank < model.merges.size(); ++rank) {
    const BpeMerge& merge = model.merges[rank];
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::size_t at = pair * kMultiplier >> shift_;
    while (slots_[at].pair != ~0ull && slots_[at].pair != pair) at = (at + 1) & (size - 1);
    slots_[at] = {pair, static_cast<std::int32_t>(rank), merge.whole};
  }
  if (!model.ignores_merges) return;
  for (const auto& token : model.tokens) kept_.push_back(token.value_or(""));
  whole_tokens_.reserve(kept_.size());
  for (std::size_t id = 0; id < kept_.size(); ++id) {
    if (!kept_[id].empty()) whole_tokens_.emplace(kept_[id], static_cast<std::int32_t>(id));
  }
}

const BpeMerges::Slot* BpeMerges::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t at = pair * kMultiplier >> shift_;; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == pair) return &slots_[at];
    if (slots_[at].pair == ~0ull) return nullptr;
  }
}

std::int32_t BpeMerges::rank_of(std::int32_t left, std::int32_t right) const {
  const Slot* slot = find(left, right);
  return slot == nullptr ? kNoRank : slot->rank;
}

void BpeMerges::encode(std::string_view piece, const char* readable_end, Workspace& workspace,
                       std::vector<std::int32_t>& tokens) const {
  const std::size_t size = piece.size();
  if (size > Workspace::kKeyBytes) {
    encode_uncached(piece, workspace, tokens);
    return;
  }
  std::array<std::uint64_t, 4> key{};
  if (std::endian::native == std::endian::little &&
      readable_end - piece.data() >= static_cast<std::ptrdiff_t>(sizeof key)) {
    std::memcpy(key.data(), piece.data(), sizeof key);
    for (std::size_t word = 0; word < key.size(); ++word) key[word] &= size > 8 * word ? low_bytes(size - 8 * word) : 0;
  } else {
    std::memcpy(key.data(), piece.data(), size);
  }
  reinterpret_cast<unsigned char*>(key.data())[Workspace::kKeyBytes] = static_cast<unsigned char>(size);
  std::uint64_t hash = (key[0] ^ std::rotl(key[1], 23) ^ std::rotl(key[3], 41)) * kMultiplier;
  hash = (hash ^ hash >> 32 ^ key[2]) * kMultiplier;
  Workspace::Kept* const place = &workspace.kept_[2 * (hash >> (64 - Workspace::kPlacesLog2))];
  for (int way = 0; way < 2; ++way) {
    const Workspace::Kept& kept = place[way];
    if (kept.key != key) continue;
    if (kept.count == 1) {
      tokens.push_back(kept.tokens[0]);
    } else {
      tokens.insert(tokens.end(), kept.tokens.begin(), kept.tokens.begin() + kept.count);
    }
    return;
  }
  const std::size_t before = tokens.size();
  encode_uncached(piece, workspace, tokens);
  const std::size_t count = tokens.size() - before;
  if (count > Workspace::kKeptTokens) return;
  place[1] = place[0];
  place[0].key = key;
  place[0].count = static_cast<std::uint32_t>(count);
  std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(before), count, place[0].tokens.begin());
}

void BpeMerges::encode_uncached(std::string_view piece, Workspace& workspace, std::vector<std::int32_t>& tokens) const {
  if (!whole_tokens_.empty()) {
    const auto found = whole_tokens_.find(piece);
    if (found != whole_tokens_.end()) {
      tokens.push_back(found->second);
      return;
    }
  }
  std::vector<std::int32_t>& symbols = workspace.symbols_;
  symbols.clear();
  bool was_unknown = false;
  for (const char c : piece) {
    const std::int32_t token = byte_tokens_[static_cast<unsigned char>(c)];
    if (token >= 0) {
      symbols.push_back(token);
    } else if (unknown_ && !(was_unknown && fuses_unknown_)) {
      symbols.push_back(*unknown_);
    }
    was_unknown = token < 0;
  }
  if (symbols.size() > kShortSymbols) {
    merge_long(workspace);
  } else if (symbols.size() > 1) {
    merge_short(workspace);
  }
  tokens.insert(tokens.end(), symbols.begin(), symbols.end());
}

void BpeMerges::merge_short(Workspace& workspace) const {
  std::vector<std::int32_t>& symbols = workspace.symbols_;
  std::vector<std::int32_t>& ranks = workspace.ranks_;
  const auto rank_at = [&](std::size_t i) {
    return i + 1 < symbols.size() ? rank_of(symbols[i], symbols[i + 1]) : kNoRank;
  };
  ranks.resize(symbols.size());
  for (std::size_t i = 0; i < symbols.size(); ++i) ranks[i] = rank_at(i);
  for (;;) {
    const auto lowest = std::min_element(ranks.begin(), ranks.end());
    if (*lowest == kNoRank) return;
    const auto i = static_cast<std::size_t>(lowest - ranks.begin());
    symbols[i] = find(symbols[i], symbols[i + 1])->whole;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(lowest + 1);
    ranks[i] = rank_at(i);
    if (i > 0) ranks[i - 1] = rank_at(i - 1);
  }
}

// Symbols as a list whose links are indices, and a queue of the merges that were seen. One that no longer is what it
// was (a neighbour has merged meanwhile) is known by its rank.
void BpeMerges::merge_long(Workspace& workspace) const {
  std::vector<std::int32_t>& symbols = workspace.symbols_;
  std::vector<std::int32_t>& ranks = workspace.ranks_;
  std::vector<std::size_t>& left = workspace.left_;
  std::vector<std::size_t>& right = workspace.right_;
  std::vector<std::uint64_t>& queue = workspace.queue_;
  const std::size_t size = symbols.size();
  ranks.assign(size, kNoRank);
  left.resize(size);
  right.resize(size);
  queue.clear();
  const auto queued = [](std::int32_t rank, std::size_t at) {
    return static_cast<std::uint64_t>(rank) << kPositionBits | at;
  };
  for (std::size_t i = 0; i < size; ++i) {
    left[i] = i - 1;
    right[i] = i + 1;
    if (i + 1 < size) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
    if (ranks[i] != kNoRank) queue.push_back(queued(ranks[i], i));
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto update = [&](std::size_t at) {
    ranks[at] = right[at] < size ? rank_of(symbols[at], symbols[right[at]]) : kNoRank;
    if (ranks[at] == kNoRank) return;
    queue.push_back(queued(ranks[at], at));
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const std::uint64_t entry = queue.back();
    queue.pop_back();
    const std::size_t at = entry & kPositionMask;
    if (static_cast<std::int32_t>(entry >> kPositionBits) != ranks[at]) continue;
    const std::size_t gone = right[at];
    symbols[at] = find(symbols[at], symbols[gone])->whole;
    ranks[gone] = kNoRank;
    right[at] = right[gone];
    if (right[at] < size) left[right[at]] = at;
    update(at);
    if (at > 0) update(left[at]);
  }
  std::size_t count = 0;
  for (std::size_t i = 0; i < size; i = right[i]) symbols[count++] = symbols[i];
  symbols.resize(count);
  constexpr std::size_t kept_symbols = 1u << 16;  // the buffers of a piece that was longer than this are given back
  if (size > kept_symbols) {
    for (auto* links : {&left, &right}) std::vector<std::size_t>().swap(*links);
    std::vector<std::uint64_t>().swap(queue);
  }
}

}  // namespace scaletrain
