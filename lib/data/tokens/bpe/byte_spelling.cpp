#include "data/tokens/bpe/byte_spelling.h"

#include <array>
#include <nlohmann/json.hpp>

#include "data/tokens/tokenizer.h"

namespace scaletrain {

namespace {

// U+0021 to U+007E, U+00A1 to U+00AC and U+00AE to U+00FF are themselves; the others follow from U+0100 on.
std::array<std::string, 256> make_spellings() {
  std::array<std::string, 256> spellings;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool is_itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const unsigned point = is_itself ? byte : next++;
    if (point < 0x80) {
      spellings[byte] = static_cast<char>(point);
    } else {
      spellings[byte] = {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
    }
  }
  return spellings;
}

}  // namespace

std::string spelled_bytes(std::string_view bytes) {
  static const std::array<std::string, 256> spellings = make_spellings();
  std::string text;
  for (const char byte : bytes) text += spellings[static_cast<unsigned char>(byte)];
  return text;
}

std::string byte_tokenizer_json() {
  using nlohmann::ordered_json;
  ordered_json vocab = ordered_json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[spelled_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  vocab[kByteEndName] = ByteTokenizer::kEndOfDocument;
  const ordered_json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const ordered_json end = {{"id", ByteTokenizer::kEndOfDocument},
                            {"content", kByteEndName},
                            {"single_word", false},
                            {"lstrip", false},
                            {"rstrip", false},
                            {"normalized", false},
                            {"special", true}};
  const ordered_json model = {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", vocab},
                              {"merges", ordered_json::array()}};
  const ordered_json file = {{"version", "1.0"},
                             {"truncation", nullptr},
                             {"padding", nullptr},
                             {"added_tokens", ordered_json::array({end})},
                             {"normalizer", nullptr},
                             {"pre_tokenizer", byte_level},
                             {"post_processor", nullptr},
                             {"decoder", byte_level},
                             {"model", model}};
  return file.dump(1) + "\n";
}

}  // namespace scaletrain
