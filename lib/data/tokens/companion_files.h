// What lies beside a tokenizer's own files and says how it is used: its settings, the names of its special tokens, its
// chat template. No id depends on it here, but a chat does, and other programs read it; so checkpoints and exports
// carry it along, byte for byte.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace scaletrain {

inline constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";
// Of a model, not of its tokenizer: how another program is to sample from it, and which tokens end its texts.
inline constexpr const char* kGenerationConfigFile = "generation_config.json";

// tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja: those that are in the folder,
// in this order.
std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder);
// Whether a file of this name is one of these, or kGenerationConfigFile.
bool is_companion_name(std::string_view name);

// InputError, which begins with `where`, unless it is what its name says: a JSON object, or UTF-8.
void check_companion(std::string_view name, std::string_view content, const std::string& where);

}  // namespace scaletrain
