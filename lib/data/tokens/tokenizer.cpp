#include "data/tokens/tokenizer.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/tokens/bpe/bpe_tokenizer.h"
#include "data/tokens/sentencepiece/sentencepiece_tokenizer.h"

namespace scaletrain {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}

[[noreturn]] void refuse_id(std::int32_t id, std::int64_t vocab) {
  throw InputError(fmt::format("token {} cannot be decoded: the tokenizer has the tokens 0 to {}", id, vocab - 1));
}

void check_vocab(const Tokenizer& tokenizer, std::optional<std::int64_t> model_vocab) {
  if (model_vocab && *model_vocab < tokenizer.vocab_size())
    throw UserError(fmt::format("model.vocab: {} is too small; the tokenizer has {} tokens (use auto)", *model_vocab,
                                tokenizer.vocab_size()));
}

}  // namespace

void check_tokenizer_type(const TokenizerConfig& config) {
  if (!config.path) return;
  const std::string extension = std::filesystem::path(*config.path).extension().string();
  if (!is_folder(*config.path)) {
    if (config.type == TokenizerKind::bpe && extension == ".model")
      throw UserError(
          fmt::format("data.tokenizer.type: bpe, but {} is a SentencePiece model; write sentencepiece", *config.path));
    if (config.type == TokenizerKind::sentencepiece && extension == ".json")
      throw UserError(
          fmt::format("data.tokenizer.type: sentencepiece, but {} is no SentencePiece model; write bpe", *config.path));
    return;
  }
  const bool has_bpe = holds_bpe_files(*config.path);
  const bool has_sentencepiece = holds_sentencepiece_file(*config.path);
  if (config.type == TokenizerKind::bpe && !has_bpe && has_sentencepiece)
    throw UserError(
        fmt::format("data.tokenizer.type: bpe, but the tokenizer in {} is SentencePiece's "
                    "(tokenizer.model); write sentencepiece",
                    *config.path));
  if (config.type == TokenizerKind::sentencepiece && !has_sentencepiece && has_bpe)
    throw UserError(
        fmt::format("data.tokenizer.type: sentencepiece, but {} holds no tokenizer.model; it holds {}: "
                    "write bpe",
                    *config.path, bpe_files(*config.path).front().filename().string()));
  if (config.type == TokenizerKind::sentencepiece && !has_sentencepiece)
    throw UserError(
        fmt::format("data.tokenizer.path: {} holds no tokenizer.model; name a SentencePiece model, or a "
                    "folder with one",
                    *config.path));
}

namespace {

std::unique_ptr<Tokenizer> make_file_tokenizer(const TokenizerConfig& config, std::optional<std::int64_t> model_vocab) {
  const bool is_bpe = config.type == TokenizerKind::bpe;
  const std::string_view file = is_bpe ? "tokenizer.json" : "tokenizer.model";
  if (!config.path)
    throw UserError(fmt::format("data.tokenizer.path: the tokenizer type {} needs it: a {}, or a folder that holds one",
                                is_bpe ? "bpe" : "sentencepiece", file));
  check_tokenizer_type(config);
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    if (is_bpe) {
      tokenizer = std::make_unique<BpeTokenizer>(read_bpe_spec(*config.path), config.end_of_document);
    } else {
      tokenizer = std::make_unique<SentencePieceTokenizer>(*config.path, config.end_of_document);
    }
  } catch (const UnknownEndError& error) {
    throw InputError(fmt::format("{}. Give its id as data.tokenizer.end_of_document", error.what()));
  } catch (const FileAccessError&) {
    throw;
  } catch (const InputError& error) {
    if (!is_bpe || !holds_sentencepiece_file(*config.path)) throw;
    throw InputError(
        fmt::format("{}; its tokenizer.model is read with data.tokenizer.type: sentencepiece", error.what()));
  }
  check_vocab(*tokenizer, model_vocab);
  return tokenizer;
}

}  // namespace

std::uint64_t Tokenizer::hash() const {
  return hash_text(description());
}

std::uint64_t Tokenizer::hash_of_ids(std::int64_t count) const {
  SCALETRAIN_CHECK(count <= vocab_size());
  const std::scoped_lock lock(ids_mutex_);
  if (const auto known = ids_hashes_.find(count); known != ids_hashes_.end()) return known->second;
  Hasher hasher;
  for (std::int64_t id = 0; id < count; ++id) {
    const auto token = static_cast<std::int32_t>(id);
    const std::string text = decode(std::span(&token, 1));
    const std::uint64_t hash = hash_text(text.empty() ? special_name(token) : text);
    hasher.update(std::as_bytes(std::span(&hash, 1)));
  }
  return ids_hashes_[count] = hasher.digest();
}

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<unsigned char>(text[i]);
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const std::int32_t token : tokens) {
    if (token < 0 || token > kEndOfDocument) refuse_id(token, vocab_size());
    if (token != kEndOfDocument) text.push_back(static_cast<char>(token));
  }
  return text;
}

std::string ByteTokenizer::description() const {
  return "bytes, 257 tokens, end of document 256";
}

IdsTokenizer::IdsTokenizer(std::int64_t vocab, std::optional<std::int32_t> end_of_document)
    : vocab_(vocab), end_of_document_(end_of_document) {
  SCALETRAIN_CHECK(vocab > 0);
  SCALETRAIN_CHECK(!end_of_document || (*end_of_document >= 0 && *end_of_document < vocab));
}

std::vector<std::int32_t> IdsTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  std::size_t i = 0;
  while (i < text.size()) {
    if (is_space(text[i])) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && !is_space(text[end])) ++end;
    const std::string_view word = text.substr(i, end - i);
    std::int32_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size() || id < 0 || id >= vocab_) {
      throw UserError(fmt::format(
          "{} at byte {} is no token id: the tokenizer is ids, so text is a list of ids from 0 to {} separated by "
          "spaces (for a Hugging Face folder, --tokenizer bytes reads text as bytes)",
          quoted(word), i, vocab_ - 1));
    }
    tokens.push_back(id);
    i = end;
  }
  return tokens;
}

std::string IdsTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= vocab_) refuse_id(token, vocab_);
    if (!text.empty()) text.push_back(' ');
    text += std::to_string(token);
  }
  return text;
}

std::size_t IdsTokenizer::safe_cut(std::string_view text) const {
  for (std::size_t i = text.size(); i > 0; --i) {
    if (is_space(text[i - 1])) return i;
  }
  return 0;
}

std::string IdsTokenizer::description() const {
  return fmt::format("ids, {} tokens, end of document {}", vocab_,
                     end_of_document_ ? std::to_string(*end_of_document_) : "none");
}

std::vector<std::filesystem::path> tokenizer_files(const TokenizerConfig& config) {
  if (!config.path) return {};
  if (config.type == TokenizerKind::sentencepiece) return {sentencepiece_file(*config.path)};
  return config.type == TokenizerKind::bpe ? bpe_files(*config.path) : std::vector<std::filesystem::path>();
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config, std::optional<std::int64_t> model_vocab) {
  if (config.end_of_document && config.type == TokenizerKind::bytes) {
    throw UserError("data.tokenizer.end_of_document: tokenizer bytes has a token for it already; remove the key");
  }
  if (config.path && (config.type == TokenizerKind::bytes || config.type == TokenizerKind::ids)) {
    throw UserError("data.tokenizer.path: the tokenizer types bytes and ids read no file; remove the key");
  }
  switch (config.type) {
    case TokenizerKind::bytes: {
      auto tokenizer = std::make_unique<ByteTokenizer>();
      check_vocab(*tokenizer, model_vocab);
      return tokenizer;
    }
    case TokenizerKind::ids: {
      if (!model_vocab) {
        throw UserError(
            "model.vocab: auto needs a tokenizer that knows its size; with data.tokenizer.type: ids give the number of "
            "different tokens in the files");
      }
      constexpr std::int64_t largest_vocab = INT32_MAX;
      if (*model_vocab < 1 || *model_vocab > largest_vocab) {
        throw UserError(fmt::format("model.vocab: {} is not between 1 and {}", *model_vocab, largest_vocab));
      }
      std::optional<std::int32_t> end;
      if (config.end_of_document) {
        if (*config.end_of_document < 0 || *config.end_of_document >= *model_vocab) {
          throw UserError(fmt::format("data.tokenizer.end_of_document: {} is not a token; model.vocab is {}",
                                      *config.end_of_document, *model_vocab));
        }
        end = static_cast<std::int32_t>(*config.end_of_document);
      }
      return std::make_unique<IdsTokenizer>(*model_vocab, end);
    }
    case TokenizerKind::bpe:
    case TokenizerKind::sentencepiece:
      break;
  }
  return make_file_tokenizer(config, model_vocab);
}

}  // namespace scaletrain
