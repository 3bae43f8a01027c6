#include "config/folder_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/input_paths.h"
#include "config/keys/keys.h"
#include "config/validate.h"

namespace scaletrain {

namespace {

constexpr const char* from_key = "model.init.from";
constexpr const char* context_key = "model.context";

// Whether the folder's model says what the key's value is.
bool is_of_shape(const Key<Config>& key) {
  const std::string& path = key.info.path;
  return path.starts_with("model.") && !path.starts_with("model.init.") && !path.starts_with("model.grow.") &&
         path != "model.preset" && !path.ends_with("dropout");
}

// vocab: auto is whatever there is.
bool is_said(const Key<Config>& key, const Config& config, const ReadContext& context) {
  if (key.info.path == "model.vocab" && !config.model.vocab) return false;
  return config.model.preset.has_value() || context.given.contains(key.info.path);
}

void refuse_difference(const Key<Config>& key, const Config& config, const Config& from, ReadContext& context) {
  const bool is_given = context.given.contains(key.info.path);
  const std::string named = is_given ? key.info.path : "model.preset";
  const std::string ours = is_given
                               ? key.write(config)
                               : fmt::format("{} has {} {}", *config.model.preset, key.info.path, key.write(config));
  // What others change on purpose, to train on longer samples than the model was made for.
  const bool is_rotation = key.info.path.starts_with("model.rope_");
  // A table of positions has a row for each.
  const bool is_shorter = key.info.path == context_key && config.model.context < from.model.context;
  context.diagnostics.add(place_of(context, named),
                          fmt::format("{}: {}, but the model in {} has {}; leave the key out, or write what the folder "
                                      "has{}",
                                      named, ours, *config.model.init.from, key.write(from),
                                      is_shorter    ? "; shorter samples come by phases: [{steps: ..., context: ...}]"
                                      : is_rotation ? "; to go on with another rotation, write it into a copy of the "
                                                      "folder, as its config.json"
                                                    : ""));
}

// Positions that are rotated have no table: samples may have another length, but for a window.
void check_context(const FolderModel& theirs, const Config& config, ReadContext& context,
                   std::vector<std::string>& notices) {
  if (config.model.context > theirs.model.context)
    notices.push_back(
        fmt::format("{}: {}, and the model in {} was made for {}: it has not learnt the positions behind "
                    "those, which takes training on them",
                    context_key, config.model.context, *config.model.init.from, theirs.model.context));
  if (!theirs.window || config.model.context <= *theirs.window) return;
  context.diagnostics.add(
      place_of(context, context_key),
      fmt::format("{}: {}, but attention reaches only {} tokens back in the model in {} (sliding window), which is not "
                  "supported beyond so many: at most {} are possible",
                  context_key, config.model.context, *theirs.window, *config.model.init.from, *theirs.window));
}

// Of a model that grows it is how deep it will be; the folder's cannot be known to be enough.
void check_layers(const FolderModel& theirs, const Config& config, ReadContext& context) {
  constexpr const char* layers_key = "model.layers";
  if (!context.given.contains(layers_key) && !config.model.preset) {
    context.diagnostics.add(place_of(context, "model.grow.order"),
                            fmt::format("{}: is missing; model.grow.order needs to know how many layers the model is "
                                        "to have, more than the {} of that in {}",
                                        layers_key, theirs.model.layers, *config.model.init.from));
  } else if (config.model.layers <= theirs.model.layers) {
    context.diagnostics.add(
        place_of(context, layers_key),
        fmt::format("{}: {}, but the model in {} has {}, and model.grow.order {} makes a deeper one "
                    "of it; write more, or leave model.grow out",
                    layers_key, config.model.layers, *config.model.init.from, theirs.model.layers,
                    to_text(config.model.grow.order)));
  }
}

// Bytes, which stand where no tokenizer is named, are those of few models: another would be trained on other ids than
// its own.
void check_tokenizer(const FolderModel& theirs, const Config& config, ReadContext& context) {
  constexpr const char* type_key = "data.tokenizer.type";
  constexpr std::int64_t ids_of_bytes = 257;
  if (context.given.contains(type_key) || is_broken(context, type_key) || is_broken(context, "data.tokenizer") ||
      config.data.tokenizer.type != TokenizerKind::bytes || !theirs.model.vocab || *theirs.model.vocab == ids_of_bytes)
    return;
  context.diagnostics.add(
      place_of(context, from_key),
      fmt::format(
          "{0}: is missing; the model in {1} has {2} ids, and bytes, which would stand here, have {3}. Name its "
          "tokenizer: data.tokenizer: {{type: bpe, path: {1}}}, or type: sentencepiece; write type: ids for "
          "token files{4}",
          type_key, *config.model.init.from, *theirs.model.vocab, ids_of_bytes,
          *theirs.model.vocab > ids_of_bytes ? ", or bytes if that is meant" : ""));
}

// The model's own tokenizer lies beside it, and a file of the same may be written in another way: no more than a
// notice.
void tell_other_tokenizer(const Config& config, std::vector<std::string>& notices) {
  namespace fs = std::filesystem;
  if (config.data.tokenizer.type != TokenizerKind::bpe || !config.data.tokenizer.path) return;
  constexpr const char* name = "tokenizer.json";
  constexpr std::uint64_t largest = 1u << 28;
  std::error_code error;
  const fs::path path = *config.data.tokenizer.path;
  const fs::path ours = fs::is_directory(path, error) ? path / name : path;
  const fs::path theirs = fs::path(*config.model.init.from) / name;
  if (ours.extension() != ".json" || !fs::exists(ours, error) || !fs::exists(theirs, error) ||
      fs::equivalent(ours, theirs, error))
    return;
  try {
    if (read_text_file(ours, largest) == read_text_file(theirs, largest)) return;
  } catch (const InputError&) {
    return;  // whoever reads the tokenizer says it
  }
  notices.push_back(
      fmt::format("data.tokenizer.path: {} is not the {} beside the model in {}: where its ids mean other tokens, the "
                  "model reads what it has not learnt",
                  ours.string(), name, *config.model.init.from));
}

}  // namespace

void take_folder_model(const FolderModelLook& look, const std::filesystem::path& folder, Config& config,
                       ReadContext& context, std::vector<std::string>& notices) {
  if (!look || !config.model.init.from || is_broken(context, from_key)) return;
  FolderModel theirs;
  Config resolved = config;
  try {
    resolve_paths(resolved, folder);
    theirs = look(resolved);
  } catch (const std::exception& failure) {
    const bool is_said_enough = config.model.preset || context.given.contains("model.hidden");
    if (!is_said_enough)
      context.diagnostics.add(
          place_of(context, from_key),
          fmt::format("{}: {}; so there is no telling what the model is", from_key, std::string_view(failure.what())));
    return;
  }
  const bool grows = config.model.grow.order != GrowthOrder::none && !theirs.is_of_run;
  if (grows) check_layers(theirs, config, context);
  Config from;
  from.model = theirs.model;
  std::vector<const Key<Config>*> said;
  for (const Key<Config>& key : config_table()) {
    if (!is_of_shape(key) || is_broken(context, key.info.path)) continue;
    if (grows && key.info.path == "model.layers") continue;
    if (is_said(key, config, context)) {
      said.push_back(&key);
      continue;
    }
    key.copy(from, config);
    context.given[key.info.path] = place_of(context, from_key);
    if (key.info.path == context_key && theirs.window == theirs.model.context)
      notices.push_back(fmt::format("{}: {}, as far back as attention reaches in the model in {} (sliding window)",
                                    context_key, theirs.model.context, *config.model.init.from));
  }
  if (theirs.is_of_run) return;  // resuming compares
  check_tokenizer(theirs, config, context);
  tell_other_tokenizer(resolved, notices);
  for (const Key<Config>* key : said) {
    if (key->info.path == context_key && config.model.position == PositionKind::rope) {
      check_context(theirs, config, context, notices);
    } else if (key->write(from) != key->write(config)) {
      refuse_difference(*key, config, from, context);
    }
  }
}

}  // namespace scaletrain
