#include "data/tokens/bpe/bpe_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "data/tokens/bpe/bpe_spec.h"
#include "data/tokens/bpe/unicode.h"

namespace scaletrain {

namespace {

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The character by which vocab.json writes a byte (GPT-2's): itself where it is printable, else one beyond Latin-1.
std::array<char32_t, 256> characters_of_bytes() {
  std::array<char32_t, 256> out{};
  char32_t moved = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    out[byte] = is_printable ? byte : moved++;
  }
  return out;
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

// Keys are pairs of small numbers, of which the identity would use few buckets' bits.
struct PairHash {
  std::size_t operator()(std::uint64_t key) const {
    key *= 0x9e3779b97f4a7c15ull;
    return static_cast<std::size_t>(key ^ key >> 32);
  }
};

// A pair of tokens: how often it occurs, and in which pieces it may.
struct PairPlaces {
  std::int64_t count = 0;
  std::vector<std::uint32_t> pieces{};
};

struct Candidate {
  std::int64_t count = 0;
  std::uint64_t pair = 0;
  // The queue's top is the largest.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Merging {
 public:
  Merging(const std::vector<PieceCount>& pieces, const std::array<std::int32_t, 256>& ids) {
    if (pieces.size() > std::numeric_limits<std::uint32_t>::max())
      throw InputError("the text has more than 4 billion different pieces: train on a part of it");
    symbols_.reserve(pieces.size());
    for (const PieceCount& piece : pieces) {
      std::vector<std::int32_t>& symbols = symbols_.emplace_back();
      symbols.reserve(piece.piece.size());
      for (const char byte : piece.piece) symbols.push_back(ids[static_cast<unsigned char>(byte)]);
      counts_.push_back(static_cast<std::int64_t>(piece.count));
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
        change(symbols[i], symbols[i + 1], counts_.back(), static_cast<std::uint32_t>(symbols_.size() - 1));
    }
    offer_grown();
  }

  // The most frequent pair, of which the count is above 0; nothing if there is none.
  std::optional<Candidate> best() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(top.pair);
      const std::int64_t count = found == pairs_.end() ? 0 : found->second.count;
      if (count == top.count && count > 0) return top;
      if (count > 0) queue_.push({count, top.pair});
    }
    return std::nullopt;
  }

  void merge(std::uint64_t pair, std::int32_t whole) {
    const auto left = static_cast<std::int32_t>(pair >> 32);
    const auto right = static_cast<std::int32_t>(pair & 0xffffffff);
    const std::vector<std::uint32_t> pieces = std::move(pairs_[pair].pieces);
    for (const std::uint32_t piece : pieces) merge_in(piece, left, right, whole);
    pairs_.erase(pair);
    offer_grown();
  }

 private:
  void change(std::int32_t left, std::int32_t right, std::int64_t count, std::uint32_t piece) {
    const std::uint64_t key = pair_key(left, right);
    PairPlaces& places = pairs_[key];
    places.count += count;
    if (count <= 0) return;
    if (places.pieces.empty() || places.pieces.back() != piece) places.pieces.push_back(piece);
    grown_.push_back(key);
  }

  void merge_in(std::uint32_t piece, std::int32_t left, std::int32_t right, std::int32_t whole) {
    std::vector<std::int32_t>& symbols = symbols_[piece];
    const std::int64_t count = counts_[piece];
    std::size_t kept = 0;
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      if (i + 1 == symbols.size() || symbols[i] != left || symbols[i + 1] != right) {
        symbols[kept++] = symbols[i];
        continue;
      }
      change(left, right, -count, piece);
      if (kept > 0) {
        change(symbols[kept - 1], left, -count, piece);
        change(symbols[kept - 1], whole, count, piece);
      }
      if (i + 2 < symbols.size()) {
        change(right, symbols[i + 2], -count, piece);
        change(whole, symbols[i + 2], count, piece);
      }
      symbols[kept++] = whole;
      ++i;
    }
    symbols.resize(kept);
  }

  void offer_grown() {
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const std::uint64_t key : grown_)
      if (const auto found = pairs_.find(key); found != pairs_.end() && found->second.count > 0)
        queue_.push({found->second.count, key});
    grown_.clear();
  }

  std::vector<std::vector<std::int32_t>> symbols_;  // of each piece
  std::vector<std::int64_t> counts_;                // the same
  std::unordered_map<std::uint64_t, PairPlaces, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;  // a pair's last entry has its count, or a larger one
  std::vector<std::uint64_t> grown_;      // since the last time that the queue was told
};

void check_options(const BpeTrainingOptions& options, const std::array<char32_t, 256>& characters) {
  std::set<std::string> names;
  for (const char32_t c : characters) {
    std::string name;
    append_utf8(c, name);
    names.insert(name);
  }
  for (const std::string& special : options.special) {
    if (special.empty() || first_invalid_utf8(special))
      throw UserError(fmt::format("--special: {} is no text", quoted(special)));
    if (!names.insert(special).second)
      throw UserError(fmt::format("--special: {} is there twice, or is the name of a byte's token", quoted(special)));
  }
  const std::size_t least = names.size();
  if (options.vocab < static_cast<std::int64_t>(least))
    throw UserError(fmt::format("--vocab: {} is too small: the {} special tokens and 256 bytes are {}", options.vocab,
                                options.special.size(), least));
}

}  // namespace

TrainedBpe train_bpe(const std::vector<PieceCount>& pieces, const BpeTrainingOptions& options) {
  const std::array<char32_t, 256> characters = characters_of_bytes();
  check_options(options, characters);
  TrainedBpe out{.tokens = options.special, .num_special = options.special.size()};
  std::vector<int> bytes(256);
  for (int byte = 0; byte < 256; ++byte) bytes[static_cast<std::size_t>(byte)] = byte;
  std::sort(bytes.begin(), bytes.end(), [&characters](int a, int b) {
    return characters[static_cast<std::size_t>(a)] < characters[static_cast<std::size_t>(b)];
  });
  std::array<std::int32_t, 256> ids{};
  for (const int byte : bytes) {
    ids[static_cast<std::size_t>(byte)] = static_cast<std::int32_t>(out.tokens.size());
    append_utf8(characters[static_cast<std::size_t>(byte)], out.tokens.emplace_back());
  }
  std::unordered_map<std::string, std::int32_t> known;
  for (const std::string& token : out.tokens) known.emplace(token, static_cast<std::int32_t>(known.size()));
  Merging merging(pieces, ids);
  while (static_cast<std::int64_t>(out.tokens.size()) < options.vocab) {
    const auto best = merging.best();
    if (!best || best->count < static_cast<std::int64_t>(options.least_count)) break;
    const auto left = static_cast<std::int32_t>(best->pair >> 32);
    const auto right = static_cast<std::int32_t>(best->pair & 0xffffffff);
    std::string text = out.tokens[static_cast<std::size_t>(left)] + out.tokens[static_cast<std::size_t>(right)];
    // Another pair may have made the same text already, or it is that of a special token.
    const auto [entry, is_new] = known.emplace(text, static_cast<std::int32_t>(out.tokens.size()));
    if (is_new) out.tokens.push_back(std::move(text));
    out.merges.emplace_back(left, right);
    merging.merge(best->pair, entry->second);
  }
  return out;
}

std::string_view text_of(BpePattern pattern) {
  return pattern == BpePattern::gpt2 ? std::string_view(kGpt2Pattern) : kLlama3Pattern;
}

std::string tokenizer_json(const TrainedBpe& trained, BpePattern pattern) {
  using nlohmann::ordered_json;
  const auto byte_level = [](bool uses_pattern) {
    return ordered_json{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", uses_pattern}};
  };
  ordered_json added = ordered_json::array();
  for (std::size_t id = 0; id < trained.num_special; ++id)
    added.push_back({{"id", id},
                     {"content", trained.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  ordered_json pre_tokenizer = byte_level(true);
  if (pattern != BpePattern::gpt2)
    pre_tokenizer = {{"type", "Sequence"},
                     {"pretokenizers",
                      {{{"type", "Split"},
                        {"pattern", {{"Regex", std::string(text_of(pattern))}}},
                        {"behavior", "Isolated"},
                        {"invert", false}},
                       byte_level(false)}}};
  // An object by hand: ordered_json looks through all members for each that is added.
  std::string vocab;
  for (std::size_t id = 0; id < trained.tokens.size(); ++id)
    vocab += fmt::format("{}{}:{}", id > 0 ? "," : "", ordered_json(trained.tokens[id]).dump(), id);
  std::string merges;
  for (const auto& [left, right] : trained.merges)
    merges += fmt::format("{}[{},{}]", merges.empty() ? "" : ",",
                          ordered_json(trained.tokens[static_cast<std::size_t>(left)]).dump(),
                          ordered_json(trained.tokens[static_cast<std::size_t>(right)]).dump());
  return fmt::format(
      "{{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":{},\"normalizer\":null,"
      "\"pre_tokenizer\":{},\"post_processor\":null,\"decoder\":{},\"model\":{{\"type\":\"BPE\",\"dropout\":null,"
      "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
      "\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{{{}}},\"merges\":[{}]}}}}\n",
      added.dump(), pre_tokenizer.dump(), byte_level(true).dump(), vocab, merges);
}

}  // namespace scaletrain
