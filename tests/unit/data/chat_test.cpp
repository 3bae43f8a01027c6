// Rendered conversations against transformers' apply_chat_template (tests/golden/chat).
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/tokens/chat/chat_template.h"
#include "open_tokenizer.h"
#include "shared_data.h"
#include "support/temp_folder.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

std::vector<ChatMessage> messages_of(const nlohmann::json& one) {
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& message : one.at("messages"))
    messages.push_back({message.at("role").get<std::string>(), message.at("content").get<std::string>()});
  return messages;
}

nlohmann::json golden_chats() {
  return read_json_file(std::filesystem::path(SCALETRAIN_SOURCE_FOLDER) / "tests/golden/chat/rendered.json");
}

std::string texts_of(const std::vector<ChatPiece>& pieces, ChatPiece::Kind kind) {
  std::string texts;
  for (const ChatPiece& piece : pieces)
    if (piece.kind == kind) texts += piece.text + "|";
  return texts;
}

}  // namespace

TEST_CASE("conversations are rendered as transformers does, for every template") {
  const nlohmann::json golden = golden_chats();
  CHECK(golden.size() == ChatTemplate::names().size());
  for (const std::string& name : ChatTemplate::names()) {
    const ChatTemplate chat = ChatTemplate::named(name);
    CHECK(chat.name() == name);
    for (const nlohmann::json& one : golden.at(name)) {
      CAPTURE(one.at("messages").dump());
      CAPTURE(name);
      CHECK(chat_text(chat.render(messages_of(one), one.at("invites"))) == one.at("text").get<std::string>());
    }
  }
}

TEST_CASE("the templates of real tokenizers are known by their content, and give the ids of transformers") {
  if (!is_shared_data_present("tokenizers")) return;
  const nlohmann::json golden = golden_chats();
  for (const auto& known : {std::pair("llama3", "llama3-first"), std::pair("qwen3", "qwen3")}) {
    const std::string folder = known.first;
    const std::string name = known.second;
    CAPTURE(folder);
    const ChatTemplate chat = ChatTemplate::of_folder(shared_data("tokenizers/" + folder));
    CHECK(chat.name() == name);
    const Tokenizer& tokenizer = real_tokenizer(folder);
    CHECK(tokenizer.encode(chat.end_of_turn()).size() == 1);
    for (const nlohmann::json& one : golden.at(name)) {
      CAPTURE(one.at("messages").dump());
      CHECK(tokenizer.encode(chat_text(chat.render(messages_of(one), one.at("invites")))) ==
            one.at("ids").get<std::vector<std::int32_t>>());
    }
  }
}

TEST_CASE("the pieces say what the model reads and what it is to write") {
  const std::vector<ChatMessage> messages = {
      {"system", "s"}, {"user", "q"}, {"assistant", "<think>t</think>a"}, {"user", "r"}, {"assistant", "b"}};
  for (const std::string& name : ChatTemplate::names()) {
    CAPTURE(name);
    const ChatTemplate chat = ChatTemplate::named(name);
    const std::vector<ChatPiece> pieces = chat.render(messages, false);
    CHECK(texts_of(pieces, ChatPiece::Kind::content) == "s|q|r|");
    const std::string end(chat.end_of_turn());
    const bool is_qwen = name == "qwen3";
    CHECK(texts_of(pieces, ChatPiece::Kind::answer) ==
          (is_qwen ? "a|" : "<think>t</think>a|") + end + (is_qwen ? "|<think>\n\n</think>\n\nb|" : "|b|") + end + "|");
    for (const ChatPiece& piece : pieces) {
      CHECK_FALSE(piece.text.empty());
      if (piece.kind != ChatPiece::Kind::answer && piece.kind != ChatPiece::Kind::content) continue;
      const bool is_answer = messages[static_cast<std::size_t>(piece.message)].role == "assistant";
      CHECK(is_answer == (piece.kind == ChatPiece::Kind::answer));
    }
    CHECK(texts_of(chat.render(messages, true), ChatPiece::Kind::invitation).find("assistant") != std::string::npos);
  }
}

TEST_CASE("a template that is not known, a folder without one, and a role that is none are refused") {
  const TempFolder folder;
  const auto of = [&](const char* config) {
    folder.write("tokenizer_config.json", config);
    return message_of<InputError>([&] { ChatTemplate::of_folder(folder.path()); });
  };
  CHECK(contains(message_of<InputError>([&] { ChatTemplate::of_folder(folder.path()); }), "no tokenizer_config.json"));
  CHECK(contains(of("{}"), "no chat_template in it"));
  CHECK(contains(of("{\"chat_template\": null}"), "no chat_template in it"));
  CHECK(contains(of("{\"chat_template\": 7}"), "neither a text nor a list"));
  CHECK(contains(of("{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}"), "\"default\""));
  const std::string unknown = of("{\"chat_template\": [{\"name\": \"default\", \"template\": \"{{ messages }}\"}]}");
  CHECK(contains(unknown, "chat template that is not known here"));
  CHECK(contains(unknown, "{{ messages }}"));
  CHECK(contains(unknown, "llama3, llama3-first, qwen3, chatml"));
  folder.write("chat_template.jinja", "{{ other }}");
  CHECK(contains(of("{}"), "{{ other }}"));
  CHECK(contains(message_of<UserError>([] { ChatTemplate::named("vicuna"); }), "\"vicuna\""));
  const ChatTemplate chat = ChatTemplate::named("chatml");
  CHECK(contains(message_of<UserError>([&] { chat.render({}, true); }), "without messages"));
  const std::vector<ChatMessage> wrong = {{"tool", "x"}};
  CHECK(contains(message_of<UserError>([&] { chat.render(wrong, true); }), "\"tool\""));
}

TEST_CASE("white space around what is no text is none of it") {
  const std::vector<ChatMessage> messages = {{"user", " \xff\xe3\x80 "}};
  CHECK(texts_of(ChatTemplate::named("llama3").render(messages, false), ChatPiece::Kind::content) == "\xff\xe3\x80|");
}
