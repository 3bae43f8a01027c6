#include "data/tokens/bpe/bpe_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr JsonLimits kLimits{.depth = 64, .bytes = 256ull << 20};
constexpr std::int64_t kMaxId = (1 << 22) - 1;  // published vocabularies end at 2^18
// Memory grows with the largest id: a vocabulary may leave out so many, and as many as it has.
constexpr std::int64_t kMaxHoles = 1024;
// GPT-2's names and those that became customary, of the vocabulary and of the merges beside it.
constexpr std::array<std::pair<const char*, const char*>, 2> kPairs = {
    {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}}};

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw InputError(fmt::format("{}: {}", where, what));
}

// GPT-2's characters for bytes: printable ones stand for themselves, the rest for what follows U+0100 in order.
class ByteCharacters {
 public:
  ByteCharacters() {
    bytes_.fill(-1);
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool is_itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      bytes_[is_itself ? byte : next++] = static_cast<std::int16_t>(byte);
    }
  }

  // Nothing if a character of `token` stands for no byte.
  std::optional<std::string> bytes_of(std::string_view token) const {
    std::string out;
    for (std::size_t i = 0; i < token.size();) {
      const Decoded at = decode_utf8(token.data() + i);
      if (at.code_point >= bytes_.size() || bytes_[at.code_point] < 0) return std::nullopt;
      out.push_back(static_cast<char>(static_cast<unsigned char>(bytes_[at.code_point])));
      i += static_cast<std::size_t>(at.length);
    }
    return out;
  }

 private:
  std::array<std::int16_t, 0x180> bytes_;  // of each character; -1: it stands for none
};

// Of each token's text as the file has it.
class Vocabulary {
 public:
  Vocabulary(const json& object, const std::string& where) {
    if (!object.is_object()) refuse(where, "an object of tokens and their ids is expected");
    ids_.reserve(object.size());
    const std::int64_t largest = std::min(kMaxId, 2 * static_cast<std::int64_t>(object.size()) + kMaxHoles);
    for (const auto& [token, value] : object.items()) {
      if (!value.is_number_integer()) refuse(where, fmt::format("the id of {} is no integer", quoted(token)));
      const auto id = value.get<std::int64_t>();
      if (id < 0 || id > largest)
        refuse(where, fmt::format("the id {} of {} is not between 0 and {}, with {} tokens", id, quoted(token), largest,
                                  object.size()));
      ids_.emplace(token, static_cast<std::int32_t>(id));
      const auto place = static_cast<std::size_t>(id);
      if (place >= is_taken_.size()) is_taken_.resize(place + 1);
      if (is_taken_[place]) refuse(where, fmt::format("two tokens have the id {}", id));
      is_taken_[place] = true;
    }
    if (ids_.empty()) refuse(where, "there is no token");
  }

  std::optional<std::int32_t> find(const std::string& token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  // By id, as bytes.
  std::vector<std::optional<std::string>> tokens(const ByteCharacters& characters) const {
    std::vector<std::optional<std::string>> out(is_taken_.size());
    for (const auto& [token, id] : ids_) out[static_cast<std::size_t>(id)] = characters.bytes_of(token);
    return out;
  }

  bool has_id(std::int32_t id) const {
    const auto place = static_cast<std::size_t>(id);
    return place < is_taken_.size() && is_taken_[place];
  }

  const std::unordered_map<std::string, std::int32_t>& ids() const { return ids_; }

 private:
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<bool> is_taken_;  // of each id
};

void add_merge(const Vocabulary& vocabulary, const std::string& left, const std::string& right,
               const std::string& where, BpeModel& model) {
  const auto id = [&](const std::string& token) {
    const auto found = vocabulary.find(token);
    if (!found) refuse(where, fmt::format("{} is not in the vocabulary", quoted(token)));
    return *found;
  };
  model.merges.push_back({id(left), id(right), id(left + right)});
}

void check_merge_count(std::size_t count, const std::string& where) {
  if (count > BpeMerges::kMaxMerges)
    refuse(where, fmt::format("holds {} merges; at most {} are supported", count, BpeMerges::kMaxMerges));
}

// "a b"
void add_merge_line(const Vocabulary& vocabulary, const std::string& line, const std::string& where, BpeModel& model) {
  const std::size_t space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
    refuse(where, fmt::format("{} is not two tokens with a space between them", quoted(line)));
  add_merge(vocabulary, line.substr(0, space), line.substr(space + 1), where, model);
}

bool is_white_space(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const Decoded at = decode_utf8(text.data() + i);
    if (!CodePoints::get().is_space(at.code_point)) return false;
    i += static_cast<std::size_t>(at.length);
  }
  return true;
}

void check_bytes(const BpeModel& model, const std::string& where) {
  if (model.unknown) return;
  std::array<bool, 256> has{};
  for (const auto& token : model.tokens) {
    if (token && token->size() == 1) has[static_cast<unsigned char>(token->front())] = true;
  }
  for (std::size_t byte = 0; byte < has.size(); ++byte) {
    const bool is_in_no_utf8 = byte == 0xc0 || byte == 0xc1 || byte > 0xf4;
    if (!has[byte] && !is_in_no_utf8)
      refuse(where,
             fmt::format("no token stands for the byte 0x{:02x}, and there is no unk_token: text with it would be "
                         "lost. The tokenizer is not byte-level, or was trained without the alphabet of bytes "
                         "(initial_alphabet=ByteLevel.alphabet())",
                         byte));
  }
}

class TokenizerJsonReader {
 public:
  TokenizerJsonReader(const json& root, std::string file) : root_(root), file_(std::move(file)) {}

  BpeSpec read() {
    if (!root_.is_object()) refuse(file_, "no tokenizer.json: an object is expected");
    if (root_.contains("vocab") && !root_.contains("model")) refuse(file_, "no tokenizer.json: there is no \"model\"");
    for (const char* key : {"truncation", "padding"}) {
      if (has(root_, key))
        refuse(place(key), "is not supported, since text is cut into samples later; write null there");
    }
    read_model();
    read_added_tokens();
    read_normalizer();
    check_normalized_tokens();
    read_pre_tokenizer();
    read_post_processor();
    read_decoder();
    return std::move(spec_);
  }

 private:
  std::string place(std::string_view member) const { return fmt::format("{}: {}", file_, member); }

  static bool has(const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && !found->is_null();
  }
  static bool flag(const json& object, const char* key, bool otherwise, const std::string& where) {
    return has(object, key) ? json_bool(object, key, where) : otherwise;
  }

  void read_model() {
    const std::string where = place("model");
    const json& model = json_member(root_, "model", file_);
    const std::string type = has(model, "type") ? json_string(model, "type", where) : "BPE";
    if (type != "BPE")
      refuse(where, fmt::format("the model {} is not supported; only byte-level BPE is", quoted(type)));
    if (has(model, "dropout") && model["dropout"] != 0.0)
      refuse(where + ".dropout", "is not supported: the ids of a text would differ each time; write null there");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (has(model, key) && model[key] != "") refuse(where + "." + key, "is not supported; only byte-level BPE is");
    }
    if (flag(model, "byte_fallback", false, where))
      refuse(where + ".byte_fallback", "is not supported; only byte-level BPE is, where each byte has a token");
    const Vocabulary& vocabulary = vocabulary_.emplace(json_member(model, "vocab", where), where + ".vocab");
    BpeModel& out = spec_.model;
    out.tokens = vocabulary.tokens(characters_);
    out.ignores_merges = flag(model, "ignore_merges", false, where);
    out.fuses_unknown = flag(model, "fuse_unk", false, where);
    if (has(model, "unk_token")) out.unknown = vocabulary.find(json_string(model, "unk_token", where));
    const json& merges = json_member(model, "merges", where);
    if (!merges.is_array()) refuse(where + ".merges", "a list is expected");
    check_merge_count(merges.size(), where + ".merges");
    out.merges.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const json& merge = merges[i];
      const auto at = [&] { return fmt::format("{}.merges[{}]", where, i); };
      if (merge.is_string()) {
        add_merge_line(vocabulary, merge.get<std::string>(), at(), out);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        add_merge(vocabulary, merge[0].get<std::string>(), merge[1].get<std::string>(), at(), out);
      } else {
        refuse(at(), "is neither \"a b\" nor [\"a\", \"b\"]");
      }
    }
    check_bytes(out, where + ".vocab");
  }

  void read_added_tokens() {
    if (!has(root_, "added_tokens")) return;
    const json& list = root_["added_tokens"];
    if (!list.is_array()) refuse(place("added_tokens"), "a list is expected");
    std::map<std::int32_t, std::string> contents;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string where = place(fmt::format("added_tokens[{}]", i));
      const json& item = list[i];
      AddedToken token;
      token.content = json_string(item, "content", where);
      const std::int64_t id = json_integer(item, "id", where);
      if (id < 0 || id > kMaxId) refuse(where, fmt::format("the id {} is not between 0 and {}", id, kMaxId));
      token.id = static_cast<std::int32_t>(id);
      token.is_special = flag(item, "special", false, where);
      token.strips_left = flag(item, "lstrip", false, where);
      token.strips_right = flag(item, "rstrip", false, where);
      token.is_single_word = flag(item, "single_word", false, where);
      token.is_normalized = flag(item, "normalized", !token.is_special, where);
      if (token.content.empty()) continue;  // as tokenizers does
      if ((token.strips_left || token.strips_right) && is_white_space(token.content))
        refuse(where, fmt::format("{} is white space and takes the white space around it (lstrip, rstrip), which is "
                                  "not supported, since tokenizers fails at texts with it; write false for both",
                                  quoted(std::as_const(token.content))));
      add_added(token, where, contents);
    }
  }

  void add_added(const AddedToken& token, const std::string& where, std::map<std::int32_t, std::string>& contents) {
    const std::optional<std::int32_t> known = vocabulary_->find(token.content);
    if (known && *known != token.id)
      refuse(where,
             fmt::format("{} has the id {} here and {} in model.vocab", quoted(token.content), token.id, *known));
    if (!known && vocabulary_->has_id(token.id))
      refuse(where, fmt::format("the id {} of {} is another token's in model.vocab", token.id, quoted(token.content)));
    // `tokenizers` numbers added tokens itself, from the vocabulary's size on, whatever the file says.
    const auto size = static_cast<std::int32_t>(vocabulary_->ids().size());
    const std::int32_t next = contents.empty() ? size : std::max(size, contents.rbegin()->first + 1);
    if (!known && token.id != next && !contents.contains(token.id))
      refuse(where,
             fmt::format("the id of {} is {}, but tokenizers takes {}, the next one after those before it; give the "
                         "added tokens ids in order and without gaps",
                         quoted(token.content), token.id, next));
    const auto [at, is_new] = contents.emplace(token.id, token.content);
    if (!is_new && at->second != token.content)
      refuse(where, fmt::format("{} and {} have the id {}", quoted(std::as_const(at->second)), quoted(token.content),
                                token.id));
    const auto same = std::find_if(spec_.added.begin(), spec_.added.end(),
                                   [&](const AddedToken& other) { return other.content == token.content; });
    if (same != spec_.added.end()) refuse(where, fmt::format("{} is added twice", quoted(token.content)));
    spec_.added.push_back(token);
  }

  // Those that are looked for in normalised text are looked for by what NFC makes of them.
  void check_normalized_tokens() const {
    if (!spec_.is_nfc) return;
    std::map<std::string, const AddedToken*> seen;
    for (const AddedToken& token : spec_.added) {
      if (!token.is_normalized) continue;
      const auto [at, is_new] = seen.emplace(normalize_nfc(token.content).value_or(token.content), &token);
      if (!is_new)
        refuse(place("added_tokens"), fmt::format("{} is added twice: the normalizer NFC makes it of the tokens {} and "
                                                  "{}; remove one of them",
                                                  quoted(at->first), at->second->id, token.id));
    }
  }

  // Calls `read` for a component, or for each one of a Sequence of them.
  template <class Read>
  void each_of(const json& component, const char* list, const std::string& where, Read read) {
    const std::string type = json_string(component, "type", where);
    if (type != "Sequence") {
      read(component, type, where);
      return;
    }
    const json& items = json_member(component, list, where);
    if (!items.is_array()) refuse(where + "." + list, "a list is expected");
    for (std::size_t i = 0; i < items.size(); ++i)
      each_of(items[i], list, fmt::format("{}.{}[{}]", where, list, i), read);
  }

  void read_normalizer() {
    if (!has(root_, "normalizer")) return;
    each_of(root_["normalizer"], "normalizers", place("normalizer"),
            [this](const json&, const std::string& type, const std::string& where) {
              if (type != "NFC")
                refuse(where, fmt::format("the normalizer {} is not supported; only NFC is", quoted(type)));
              spec_.is_nfc = true;
            });
  }

  void read_pre_tokenizer() {
    bool has_bytes = false;
    if (has(root_, "pre_tokenizer")) {
      each_of(root_["pre_tokenizer"], "pretokenizers", place("pre_tokenizer"),
              [&](const json& item, const std::string& type, const std::string& where) {
                if (has_bytes) refuse(where, fmt::format("{} behind ByteLevel is not supported", type));
                if (type == "Split") {
                  spec_.steps.push_back(read_split(item, where));
                } else if (type == "Digits") {
                  spec_.steps.push_back(digits(flag(item, "individual_digits", false, where)));
                } else if (type == "ByteLevel") {
                  has_bytes = true;
                  spec_.adds_prefix_space = flag(item, "add_prefix_space", true, where);
                  spec_.uses_gpt2_pattern = flag(item, "use_regex", true, where);
                } else {
                  refuse(where, fmt::format("the pre-tokenizer {} is not supported; Split, Digits and ByteLevel are",
                                            quoted(type)));
                }
              });
    }
    if (!has_bytes) refuse(place("pre_tokenizer"), "has no ByteLevel; only byte-level BPE is supported");
  }

  static SplitStep digits(bool is_individual) {
    const std::string one = kDigitPattern;
    return {SplitPattern(is_individual ? one : one + "+"), SplitBehavior::isolated, false};
  }

  static SplitStep read_split(const json& item, const std::string& where) {
    constexpr std::array<std::pair<const char*, SplitBehavior>, 5> behaviors = {{
        {"Removed", SplitBehavior::removed},
        {"Isolated", SplitBehavior::isolated},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous},
    }};
    const std::string name = json_string(item, "behavior", where);
    const auto behavior =
        std::find_if(behaviors.begin(), behaviors.end(), [&](const auto& entry) { return name == entry.first; });
    if (behavior == behaviors.end()) refuse(where + ".behavior", fmt::format("{} is none", quoted(name)));
    const json& pattern = json_member(item, "pattern", where);
    const bool is_inverted = flag(item, "invert", false, where);
    const std::string at = where + ".pattern";
    try {
      if (has(pattern, "Regex"))
        return {SplitPattern(json_string(pattern, "Regex", at)), behavior->second, is_inverted};
      const std::string text = json_string(pattern, "String", at);
      return {SplitPattern::literal(text), behavior->second, is_inverted};
    } catch (const PatternError& error) {
      refuse(at, error.what());
    }
  }

  void read_post_processor() {
    if (!has(root_, "post_processor")) return;
    each_of(root_["post_processor"], "processors", place("post_processor"),
            [this](const json& item, const std::string& type, const std::string& where) {
              if (type == "TemplateProcessing") {
                read_template(item, where);
              } else if (type != "ByteLevel") {
                refuse(where,
                       fmt::format("the post-processor {} is not supported; ByteLevel and TemplateProcessing are",
                                   quoted(type)));
              }
            });
  }

  void read_template(const json& item, const std::string& where) {
    const json& pieces = json_member(item, "single", where);
    if (!pieces.is_array()) refuse(where + ".single", "a list is expected");
    if (!spec_.before_text.empty() || !spec_.after_text.empty()) refuse(where, "a second template is not supported");
    bool has_text = false;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::string at = fmt::format("{}.single[{}]", where, i);
      const json& piece = pieces[i];
      if (piece.is_object() && piece.contains("Sequence")) {
        if (has_text) refuse(at, "the text twice is not supported");
        has_text = true;
        continue;
      }
      const json& token = json_member(piece, "SpecialToken", at);
      const std::string name = json_string(token, "id", at);
      const json& known = json_member(json_member(item, "special_tokens", where), name, where + ".special_tokens");
      const json& ids = json_member(known, "ids", where + ".special_tokens." + name);
      if (!ids.is_array()) refuse(where + ".special_tokens." + name, "ids: a list is expected");
      for (const json& id : ids) {
        if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > kMaxId)
          refuse(where + ".special_tokens." + name, "an id is no token's");
        (has_text ? spec_.after_text : spec_.before_text).push_back(id.get<std::int32_t>());
      }
    }
    if (!has_text) refuse(where + ".single", "the text is not in it");
    if (spec_.after_text.size() > 1) refuse(where + ".single", "more than one token behind the text is not supported");
  }

  void read_decoder() {
    if (!has(root_, "decoder")) refuse(place("decoder"), "there is none; only ByteLevel is supported");
    each_of(root_["decoder"], "decoders", place("decoder"),
            [](const json&, const std::string& type, const std::string& where) {
              if (type != "ByteLevel")
                refuse(where, fmt::format("the decoder {} is not supported; only ByteLevel is", quoted(type)));
            });
  }

  const json& root_;
  std::string file_;
  ByteCharacters characters_;
  std::optional<Vocabulary> vocabulary_;
  BpeSpec spec_;
};

// How special tokens are written by custom: <|endoftext|>, <s>.
bool has_special_shape(std::string_view token) {
  return token.size() > 2 && token.front() == '<' && token.back() == '>';
}

// GPT-2's vocabulary does not say which tokens are special: they are those that no merge makes. Others that none makes
// show that merges are missing.
BpeSpec read_pair(const json& vocab, const std::string& vocab_file, const std::string& merges,
                  const std::string& merges_file) {
  BpeSpec spec;
  spec.uses_gpt2_pattern = true;
  const ByteCharacters characters;
  const Vocabulary vocabulary(vocab, vocab_file);
  spec.model.tokens = vocabulary.tokens(characters);
  check_merge_count(static_cast<std::size_t>(std::count(merges.begin(), merges.end(), '\n')), merges_file);
  const std::vector<std::string> lines = split_text(merges, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string line = lines[i];
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || (i == 0 && line.starts_with("#version"))) continue;
    add_merge_line(vocabulary, line, fmt::format("{}:{}", merges_file, i + 1), spec.model);
  }
  std::set<std::int32_t> made;
  for (const BpeMerge& merge : spec.model.merges) made.insert(merge.whole);
  std::map<std::int32_t, std::string> missing;
  for (const auto& [token, id] : vocabulary.ids()) {
    const auto& bytes = spec.model.tokens[static_cast<std::size_t>(id)];
    if (token.empty() || (bytes && bytes->size() == 1) || made.contains(id)) continue;
    if (has_special_shape(token)) {
      spec.added.push_back({.content = token, .id = id, .is_special = true});
    } else {
      missing.emplace(id, token);
    }
  }
  if (!missing.empty())
    refuse(merges_file, fmt::format("has {} merges, but {} tokens of {} are made by none (first: {}): is the file "
                                    "complete?",
                                    spec.model.merges.size(), missing.size(), vocab_file,
                                    quoted(std::as_const(missing.begin()->second))));
  std::sort(spec.added.begin(), spec.added.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  check_bytes(spec.model, vocab_file);
  return spec;
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// The vocabulary and its merges, if `path` is one and the other is beside it.
std::optional<std::pair<fs::path, fs::path>> pair_at(const fs::path& path) {
  for (const auto& [vocab, merges] : kPairs) {
    if (path.filename() == vocab || path.filename() == merges)
      return std::pair(path.parent_path() / vocab, path.parent_path() / merges);
  }
  return std::nullopt;
}

std::optional<fs::path> find_in(const fs::path& folder) {
  if (is_file(folder / "tokenizer.json")) return folder / "tokenizer.json";
  for (const auto& [vocab, merges] : kPairs) {
    if (is_file(folder / vocab) && is_file(folder / merges)) return folder / vocab;
  }
  return std::nullopt;
}

fs::path file_in(const fs::path& folder) {
  if (const auto file = find_in(folder)) return *file;
  std::error_code ignored;
  if (fs::exists(folder / "tokenizer.model", ignored))
    refuse(folder.string(), "holds a SentencePiece model (tokenizer.model), and no tokenizer.json of a byte-level BPE");
  refuse(folder.string(),
         "holds no tokenizer: neither tokenizer.json, nor vocab.json with merges.txt, nor encoder.json "
         "with vocab.bpe");
}

}  // namespace

bool holds_bpe_files(const fs::path& folder) {
  return find_in(folder).has_value();
}

std::vector<fs::path> bpe_files(const fs::path& path) {
  std::error_code ignored;
  const fs::path file = fs::is_directory(path, ignored) ? file_in(path) : path;
  if (file.extension() == ".model")
    refuse(file.string(), "a SentencePiece model is no byte-level BPE; data.tokenizer.type: sentencepiece reads it");
  if (const auto both = pair_at(file)) return {both->first, both->second};
  return {file};
}

BpeSpec parse_tokenizer_json(std::string_view text, const std::string& where) {
  const json root = parse_json(text, where, kLimits);
  BpeSpec spec = TokenizerJsonReader(root, where).read();
  spec.content_hash = hash_text(text);
  return spec;
}

BpeSpec read_bpe_spec(const fs::path& path) {
  const std::vector<fs::path> files = bpe_files(path);
  const std::string where = files.front().string();
  const std::string text = read_text_file(files.front(), kLimits.bytes);
  BpeSpec spec;
  if (files.size() == 1) {
    spec = parse_tokenizer_json(text, where);
  } else {
    const std::string merges = read_text_file(files.back(), kLimits.bytes);
    if (const auto at = first_invalid_utf8(merges))
      refuse(files.back().string(), fmt::format("is no UTF-8 at byte {}", *at));
    spec = read_pair(parse_json(text, where, kLimits), where, merges, files.back().string());
    spec.content_hash = hash_text(merges, hash_text(text));
  }
  spec.files = files;
  return spec;
}

}  // namespace scaletrain
