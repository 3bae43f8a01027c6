// What the files of a byte-level BPE tokenizer say, read and checked: Hugging Face's tokenizer.json, or GPT-2's
// vocabulary (vocab.json, encoder.json) with its merges (merges.txt, vocab.bpe).
//
// Supported of tokenizer.json: the model BPE over bytes (both spellings of merges, ignore_merges, unk_token and
// fuse_unk); added tokens with all their flags; the normaliser NFC; the pre-tokenizers Split (split_pattern.h says
// which patterns), Digits and ByteLevel, which comes last, and sequences of these; the post-processors ByteLevel and
// TemplateProcessing; the decoder ByteLevel. All else that a file asks for is refused by name and place: an InputError.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokens/bpe/added_tokens.h"
#include "data/tokens/bpe/bpe_merges.h"
#include "data/tokens/bpe/split_pattern.h"

namespace scaletrain {

// What becomes of a match, by tokenizers' names.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

// One step of pre-tokenisation: a space is put before each piece that begins with none, then pieces are cut.
struct SplitStep {
  SplitPattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool is_inverted = false;  // what is between matches counts as the match
};

struct BpeSpec {
  BpeModel model;
  std::vector<AddedToken> added;
  bool is_nfc = false;
  std::vector<SplitStep> steps;    // before ByteLevel's own
  bool adds_prefix_space = false;  // ByteLevel: to each piece that begins with none
  bool uses_gpt2_pattern = false;  // ByteLevel: cuts by GPT-2's pattern
  // What the template puts around a text.
  std::vector<std::int32_t> before_text;
  std::vector<std::int32_t> after_text;

  std::vector<std::filesystem::path> files;  // that it was read from
  std::uint64_t content_hash = 0;            // of these files
};

// GPT-2's own pattern, which ByteLevel uses.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What Digits takes for one. `tokenizers` asks Rust's standard library, of Unicode 17: U+11DE0 to U+11DE9 and U+16FF4
// to U+16FF6 are new in it.
inline constexpr const char* kDigitPattern =
    "[\\p{N}\xf0\x91\xb7\xa0-\xf0\x91\xb7\xa9\xf0\x96\xbf\xb4-\xf0\x96\xbf\xb6]";

// `path`: tokenizer.json by any name that ends in .json, a vocabulary that has its merges beside it, or a folder with
// either.
BpeSpec read_bpe_spec(const std::filesystem::path& path);
// A tokenizer.json's text; `where` begins every message. `files` stays empty.
BpeSpec parse_tokenizer_json(std::string_view text, const std::string& where);
// Whether the folder holds what read_bpe_spec() reads; what is in the files is not looked at.
bool holds_bpe_files(const std::filesystem::path& folder);
// The files that it reads.
std::vector<std::filesystem::path> bpe_files(const std::filesystem::path& path);

}  // namespace scaletrain
