#include "infer/exported_chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/hugging_face/hugging_face_config.h"
#include "data/tokens/chat/chat_template.h"
#include "data/tokens/companion_files.h"
#include "infer/generate.h"

namespace scaletrain {

namespace {

using nlohmann::ordered_json;

std::optional<ChatTemplate> template_in(const std::filesystem::path& folder) {
  try {
    return ChatTemplate::of_folder(folder);
  } catch (const FileAccessError&) {
    throw;
  } catch (const InputError&) {  // none, or one that is not known here
    return std::nullopt;
  }
}

// Two of one style may begin a document otherwise.
bool are_same(const ChatTemplate& one, const ChatTemplate& other) {
  const ChatMessage message{"user", "a"};
  return one.name() == other.name() &&
         chat_text(one.render({&message, 1}, true)) == chat_text(other.render({&message, 1}, true));
}

// Where both hold one, some programs read this file's and some that one's.
void put_template(ExportedText& text, const std::string& jinja) {
  bool replaces = false;
  if (ExportedFile* const file = find_exported(text.files, kTokenizerConfigFile)) {
    ordered_json config = ordered_json::parse(file->content);
    if (config.contains("chat_template")) {
      replaces = true;
      config["chat_template"] = jinja;
      file->content = config.dump(2) + "\n";
    }
  }
  if (ExportedFile* const file = find_exported(text.files, kChatTemplateFile)) {
    replaces = true;
    file->content = jinja;
  } else {
    text.files.push_back({kChatTemplateFile, jinja});
  }
  if (replaces)
    text.notices.emplace_back(
        "the chat template is the one that the run read conversations by (data.instructions.chat_template), and not "
        "the tokenizer's own");
}

void add_end(ExportedText& text, std::int64_t id) {
  if (std::find(text.tokens.end.begin(), text.tokens.end.end(), id) == text.tokens.end.end())
    text.tokens.end.push_back(id);
  ExportedFile* const file = find_exported(text.files, kGenerationConfigFile);
  if (file == nullptr) return;  // it will be written
  ordered_json config = ordered_json::parse(file->content);
  const ordered_json ends = ids_json(text.tokens.end);
  if (config.value("eos_token_id", ordered_json()) == ends) return;
  config["eos_token_id"] = ends;
  file->content = config.dump(2) + "\n";
}

}  // namespace

void add_chat(ExportedText& text, const TextModel& model, const std::filesystem::path& folder) {
  const DataConfig& data = model.config.data;
  if (const auto end = end_of_completions(data, model.tokenizer)) add_end(text, *end);
  const bool chats = std::any_of(data.train.begin(), data.train.end(),
                                 [](const SourceConfig& source) { return source.records == RecordKind::messages; });
  if (!chats) return;
  const auto& name = data.instructions.chat_template;
  const std::optional<ChatTemplate> own = template_in(folder);
  if (!name && !own) {
    text.notices.emplace_back(
        "the chat template that the run read conversations by is not in its checkpoint: put it into the export as "
        "chat_template.jinja");
    return;
  }
  const ChatTemplate chat = name ? ChatTemplate::named(*name) : *own;
  if (!own || !are_same(chat, *own)) put_template(text, std::string(chat.jinja()));
  const std::vector<std::int32_t> end = model.tokenizer.encode(chat.end_of_turn());
  if (end.size() == 1) add_end(text, end.front());
}

}  // namespace scaletrain
