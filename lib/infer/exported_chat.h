// The chat of a run that was trained on conversations, for other programs: its template and what ends a turn; and of
// one that was trained on completions what ends these.
#pragma once

#include <filesystem>

#include "infer/exported_files.h"
#include "infer/model.h"

namespace scaletrain {

// Of a model of ours, whose checkpoint is `folder`, and what its export has so far. Nothing, unless the run read
// instructions. The template that the run's config names takes the place of the tokenizer's own, where that is another
// one; the token that ends a turn or a completion is added to those that end a text.
void add_chat(ExportedText& text, const TextModel& model, const std::filesystem::path& folder);

}  // namespace scaletrain
