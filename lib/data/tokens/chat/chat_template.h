// A conversation as the text that a model was trained to read it in: the chat templates of some tokenizers, each
// written out in C++ (chat_styles.cpp) and known by the content of the template (Jinja) that tokenizer_config.json or
// chat_template.jinja holds. A template that is not known is refused: no Jinja is run here.
//
// The rendered text is that of Hugging Face's apply_chat_template, without tools. It has its special tokens in it, the
// one that begins a document included, so encode() gives all ids, and before_document() is not to be put before them.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace scaletrain {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};
// The roles that templates know, and what is said of another.
inline constexpr std::array<std::string_view, 3> chat_roles = {"system", "user", "assistant"};
std::string unknown_role_text(std::string_view role);

// A part of the rendered text; all parts one after the other are the text.
struct ChatPiece {
  enum class Kind {
    markup,      // what the template writes around messages
    content,     // of a message that the model reads
    answer,      // what the model itself is to write: an assistant's content and what ends its turn
    invitation,  // what comes before an answer that is to be written
  };
  std::string text;
  Kind kind = Kind::markup;
  std::ptrdiff_t message = -1;  // which one it belongs to; -1: none
  bool is_quoted = false;       // it is what somebody wrote as a message's content, and not of the template
};
std::string chat_text(std::span<const ChatPiece> pieces);

struct ChatStyle;

class ChatTemplate {
 public:
  // The template that lies in a tokenizer's folder: chat_template.jinja, else `chat_template` of tokenizer_config.json,
  // of several the one named "default". InputError where there is none, and for one that is not known.
  static ChatTemplate of_folder(const std::filesystem::path& folder);
  // One of names(), as its own models have it. UserError for another name.
  static ChatTemplate named(std::string_view name);
  static std::vector<std::string> names();

  std::string_view name() const;
  // The text of the token that ends a turn.
  std::string_view end_of_turn() const;
  // The template for programs that run Jinja: of the same text, with the token in it that begins a document.
  std::string_view jinja() const;

  // invites: an answer is to be written behind it (add_generation_prompt). UserError for a role that is none, and for
  // no messages. A message's content is as the template writes it: some remove white space around it.
  std::vector<ChatPiece> render(std::span<const ChatMessage> messages, bool invites) const;

 private:
  ChatTemplate(const ChatStyle& style, std::string bos) : style_(&style), bos_(std::move(bos)) {}

  const ChatStyle* style_;  // of static life
  std::string bos_;         // the text of the token that begins a document; may be empty
};

}  // namespace scaletrain
