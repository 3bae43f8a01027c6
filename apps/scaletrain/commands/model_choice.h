// Which model a path on the command line means, and of a run folder which checkpoint: the newest, or with --best the
// one that training pinned. What evaluate, generate and the checkpoint commands share.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "infer/model.h"

namespace CLI {
class App;
}

namespace scaletrain {

// What --best says, where it is of use.
void declare_best(CLI::App& command, bool& best);
// What --base says, where weights are read.
void declare_base(CLI::App& command, std::string& base);
void declare_averages(CLI::App& command, bool& averages);

// A run folder's newest checkpoint whose manifest is whole, or its best one. On standard error: which checkpoint of a
// run folder is taken, whether another is pinned as the best, and which were passed over and why. UserError if `best`
// and the path is no run folder; InputError if it is, and has no checkpoint that counts as the best; else as for
// locate_model.
// averages: they are taken (--ema).
LocatedModel choose_model(const std::filesystem::path& path, bool best, bool averages = false);

// The same for what only checkpoints of ours have; InputError for a Hugging Face folder.
LocatedModel choose_checkpoint(const std::filesystem::path& path, bool best, bool averages = false);

// Does something with the chosen checkpoint. Where that finds it damaged, the InputError also names the next older one
// of the run, which is not read for that, and how to use it.
void with_older_named(const LocatedModel& located, const std::function<void()>& use);

// Reads the model. Of weights that are damaged the InputError names the next older checkpoint, as with_older_named
// does; not of what `before_weights` refuses, which none would mend.
LoadedModel load_model(const LocatedModel& located, Backend& backend, Stream& stream,
                       std::optional<TokenizerKind> hugging_face_tokenizer,
                       const LoadedModel::BeforeWeights& before_weights);

}  // namespace scaletrain
