#include "data/instructions/instruction_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "config/keys/keys.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

bool may_hold_template(const fs::path& folder) {
  return path_exists(folder / "tokenizer_config.json") || path_exists(folder / "chat_template.jinja");
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
  const std::vector<fs::path> configured = scaletrain::tokenizer_files(config.tokenizer);
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

InstructionRules instruction_rules(RecordKind records, const DataConfig& config,
                                   const std::vector<fs::path>& tokenizer_files, std::int64_t context,
                                   const std::string& key) {
  InstructionRules rules{.records = records, .loss = config.instructions.loss, .chat = {}, .context = context};
  if (key.starts_with("--")) rules.template_key = "--chat-template";
  if (records == RecordKind::messages) rules.chat = chat_template_of(config, tokenizer_files, rules.template_key);
  return rules;
}

}  // namespace scaletrain
