// A folder as a chat model's tokenizer lies in: bytes and the tokens of ChatML, with a chat template that is known.
#pragma once

#include <filesystem>
#include <string>

#include "support/temp_folder.h"

namespace scaletrain::test {

// Ids: bytes are their values, and then these.
inline constexpr int kEndOfText = 256;
inline constexpr int kTurnBegin = 257;
inline constexpr int kTurnEnd = 258;

inline std::string utf8_of(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// The character that stands for a byte in a byte-level vocabulary, as JSON.
inline std::string byte_key(unsigned byte, unsigned& moved) {
  const bool is_itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  const std::string character = utf8_of(is_itself ? byte : moved++);
  return character == "\"" || character == "\\" ? "\\" + character : character;
}

// The folder's path.
inline std::filesystem::path write_chat_tokenizer(const TempFolder& folder, const std::string& name = "tokenizer") {
  std::string vocab;
  unsigned moved = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte)
    vocab += (byte == 0 ? "\"" : ", \"") + byte_key(byte, moved) + "\": " + std::to_string(byte);
  std::string added;
  for (const auto& [id, text] : {std::pair(kEndOfText, "<|endoftext|>"), std::pair(kTurnBegin, "<|im_start|>"),
                                 std::pair(kTurnEnd, "<|im_end|>")})
    added += (added.empty() ? "" : ", ") +
             ("{\"id\": " + std::to_string(id) + ", \"content\": \"" + text + "\", \"special\": true}");
  folder.write(name + "/tokenizer.json",
               "{\"added_tokens\": [" + added +
                   "], \"normalizer\": null, \"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"}, "
                   "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}, "
                   "\"model\": {\"type\": \"BPE\", \"vocab\": {" +
                   vocab + "}, \"merges\": []}}");
  return folder
      .write(name + "/tokenizer_config.json",
             R"({"chat_template": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + )"
             R"(message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %})"
             R"({{ '<|im_start|>assistant\n' }}{% endif %}"})")
      .parent_path();
}

}  // namespace scaletrain::test
