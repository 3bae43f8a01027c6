// Internal to lib/data: what the config says of instructions, as the rules that they are read by.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/instructions/instruction_encoder.h"

namespace scaletrain {

// The template of data.instructions.chat_template, else the one that lies beside the tokenizer's files: those that it
// was made from, or those that the config names, of which a checkpoint may have a copy without a template. UserError
// for a name that is none; InputError where there is no template, or one that is not known. The messages begin with
// `key`, which names a template.
ChatTemplate chat_template_of(const DataConfig& config, const std::vector<std::filesystem::path>& tokenizer_files,
                              const std::string& key = "data.instructions.chat_template");

// `key`: of the source, or the option that names it.
InstructionRules instruction_rules(RecordKind records, const DataConfig& config,
                                   const std::vector<std::filesystem::path>& tokenizer_files, std::int64_t context,
                                   const std::string& key);

}  // namespace scaletrain
