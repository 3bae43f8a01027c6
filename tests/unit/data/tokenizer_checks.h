// What golden tests of tokenizers share: the ids that scripts under tests/golden/tokenizers have written, and what
// every tokenizer must do.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "data/tokens/bpe/unicode.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

inline nlohmann::json golden(const std::string& name) {
  const auto folder = std::filesystem::path(SCALETRAIN_SOURCE_FOLDER) / "tests" / "golden" / "tokenizers";
  return nlohmann::json::parse(read_text_file(folder / name, 64 << 20));
}

// CRC-32 as zlib has it, of the ids of texts, each behind their count.
class Checksum {
 public:
  void add(const std::vector<std::int32_t>& ids) {
    add(static_cast<std::uint32_t>(ids.size()));
    for (const std::int32_t id : ids) add(static_cast<std::uint32_t>(id));
    count_ += ids.size();
  }
  void add_bytes(std::string_view bytes) {
    for (const char c : bytes) add_byte(static_cast<unsigned char>(c));
  }
  void add(std::uint32_t word) {
    for (int byte = 0; byte < 4; ++byte, word >>= 8) add_byte(word & 0xff);
  }
  std::uint64_t value() const { return ~crc_; }
  std::uint64_t count() const { return count_; }

 private:
  static std::array<std::uint32_t, 256> make_table() {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      table[i] = i;
      for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ ((table[i] & 1) != 0 ? 0xedb88320u : 0);
    }
    return table;
  }
  void add_byte(std::uint32_t byte) {
    static const std::array<std::uint32_t, 256> table = make_table();
    crc_ = table[(crc_ ^ byte) & 0xff] ^ crc_ >> 8;
  }

  std::uint32_t crc_ = ~0u;
  std::uint64_t count_ = 0;
};

inline std::uint64_t checksum(const Tokenizer& tokenizer, const std::string& text) {
  Checksum sum;
  sum.add(tokenizer.encode(text));
  return sum.value();
}

inline std::string random_bytes(std::uint64_t seed, std::size_t size) {
  std::string out;
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < size; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out.push_back(static_cast<char>(state >> 56));
  }
  return out;
}

inline std::string in_context(const std::string& context, char32_t c) {
  std::string out;
  for (std::size_t i = 0; i < context.size(); ++i) {
    if (context[i] == '{') {
      append_utf8(c, out);
      ++i;
    } else {
      out.push_back(context[i]);
    }
  }
  return out;
}

// Every code point in each of some contexts, by the checksums of blocks that a golden file has. Of the blocks one of so
// many is looked at, other ones in each context: `number` counts those, and goes on from call to call. step_of(context,
// the block's first): the distance between code points that the file has.
template <class StepOf>
void check_unicode_in_contexts(const Tokenizer& tokenizer, const nlohmann::json& expected, char32_t block,
                               std::size_t every, std::size_t& number, StepOf step_of) {
  for (const auto& row : expected.items()) {
    const std::string& context = row.key();
    const nlohmann::json& sums = row.value();
    CAPTURE(context);
    ++number;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if ((i + number) % every != 0) continue;
      const char32_t begin = static_cast<char32_t>(i) * block;
      CAPTURE(begin);
      const char32_t step = step_of(context, begin);
      Checksum ids;
      for (char32_t c = begin; c < begin + block; c += step)
        if (c < 0xd800 || c >= 0xe000) ids.add(tokenizer.encode(in_context(context, c)));
      CHECK(ids.value() == sums[i]);
    }
  }
}

// What every tokenizer must do, whatever its ids.
inline void check_cuts(const Tokenizer& tokenizer, const std::string& text) {
  const std::size_t cut = tokenizer.safe_cut(text);
  REQUIRE(cut <= text.size());
  if (cut == 0) return;
  for (const char* rest :
       {"", "x", " ", "\n", "\xcc\x81", "7", "\xe1\x85\xa1", "\xe1\x86\xa8", "<|endoftext|>", " \n y"}) {
    const std::string whole = text + rest;
    std::vector<std::int32_t> ids = tokenizer.encode(whole.substr(0, cut));
    const std::vector<std::int32_t> behind = tokenizer.encode_rest(whole.substr(cut));
    ids.insert(ids.end(), behind.begin(), behind.end());
    CHECK_MESSAGE(ids == tokenizer.encode(whole), "cut at ", cut, " of ", whole);
    ids = tokenizer.encode_rest(whole.substr(0, cut));
    ids.insert(ids.end(), behind.begin(), behind.end());
    CHECK_MESSAGE(ids == tokenizer.encode_rest(whole), "cut at ", cut, " of the rest ", whole);
  }
}

}  // namespace scaletrain
