#include "data/instructions/instruction_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "config/keys/keys.h"
#include "data/tokens/text_reader.h"

namespace scaletrain {

namespace {

// A key that a template, or whoever weighs answers, would read, and that is not read here.
constexpr std::array<std::string_view, 7> kRecordKeys = {"tools",    "functions", "documents", "chat_template_kwargs",
                                                         "rejected", "label",     "images"};
constexpr std::array<std::string_view, 8> kMessageKeys = {
    "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "weight", "train", "tool_call_id"};

std::string fields_of(const nlohmann::json& object) {
  constexpr std::size_t most = 12;
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items())
    if (names.size() < most) names.push_back(quoted(name, 40));
  if (names.empty()) return "there is no field at all";
  return fmt::format("there {} {}{}", names.size() == 1 ? "is" : "are", fmt::join(names, ", "),
                     object.size() > most ? " ..." : "");
}

bool says_something(const nlohmann::json& value) {
  return !value.is_null() && !((value.is_structured() || value.is_string()) && value.empty());
}

template <std::size_t N>
void refuse_unread(const nlohmann::json& object, const std::array<std::string_view, N>& keys,
                   const std::string& where) {
  for (const std::string_view key : keys) {
    const auto found = object.find(key);
    if (found == object.end() || !says_something(*found)) continue;
    throw BadRecordError(fmt::format("with {}", quoted(key)),
                         fmt::format("{}: {} is not read here, and the text would be another one without it; take it "
                                     "out of the record, or what it says into the content",
                                     where, quoted(key)));
  }
}

const nlohmann::json& field_of(const nlohmann::json& object, std::string_view field, const std::string& where,
                               std::string_view remedy) {
  const auto found = object.find(field);
  if (found != object.end()) return *found;
  throw BadRecordError("without the field " + quoted(field), fmt::format("{}: the field {} is missing; {}{}", where,
                                                                         quoted(field), fields_of(object), remedy));
}

// A field that is a text, and where it goes.
struct NamedText {
  std::string_view key;
  std::string* out;
};

ChatMessage message_of(const nlohmann::json& value, const std::string& where) {
  if (!value.is_object())
    throw BadRecordError("with a message that is no object",
                         fmt::format("{}: is {}, expected an object of role and content", where, value.type_name()));
  refuse_unread(value, kMessageKeys, where);
  ChatMessage message;
  for (const auto& [key, out] : {NamedText{"role", &message.role}, NamedText{"content", &message.content}}) {
    const nlohmann::json& text = field_of(value, key, where, "");
    if (!text.is_string())
      throw BadRecordError(fmt::format("with a message whose {} is no text", quoted(key)),
                           fmt::format("{}: {} is {}, expected a string{}", where, quoted(key), text.type_name(),
                                       text.is_array() ? "; write the parts of a content as one" : ""));
    *out = text.get<std::string>();
  }
  if (std::find(std::begin(chat_roles), std::end(chat_roles), message.role) == std::end(chat_roles))
    throw BadRecordError("with a role that is not known",
                         fmt::format("{}: {}", where, unknown_role_text(message.role)));
  return message;
}

void add_messages(const nlohmann::json& list, const std::string& where, std::vector<ChatMessage>& messages) {
  if (!list.is_array())
    throw BadRecordError("whose messages are no list",
                         fmt::format("{}: is {}, expected a list of messages{}", where, list.type_name(),
                                     list.is_string() ? "; for prompts and completions that are text set records: "
                                                        "prompt_completion"
                                                      : ""));
  if (list.empty()) throw BadRecordError("without a message", fmt::format("{}: the list of messages is empty", where));
  for (std::size_t i = 0; i < list.size(); ++i) messages.push_back(message_of(list[i], fmt::format("{}.{}", where, i)));
}

InstructionRecord conversation_of(const nlohmann::json& object, const std::string& where) {
  InstructionRecord record;
  const bool has_messages = object.contains("messages");
  if (!has_messages && object.contains("prompt") && object.contains("completion")) {
    add_messages(object["prompt"], where + ": prompt", record.messages);
    record.first_answer = record.messages.size();
    add_messages(object["completion"], where + ": completion", record.messages);
    return record;
  }
  add_messages(field_of(object, "messages", where,
                        object.contains("text") ? ". For text set records: text, or leave records out" : ""),
               where + ": messages", record.messages);
  return record;
}

InstructionRecord completion_of(const nlohmann::json& object, const std::string& where) {
  InstructionRecord record;
  const std::string remedy = object.contains("messages") ? ". For conversations set records: messages"
                             : object.contains("text")   ? ". For text set records: text, or leave records out"
                                                         : "";
  for (const auto& [key, out] : {NamedText{"prompt", &record.prompt}, NamedText{"completion", &record.completion}}) {
    const nlohmann::json& text = field_of(object, key, where, remedy);
    if (!text.is_string())
      throw BadRecordError(fmt::format("with a {} that is no text", key),
                           fmt::format("{}: {} is {}, expected a string{}", where, quoted(key), text.type_name(),
                                       text.is_array() ? "; for lists of messages set records: messages" : ""));
    *out = text.get<std::string>();
  }
  if (record.prompt.empty() && record.completion.empty())
    throw BadRecordError("of no text", fmt::format("{}: prompt and completion are empty", where));
  return record;
}

}  // namespace

InstructionRecord parse_instruction(std::string_view line, RecordKind records, const std::string& where) {
  SCALETRAIN_CHECK(records != RecordKind::text);
  const nlohmann::json value = object_of_line(line, where);
  refuse_unread(value, kRecordKeys, where);
  return records == RecordKind::messages ? conversation_of(value, where) : completion_of(value, where);
}

bool has_answer(const InstructionRecord& record) {
  if (record.messages.empty()) return true;
  return std::any_of(record.messages.begin() + static_cast<std::ptrdiff_t>(record.first_answer), record.messages.end(),
                     [](const ChatMessage& message) { return message.role == "assistant"; });
}

std::optional<RecordKind> instructions_of(const nlohmann::json& object) {
  if (!object.is_object()) return std::nullopt;
  if (object.contains("messages")) return RecordKind::messages;
  if (!object.contains("prompt") || !object.contains("completion")) return std::nullopt;
  return object["prompt"].is_array() ? RecordKind::messages : RecordKind::prompt_completion;
}

std::string_view noun_of(RecordKind records) {
  return records == RecordKind::messages ? "conversations" : "prompts and completions";
}

std::string instruction_uses(RecordKind records) {
  return fmt::format(
      "data.train and data.validation read {0} with records: {1} (evaluate: --records {1}); data build makes token "
      "files of text alone",
      noun_of(records), to_text(records));
}

}  // namespace scaletrain
