// Ids of real tokenizers against Hugging Face's `tokenizers` and Google's `sentencepiece`; the scripts under
// tests/golden/tokenizers have made the expected ones. Megabytes of text and all of Unicode: optimised by day, when
// bpe_golden_test.cpp and sentencepiece_test.cpp have small ones under the sanitizers.
#include <doctest/doctest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokens/bpe/bpe_spec.h"
#include "data/tokens/bpe/split_pattern.h"
#include "data/tokens/bpe/unicode.h"
#include "data/tokens/tokenizer.h"
#include "open_tokenizer.h"
#include "shared_data.h"
#include "tokenizer_checks.h"

using namespace scaletrain;
using nlohmann::json;

namespace {

// Of the blocks of code points one of so many, other ones in each context.
void check_unicode(std::size_t every) {
  if (!is_shared_data_present("tokenizers")) return;
  const json all = golden("shared.json");
  const auto block = all["block"].get<char32_t>();
  std::size_t number = 0;
  for (const auto& item : all["tokenizers"].items()) {
    const std::string& name = item.key();
    const json& expected = item.value();
    CAPTURE(name);
    const Tokenizer& tokenizer = real_tokenizer(name);
    check_unicode_in_contexts(tokenizer, expected["unicode"], block, every, number,
                              [](const std::string& context, char32_t begin) {
                                return context != "{}" && begin >= 0x40000 && begin < 0xe0000 ? char32_t{16} : 1;
                              });
  }
}

// Of the blocks of code points one of so many, other ones in each context.
void check_unicode_of_llama(std::size_t every) {
  if (!is_shared_data_present("tokenizers")) return;
  const json all = golden("sentencepiece_shared.json");
  const auto block = all["block"].get<char32_t>();
  const auto tokenizer = open_sentencepiece(shared_data("tokenizers/llama2"));
  std::size_t number = 0;
  check_unicode_in_contexts(*tokenizer, all["unicode"], block, every, number,
                            [](const std::string&, char32_t) { return char32_t{1}; });
}

}  // namespace

TEST_CASE("every character belongs to what it belongs to in tokenizers, and is normalised alike") {
  const json all = golden("small.json")["characters"];
  // Nothing is assigned between 0x40000 and 0xe0000.
  const auto for_characters = [](auto visit) {
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (c == 0x40000) c = 0xe0000;
      if (c < 0xd800 || c >= 0xe000) visit(c);
    }
  };
  const auto members = [&](auto belongs) {
    Checksum sum;
    for_characters([&](char32_t c) {
      if (belongs(c)) sum.add(static_cast<std::uint32_t>(c));
    });
    return sum.value();
  };
  // All patterns at once: a character is spelled once.
  std::vector<std::string> names = {kDigitPattern};
  for (const auto& item : all["properties"].items()) names.push_back(item.key());
  const std::vector<SplitPattern> patterns(names.begin(), names.end());
  std::vector<Checksum> sums(patterns.size());
  std::string text;
  for_characters([&](char32_t c) {
    text.clear();
    append_utf8(c, text);
    const char* const end = text.data() + text.size();
    for (std::size_t i = 0; i < sums.size(); ++i)
      if (patterns[i].match(text.data(), end) != nullptr) sums[i].add(static_cast<std::uint32_t>(c));
  });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::string& name = names[i];
    CAPTURE(name);
    CHECK(sums[i].value() == (i == 0 ? all["digits"] : all["properties"][name]));
  }
  const CodePoints& points = CodePoints::get();
  CHECK(members([&](char32_t c) { return points.is_word(c) && c != 'Q'; }) == all["words"]);
  CHECK(members([&](char32_t c) { return points.is_space(c); }) == all["spaces"]);
  for (const auto& item : all["nfc"].items()) {
    const std::string& context = item.key();
    const json& expected = item.value();
    CAPTURE(context);
    Checksum sum;
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xd800 && c < 0xe000) continue;
      const std::string in_it = in_context(context, c);
      sum.add_bytes(normalize_nfc(in_it).value_or(in_it) + "\n");
    }
    CHECK(sum.value() == expected);
  }
}

namespace {

// check(tokenizer, texts): of each real tokenizer, with what the package `tokenizers` makes of the texts.
template <class Check>
void for_real_tokenizers(const Check& check) {
  if (!is_shared_data_present("tokenizers")) return;
  const json all = golden("shared.json");
  for (const auto& item : all["tokenizers"].items()) {
    const std::string& name = item.key();
    CAPTURE(name);
    check(real_tokenizer(name), item.value()["texts"]);
  }
}

}  // namespace

TEST_CASE("ids of real tokenizers are those of tokenizers: texts") {
  for_real_tokenizers([](const Tokenizer& tokenizer, const json& texts) {
    for (const auto& row : texts.items())
      if (row.key() != kLargestText) check_text(tokenizer, row.key(), row.value());
  });
}

TEST_CASE("ids of real tokenizers are those of tokenizers: the largest text") {
  for_real_tokenizers([](const Tokenizer& tokenizer, const json& texts) {
    check_text(tokenizer, kLargestText, texts.at(kLargestText));
  });
}

TEST_CASE("ids of real tokenizers are those of tokenizers: a part of Unicode in each context") {
  check_unicode(16);
}

TEST_CASE("ids of real tokenizers are those of tokenizers: all of Unicode in each context") {
  check_unicode(1);
}

TEST_CASE("ids of llama 2's model are those of sentencepiece: texts and nasty cases and random bytes") {
  if (!is_shared_data_present("tokenizers")) return;
  const json all = golden("sentencepiece_shared.json");
  const auto tokenizer = open_sentencepiece(shared_data("tokenizers/llama2"));
  CHECK(tokenizer->vocab_size() == 32000);
  CHECK(tokenizer->before_document().size() == 1);
  CHECK(tokenizer->before_document().front() == 1);
  CHECK(tokenizer->end_of_document() == 2);
  for (const auto& row : all["texts"].items())
    if (row.key() != kLargestText) check_text(*tokenizer, row.key(), row.value(), " ");
  for (const json& example : all["nasty"]) {
    const auto text = example[0].get<std::string>();
    CAPTURE(text);
    CHECK(checksum(*tokenizer, text) == example[1]);
    check_cuts_of_beginnings(*tokenizer, text);
  }
  const json& random = all["bytes"];
  for (std::size_t seed = 0; seed < random.size(); ++seed) {
    const std::string bytes = random_bytes(seed, 2000);
    CHECK(checksum(*tokenizer, bytes) == random[seed]);
    check_cuts_of_beginnings(*tokenizer, bytes);
  }
}

TEST_CASE("ids of llama 2's model are those of sentencepiece: the largest text") {
  if (!is_shared_data_present("tokenizers")) return;
  check_text(*open_sentencepiece(shared_data("tokenizers/llama2")), kLargestText,
             golden("sentencepiece_shared.json")["texts"][kLargestText], " ");
}

TEST_CASE("ids of llama 2's model are those of sentencepiece: a part of Unicode in each context") {
  check_unicode_of_llama(16);
}

TEST_CASE("ids of llama 2's model are those of sentencepiece: all of Unicode in each context") {
  check_unicode_of_llama(1);
}
