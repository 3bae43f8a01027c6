// The chat templates that are known. Internal to chat/.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "data/tokens/chat/chat_template.h"

namespace scaletrain {

struct ChatRequest {
  std::span<const ChatMessage> messages;
  std::string_view bos;
  bool invites = false;
};

struct ChatStyle {
  std::string_view name;
  std::string_view end_of_turn;
  std::string_view bos;  // where no file says it
  std::vector<ChatPiece> (*render)(const ChatRequest& request);
  std::string_view jinja;  // the same for other programs (chat_jinja.h)
};

// A template by the hash (hash_text) of its text. Several may have one style, and a style names without any.
struct KnownTemplate {
  std::uint64_t hash;
  const ChatStyle& style;
};
std::span<const KnownTemplate> known_templates();
std::span<const ChatStyle> chat_styles();

}  // namespace scaletrain
