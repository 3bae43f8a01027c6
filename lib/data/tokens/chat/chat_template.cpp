#include "data/tokens/chat/chat_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "data/tokens/chat/chat_styles.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t max_template_bytes = 4 << 20;

std::string list_of_names() {
  std::string list;
  for (const std::string& name : ChatTemplate::names()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

// A template and where it stands.
struct FoundTemplate {
  std::string text, where;
};

FoundTemplate template_of_config(const nlohmann::json& config, const std::string& file) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null())
    throw InputError(fmt::format("{}: no chat_template in it, and no chat_template.jinja beside it", file));
  const std::string where = file + ": chat_template";
  if (found->is_string()) return {found->get<std::string>(), where};
  if (!found->is_array()) throw InputError(where + ": neither a text nor a list of named ones");
  for (const nlohmann::json& one : *found)
    if (one.is_object() && json_string(one, "name", where) == "default")
      return {json_string(one, "template", where), where};
  throw InputError(where + ": none of them is named \"default\"");
}

// A token as tokenizer_config.json spells it: its text, or an object with it as `content`.
std::string token_text(const nlohmann::json& config, const char* key, const std::string& file) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object()) return json_string(*found, "content", fmt::format("{}: {}", file, key));
  throw InputError(fmt::format("{}: {}: not a token's text", file, key));
}

}  // namespace

std::string chat_text(std::span<const ChatPiece> pieces) {
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  return text;
}

ChatTemplate ChatTemplate::of_folder(const fs::path& folder) {
  const fs::path config_file = folder / "tokenizer_config.json";
  const fs::path jinja_file = folder / "chat_template.jinja";
  const bool has_jinja = path_exists(jinja_file);
  if (!path_exists(config_file))
    throw InputError(fmt::format("{}: no tokenizer_config.json{}", folder.string(),
                                 has_jinja ? " beside its chat_template.jinja" : ", so no chat template"));
  const std::string file = config_file.string();
  const nlohmann::json config = read_json_file(config_file);
  if (!config.is_object()) throw InputError(file + ": not a JSON object");
  const FoundTemplate found = has_jinja
                                  ? FoundTemplate{read_text_file(jinja_file, max_template_bytes), jinja_file.string()}
                                  : template_of_config(config, file);
  const std::uint64_t hash = hash_text(found.text);
  for (const KnownTemplate& known : known_templates())
    if (known.hash == hash) return {known.style, token_text(config, "bos_token", file)};
  for (const ChatStyle& style : chat_styles())  // as an export has written it
    if (found.text == style.jinja) return {style, std::string(style.bos)};
  throw InputError(fmt::format("{}: a chat template that is not known here (its hash is {}): {}; known are {}",
                               found.where, to_hex(hash), quoted(found.text, 60), list_of_names()));
}

ChatTemplate ChatTemplate::named(std::string_view name) {
  for (const ChatStyle& style : chat_styles())
    if (style.name == name) return {style, std::string(style.bos)};
  throw UserError(fmt::format("{} is no chat template: known are {}", quoted(name), list_of_names()));
}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> names;
  for (const ChatStyle& style : chat_styles()) names.emplace_back(style.name);
  return names;
}

std::string_view ChatTemplate::name() const {
  return style_->name;
}

std::string_view ChatTemplate::end_of_turn() const {
  return style_->end_of_turn;
}

std::string_view ChatTemplate::jinja() const {
  return style_->jinja;
}

std::string unknown_role_text(std::string_view role) {
  return fmt::format("the role {} of a message is none of {}", quoted(role), fmt::join(chat_roles, ", "));
}

std::vector<ChatPiece> ChatTemplate::render(std::span<const ChatMessage> messages, bool invites) const {
  if (messages.empty()) throw UserError("a chat without messages");
  for (const ChatMessage& message : messages)
    if (std::find(std::begin(chat_roles), std::end(chat_roles), message.role) == std::end(chat_roles))
      throw UserError(unknown_role_text(message.role));
  return style_->render({.messages = messages, .bos = bos_, .invites = invites});
}

}  // namespace scaletrain
