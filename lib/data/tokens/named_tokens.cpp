#include "data/tokens/named_tokens.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace scaletrain {

namespace {

std::int64_t number_of(const std::string& text, const std::string& where) {
  std::int64_t id = -1;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, id);
  if (error != std::errc() || stop != end || id < 0)
    throw InputError(fmt::format("{}: added_tokens_decoder: {} is no token's id", where, quoted(text)));
  return id;
}

}  // namespace

NamedTokens::NamedTokens(const Tokenizer& tokenizer, const std::filesystem::path& file)
    : tokenizer_(tokenizer), where_(file.string()), config_(read_json_file(file)) {
  if (!config_.is_object()) throw InputError(where_ + ": is no JSON object");
}

std::optional<std::int64_t> NamedTokens::id(const char* key) const {
  const auto found = config_.find(key);
  if (found == config_.end() || found->is_null()) return std::nullopt;
  const std::string text = found->is_object() ? json_string(*found, "content", fmt::format("{}: {}", where_, key))
                                              : json_string(config_, key, where_);
  if (const auto added = added_id(text)) return added;
  if (!tokenizer_.reads_text()) return std::nullopt;
  const std::vector<std::int32_t> tokens = tokenizer_.encode(text);
  return tokens.size() == 1 ? std::optional<std::int64_t>(tokens.front()) : std::nullopt;
}

std::optional<std::int64_t> NamedTokens::added_id(const std::string& text) const {
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

}  // namespace scaletrain
