// Byte-level BPE by itself: what its files may say, how text is cut, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/dataset.h"
#include "data/tokens/bpe/added_tokens.h"
#include "data/tokens/bpe/bpe_merges.h"
#include "data/tokens/bpe/bpe_spec.h"
#include "data/tokens/bpe/bpe_tokenizer.h"
#include "data/tokens/bpe/split_pattern.h"
#include "data/tokens/bpe/unicode.h"
#include "data/tokens/tokenizer.h"
#include "open_tokenizer.h"
#include "shared_data.h"
#include "support/temp_folder.h"

using namespace scaletrain;
using nlohmann::json;

namespace {

// Of each byte the character that stands for it, in order.
std::vector<std::string> byte_characters() {
  std::vector<std::string> out;
  char32_t moved = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    append_utf8(is_itself ? byte : moved++, out.emplace_back());
  }
  return out;
}

// Bytes have their own ids; "aa" and "aaaa" follow, then the end of a document.
json small_tokenizer() {
  json vocab = json::object();
  std::int64_t next = 0;
  for (const std::string& character : byte_characters()) vocab[character] = next++;
  vocab["aa"] = next++;
  vocab["aaaa"] = next++;
  return json{
      {"added_tokens", json::array({{{"id", next}, {"content", "<|endoftext|>"}, {"special", true}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array({"a a", json::array({"aa", "aa"})})}}}};
}

std::unique_ptr<Tokenizer> open_json(const json& content) {
  const TempFolder folder;
  return open_bpe(folder.write("tokenizer.json", content.dump()));
}

// What is said of a tokenizer.json in which the value at `pointer` is another one; without the file's name.
std::string refusal(const std::string& pointer, const json& value) {
  json content = small_tokenizer();
  content[json::json_pointer(pointer)] = value;
  try {
    open_json(content);
  } catch (const InputError& error) {
    const std::string text = error.what();
    const std::string name = "tokenizer.json: ";
    REQUIRE(text.find(name) != std::string::npos);
    return text.substr(text.find(name) + name.size());
  }
  return "accepted";
}

std::string pattern_error(const std::string& pattern) {
  try {
    SplitPattern made(pattern);
  } catch (const PatternError& error) {
    return error.what();
  }
  return "accepted";
}

// The matches of a pattern in a text, each in [ ].
std::string matches(const std::string& pattern, const std::string& text) {
  const SplitPattern made(pattern);
  std::string out;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    if (const char* stop = made.match(at, end)) {
      out += "[" + std::string(at, stop) + "]";
      at = stop;
    } else {
      const int length = decode_utf8(at).length;
      out.append(at, static_cast<std::size_t>(length));
      at += length;
    }
  }
  return out;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("what a tokenizer.json asks for and is not supported is refused by name and place") {
  CHECK(refusal("/version", "1.0") == "accepted");
  CHECK(refusal("/normalizer", {{"type", "NFKC"}}) ==
        "normalizer: the normalizer \"NFKC\" is not supported; only NFC is");
  CHECK(says(
      refusal("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Lowercase"}}}}}),
      "normalizer.normalizers[1]: the normalizer \"Lowercase\""));
  CHECK(says(refusal("/pre_tokenizer", {{"type", "Metaspace"}}), "pre_tokenizer: the pre-tokenizer \"Metaspace\""));
  CHECK(says(refusal("/pre_tokenizer", nullptr), "pre_tokenizer: has no ByteLevel"));
  CHECK(says(refusal("/pre_tokenizer",
                     {{"type", "Sequence"},
                      {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}, {"individual_digits", true}}}}}),
             "pre_tokenizer.pretokenizers[1]: Digits behind ByteLevel"));
  const auto split = [](const json& pattern, const char* behavior) {
    return json{{"type", "Sequence"},
                {"pretokenizers",
                 {{{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", false}},
                  {{"type", "ByteLevel"}}}}};
  };
  CHECK(refusal("/pre_tokenizer", split({{"Regex", "a+"}}, "Isolated")) == "accepted");
  CHECK(refusal("/pre_tokenizer", split({{"Regex", R"(\bx)"}}, "Isolated")) ==
        "pre_tokenizer.pretokenizers[0].pattern: at byte 1 of the pattern: \\b is not supported");
  CHECK(says(refusal("/pre_tokenizer", split({{"Regex", "a"}}, "Sideways")), "behavior: \"Sideways\" is none"));
  CHECK(says(refusal("/post_processor", {{"type", "BertProcessing"}}), "post_processor: the post-processor \"BertPro"));
  CHECK(says(refusal("/decoder", {{"type", "WordPiece"}}), "decoder: the decoder \"WordPiece\""));
  CHECK(says(refusal("/decoder", nullptr), "decoder: there is none"));
  CHECK(says(refusal("/truncation", {{"max_length", 5}}), "truncation: is not supported"));
  CHECK(says(refusal("/padding", {{"length", 5}}), "padding: is not supported"));
  CHECK(says(refusal("/model/type", "WordPiece"), "model: the model \"WordPiece\""));
  CHECK(says(refusal("/model/dropout", 0.1), "model.dropout"));
  CHECK(says(refusal("/model/byte_fallback", true), "model.byte_fallback"));
  CHECK(says(refusal("/model/end_of_word_suffix", "</w>"), "model.end_of_word_suffix"));
  CHECK(says(refusal("/model/continuing_subword_prefix", "##"), "model.continuing_subword_prefix"));
  CHECK(says(refusal("/model/merges", {"a a", "a zz"}), "model.merges[1]: \"zz\" is not in the vocabulary"));
  CHECK(says(refusal("/model/merges", {"a a a"}), "model.merges[0]: \"a a a\" is not two tokens"));
  CHECK(says(refusal("/model/merges", {3}), "model.merges[0]: is neither"));
  CHECK(says(refusal("/model/vocab/a", -1), "model.vocab: the id -1 of \"a\""));
  CHECK(says(refusal("/model/vocab/a", 1541), "model.vocab: the id 1541 of \"a\" is not between 0 and 1540"));
  CHECK(says(refusal("/model/vocab/a", 98), "two tokens have the id 98"));
  CHECK(says(refusal("/model/vocab", {{"a", 0}, {"aa", 1}, {"aaaa", 2}}), "no token stands for the byte 0x00"));
  CHECK(says(refusal("/added_tokens/0/id", 97), "the id 97 of \"<|endoftext|>\" is another token's"));
  CHECK(says(refusal("/added_tokens/0/id", 260), "the id of \"<|endoftext|>\" is 260, but tokenizers takes 258"));
  CHECK(says(refusal("/added_tokens/1", {{"id", 258}, {"content", "<s>"}}), "have the id 258"));
  CHECK(says(refusal("/added_tokens/1", {{"id", 259}, {"content", "<|endoftext|>"}}), "is added twice"));
  CHECK(refusal("/added_tokens/1", {{"id", 259}, {"content", "<s>"}}) == "accepted");
  const json spaces = {{"id", 259}, {"content", " \xc2\xa0"}, {"rstrip", true}};
  CHECK(says(refusal("/added_tokens/1", spaces), "added_tokens[1]: \" \xc2\xa0\" is white space and takes"));
  CHECK(says(refusal("/added_tokens/1", {{"id", 259}, {"content", "\n"}, {"lstrip", true}}), "is white space"));
  CHECK(refusal("/added_tokens/1", {{"id", 259}, {"content", "\n"}}) == "accepted");
  CHECK(refusal("/added_tokens/1", {{"id", 259}, {"content", " x"}, {"lstrip", true}}) == "accepted");
  CHECK(says(refusal("/model/vocab/<| |>", 258), "the id 258 of \"<|endoftext|>\" is another token's"));
  CHECK(says(refusal("/added_tokens/0/content", "<|x|>"), "which token ends a document"));
  CHECK(says(refusal("/added_tokens/0/content", "a"), "\"a\" has the id 258 here and 97 in model.vocab"));
}

TEST_CASE("added tokens that nfc makes one are refused") {
  json content = small_tokenizer();
  content["normalizer"] = {{"type", "NFC"}};
  content["added_tokens"].push_back({{"id", 259}, {"content", "\xc3\xaa\xcc\x81"}});
  content["added_tokens"].push_back({{"id", 260}, {"content", "\xe1\xba\xbf"}, {"normalized", false}});
  CHECK(open_json(content)->encode("\xc3\xaa\xcc\x81\xe1\xba\xbf") == std::vector<std::int32_t>{259, 260});
  content["added_tokens"][2]["normalized"] = true;
  CHECK_THROWS_WITH_AS(open_json(content), doctest::Contains("is added twice: the normalizer NFC"), InputError);
  content["normalizer"] = nullptr;
  CHECK(open_json(content)->encode("\xc3\xaa\xcc\x81\xe1\xba\xbf") == std::vector<std::int32_t>{259, 260});
}

TEST_CASE("more merges than a rank can count are refused") {
  const TempFolder folder;
  folder.write("vocab.json", small_tokenizer()["model"]["vocab"].dump());
  folder.write("merges.txt", std::string(BpeMerges::kMaxMerges + 1, '\n'));
  CHECK_THROWS_WITH_AS(open_bpe(folder.path()), doctest::Contains("merges.txt: holds 16777217 merges; at most"),
                       InputError);
}

TEST_CASE("ids and merges of a small tokenizer are as written") {
  const auto tokenizer = open_json(small_tokenizer());
  CHECK(tokenizer->vocab_size() == 259);
  CHECK(tokenizer->end_of_document() == 258);
  CHECK(tokenizer->encode("aaaaaaa b") == std::vector<std::int32_t>{257, 256, 97, 32, 98});
  CHECK(tokenizer->encode("b<|endoftext|>b") == std::vector<std::int32_t>{98, 258, 98});
  CHECK(tokenizer->decode(std::vector<std::int32_t>{257, 258, 98}) == "aaaab");
  CHECK(tokenizer->encode("").empty());
  CHECK_THROWS_AS(tokenizer->decode(std::vector<std::int32_t>{259}), InputError);
  CHECK_THROWS_AS(tokenizer->decode(std::vector<std::int32_t>{-1}), InputError);
}

TEST_CASE("text that is no utf-8 is read as if U+FFFD stood for what is malformed") {
  const auto tokenizer = open_json(small_tokenizer());
  const std::string mark = "\xef\xbf\xbd";
  const std::pair<std::string, std::string> cases[] = {
      {"a\xff"
       "b",
       "a" + mark + "b"},
      {"\xc3", mark},
      {"\xe2\x82", mark},
      {"\xe2\x82"
       "a",
       mark + "a"},
      {"\xf0\x9f\x98", mark},
      {"\xc0\xaf", mark + mark},
      {"\xed\xa0\x80", mark + mark + mark},
      {"\xf5\x80", mark + mark},
      {"\xe0\x80\x80", mark + mark + mark},
      {"\xf4\x90\x80\x80", mark + mark + mark + mark},
      {"\x80\x80", mark + mark},
      {"\xc3\xc3\xa9", mark + "\xc3\xa9"},
  };
  for (const auto& [text, read] : cases) {
    CHECK(tokenizer->encode(text) == tokenizer->encode(read));
    CHECK(tokenizer->decode(tokenizer->encode(text)) == read);
  }
}

TEST_CASE("a long run takes no quadratic time, and long and short pieces are merged alike") {
  // A quadratic path takes hours here.
  const auto tokenizer = open_json(small_tokenizer());
  const std::string million(1u << 20, 'a');
  const auto ids = tokenizer->encode(million);
  CHECK(ids == std::vector<std::int32_t>(million.size() / 4, 257));
  for (const char* one : {" ", "\n", "1", "!", "\xcc\x81"}) {
    std::string text;
    while (text.size() < 1u << 20) text += one;
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  }
  // Around the length where the method changes, with merges whose order matters.
  BpeModel model;
  for (const char* token : {"a", "b", "ab", "ba", "aba", "abab", "bb"}) model.tokens.emplace_back(token);
  model.merges = {{1, 0, 3}, {0, 3, 4}, {0, 1, 2}, {2, 2, 5}, {1, 1, 6}};
  model.unknown = 0;
  const BpeMerges merges(model);
  BpeMerges::Workspace workspace;
  const auto encode = [&](const std::string& text) {
    std::vector<std::int32_t> out;
    merges.encode(text, text.data() + text.size(), workspace, out);
    return out;
  };
  // By the rule itself: the lowest rank, of these the leftmost.
  const auto expected = [&](const std::string& text) {
    std::vector<std::int32_t> out;
    for (const char c : text) out.push_back(c == 'a' ? 0 : 1);
    for (;;) {
      std::size_t best = model.merges.size();
      std::size_t place = 0;
      for (std::size_t i = 0; i + 1 < out.size(); ++i) {
        for (std::size_t rank = 0; rank < best; ++rank) {
          if (model.merges[rank].left == out[i] && model.merges[rank].right == out[i + 1]) {
            best = rank;
            place = i;
          }
        }
      }
      if (best == model.merges.size()) return out;
      out[place] = model.merges[best].whole;
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
  };
  std::uint32_t state = 1;
  for (std::size_t size = 1; size < 200; ++size) {
    std::string text;
    for (std::size_t i = 0; i < size; ++i)
      text.push_back((state = state * 1664525 + 1013904223) >> 30 == 0 ? 'b' : 'a');
    CHECK(encode(text) == expected(text));
    CHECK(encode(text) == expected(text));  // from the cache
  }
}

TEST_CASE("gpt-2's vocabulary and merges are read by the names that are in use, and from a folder") {
  const TempFolder folder;
  json vocab = small_tokenizer()["model"]["vocab"];
  vocab["<|endoftext|>"] = 258;
  folder.write("one/vocab.json", vocab.dump());
  folder.write("one/merges.txt", "#version: 0.2\na a\r\naa aa\n");
  folder.write("two/encoder.json", vocab.dump());
  folder.write("two/vocab.bpe", "#version: 0.2\na a\naa aa\n");
  for (const char* path : {"one", "one/vocab.json", "one/merges.txt", "two", "two/encoder.json", "two/vocab.bpe"}) {
    CAPTURE(path);
    const auto tokenizer = open_bpe(folder / path);
    CHECK(tokenizer->encode("aaaab<|endoftext|>") == std::vector<std::int32_t>{257, 98, 258});
    CHECK(tokenizer->end_of_document() == 258);
    CHECK(tokenizer->files().size() == 2);
  }
  folder.write("three/vocab.json", vocab.dump());
  folder.write("three/merges.txt", "#version: 0.2\na a\naa a\n");
  CHECK_THROWS_WITH_AS(open_bpe(folder / "three"), doctest::Contains("merges.txt:3: \"aaa\" is not in the vocabulary"),
                       InputError);
  folder.write("cut/vocab.json", vocab.dump());
  folder.write("cut/merges.txt", "#version: 0.2\na a\n");
  CHECK_THROWS_WITH_AS(open_bpe(folder / "cut"), doctest::Contains("merges.txt: has 1 merges, but 1 tokens of "),
                       InputError);
  CHECK_THROWS_WITH_AS(open_bpe(folder / "cut"),
                       doctest::Contains("vocab.json are made by none (first: \"aaaa\"): is the file complete?"),
                       InputError);
  folder.write("four/tokenizer.model", "x");
  CHECK_THROWS_WITH_AS(open_bpe(folder / "four"), doctest::Contains("(tokenizer.model); write sentencepiece"),
                       UserError);
  CHECK_THROWS_WITH_AS(open_bpe(folder / "four/tokenizer.model"),
                       doctest::Contains("is a SentencePiece model; write sentencepiece"), UserError);
  CHECK_THROWS_WITH_AS(open_bpe(folder.path()), doctest::Contains("holds no tokenizer"), InputError);
  CHECK_THROWS_AS(open_bpe(folder / "nothing.json"), InputError);
}

TEST_CASE("a bpe tokenizer's hash is that of its files and of the end of a document") {
  const TempFolder folder;
  json content = small_tokenizer();
  const auto file = folder.write("tokenizer.json", content.dump());
  const std::uint64_t hash = open_bpe(file)->hash();
  CHECK(open_bpe(folder.path())->hash() == hash);
  CHECK(open_bpe(file, 5)->hash() != hash);
  CHECK(open_bpe(file, 5)->end_of_document() == 5);
  CHECK(says(open_bpe(file)->description(), ", rules 1"));  // and of the rules by which they are read
  CHECK_THROWS_WITH_AS(open_bpe(file, 259), doctest::Contains("data.tokenizer.end_of_document"), UserError);
  content["model"]["merges"].erase(1);
  CHECK(open_json(content)->hash() != hash);
}

TEST_CASE("added tokens beyond the model's vocabulary are refused, and a larger vocabulary is not") {
  const TempFolder folder;
  TokenizerConfig config;
  config.type = TokenizerKind::bpe;
  config.path = folder.write("tokenizer.json", small_tokenizer().dump()).string();
  CHECK_THROWS_WITH_AS(make_tokenizer(config, 258), doctest::Contains("model.vocab: 258 is too small"), UserError);
  CHECK(make_tokenizer(config, 300)->vocab_size() == 259);
}

TEST_CASE("a document that is encoded in parts has the ids of the whole, and its beginning and end once") {
  const TempFolder folder;
  json content = small_tokenizer();
  content["added_tokens"].push_back({{"id", 259}, {"content", "<s>"}, {"special", true}});
  content["post_processor"] = {{"type", "TemplateProcessing"},
                               {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                               {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {259}}}}}}};
  const auto tokenizer = open_bpe(folder.write("tokenizer.json", content.dump()));
  std::string document;
  while (document.size() < 5u << 20) document += "aaaa b, 12  aa\n\n\xe6\x97\xa5 \xe6\x9c\xac<|endoftext|> a";
  std::vector<std::int32_t> expected = {259};
  const auto ids = tokenizer->encode(document);
  expected.insert(expected.end(), ids.begin(), ids.end());
  expected.push_back(258);

  DataConfig config;
  config.cache = (folder / "cache").string();
  ValidationConfig set;
  set.path = folder.write("text.txt", document).string();
  const auto data =
      open_validation_set(set, config, *tokenizer, {.vocab = 260, .context = 1000, .seed = 1, .report = {}}, "v");
  std::vector<std::int32_t> read;
  std::vector<std::int32_t> inputs(1000);
  std::vector<std::int32_t> targets(1000);
  std::vector<std::int32_t> starts;
  for (std::int64_t n = 0; n < data->num_samples(); ++n) {
    data->read_sample(n, inputs, targets, starts);
    read.insert(read.end(), inputs.begin(), inputs.end());
  }
  REQUIRE(read.size() >= expected.size() - 1);
  CHECK(std::equal(expected.begin(), expected.end() - 1, read.begin()));  // the last one is a target only
  std::size_t last = 0;
  while (last < 1000 && targets[last] != -1) ++last;
  CHECK(targets[last - 1] == 258);
}

TEST_CASE("patterns mean what they mean in Oniguruma") {
  CHECK(matches(kGpt2Pattern, "I'm 42  years'S.\n") == "[I]['m][ 42][ ][ years]['][S][.][\n]");
  CHECK(matches("(?i:'s|k)",
                "'S'\xc5\xbf"
                "K\xe2\x84\xaa'x") == "['S]['\xc5\xbf][K][\xe2\x84\xaa]'x");
  CHECK(matches(R"(a{2,3}b?)", "aaaaab") == "[aaa][aab]");
  CHECK(matches(R"(a++a)", "aaa") == "aaa");
  CHECK(matches(R"(a+a)", "aaa") == "[aaa]");
  CHECK(matches(R"((?:ab|a)(?:c|bcd))", "abcd") == "[abc]d");
  CHECK(matches(R"((?:ab){1,2}c)", "ababc abc") == "[ababc] [abc]");
  CHECK(matches(R"([^\P{Lu}B-D]x)", "AxBxax\xc3\x89x") == "[Ax]Bxax[\xc3\x89x]");
  CHECK(matches(R"(a(?=b)|b(?!b))", "abba") == "[a]b[b]a");
  CHECK(matches(R"(a(?!\S))", "a ab a") == "[a] ab [a]");
  CHECK(matches(R"([\x41\u0042\]\-a-])", "AB]-ac") == "[A][B][]][-][a]c");
  CHECK(matches(R"(\p{^L}|\d)", "a1") == "a[1]");
  CHECK(matches(R"(.+)", "ab\ncd") == "[ab]\n[cd]");
}

TEST_CASE("patterns beyond what is supported are refused with their place") {
  CHECK(says(pattern_error("a*"), "matches the empty text"));
  CHECK(says(pattern_error("a|"), "matches the empty text"));
  CHECK(says(pattern_error("(?<=a)b"), "this group is not supported"));
  CHECK(says(pattern_error("^a"), "anchors"));
  CHECK(says(pattern_error("a$"), "anchors"));
  CHECK(pattern_error("ab+?") == "at byte 4 of the pattern: lazy repetition is not supported");
  CHECK(says(pattern_error(R"(\w)"), "\\w is not supported"));
  CHECK(says(pattern_error(R"((a)\1)"), "\\1 is not supported"));
  CHECK(says(pattern_error(R"(\p{Han})"), "the property Han"));
  CHECK(says(pattern_error("[a&&b]"), "intersection"));
  CHECK(says(pattern_error("[a[b]]"), "class within a class"));
  CHECK(says(pattern_error("(ab)+"), "repeats without end"));
  CHECK(says(pattern_error("(?!ab)c"), "lookahead at more than one"));
  CHECK(says(pattern_error("(?i:\xc3\xa9)"), "beyond ASCII"));
  CHECK(says(pattern_error("(?i:ss)"), "ss, st"));
  CHECK(says(pattern_error("a{3,2}"), "count"));
  CHECK(says(pattern_error("(a"), "nothing closes"));
  CHECK(says(pattern_error("a)"), "closes nothing"));
  CHECK(says(pattern_error("[a"), "too early"));
  CHECK(says(pattern_error("+a"), "repetition of nothing"));
  CHECK(says(pattern_error("\xff"), "no UTF-8"));
  CHECK(says(pattern_error(std::string(100, '(')), "nested too deeply"));
}

TEST_CASE("nfc composes, orders and leaves alone") {
  CHECK_FALSE(normalize_nfc("plain \xc3\xa9 \xe6\x97\xa5").has_value());
  CHECK(normalize_nfc("xe\xcc\x81y") == "x\xc3\xa9y");
  CHECK(normalize_nfc("q\xcc\x87\xcc\xa3") == "q\xcc\xa3\xcc\x87");                // a lower class first
  CHECK(normalize_nfc("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8") == "\xea\xb0\x81");  // Hangul
  CHECK(normalize_nfc("\xe2\x84\xab") == "\xc3\x85");                              // the sign of angstrom
  CHECK(normalize_nfc("\xe0\xa5\x98") == "\xe0\xa4\x95\xe0\xa4\xbc");              // excluded from composition
}

TEST_CASE("a text of a language without spaces is cut as well, and what cannot be is not") {
  if (!is_shared_data_present("tokenizers")) return;
  const Tokenizer& tokenizer = real_tokenizer("qwen3");
  const std::string chinese = "\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x8c\xe4\xb8\x96\xe7\x95\x8c\xe3\x80\x82";
  CHECK(tokenizer.safe_cut(chinese) > 0);
  CHECK(tokenizer.safe_cut("one two\xe4\xbd") == 3);  // in the midst of a character
  CHECK(tokenizer.safe_cut(std::string(100, 'a')) == 0);
  CHECK(tokenizer.safe_cut("<|endoftext|>") == 0);
  CHECK(tokenizer.safe_cut("\xff\xff") == 0);
}
