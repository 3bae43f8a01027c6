// What an exported Hugging Face folder holds beside its weights, so that other programs read text as the model does:
// the tokenizer's files by the names that they look for, what lies beside them (data/tokens/companion_files.h), and
// generation_config.json. What the model's own folder has of these is copied byte for byte; what it has not and other
// programs need is written: a tokenizer_config.json that names the tokenizer's class and special tokens; for the
// tokenizer `bytes`, and for SentencePiece's BPE where there is none, a tokenizer.json that gives the same ids.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/hugging_face/hugging_face.h"
#include "infer/model.h"

namespace scaletrain {

struct ExportedText {
  std::vector<ExportedFile> files;
  SpecialTokens tokens;      // of config.json
  std::int64_t context = 0;  // how many tokens its readers may give the model
  // For the user: what a reader must know, of whatever format, and of a folder beside that; may be empty.
  std::vector<std::string> notices;
  std::string folder_notice;
};

// Nothing: there is none of this name.
ExportedFile* find_exported(std::vector<ExportedFile>& files, std::string_view name);

// `model` is of `location`, and of a Hugging Face folder it was opened without saying how its text is read. InputError
// for files that are damaged or cannot be read.
ExportedText exported_text(const TextModel& model, const LocatedModel& location);

}  // namespace scaletrain
