// Tokenizers as files for other programs: bytes and SentencePiece as a tokenizer.json, and what lies beside them.
#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "data/tokens/bpe/bpe_tokenizer.h"
#include "data/tokens/bpe/byte_spelling.h"
#include "data/tokens/companion_files.h"
#include "data/tokens/sentencepiece/sentencepiece_json.h"
#include "data/tokens/sentencepiece/sentencepiece_tokenizer.h"
#include "shared_data.h"
#include "support/temp_folder.h"
#include "support/text.h"

namespace scaletrain {
namespace {

const std::vector<std::string> texts = {"Hello world, it's 12345 o'clock",
                                        "  two  spaces\n\n  and a tab\t!",
                                        "na\u00efve \u65e5\u672c\u8a9e \U0001F600 x",
                                        "",
                                        "a",
                                        "    ",
                                        "\n\n\n",
                                        "The quick brown fox.  It jumped over\r\nthe lazy dog, twice; (or thrice?)"};

TEST_CASE("the_tokenizer_json_of_bytes_gives_the_ids_of_bytes") {
  const BpeTokenizer read(parse_tokenizer_json(byte_tokenizer_json(), "made"), std::nullopt);
  const ByteTokenizer bytes;
  CHECK(read.vocab_size() == bytes.vocab_size());
  CHECK(read.end_of_document() == bytes.end_of_document());
  CHECK(read.before_document().empty());
  std::string all;
  for (int byte = 0; byte < 128; ++byte) all.push_back(static_cast<char>(byte));
  for (const std::string& text : texts) all += text;
  CHECK(read.encode(all) == bytes.encode(all));
  CHECK(read.decode(bytes.encode(all)) == all);
  // What other readers do with a special token's name too.
  CHECK(read.encode(kByteEndName) == std::vector<std::int32_t>{ByteTokenizer::kEndOfDocument});
}

// tokenizers' BPE in the plainest way: of all neighbours the pair of the lowest rank first, the leftmost of equals.
class PlainBpe {
 public:
  explicit PlainBpe(const nlohmann::json& file) : vocab_(file["model"]["vocab"].get<std::map<std::string, int>>()) {
    int rank = 0;
    for (const nlohmann::json& merge : file["model"]["merges"]) ranks_[{merge[0], merge[1]}] = rank++;
    for (const nlohmann::json& step : file["normalizer"]["normalizers"])
      if (step["type"] == "Prepend") prefix_ = step["prepend"];
  }

  std::vector<std::int32_t> encode(const std::string& text) const {
    std::vector<std::string> symbols;
    for (const char c : text.empty() ? text : prefix_ + spaced(text)) {
      const bool continues = (static_cast<unsigned char>(c) & 0xc0) == 0x80;
      if (!continues) symbols.emplace_back();
      symbols.back() += c;
    }
    while (merge_one(symbols)) {
    }
    std::vector<std::int32_t> ids;
    for (const std::string& symbol : symbols) append(symbol, ids);
    return ids;
  }

 private:
  static std::string spaced(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == ' ' ? std::string("\xe2\x96\x81") : std::string(1, c);
    return out;
  }
  bool merge_one(std::vector<std::string>& symbols) const {
    std::size_t best = 0;
    int best_rank = -1;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks_.find({symbols[i], symbols[i + 1]});
      if (found == ranks_.end() || (best_rank >= 0 && found->second >= best_rank)) continue;
      best = i;
      best_rank = found->second;
    }
    if (best_rank < 0) return false;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    return true;
  }
  void append(const std::string& symbol, std::vector<std::int32_t>& ids) const {
    if (const auto found = vocab_.find(symbol); found != vocab_.end()) return ids.push_back(found->second);
    for (const char c : symbol) {
      constexpr const char* digits = "0123456789ABCDEF";
      const auto byte = static_cast<unsigned char>(c);
      ids.push_back(vocab_.at(std::string("<0x") + digits[byte >> 4] + digits[byte & 15] + ">"));
    }
  }

  std::map<std::string, int> vocab_;
  std::map<std::pair<std::string, std::string>, int> ranks_;
  std::string prefix_;
};

TEST_CASE("the_tokenizer_json_of_a_sentencepiece_model_gives_its_ids") {
  if (!is_shared_data_present("tokenizers/llama2") || !is_shared_data_present("text/wikitext2-valid.txt")) return;
  const std::filesystem::path file = shared_data("tokenizers/llama2") / "tokenizer.model";
  const SentencePieceTokenizer tokenizer(file, std::nullopt);
  const SentencePieceModel model = parse_sentencepiece_model(read_text_file(file, 1 << 28), "model");
  const auto text = sentencepiece_json(model, 1);
  REQUIRE(text);
  const nlohmann::json json = parse_json(*text, "made");
  CHECK(json["model"]["byte_fallback"] == true);
  CHECK(json["post_processor"]["single"][0]["SpecialToken"]["id"] == "<s>");
  CHECK(json["added_tokens"].size() == 3);
  const PlainBpe plain(json);
  for (const std::string& one : texts) {
    CAPTURE(one);
    CHECK(plain.encode(one) == tokenizer.encode(one));
  }
  std::string prose = read_text_file(shared_data("text/wikitext2-valid.txt"), 1 << 28).substr(0, 20000);
  for (std::size_t at = 0; at + 400 < prose.size(); at += 400) {
    const std::string part = "x" + prose.substr(at, 400);
    if (!first_invalid_utf8(part)) CHECK(plain.encode(part) == tokenizer.encode(part));
  }
  // Others have none.
  SentencePieceModel other = model;
  other.kind = SentencePieceModel::Kind::unigram;
  CHECK_FALSE(sentencepiece_json(other, 1));
  other = model;
  other.has_rules = true;
  CHECK_FALSE(sentencepiece_json(other, 1));
}

TEST_CASE("what_lies_beside_a_tokenizer_is_found_and_looked_at") {
  const TempFolder folder;
  CHECK(companion_files(folder.path()).empty());
  folder.write("chat_template.jinja", "{{ messages }}");
  folder.write("tokenizer_config.json", "{}");
  folder.write("config.json", "{}");
  const std::vector<std::filesystem::path> found = companion_files(folder.path());
  REQUIRE(found.size() == 2);
  CHECK(found[0].filename() == "tokenizer_config.json");
  CHECK(found[1].filename() == "chat_template.jinja");
  CHECK(is_companion_name("generation_config.json"));
  CHECK_FALSE(is_companion_name("tokenizer.json"));
  check_companion("tokenizer_config.json", "{}", "here");
  check_companion("chat_template.jinja", "{{ no JSON", "here");
  const auto refusal = [](const char* name, const char* content) {
    return message_of<InputError>([&] { check_companion(name, content, "here"); });
  };
  CHECK(contains(refusal("tokenizer_config.json", "[]"), "here: is no JSON object; mend or remove the file"));
  CHECK(contains(refusal("added_tokens.json", "{"), "here"));
  CHECK(contains(refusal("chat_template.jinja", "\xff"), "here: is no UTF-8 at byte 0"));
}

}  // namespace
}  // namespace scaletrain
