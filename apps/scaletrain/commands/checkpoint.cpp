// scaletrain checkpoint list|verify|export.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/catalog.h"
#include "checkpoint/hugging_face/adapter_export.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/load.h"
#include "commands.h"
#include "data/tokens/tokenizer.h"
#include "infer/model.h"
#include "model_choice.h"
#include "train/run_state.h"
#include "train/start/run_folder.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

struct PathArguments {
  std::string path;
  bool best = false;
  bool json = false;
};

bool is_run_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(RunPaths(path).source_config(), ignored);
}

// The folder of checkpoints that a path means: a run folder's, or itself.
fs::path checkpoints_of(const fs::path& path) {
  if (!path_exists(path)) throw InputError(fmt::format("{}: no such folder", path.string()));
  if (path_exists(path / "checkpoints")) return path / "checkpoints";
  if (path_exists(path / "manifest.json"))
    throw InputError(
        fmt::format("{} is one checkpoint: give the run folder, or use `checkpoint inspect`", path.string()));
  return path;
}

// The save id of the best checkpoint by the newest one that can be read; empty if none counts as best.
std::string best_save_id(const std::vector<CatalogEntry>& entries) {
  if (entries.empty() || !entries.front().problem.empty()) return {};
  const fs::path& newest = entries.front().path;
  try {
    return read_state(read_manifest(newest), newest.string()).best_save_id.value_or("");
  } catch (const InputError& error) {
    write_message(fmt::format("which checkpoint is the best is unknown: {}", error.what()));
    return {};
  }
}

// What the checkpoint takes on disk, as a run's metrics count it: the files that the manifest lists, and the manifest.
std::uint64_t bytes_of(const CatalogEntry& entry) {
  std::error_code error;
  const std::uintmax_t manifest = fs::file_size(entry.path / "manifest.json", error);
  return entry.bytes + (error || !entry.problem.empty() ? 0 : manifest);
}

// What list says of one folder.
struct ListedFolder {
  CatalogEntry entry;
  std::string aside{};  // "damaged" or "abandoned" where it was quarantined, else empty
};

// What is broken says nothing of itself but its name.
std::int64_t step_of(const CatalogEntry& entry) {
  if (entry.problem.empty()) return entry.step;
  constexpr std::string_view prefix = "step-";
  const std::string name = entry.path.filename().string();
  const std::size_t at = name.find(prefix);
  std::int64_t step = 0;
  if (at != std::string::npos) std::from_chars(name.data() + at + prefix.size(), name.data() + name.size(), step);
  return step;
}

// Those that can be used as they follow each other; the others where their steps belong, behind the usable one of the
// same step.
std::vector<ListedFolder> listed_folders(const fs::path& checkpoints, const std::vector<CatalogEntry>& entries) {
  std::vector<ListedFolder> usable;
  std::vector<ListedFolder> others;
  for (const CatalogEntry& entry : entries) (entry.problem.empty() ? usable : others).push_back({entry});
  for (QuarantinedEntry& quarantined : list_quarantined(checkpoints))
    others.push_back({std::move(quarantined.entry), std::move(quarantined.reason)});
  for (ListedFolder& other : others) {
    const std::int64_t step = step_of(other.entry);
    const auto place = std::find_if(usable.begin(), usable.end(),
                                    [step](const ListedFolder& listed) { return step_of(listed.entry) < step; });
    usable.insert(place, std::move(other));
  }
  return usable;
}

nlohmann::json json_of(const CatalogEntry& entry, bool is_best, const std::string& aside) {
  return {{"path", entry.path.string()},
          {"step", entry.step},
          {"generation", entry.generation},
          {"tokens", entry.tokens},
          {"bytes", bytes_of(entry)},
          {"save_id", entry.save_id},
          {"best", is_best},
          {"problem", entry.problem},
          {"unreadable", entry.unreadable},
          {"quarantined", aside}};
}

std::string text_of(const CatalogEntry& entry, bool is_best, const std::string& aside) {
  const std::string mark = aside.empty() ? "" : fmt::format("  quarantined: {}", aside);
  if (entry.unreadable) return fmt::format("{}  cannot be read now: {}{}\n", entry.path.string(), entry.problem, mark);
  if (!entry.problem.empty()) return fmt::format("{}  unusable: {}{}\n", entry.path.string(), entry.problem, mark);
  return fmt::format("{}  step {}  generation {}  {} tokens  {}{}{}\n", entry.path.string(), entry.step,
                     entry.generation, grouped_digits(static_cast<std::uint64_t>(entry.tokens)),
                     bytes_text(bytes_of(entry)), is_best ? "  best" : "", mark);
}

ExitCode list(const PathArguments& arguments) {
  nlohmann::json answer = nlohmann::json::array();
  std::string text;
  const fs::path folder = checkpoints_of(arguments.path);
  const auto entries = list_checkpoints(folder);
  if (entries.empty() && !is_run_folder(arguments.path) && !is_run_folder(fs::canonical(folder).parent_path()))
    throw InputError(
        fmt::format("{}: no checkpoints here: neither a run folder nor a folder of checkpoints", arguments.path));
  const std::string best = best_save_id(entries);
  for (const auto& [entry, aside] : listed_folders(folder, entries)) {
    const bool is_best = aside.empty() && entry.problem.empty() && entry.save_id == best;
    answer.push_back(json_of(entry, is_best, aside));
    text += text_of(entry, is_best, aside);
  }
  write_output(arguments.json ? answer.dump(2) + "\n" : text);
  if (entries.empty()) write_message("no checkpoints in " + arguments.path);
  return ExitCode::finished;
}

ExitCode verify(const PathArguments& arguments) {
  const LocatedModel located = choose_checkpoint(arguments.path, arguments.best);
  std::optional<Checkpoint> opened;
  with_older_named(located, [&] { opened.emplace(located.path); });
  const Checkpoint& checkpoint = *opened;
  with_older_named(located, [&checkpoint] { checkpoint.verify(); });
  nlohmann::json unusable = nlohmann::json::array();
  // Its manifest may say nothing any more, but its name does: a later one that is broken is what was asked for.
  bool is_newest = located.checkpoints.empty() || located.checkpoints.front().path == located.path;
  for (const CatalogEntry& entry : located.damaged) {
    unusable.push_back({{"path", entry.path.string()}, {"problem", entry.problem}});
    is_newest = is_newest && entry.path.filename() < checkpoint.path().filename();
  }
  if (arguments.json) {
    const nlohmann::json answer = {{"path", checkpoint.path().string()},
                                   {"step", checkpoint.manifest().step},
                                   {"save_id", checkpoint.manifest().save_id},
                                   {"verified", true},
                                   {"is_newest", is_newest},
                                   {"unusable", unusable}};
    write_output(answer.dump(2) + "\n");
  } else {
    write_output(fmt::format("{}: every byte is as it was written (step {}, save {})\n", checkpoint.path().string(),
                             checkpoint.manifest().step, checkpoint.manifest().save_id));
  }
  return is_newest || arguments.best ? ExitCode::finished : ExitCode::input;
}

struct ExportArguments {
  std::string path;
  bool best = false;
  std::string output;
  std::string format = "huggingface";
  std::string dtype = "fp32";
  bool adapter = false;
  std::string base;
};

// What a reader of the folder must know of the text, since no file there says it.
std::string tokenizer_notice(const Tokenizer& tokenizer, const std::string& folder) {
  if (!tokenizer.reads_text())
    return "notice: the folder has no tokenizer files: the model was trained on ready-made token ids. Put the files of "
           "the tokenizer that made them there";
  return fmt::format(
      "notice: the folder has no tokenizer files: the model reads bytes. A token's id is the byte, 0 to 255, and {} "
      "ends a document; here that is --tokenizer bytes: scaletrain generate {} --tokenizer bytes --prompt \"Once\"",
      ByteTokenizer::kEndOfDocument, folder);
}

std::optional<std::int64_t> first_of(std::span<const std::int32_t> tokens) {
  return tokens.empty() ? std::nullopt : std::optional<std::int64_t>(tokens.front());
}

DType dtype_of(const ExportArguments& arguments) {
  return arguments.dtype == "bf16" ? DType::bf16 : arguments.dtype == "fp16" ? DType::f16 : DType::f32;
}

// The adapters alone, without their model.
ExitCode export_as_adapter(const ExportArguments& arguments) {
  if (!arguments.base.empty())
    throw UserError("--base: --adapter writes no weights of the base model; remove one of the options");
  const LocatedModel located = choose_checkpoint(arguments.path, arguments.best);
  const Checkpoint checkpoint(located.path);
  const std::string where = (located.path / "manifest.json").string() + ": config";
  const Config config = parse_resolved_config(checkpoint.manifest().config, where);
  if (!config.finetune.lora)
    throw UserError(fmt::format("--adapter: {} has no adapters: it was not trained with finetune.lora; without the "
                                "option its model is exported",
                                located.path.string()));
  // The shapes of adapters do not depend on the vocabulary.
  export_adapter(checkpoint, {.folder = arguments.output,
                              .model = make_model_spec(config.model, config.model.vocab.value_or(1)),
                              .lora = *config.finetune.lora,
                              .dtype = dtype_of(arguments)});
  write_output(fmt::format("{}: an adapter for peft, of the model in {}, {}\n", arguments.output,
                           checkpoint.manifest().base->path, arguments.dtype));
  return ExitCode::finished;
}

ExitCode export_model(const ExportArguments& arguments) {
  if (arguments.adapter) return export_as_adapter(arguments);
  LocatedModel located = choose_model(arguments.path, arguments.best);
  located.base = arguments.base;
  check_export_folder(arguments.output);  // before a large model is read for nothing
  const DType dtype = dtype_of(arguments);
  HuggingFaceExport request{.folder = arguments.output, .model = {}, .dtype = dtype, .tokenizer_files = {}};
  const auto backend = make_reference_backend(DType::f32);
  const auto stream = backend->make_stream();
  std::optional<LoadedModel> loaded;
  with_older_named(located, [&] { loaded.emplace(located, *backend, *stream); });
  LoadedModel& model = *loaded;
  request.model = model.config().model;
  request.model.vocab = model.transformer().spec().vocab;
  request.tokens = {.begin = first_of(model.tokenizer().before_document()), .end = model.tokenizer().end_of_document()};
  for (const fs::path& file : model.tokenizer().files()) request.tokenizer_files.push_back(file);
  if (model.config().data.tokenizer.type == TokenizerKind::sentencepiece) request.tokenizer_name = "tokenizer.model";
  const TensorReader read = [&](const Parameter& parameter, View out) {
    backend->copy(*stream, model.store().master(parameter.name), out);
    stream->synchronize();
  };
  export_hugging_face(model.store().table(), read, request);
  write_output(fmt::format("{}: a Hugging Face model, {}\n", arguments.output, arguments.dtype));
  if (located.source == ModelSource::checkpoint && request.tokenizer_files.empty())
    write_message(tokenizer_notice(model.tokenizer(), arguments.output));
  return ExitCode::finished;
}

}  // namespace

Command add_checkpoint_list(CLI::App& app) {
  auto arguments = std::make_shared<PathArguments>();
  CLI::App* command = app.add_subcommand("list", "The checkpoints of a run, newest first");
  command->add_option("path", arguments->path, "A run folder")->required();
  command->add_flag("--json", arguments->json, "JSON on standard output");
  return [arguments] { return list(*arguments); };
}

Command add_checkpoint_verify(CLI::App& app) {
  auto arguments = std::make_shared<PathArguments>();
  CLI::App* command = app.add_subcommand("verify", "Read every byte against its checksums");
  command->add_option("path", arguments->path, "A checkpoint, or a run folder (its newest)")->required();
  declare_best(*command, arguments->best);
  command->add_flag("--json", arguments->json, "JSON on standard output");
  return [arguments] { return verify(*arguments); };
}

Command add_checkpoint_export(CLI::App& app) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand("export", "Write the model in another program's format");
  command->add_option("path", arguments->path, "A checkpoint, a run folder (its newest) or a Hugging Face folder")
      ->required();
  declare_best(*command, arguments->best);
  command->add_option("--to", arguments->format, "The format")->check(CLI::IsMember({"huggingface"}))->required();
  command->add_option("--output", arguments->output, "A new folder")->required()->type_name("FOLDER");
  command->add_option("--dtype", arguments->dtype, "Of the weights")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  command->add_flag("--adapter", arguments->adapter,
                    "Of a run with finetune.lora the adapters, as a folder for peft; else they are merged into the model");
  declare_base(*command, arguments->base);
  return [arguments] { return export_model(*arguments); };
}

}  // namespace scaletrain
