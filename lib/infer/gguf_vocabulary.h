// What a GGUF file says of a model's text: its tokens, how a text becomes tokens, which of them are special, and the
// chat template.
#pragma once

#include "checkpoint/gguf/gguf_export.h"
#include "infer/exported_files.h"
#include "infer/model.h"

namespace scaletrain {

struct VocabularyOfGguf {
  GgufVocabulary vocabulary;
  std::string notice;  // for the user: where the file's readers take a text otherwise; may be empty
};

// `text`: of the same model. UserError for a tokenizer that llama.cpp has no name or no code for: a pattern other than
// GPT-2's, Llama 3's and Qwen2's, a SentencePiece model that is not BPE or that normalises.
VocabularyOfGguf gguf_vocabulary(const LoadedModel& model, const ExportedText& text);

}  // namespace scaletrain
