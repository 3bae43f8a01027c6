// Bytes as GPT-2's vocabularies spell them, a printable character for each, and what follows from it: the tokenizer
// `bytes` as a tokenizer.json that other programs read.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain {

// "Ġthe" for " the".
std::string spelled_bytes(std::string_view bytes);

// A byte-level BPE without merges, with ByteTokenizer's ids. Its end of a document, <|endoftext|>, is found in a text
// that spells it, as every reader of the file does with special tokens; ByteTokenizer reads the bytes of it.
std::string byte_tokenizer_json();
// What its end of a document is called there.
inline constexpr const char* kByteEndName = "<|endoftext|>";

}  // namespace scaletrain
