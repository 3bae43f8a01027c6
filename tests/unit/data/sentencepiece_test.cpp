// Ids against Google's `sentencepiece`; tests/golden/tokenizers/make_sentencepiece_golden.py has made the expected
// ones.
#include "data/tokens/sentencepiece/sentencepiece_tokenizer.h"

#include <doctest/doctest.h>
#include <sentencepiece_processor.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/tokens/content_record.h"
#include "data/tokens/token_cache.h"
#include "open_tokenizer.h"
#include "shared_data.h"
#include "support/base64.h"
#include "support/temp_folder.h"
#include "tokenizer_checks.h"

using namespace scaletrain;
using nlohmann::json;

namespace {

using Ids = std::vector<std::int32_t>;

std::string model_of(const json& entry) {
  return from_base64(entry["model"].get<std::string>());
}

json entry_of(const std::string& name) {
  const json all = golden("sentencepiece_small.json");
  for (const json& entry : all["models"])
    if (entry["name"] == name) return entry;
  throw InputError("no model " + name);
}

}  // namespace

TEST_CASE("whatever a sentencepiece model asks for, ids and texts are those of sentencepiece") {
  const json all = golden("sentencepiece_small.json");
  const TempFolder folder;
  const std::set<std::string> without_rules = {"as Llama's", "as Gemma's", "bpe, unknown characters",
                                               "bpe, pieces across words", "characters"};
  for (const json& entry : all["models"]) {
    const auto name = entry["name"].get<std::string>();
    CAPTURE(name);
    const auto tokenizer = open_sentencepiece(folder.write(name + ".model", model_of(entry)));
    const auto begin = entry["special"][0].get<std::int32_t>();
    const auto before = tokenizer->before_document();
    CHECK(Ids(before.begin(), before.end()) == (begin < 0 ? Ids() : Ids{begin}));
    CHECK(tokenizer->end_of_document() == entry["special"][1].get<std::int32_t>());
    int cuts = 0;
    for (const json& example : entry["cases"]) {
      const auto text = example[0].get<std::string>();
      CAPTURE(text);
      const Ids ids = tokenizer->encode(text);
      CHECK(ids == example[1].get<Ids>());
      check_cuts_of_beginnings(*tokenizer, text);
      cuts += tokenizer->safe_cut(text) > 0 ? 1 : 0;
      // The library has a document's text without the space that it put before it. Bytes that make no character are
      // bytes here, U+FFFD there.
      Ids document(before.begin(), before.end());
      document.insert(document.end(), ids.begin(), ids.end());
      const auto expected = example[2].get<std::string>();
      if (without_rules.contains(name) && expected.find("\xef\xbf\xbd") == std::string::npos)
        CHECK(tokenizer->decode(document) == expected);
    }
    CHECK((cuts > 0) == without_rules.contains(name));
    const json& random = entry["bytes"];
    for (std::size_t seed = 0; seed < random.size(); ++seed)
      CHECK(checksum(*tokenizer, random_bytes(seed, 400)) == random[seed]);
  }
}

TEST_CASE("a document that is tokenised in parts has the ids of the whole") {
  const TempFolder folder;
  const auto tokenizer = open_sentencepiece(folder.write("tokenizer.model", model_of(entry_of("as Llama's"))));
  std::string text;
  for (int i = 0; text.size() < (9u << 18); ++i) text += "the 12 cats sat on the mat, word " + std::to_string(i) + "\n";
  sentencepiece::SentencePieceProcessor library;
  REQUIRE(library.Load((folder / "tokenizer.model").string()).ok());
  Ids expected = {1};
  for (const int id : library.EncodeAsIds(text)) expected.push_back(id);
  expected.push_back(2);
  const TextSource source{
      .files = {{folder.write("long.txt", text), TextKind::text}}, .field = "text", .separator = {}};
  ContentRecord record({.source = folder.path(), .folders = {}});
  const auto cache = open_token_cache({source, contents_of(source, record), *tokenizer, record, {}}, folder / "cache");
  Ids found(static_cast<std::size_t>(cache->num_tokens()));
  cache->read(0, found, tokenizer->vocab_size());
  CHECK(found == expected);
}

TEST_CASE("text that is decoded token by token is the text, and a word's space is its own") {
  const TempFolder folder;
  const auto tokenizer = open_sentencepiece(folder.write("tokenizer.model", model_of(entry_of("as Llama's"))));
  const std::string text = "the cat sat on 日本語 \xf0\x9f\x98\x80 x";
  std::string pieces;
  for (const std::int32_t id : tokenizer->encode(text)) pieces += tokenizer->decode(Ids{id});
  CHECK(pieces == " " + text);
  CHECK(tokenizer->decode(Ids{1}).empty());
  CHECK(tokenizer->decode(Ids{2}).empty());
  CHECK_THROWS_WITH_AS(tokenizer->decode(Ids{420}), doctest::Contains("token 420 cannot be decoded"), InputError);
  CHECK_THROWS_AS(tokenizer->decode(Ids{-1}), InputError);
}

TEST_CASE("a text beyond what a model reads as a whole is refused, and one that can be cut is not") {
  const TempFolder folder;
  const std::string text(SentencePieceTokenizer::kLongestWhole + 2, 'e');
  const auto whole = open_sentencepiece(folder.write("u.model", model_of(entry_of("unigram"))));
  CHECK(whole->safe_cut(std::string_view(text).substr(0, 1000)) == 0);
  CHECK_THROWS_WITH_AS(whole->safe_cut(text), doctest::Contains("as a whole, at most 64.0 MiB: split it"), InputError);
  CHECK_THROWS_WITH_AS(whole->encode(text), doctest::Contains((folder / "u.model").c_str()), InputError);
}

TEST_CASE("what is no sentencepiece model is refused with its file") {
  const TempFolder folder;
  const std::string model = model_of(entry_of("as Llama's"));
  const auto message = [&folder](const std::string& bytes) {
    const auto file = folder.write("tokenizer.model", bytes);
    try {
      open_sentencepiece(folder.path());
    } catch (const InputError& error) {
      CHECK(std::string(error.what()).starts_with(file.string() + ": "));
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(message(model) == "accepted");
  CHECK(message("").find("no SentencePiece model") != std::string::npos);
  CHECK(message("{\"model\": {}}").find("no SentencePiece model") != std::string::npos);
  for (std::size_t size = model.size() - 1; size > 0; size -= std::min<std::size_t>(size, 97)) {
    CAPTURE(size);
    CHECK(message(model.substr(0, size)) != "accepted");
  }
  // Field 5: a denormalizer, of which field 2 are rules.
  CHECK(message(model + std::string("\x2a\x03\x12\x01x")).find("a denormalizer with rules is not supported") !=
        std::string::npos);
  const auto small = folder.write("t5.model", model_of(entry_of("unigram as T5's")));
  CHECK(open_sentencepiece(small, 7)->end_of_document() == 7);
  CHECK_THROWS_WITH_AS(open_sentencepiece(small, 420), doctest::Contains("420 is not a token"), UserError);
  CHECK_THROWS_WITH_AS(open_sentencepiece(folder / "nowhere"), doctest::Contains("nowhere"), InputError);
}

TEST_CASE("models and ends that give other tokens have other hashes, and one model is one wherever it lies") {
  const TempFolder folder;
  const auto a = folder.write("a/tokenizer.model", model_of(entry_of("as Llama's")));
  const auto b = folder.write("b.model", model_of(entry_of("as Llama's")));
  const auto other = folder.write("c.model", model_of(entry_of("bpe, space behind")));
  CHECK(open_sentencepiece(folder / "a")->hash() == open_sentencepiece(b)->hash());
  CHECK(open_sentencepiece(a)->hash() != open_sentencepiece(a, 7)->hash());
  CHECK(open_sentencepiece(a)->hash() != open_sentencepiece(other)->hash());
  CHECK(open_sentencepiece(folder / "a")->files() == std::vector<std::filesystem::path>{a});
}
