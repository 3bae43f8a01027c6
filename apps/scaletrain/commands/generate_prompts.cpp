#include "generate_prompts.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "infer/generate.h"

namespace scaletrain {

namespace {

constexpr const char* standard_input = "-";
constexpr std::uint64_t max_prompt_file_bytes = std::uint64_t{1} << 30;

std::string joined_names() {
  std::string names;
  for (const std::string& name : ChatTemplate::names()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

// A line of a file of prompts.
struct PromptLine {
  nlohmann::json object;
  std::string where;  // "prompts.jsonl:3"
};

// JSONL: an object on every line that is not empty.
std::vector<PromptLine> json_lines(std::string_view text, const std::string& name) {
  std::vector<PromptLine> lines;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::string where = fmt::format("{}:{}", name, number);
    nlohmann::json object = parse_json(line, where);
    if (!object.is_object()) throw InputError(where + ": must be a JSON object such as {\"prompt\": \"Once\"}");
    lines.push_back({std::move(object), std::move(where)});
  }
  if (lines.empty()) throw InputError(name + ": no prompt; each line is a JSON object such as {\"prompt\": \"Once\"}");
  return lines;
}

// One question, behind what the system says.
std::vector<ChatMessage> question(const PromptArguments& arguments, const std::string& text) {
  std::vector<ChatMessage> messages;
  if (!arguments.system.empty()) messages.push_back({"system", arguments.system});
  messages.push_back({"user", text});
  return messages;
}

std::vector<ChatMessage> messages_of(const nlohmann::json& list, const std::string& where) {
  if (!list.is_array() || list.empty()) throw InputError(where + ": must be a list of messages");
  std::vector<ChatMessage> messages;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}.{}", where, i);
    if (!list[i].is_object()) throw InputError(place + ": must be an object with `role` and `content`");
    for (const auto& [key, value] : list[i].items())
      if (key != "role" && key != "content")
        throw InputError(
            fmt::format("{}: {} is not supported: a message has `role` and `content`", place, quoted(key)));
    messages.push_back({json_string(list[i], "role", place), json_string(list[i], "content", place)});
  }
  return messages;
}

Prompt prompt_of(const PromptArguments& arguments, const std::optional<Chat>& chat, const std::string& text,
                 const std::string& where, LoadedModel& model) {
  if (chat) return chat->prompt(model, question(arguments, text), where);
  return {.text = text, .shown = text, .where = where, .tokens = prompt_tokens(model, text, where)};
}

Prompt prompt_of(const PromptArguments& arguments, const std::optional<Chat>& chat, const PromptLine& line,
                 LoadedModel& model) {
  const auto messages = line.object.find("messages");
  if (messages == line.object.end())
    return prompt_of(arguments, chat, json_string(line.object, "prompt", line.where), line.where + ": prompt", model);
  const std::string where = line.where + ": messages";
  if (!chat) throw InputError(where + ": a conversation is rendered by a chat template: give --chat");
  if (!arguments.system.empty())
    throw UserError(where + ": --system is for prompts; a conversation has its own system message");
  return chat->prompt(model, messages_of(*messages, where), where);
}

}  // namespace

std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

void PromptArguments::declare(CLI::App& command) {
  CLI::Option* text = command.add_option_function<std::string>(
      "--prompt",
      [this](const std::string& given) {
        prompt = given;
        has_prompt = true;
      },
      "Text to continue; -: all of standard input");
  command
      .add_option("--prompt-file", file,
                  "JSONL: a line an object with `prompt`, or of a chat with `messages`; -: standard input")
      ->type_name("FILE")
      ->excludes(text);
  CLI::Option* as_chat = command.add_flag(
      "--chat", chat,
      "Prompts are questions, put as the chat template of the run's config says, else the tokenizer's; without any, "
      "a conversation: each line of standard input is a turn");
  command
      .add_option("--chat-template", chat_template,
                  "The template, where neither the run's config nor the tokenizer has one: " + joined_names())
      ->type_name("NAME")
      ->needs(as_chat);
  command.add_option("--system", system, "What a chat begins with, of the role `system`")->needs(as_chat);
}

std::optional<Chat> open_chat(const PromptArguments& arguments, const LoadedModel& model) {
  if (!arguments.chat) return std::nullopt;
  const Tokenizer& tokenizer = model.tokenizer();
  const auto open_template = [&] {
    if (!arguments.chat_template.empty()) {
      try {
        return ChatTemplate::named(arguments.chat_template);
      } catch (const UserError& error) {
        throw UserError(fmt::format("--chat-template: {}", error.what()));
      }
    }
    // The one that a run read its conversations by.
    if (const auto& trained = model.config().data.instructions.chat_template) return ChatTemplate::named(*trained);
    const std::vector<std::filesystem::path> files = tokenizer.files();
    if (files.empty())
      throw UserError("--chat: the model's tokenizer (" + tokenizer.description() +
                      ") has no files, so no chat template");
    try {
      return ChatTemplate::of_folder(files.front().parent_path());
    } catch (const InputError& error) {
      throw InputError(fmt::format(
          "--chat: {}; --chat-template llama3, llama3-first, qwen3 or chatml says which to use", error.what()));
    }
  };
  Chat chat{open_template(), {}};
  chat.end_tokens =
      tokenizer.reads_text() ? tokenizer.encode(chat.chat_template.end_of_turn()) : std::vector<std::int32_t>();
  if (chat.end_tokens.size() != 1)
    throw UserError(
        fmt::format("--chat: {}, which ends a turn by the template {}, is no token of the model's tokenizer",
                    quoted(chat.chat_template.end_of_turn()), chat.chat_template.name()));
  return chat;
}

Prompt Chat::prompt(LoadedModel& model, std::span<const ChatMessage> messages, const std::string& where) const {
  Prompt prompt = unbounded_prompt(model, messages, where);
  check_prompt_fits(model, prompt.tokens, where);
  return prompt;
}

Prompt Chat::unbounded_prompt(LoadedModel& model, std::span<const ChatMessage> messages,
                              const std::string& where) const {
  Prompt prompt{.text = {}, .shown = {}, .where = where, .tokens = {}};
  try {
    prompt.text = chat_text(chat_template.render(messages, true));
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", where, error.what()));
  }
  prompt.tokens = model.tokenizer().encode(prompt.text);  // with what a document begins with
  return prompt;
}

void throw_no_prompt() {
  throw UserError("--prompt is required, or --prompt-file: the text to continue");
}

std::vector<Prompt> read_prompts(const PromptArguments& arguments, const std::optional<Chat>& chat,
                                 LoadedModel& model) {
  std::vector<Prompt> prompts;
  if (!arguments.file.empty()) {
    const bool is_input = arguments.file == standard_input;
    const std::string text = is_input ? read_standard_input() : read_text_file(arguments.file, max_prompt_file_bytes);
    for (const PromptLine& line : json_lines(text, is_input ? "standard input" : arguments.file))
      prompts.push_back(prompt_of(arguments, chat, line, model));
  } else if (arguments.has_prompt) {
    const std::string text = arguments.prompt == standard_input ? read_standard_input() : arguments.prompt;
    prompts.push_back(prompt_of(arguments, chat, text, "--prompt", model));
  } else {
    throw_no_prompt();
  }
  return prompts;
}

}  // namespace scaletrain
