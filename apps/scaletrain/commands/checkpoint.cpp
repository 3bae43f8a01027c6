// scaletrain checkpoint list|verify|export.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/catalog.h"
#include "checkpoint/hugging_face/adapter_export.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/hugging_face/hugging_face_config.h"
#include "checkpoint/load.h"
#include "commands.h"
#include "data/tokens/companion_files.h"
#include "export_gguf.h"
#include "infer/exported_files.h"
#include "infer/model.h"
#include "model_choice.h"
#include "option_checks.h"
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
  bool averages = false;
  std::vector<std::string> data;
  RecordsArgument records;
  std::int64_t batches = 0;
};

// What only one of the formats has.
void check_format(const ExportArguments& arguments) {
  if (arguments.output.empty()) throw UserError("--output: a path is expected");
  arguments.records.check();
  const bool rounds = arguments.dtype == "int8" || arguments.dtype == "int4";
  if (rounds && arguments.format != "gguf")
    throw UserError(
        fmt::format("--dtype: {} is of --to gguf; a Hugging Face folder holds fp32, bf16 or fp16", arguments.dtype));
  if (arguments.adapter && arguments.format == "gguf")
    throw UserError("--adapter: it is of --to huggingface; without it the adapters are merged into the GGUF file");
  if (!arguments.data.empty() && !rounds)
    throw UserError("--data: it is what rounding to --dtype int8 or int4 is measured on; remove the option");
  if (arguments.batches > 0 && !rounds)
    throw UserError(
        "--batches: it is how much of the data rounding to --dtype int8 or int4 is measured on; remove the "
        "option");
}

DType dtype_of(const ExportArguments& arguments) {
  return arguments.dtype == "bf16" ? DType::bf16 : arguments.dtype == "fp16" ? DType::f16 : DType::f32;
}

// What is read beside adapters; how to sample from a model its base says.
// Adapters go without it where it cannot be read.
ExportedText text_of_adapter(const Checkpoint& checkpoint, const Config& config, const LocatedModel& located) try {
  const auto tokenizer = tokenizer_of(checkpoint, config);
  ExportedText text =
      exported_text({config, *tokenizer, config.model.vocab.value_or(tokenizer->vocab_size())}, located);
  std::erase_if(text.files, [](const ExportedFile& file) { return file.name == kGenerationConfigFile; });
  return text;
} catch (const InputError& error) {
  ExportedText none;
  none.notices.push_back(fmt::format("no tokenizer lies beside the adapter: {}", error.what()));
  return none;
}

// The adapters alone, without their model.
ExitCode export_as_adapter(const ExportArguments& arguments) {
  if (!arguments.base.empty())
    throw UserError("--base: --adapter writes no weights of the base model; remove one of the options");
  const LocatedModel located = choose_checkpoint(arguments.path, arguments.best);
  Checkpoint checkpoint(located.path);
  if (arguments.averages) checkpoint.use_averages();
  const std::string where = (located.path / "manifest.json").string() + ": config";
  const Config config = parse_resolved_config(checkpoint.manifest().config, where);
  if (!config.finetune.lora)
    throw UserError(
        fmt::format("--adapter: {} has no adapters: it was not trained with finetune.lora; without the "
                    "option its model is exported",
                    located.path.string()));
  ExportedText text = text_of_adapter(checkpoint, config, located);
  // The shapes of adapters do not depend on the vocabulary.
  export_adapter(checkpoint, {.folder = arguments.output,
                              .model = make_model_spec(config.model, config.model.vocab.value_or(1)),
                              .lora = *config.finetune.lora,
                              .dtype = dtype_of(arguments),
                              .files = std::move(text.files)});
  write_output(fmt::format("{}: an adapter for peft, of the model in {}, {}\n", arguments.output,
                           checkpoint.manifest().base->path, arguments.dtype));
  for (const std::string& notice : text.notices) write_message("notice: " + notice);
  if (!text.folder_notice.empty()) write_message("notice: " + text.folder_notice);
  return ExitCode::finished;
}

ExitCode export_model(const ExportArguments& arguments) {
  check_format(arguments);
  if (arguments.adapter) return export_as_adapter(arguments);
  LocatedModel located = choose_model(arguments.path, arguments.best, arguments.averages);
  located.base = arguments.base;
  if (arguments.format == "gguf")
    return export_as_gguf(located, {.file = arguments.output,
                                    .dtype = arguments.dtype,
                                    .data = arguments.data,
                                    .records = arguments.records.value(),
                                    .batches = arguments.batches});
  check_export_folder(arguments.output);  // before a large model is read for nothing
  const DType dtype = dtype_of(arguments);
  HuggingFaceExport request{.folder = arguments.output, .model = {}, .dtype = dtype, .tokenizer_files = {}};
  const auto backend = make_reference_backend(DType::f32);
  const auto stream = backend->make_stream();
  std::vector<std::string> notices;
  const auto look_first = [&](LoadedModel& found) {
    request.model = found.config().model;
    request.model.vocab = found.transformer().spec().vocab;
    ExportedText text = exported_text(found.text(), located);
    request.model.context = text.context;
    request.tokens = text.tokens;
    request.tokenizer_files = std::move(text.files);
    notices = std::move(text.notices);
    if (!text.folder_notice.empty()) notices.push_back(std::move(text.folder_notice));
    hugging_face_config_text(request.model, dtype, request.tokens);  // refuses what no family has
  };
  LoadedModel model = load_model(located, *backend, *stream, std::nullopt, look_first);
  const TensorReader read = [&](const Parameter& parameter, View out) {
    backend->copy(*stream, model.store().master(parameter.name), out);
    stream->synchronize();
  };
  export_hugging_face(model.store().table(), read, request);
  write_output(fmt::format("{}: a Hugging Face model, {}\n", arguments.output, arguments.dtype));
  for (const std::string& notice : notices) write_message("notice: " + notice);
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
  command
      ->add_option("--to", arguments->format,
                   "The format: a Hugging Face folder, or a GGUF file, which llama.cpp and what is built on it run")
      ->check(CLI::IsMember({"huggingface", "gguf"}))
      ->required();
  command->add_option("--output", arguments->output, "A new folder, or the new file of gguf")
      ->required()
      ->type_name("PATH");
  command
      ->add_option("--dtype", arguments->dtype,
                   "Of the weights; int8 and int4, of gguf, round them in groups of 32, and say what that costs")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16", "int8", "int4"}))
      ->capture_default_str();
  command
      ->add_option("--data", arguments->data,
                   "int8, int4: what to measure the cost on (repeatable); else the config's validation sets, as "
                   "much of each as the run's evaluations take")
      ->type_name("PATH")
      ->allow_extra_args(false);
  arguments->records.declare(*command);
  command
      ->add_option("--batches", arguments->batches, "int8, int4: at most so many batches of 8 samples of each; 0: all")
      ->transform(whole_number(0))
      ->capture_default_str();
  command->add_flag(
      "--adapter", arguments->adapter,
      "Of a run with finetune.lora the adapters, as a folder for peft; else they are merged into the model");
  declare_base(*command, arguments->base);
  declare_averages(*command, arguments->averages);
  return [arguments] { return export_model(*arguments); };
}

}  // namespace scaletrain
