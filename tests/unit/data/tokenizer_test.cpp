#include "data/tokens/tokenizer.h"

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"

using namespace scaletrain;

TEST_CASE("every byte string survives the byte tokenizer") {
  const ByteTokenizer tokenizer;
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  const auto tokens = tokenizer.encode(text);
  REQUIRE(tokens.size() == 256);
  for (int i = 0; i < 256; ++i) CHECK(tokens[static_cast<std::size_t>(i)] == i);
  CHECK(tokenizer.decode(tokens) == text);
  CHECK(tokenizer.vocab_size() == 257);
  CHECK(tokenizer.end_of_document() == 256);
  CHECK(tokenizer.decode(std::vector<std::int32_t>{65, 256, 66}) == "AB");
  CHECK_THROWS_AS(tokenizer.decode(std::vector<std::int32_t>{257}), InputError);
  CHECK_THROWS_AS(tokenizer.decode(std::vector<std::int32_t>{-1}), InputError);
}

TEST_CASE("ids are read and written as numbers, and nothing else is accepted") {
  const IdsTokenizer tokenizer(1000, 7);
  CHECK(tokenizer.encode(" 1 2\n999\t0 ") == std::vector<std::int32_t>{1, 2, 999, 0});
  CHECK(tokenizer.decode(std::vector<std::int32_t>{5, 6, 7}) == "5 6 7");
  CHECK_THROWS_WITH_AS(tokenizer.encode("1 1000"), doctest::Contains("byte 2"), UserError);
  CHECK_THROWS_AS(tokenizer.encode("1 x"), UserError);
  CHECK_THROWS_AS(tokenizer.encode("-1"), UserError);
  CHECK_THROWS_AS(tokenizer.encode("1.5"), UserError);
  CHECK_FALSE(tokenizer.reads_text());
}

TEST_CASE("a tokenizer that the config cannot have is refused by its key") {
  TokenizerConfig config;
  CHECK(make_tokenizer(config, std::nullopt)->vocab_size() == 257);
  CHECK(make_tokenizer(config, 300)->vocab_size() == 257);
  CHECK_THROWS_WITH_AS(make_tokenizer(config, 256), doctest::Contains("model.vocab"), UserError);
  config.end_of_document = 3;
  CHECK_THROWS_WITH_AS(make_tokenizer(config, std::nullopt), doctest::Contains("end_of_document"), UserError);
  config.type = TokenizerKind::ids;
  CHECK_THROWS_WITH_AS(make_tokenizer(config, std::nullopt), doctest::Contains("model.vocab"), UserError);
  CHECK(make_tokenizer(config, 10)->end_of_document() == 3);
  CHECK_THROWS_WITH_AS(make_tokenizer(config, 3), doctest::Contains("end_of_document"), UserError);
  CHECK_THROWS_WITH_AS(make_tokenizer(config, std::int64_t{1} << 31), doctest::Contains("model.vocab"), UserError);
  config.end_of_document.reset();
  config.type = TokenizerKind::sentencepiece;
  CHECK_THROWS_WITH_AS(make_tokenizer(config, 10), doctest::Contains("data.tokenizer.path"), UserError);
  config.type = TokenizerKind::bpe;
  CHECK_THROWS_WITH_AS(make_tokenizer(config, 10), doctest::Contains("data.tokenizer.path"), UserError);
}

TEST_CASE("tokenizers that give other ids have other hashes") {
  CHECK(IdsTokenizer(10, 1).hash() != IdsTokenizer(10, 2).hash());
  CHECK(IdsTokenizer(10, std::nullopt).hash() != IdsTokenizer(11, std::nullopt).hash());
  CHECK(IdsTokenizer(257, 256).hash() != ByteTokenizer().hash());
}
