#include "data/instructions/instruction_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "config/keys/keys.h"
#include "data/tokens/companion_files.h"
#include "data/tokens/named_tokens.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

// What the config names; where a tokenizer was opened without it (a checkpoint carries its own) it may be gone.
std::vector<fs::path> configured_files(const DataConfig& config, const std::vector<fs::path>& opened) {
  try {
    if (opened.empty()) check_tokenizer_type(config.tokenizer);
    return tokenizer_files(config.tokenizer);
  } catch (const InputError&) {
    if (opened.empty()) throw;
    return {};
  }
}

bool may_hold_template(const fs::path& folder) {
  return path_exists(folder / "tokenizer_config.json") || path_exists(folder / "chat_template.jinja");
}

// Where the tokenizer's files lie: those that it was made from, then those that the config names.
std::vector<fs::path> folders_of(const std::vector<fs::path>& files, const DataConfig& config) {
  std::vector<fs::path> folders;
  const auto add = [&folders](const std::vector<fs::path>& more) {
    for (const fs::path& file : more)
      if (std::find(folders.begin(), folders.end(), file.parent_path()) == folders.end())
        folders.push_back(file.parent_path());
  };
  add(files);
  add(configured_files(config, files));
  return folders;
}

// Where a model has several ends, which of them is a completion's is not said.
std::optional<std::int64_t> only_end_of(const fs::path& file) {
  const nlohmann::json config = read_json_file(file);
  const auto found = config.find("eos_token_id");
  if (found == config.end()) return std::nullopt;
  const nlohmann::json& id = found->is_array() && found->size() == 1 ? found->front() : *found;
  return id.is_number_integer() ? std::optional(id.get<std::int64_t>()) : std::nullopt;
}

}  // namespace

ChatTemplate chat_template_of(const DataConfig& config, const std::vector<fs::path>& tokenizer_files,
                              const std::string& key) {
  if (config.instructions.chat_template) {
    try {
      return ChatTemplate::named(*config.instructions.chat_template);
    } catch (const UserError& error) {
      throw UserError(fmt::format("{}: {}", key, error.what()));
    }
  }
  std::vector<fs::path> files = tokenizer_files;
  const std::vector<fs::path> configured = configured_files(config, files);
  files.insert(files.end(), configured.begin(), configured.end());
  std::string names;
  for (const std::string& name : ChatTemplate::names()) names += (names.empty() ? "" : ", ") + name;
  if (files.empty())
    throw UserError(fmt::format(
        "{}: records: messages need a chat template, and the tokenizer {} has no files with one; name one of {}, or a "
        "tokenizer that has",
        key, to_text(config.tokenizer.type), names));
  const auto found = std::find_if(files.begin(), files.end(),
                                  [](const fs::path& file) { return may_hold_template(file.parent_path()); });
  try {
    return ChatTemplate::of_folder((found == files.end() ? files.front() : *found).parent_path());
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}; name here the one to use: {}", key, error.what(), names));
  }
}

std::optional<CompletionEnd> completion_end(const DataConfig& config, const Tokenizer& tokenizer) {
  std::optional<CompletionEnd> own;
  if (const auto end = tokenizer.end_of_document()) own = CompletionEnd{.token = *end, .named_by = {}};
  if (config.tokenizer.end_of_document) return own;
  const std::vector<fs::path> folders = folders_of(tokenizer.files(), config);
  const auto is_known = [&tokenizer](const std::optional<std::int64_t>& id) {
    return id && *id >= 0 && *id < tokenizer.vocab_size();
  };
  for (const fs::path& folder : folders) {
    const fs::path file = folder / kTokenizerConfigFile;
    if (!path_exists(file)) continue;
    const auto id = NamedTokens(tokenizer, file).id("eos_token");
    if (is_known(id)) return CompletionEnd{static_cast<std::int32_t>(*id), "eos_token of " + file.string()};
  }
  for (const fs::path& folder : folders) {
    const fs::path file = folder / "config.json";
    if (!path_exists(file)) continue;
    const auto id = only_end_of(file);
    if (is_known(id)) return CompletionEnd{static_cast<std::int32_t>(*id), "eos_token_id of " + file.string()};
  }
  return own;
}

InstructionRules instruction_rules(RecordKind records, const DataConfig& config, const Tokenizer& tokenizer,
                                   std::int64_t context, const std::string& key) {
  InstructionRules rules{.records = records, .loss = config.instructions.loss, .chat = {}, .context = context};
  if (key.starts_with("--")) rules.template_key = "--chat-template";
  if (records == RecordKind::messages) {
    rules.chat = chat_template_of(config, tokenizer.files(), rules.template_key);
  } else if (const auto end = completion_end(config, tokenizer); end && end->token != tokenizer.end_of_document()) {
    rules.end = end->token;
    rules.end_named_by = end->named_by;
  }
  return rules;
}

}  // namespace scaletrain
