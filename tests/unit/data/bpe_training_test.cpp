// Merges against Hugging Face's BpeTrainer; tests/golden/tokenizers/make_training_golden.py has made the expected ones.
#include "data/tokens/bpe/bpe_training.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer_training.h"
#include "open_tokenizer.h"
#include "shared_data.h"
#include "support/temp_folder.h"
#include "tokenizer_checks.h"

using namespace scaletrain;
using nlohmann::json;

namespace {

std::vector<PieceCount> pieces_of(const std::vector<std::string>& texts, BpePattern pattern, int threads = 1) {
  PieceCounter counter(text_of(pattern), threads);
  for (const std::string& text : texts) {
    counter.add(text);
    counter.end_document();
  }
  return counter.finish();
}

using Merges = std::vector<std::vector<std::string>>;

Merges merges_of(const TrainedBpe& trained) {
  Merges out;
  for (const auto& [left, right] : trained.merges)
    out.push_back({trained.tokens[static_cast<std::size_t>(left)], trained.tokens[static_cast<std::size_t>(right)]});
  return out;
}

BpePattern pattern_of(const std::string& name) {
  return name == "gpt2" ? BpePattern::gpt2 : BpePattern::llama3;
}

bool is_same(const std::vector<PieceCount>& a, const std::vector<PieceCount>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const PieceCount& x, const PieceCount& y) { return x.piece == y.piece && x.count == y.count; });
}

// A long text in which words come at different rates.
std::string long_text(std::size_t size) {
  std::string out;
  for (std::uint32_t state = 1; out.size() < size; state = state * 1664525u + 1013904223u)
    out += (state >> 30 == 0 ? "\nword" : " the") + std::to_string((state >> 20) % 300) + "'s, \xc3\xa9t\xc3\xa9!";
  return out;
}

}  // namespace

TEST_CASE("training finds the merges of tokenizers' trainer, ties and special tokens with them") {
  const json all = golden("training.json");
  const TempFolder folder;
  for (const json& entry : all["cases"]) {
    const auto name = entry["name"].get<std::string>();
    CAPTURE(name);
    const BpePattern pattern = pattern_of(entry["pattern"].get<std::string>());
    const auto texts = entry["texts"].get<std::vector<std::string>>();
    const TrainedBpe trained =
        train_bpe(pieces_of(texts, pattern), {.vocab = entry["vocab"].get<std::int64_t>(),
                                              .special = entry["special"],
                                              .least_count = entry["least"].get<std::uint64_t>()});
    CHECK(merges_of(trained) == entry["merges"].get<Merges>());
    // And it is a tokenizer of ours, of which every text comes back.
    const auto file = folder.write("tokenizer.json", tokenizer_json(trained, pattern));
    const auto tokenizer = open_bpe(file, 0);
    CHECK(tokenizer->vocab_size() == static_cast<std::int64_t>(trained.tokens.size()));
    if (name == "text of a special token") continue;
    for (const std::string& text : texts) {
      if (text.find("<|endoftext|>") != std::string::npos) continue;
      CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
    }
  }
}

TEST_CASE("training finds the merges of tokenizers' trainer on real text, with any number of threads") {
  if (!is_shared_data_present("text")) return;
  const json all = golden("training.json");
  for (const auto& item : all["shared"].items()) {
    const std::string& name = item.key();
    CAPTURE(name);
    TokenizerTrainingRequest request;
    for (const char* file : {"wikitext2-valid.txt", "wikitext2-test.txt", "tinyshakespeare.txt"})
      request.sources.push_back(shared_data(std::string("text/") + file).string());
    request.pattern = pattern_of(name);
    request.options = {.vocab = 16000, .special = {"<|endoftext|>"}};
    for (const int threads : {1, 3}) {
      request.threads = threads;
      const TokenizerTrainingResult result = train_tokenizer(request);
      CHECK(result.documents == 3);
      Checksum sum;
      for (const auto& merge : merges_of(result.trained)) sum.add_bytes(merge[0] + " " + merge[1] + "\n");
      CHECK(result.trained.merges.size() == item.value()[0]);
      CHECK(sum.value() == item.value()[1]);
    }
  }
}

TEST_CASE("pieces are counted alike however a text comes and by however many threads") {
  const std::string text = long_text(5u << 20);
  for (const BpePattern pattern : {BpePattern::gpt2, BpePattern::llama3}) {
    const auto whole = pieces_of({text}, pattern);
    CHECK(whole.size() > 300);
    PieceCounter counter(text_of(pattern), 4);
    for (std::size_t at = 0; at < text.size(); at += 65537) counter.add(std::string_view(text).substr(at, 65537));
    CHECK(is_same(counter.finish(), whole));
    // Counted by hand: what is cut in parts lacks nothing.
    std::uint64_t bytes = 0;
    for (const PieceCount& piece : whole) bytes += piece.count * piece.piece.size();
    CHECK(bytes == text.size());
  }
}

TEST_CASE("a text that can be cut nowhere, and one that is no utf-8, are counted") {
  const std::string letters(3u << 20, 'e');
  const auto one = pieces_of({letters, letters}, BpePattern::gpt2, 2);
  REQUIRE(one.size() == 1);
  CHECK((one[0].count == 2 && one[0].piece == letters));
  const auto broken = pieces_of({"a\xff", ""}, BpePattern::gpt2);
  REQUIRE(broken.size() == 2);
  CHECK(broken[1].piece == "\xef\xbf\xbd");
}

TEST_CASE("training ends where no pair is left, and says what it cannot do") {
  const TrainedBpe trained = train_bpe({{"abab", 3}}, {.vocab = 1000, .special = {"<|endoftext|>"}});
  CHECK(merges_of(trained) == Merges{{"a", "b"}, {"ab", "ab"}});
  CHECK(trained.tokens.size() == 259);
  const auto message = [](const BpeTrainingOptions& options) {
    try {
      train_bpe({}, options);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(message({.vocab = 258, .special = {"<a>", "<b>"}}) == "accepted");
  CHECK(message({.vocab = 257, .special = {"<a>", "<b>"}}) ==
        "--vocab: 257 is too small: the 2 special tokens and 256 bytes are 258");
  CHECK(message({.vocab = 300, .special = {"<a>", "<a>"}}).find("\"<a>\" is there twice") != std::string::npos);
  CHECK(message({.vocab = 300, .special = {"a"}}).find("is the name of a byte's token") != std::string::npos);
  CHECK(message({.vocab = 300, .special = {""}}).find("is no text") != std::string::npos);
  TokenizerTrainingRequest request;
  const TempFolder folder;
  request.sources = {folder.write("empty.txt", "").string()};
  request.options = {.vocab = 300};
  CHECK_THROWS_WITH_AS(train_tokenizer(request), doctest::Contains("they hold no text"), InputError);
}

TEST_CASE("the fields of jsonl and separated text are documents, which no piece reaches across") {
  const TempFolder folder;
  TokenizerTrainingRequest request;
  request.sources = {folder.write("a.jsonl", "{\"text\": \"xy\"}\n{\"text\": \"xy\"}\n").string()};
  request.options = {.vocab = 300};
  const TokenizerTrainingResult result = train_tokenizer(request);
  CHECK((result.documents == 2 && result.bytes == 4 && result.pieces == 1));
  CHECK(merges_of(result.trained) == Merges{{"x", "y"}});
}
