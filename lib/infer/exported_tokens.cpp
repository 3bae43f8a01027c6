#include "infer/exported_tokens.h"

#include <optional>

#include "base/file.h"
#include "checkpoint/format/confined_path.h"
#include "data/tokens/companion_files.h"
#include "data/tokens/named_tokens.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

using TokenId = std::optional<std::int64_t>;

// What the tokenizer itself says.
SpecialTokens own_tokens(const Tokenizer& tokenizer) {
  SpecialTokens tokens;
  if (const auto before = tokenizer.before_document(); !before.empty()) tokens.begin = before.front();
  if (const auto end = tokenizer.end_of_document()) tokens.end = {*end};
  return tokens;
}

SpecialTokens named_tokens(const Tokenizer& tokenizer, const fs::path& folder) {
  const NamedTokens named(tokenizer, confined_path(folder, kTokenizerConfigFile, folder.string()));
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

SpecialTokens exported_tokens(const TextModel& model, const fs::path& folder) {
  const Tokenizer& tokenizer = model.tokenizer;
  SpecialTokens own = own_tokens(tokenizer);
  // Bytes are no others' tokens; and what the run put before its documents is no guess.
  if (model.config.data.tokenizer.type == TokenizerKind::bytes) return own;
  SpecialTokens tokens{.begin = own.begin, .end = {}, .pad = {}};
  if (path_exists(folder / kGenerationConfigFile))
    fill(tokens, within(read_special_tokens(folder, kGenerationConfigFile), model.vocab));
  if (path_exists(folder / kTokenizerConfigFile)) fill(tokens, within(named_tokens(tokenizer, folder), model.vocab));
  fill(tokens, own);
  return tokens;
}

}  // namespace scaletrain
