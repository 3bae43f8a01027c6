// What the config says of instructions, as the rules that they are read by.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/instructions/instruction_encoder.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

// The template of data.instructions.chat_template, else the one that lies beside the tokenizer's files: those that it
// was made from, or those that the config names, of which a checkpoint may have a copy without a template. UserError
// for a name that is none; InputError where there is no template, or one that is not known. The messages begin with
// `key`, which names a template.
ChatTemplate chat_template_of(const DataConfig& config, const std::vector<std::filesystem::path>& tokenizer_files,
                              const std::string& key = "data.instructions.chat_template");

// The token that ends a completion, and who names it.
struct CompletionEnd {
  std::int32_t token = 0;
  std::string named_by;  // empty: the tokenizer itself
};
// As users of TRL expect it: the tokenizer's own eos. data.tokenizer.end_of_document; else the `eos_token` of the
// tokenizer_config.json that lies beside the tokenizer's files, else the one `eos_token_id` of a config.json there;
// else Tokenizer::end_of_document(). Files are looked for as those of chat_template_of() are; what they name and the
// tokenizer does not have counts as not named. InputError for files that cannot be read.
std::optional<CompletionEnd> completion_end(const DataConfig& config, const Tokenizer& tokenizer);

// `key`: of the source, or the option that names it.
InstructionRules instruction_rules(RecordKind records, const DataConfig& config, const Tokenizer& tokenizer,
                                   std::int64_t context, const std::string& key);

}  // namespace scaletrain
