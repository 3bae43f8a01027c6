// Ids against Hugging Face's `tokenizers`; tests/golden/tokenizers/make_tokenizer_golden.py has made the expected ones.
// Megabytes of text and all of Unicode are in real_tokenizers_test.cpp.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/file.h"
#include "data/tokens/bpe/bpe_spec.h"
#include "data/tokens/bpe/split_pattern.h"
#include "data/tokens/bpe/unicode.h"
#include "data/tokens/tokenizer.h"
#include "open_tokenizer.h"
#include "shared_data.h"
#include "support/temp_folder.h"
#include "tokenizer_checks.h"

using namespace scaletrain;
using nlohmann::json;

TEST_CASE("whatever a tokenizer.json asks for, ids are those of tokenizers") {
  const json all = golden("small.json");
  const TempFolder folder;
  int cuts = 0;
  for (const json& entry : all["tokenizers"]) {
    const auto name = entry["name"].get<std::string>();
    CAPTURE(name);
    json content = entry["tokenizer"];
    content["model"] = all["models"][entry["model"].get<std::string>()];
    const auto tokenizer = open_bpe(folder.write("tokenizer.json", content.dump()));
    for (const json& example : entry["cases"]) {
      const auto text = example[0].get<std::string>();
      CAPTURE(text);
      CHECK(tokenizer->encode(text) == example[1].get<std::vector<std::int32_t>>());
      check_cuts(*tokenizer, text);
      cuts += tokenizer->safe_cut(text) > 0 ? 1 : 0;
    }
    if (!entry.contains("template")) continue;
    const auto before = tokenizer->before_document();
    CHECK(std::vector<std::int32_t>(before.begin(), before.end()) ==
          entry["template"][0].get<std::vector<std::int32_t>>());
    CHECK(tokenizer->end_of_document() == entry["template"][1][0].get<std::int32_t>());
  }
  CHECK(cuts > 100);
}

TEST_CASE("no cut lies before a character that nfc composes with what follows it") {
  const TempFolder folder;
  const json all = golden("small.json");
  json content = all["tokenizers"][0]["tokenizer"];
  content["model"] = all["models"][all["tokenizers"][0]["model"].get<std::string>()];
  content["normalizer"] = {{"type", "NFC"}};
  // Each token is one that a composition makes, next to which a digit is no place for it.
  const std::pair<const char*, std::string> cases[] = {
      {"\xc3\xa9", "5e"},                 // e and an acute accent
      {"\xea\xb0\x80", "5\xe1\x84\x80"},  // a Hangul lead and a vowel
      {"\xea\xb0\x81", "5\xea\xb0\x80"},  // a syllable and a tail
      {"\xe1\xba\xbf", "5\xc3\xaa"},      // e with a circumflex and an acute accent
  };
  const json& vocab = content["model"]["vocab"];
  std::int64_t next = static_cast<std::int64_t>(vocab.size());
  const auto id_of = [&](const char* token) {
    return vocab.contains(token) ? vocab[token].get<std::int64_t>() : next++;
  };
  content["added_tokens"] = json::array({{{"id", id_of("<|endoftext|>")}, {"content", "<|endoftext|>"}}});
  content["post_processor"] = nullptr;
  for (const auto& [token, text] : cases)
    content["added_tokens"].push_back(
        {{"id", id_of(token)}, {"content", token}, {"single_word", true}, {"normalized", true}});
  const auto tokenizer = open_bpe(folder.write("tokenizer.json", content.dump()));
  for (const auto& entry : cases) {
    const std::string& text = entry.second;
    CAPTURE(text);
    check_cuts(*tokenizer, text);
    check_cuts(*tokenizer, text + "\xcc\x81");
    CHECK(tokenizer->safe_cut("5 " + text) == 1);
  }
}

TEST_CASE("ids of real tokenizers are those of tokenizers: nasty cases and random bytes") {
  if (!is_shared_data_present("tokenizers")) return;
  const json all = golden("shared.json");
  for (const auto& item : all["tokenizers"].items()) {
    const std::string& name = item.key();
    const json& expected = item.value();
    CAPTURE(name);
    const Tokenizer& tokenizer = real_tokenizer(name);
    const json& nasty = all["nasty"];
    for (std::size_t i = 0; i < nasty.size(); ++i) {
      const auto text = nasty[i].get<std::string>();
      CAPTURE(text);
      CHECK(checksum(tokenizer, text) == expected["nasty"][i]);
      check_cuts(tokenizer, text);
    }
    const json& random = expected["random_bytes"];
    for (std::size_t seed = 0; seed < random.size(); ++seed)
      CHECK(checksum(tokenizer, random_bytes(seed, 2000)) == random[seed]);
  }
}

TEST_CASE("threads that share a tokenizer get the same ids") {
  if (!is_shared_data_present("tokenizers")) return;
  const Tokenizer& tokenizer = real_tokenizer("gpt2");
  const std::string text = read_text_file(shared_data("text/tinyshakespeare.txt"), 64 << 20).substr(0, 200000);
  const auto expected = tokenizer.encode(text);
  std::array<bool, 4> is_same{};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < is_same.size(); ++i) {
    threads.emplace_back([&, i] {
      is_same[i] = true;
      for (int round = 0; round < 5; ++round) is_same[i] = is_same[i] && tokenizer.encode(text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool same : is_same) CHECK(same);
}
