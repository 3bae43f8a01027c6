// What golden tests of tokenizers share: the ids that scripts under tests/golden/tokenizers have written, and what
// every tokenizer must do.
#pragma once

#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "data/tokens/bpe/unicode.h"
#include "data/tokens/tokenizer.h"
#include "shared_data.h"

namespace scaletrain {

inline nlohmann::json golden(const std::string& name) {
  const auto folder = std::filesystem::path(SCALETRAIN_SOURCE_FOLDER) / "tests" / "golden" / "tokenizers";
  return nlohmann::json::parse(read_text_file(folder / name, 64 << 20));
}

// CRC-32 of the ids of texts, each behind their count.
class Checksum {
 public:
  void add(const std::vector<std::int32_t>& ids) {
    add(static_cast<std::uint32_t>(ids.size()));
    for (const std::int32_t id : ids) add(static_cast<std::uint32_t>(id));
    count_ += ids.size();
  }
  void add_bytes(std::string_view bytes) {
    crc_ = ::crc32(crc_, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size()));
  }
  void add(std::uint32_t word) {
    char bytes[4];
    for (int byte = 0; byte < 4; ++byte, word >>= 8) bytes[byte] = static_cast<char>(word & 0xff);
    add_bytes({bytes, 4});
  }
  std::uint64_t value() const { return crc_; }
  std::uint64_t count() const { return count_; }

 private:
  uLong crc_ = 0;
  std::uint64_t count_ = 0;
};

inline std::uint64_t checksum(const Tokenizer& tokenizer, const std::string& text) {
  Checksum sum;
  sum.add(tokenizer.encode(text));
  return sum.value();
}

// Nine megabytes, by night; the gate has the other texts, of a megabyte each.
inline constexpr const char* kLargestText = "sentences.jsonl";

// A text of shared data: the count and the checksum of its ids, and that they are decoded to it, behind what `before`
// is.
inline void check_text(const Tokenizer& tokenizer, const std::string& file, const nlohmann::json& expected,
                       const std::string& before = "") {
  CAPTURE(file);
  const std::string text = read_text_file(shared_data("text/" + file), 64 << 20);
  Checksum sum;
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  sum.add(ids);
  CHECK(sum.count() == expected[0]);
  CHECK(sum.value() == expected[1]);
  CHECK(tokenizer.decode(ids) == before + text);
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

// Every text that `text` begins with, so that cuts lie everywhere.
inline void check_cuts_of_beginnings(const Tokenizer& tokenizer, const std::string& text) {
  for (std::size_t size = 1; size <= std::min<std::size_t>(text.size(), 60); size += 7)
    check_cuts(tokenizer, text.substr(0, size));
  check_cuts(tokenizer, text);
}

}  // namespace scaletrain
