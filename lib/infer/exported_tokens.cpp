#include "infer/exported_tokens.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/format/confined_path.h"
#include "data/tokens/companion_files.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;
using TokenId = std::optional<std::int64_t>;

std::int64_t number_of(const std::string& text, const std::string& where) {
  std::int64_t id = -1;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, id);
  if (error != std::errc() || stop != end || id < 0)
    throw InputError(fmt::format("{}: added_tokens_decoder: {} is no token's id", where, quoted(text)));
  return id;
}

// tokenizer_config.json, and what its names stand for.
class NamedTokens {
 public:
  NamedTokens(const Tokenizer& tokenizer, json config, std::string where)
      : tokenizer_(tokenizer), config_(std::move(config)), where_(std::move(where)) {}

  // `key`: such as "pad_token".
  TokenId id(const char* key) const {
    const auto found = config_.find(key);
    if (found == config_.end() || found->is_null()) return std::nullopt;
    const std::string text = found->is_object() ? json_string(*found, "content", fmt::format("{}: {}", where_, key))
                                                : json_string(config_, key, where_);
    if (const TokenId added = added_id(text)) return added;
    if (!tokenizer_.reads_text()) return std::nullopt;
    const std::vector<std::int32_t> tokens = tokenizer_.encode(text);
    return tokens.size() == 1 ? TokenId(tokens.front()) : std::nullopt;
  }

 private:
  TokenId added_id(const std::string& text) const {
    const auto added = config_.find("added_tokens_decoder");
    if (added == config_.end() || !added->is_object()) return std::nullopt;
    for (const auto& [id, token] : added->items()) {
      if (!token.is_object()) continue;
      const auto content = token.find("content");
      if (content != token.end() && content->is_string() && content->get<std::string>() == text)
        return number_of(id, where_);
    }
    return std::nullopt;
  }

  const Tokenizer& tokenizer_;
  json config_;
  std::string where_;
};

// What the tokenizer itself says.
SpecialTokens own_tokens(const Tokenizer& tokenizer) {
  SpecialTokens tokens;
  if (const auto before = tokenizer.before_document(); !before.empty()) tokens.begin = before.front();
  if (const auto end = tokenizer.end_of_document()) tokens.end = {*end};
  return tokens;
}

SpecialTokens named_tokens(const Tokenizer& tokenizer, const fs::path& folder) {
  const fs::path file = confined_path(folder, kTokenizerConfigFile, folder.string());
  const std::string where = file.string();
  json config = read_json_file(file);
  if (!config.is_object()) throw InputError(where + ": is no JSON object");
  const NamedTokens named(tokenizer, std::move(config), where);
  SpecialTokens tokens{.begin = named.id("bos_token"), .end = {}, .pad = named.id("pad_token")};
  if (const TokenId end = named.id("eos_token")) tokens.end = {*end};
  return tokens;
}

// Files have ids of tokens that were meant to be added to the model.
SpecialTokens within(SpecialTokens tokens, std::int64_t vocab) {
  const auto is_beyond = [vocab](std::int64_t id) { return id >= vocab; };
  std::erase_if(tokens.end, is_beyond);
  for (TokenId* const id : {&tokens.begin, &tokens.pad})
    if (*id && is_beyond(**id)) id->reset();
  return tokens;
}

void fill(SpecialTokens& tokens, const SpecialTokens& more) {
  if (!tokens.begin) tokens.begin = more.begin;
  if (tokens.end.empty()) tokens.end = more.end;
  if (!tokens.pad) tokens.pad = more.pad;
}

}  // namespace

SpecialTokens exported_tokens(const LoadedModel& model, const fs::path& folder) {
  const Tokenizer& tokenizer = model.tokenizer();
  SpecialTokens own = own_tokens(tokenizer);
  // Bytes are no others' tokens; and what the run put before its documents is no guess.
  if (model.config().data.tokenizer.type == TokenizerKind::bytes) return own;
  const std::int64_t vocab = model.transformer().spec().vocab;
  SpecialTokens tokens{.begin = own.begin, .end = {}, .pad = {}};
  if (path_exists(folder / kGenerationConfigFile))
    fill(tokens, within(read_special_tokens(folder, kGenerationConfigFile), vocab));
  if (path_exists(folder / kTokenizerConfigFile)) fill(tokens, within(named_tokens(tokenizer, folder), vocab));
  fill(tokens, own);
  return tokens;
}

}  // namespace scaletrain
