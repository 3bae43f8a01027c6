#include "data/tokens/chat/chat_styles.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "data/tokens/chat/chat_jinja.h"
#include "data/tokens/python_space.h"

namespace scaletrain {

namespace {

using Kind = ChatPiece::Kind;

std::string_view without_first_newlines(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string_view without_last_newlines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

// Puts pieces together; empty ones are left out.
class Pieces {
 public:
  // Of the template.
  void add(std::string_view text, Kind kind, std::size_t message) {
    add_piece(text, kind, static_cast<std::ptrdiff_t>(message), false);
  }
  // A message's content.
  void quote(std::string_view text, Kind kind, std::size_t message) {
    add_piece(text, kind, static_cast<std::ptrdiff_t>(message), true);
  }
  void add_markup(std::string_view text) { add_piece(text, Kind::markup, -1, false); }
  void invite(std::string_view text) { add_piece(text, Kind::invitation, -1, false); }
  std::vector<ChatPiece> take() { return std::move(pieces_); }

 private:
  void add_piece(std::string_view text, Kind kind, std::ptrdiff_t message, bool is_quoted) {
    if (!text.empty()) pieces_.push_back({std::string(text), kind, message, is_quoted});
  }

  std::vector<ChatPiece> pieces_;
};

// Llama 3 and 3.1 without tools: a header of the role, the content without white space around it.
std::vector<ChatPiece> render_llama3(const ChatRequest& request) {
  Pieces pieces;
  for (std::size_t i = 0; i < request.messages.size(); ++i) {
    const ChatMessage& message = request.messages[i];
    const bool is_answer = message.role == "assistant";
    if (i == 0) pieces.add_markup(request.bos);
    pieces.add("<|start_header_id|>" + message.role + "<|end_header_id|>\n\n", Kind::markup, i);
    pieces.quote(python_strip(message.content), is_answer ? Kind::answer : Kind::content, i);
    pieces.add("<|eot_id|>", is_answer ? Kind::answer : Kind::markup, i);
  }
  if (request.invites) pieces.invite("<|start_header_id|>assistant<|end_header_id|>\n\n");
  return pieces.take();
}

// The same where the template invites an answer always.
std::vector<ChatPiece> render_llama3_first(const ChatRequest& request) {
  ChatRequest inviting = request;
  inviting.invites = true;
  return render_llama3(inviting);
}

void add_chatml(Pieces& pieces, std::string_view role, std::string_view content, std::size_t index) {
  const bool is_answer = role == "assistant";
  pieces.add("<|im_start|>" + std::string(role) + "\n", Kind::markup, index);
  pieces.quote(content, is_answer ? Kind::answer : Kind::content, index);
  pieces.add("<|im_end|>", is_answer ? Kind::answer : Kind::markup, index);
  pieces.add("\n", Kind::markup, index);
}

// Qwen 3 without tools. Thoughts of answers before the last question are left out; behind it an answer has thoughts,
// though they be empty, if it is the last message or has any.
struct Qwen3Answer {
  std::string thoughts, content;
};
Qwen3Answer qwen3_answer(std::string_view content) {
  constexpr std::string_view begin = "<think>";
  constexpr std::string_view end = "</think>";
  const std::size_t first = content.find(end);
  if (first == std::string_view::npos) return {.thoughts = {}, .content = std::string(content)};
  std::string_view thoughts = without_last_newlines(content.substr(0, first));
  if (const std::size_t at = thoughts.rfind(begin); at != std::string_view::npos)
    thoughts = thoughts.substr(at + begin.size());
  return {.thoughts = std::string(without_first_newlines(thoughts)),
          .content = std::string(without_first_newlines(content.substr(content.rfind(end) + end.size())))};
}

// Of the last question that is no tool's answer; the last message, where there is none.
std::size_t qwen3_last_question(std::span<const ChatMessage> messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    const bool is_of_tool = content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (messages[i].role == "user" && !is_of_tool) return i;
  }
  return messages.size() - 1;
}

std::vector<ChatPiece> render_qwen3(const ChatRequest& request) {
  Pieces pieces;
  const std::size_t question = qwen3_last_question(request.messages);
  for (std::size_t i = 0; i < request.messages.size(); ++i) {
    const ChatMessage& message = request.messages[i];
    if (message.role != "assistant") {
      add_chatml(pieces, message.role, message.content, i);
      continue;
    }
    const Qwen3Answer answer = qwen3_answer(message.content);
    const bool thinks = i > question && (i + 1 == request.messages.size() || !answer.thoughts.empty());
    const std::string text = thinks ? "<think>\n" + std::string(without_last_newlines(answer.thoughts)) +
                                          "\n</think>\n\n" + std::string(without_first_newlines(answer.content))
                                    : answer.content;
    add_chatml(pieces, message.role, text, i);
  }
  if (request.invites) pieces.invite("<|im_start|>assistant\n");
  return pieces.take();
}

std::vector<ChatPiece> render_chatml(const ChatRequest& request) {
  Pieces pieces;
  for (std::size_t i = 0; i < request.messages.size(); ++i)
    add_chatml(pieces, request.messages[i].role, request.messages[i].content, i);
  if (request.invites) pieces.invite("<|im_start|>assistant\n");
  return pieces.take();
}

// llama3-first: as the first Llama 3 tokenizers had it. chatml is the plain form of <|im_start|> and <|im_end|>, of
// models that name it (--chat-template chatml).
constexpr std::array<ChatStyle, 4> styles = {{
    {"llama3", "<|eot_id|>", "<|begin_of_text|>", render_llama3, kLlama3Jinja},
    {"llama3-first", "<|eot_id|>", "<|begin_of_text|>", render_llama3_first, kLlama3FirstJinja},
    {"qwen3", "<|im_end|>", "", render_qwen3, kQwen3Jinja},
    {"chatml", "<|im_end|>", "", render_chatml, kChatmlJinja},
}};

constexpr std::array<KnownTemplate, 4> templates = {{
    {0x9799ad6e2dea0594, styles[0]},
    {0xb97891b7adc1beb8, styles[1]},
    {0x0283f874ff58d644, styles[2]},
    {0xa04f41d813a07b13, styles[3]},
}};

}  // namespace

std::span<const KnownTemplate> known_templates() {
  return templates;
}

std::span<const ChatStyle> chat_styles() {
  return styles;
}

}  // namespace scaletrain
