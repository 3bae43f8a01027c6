// scaletrain checkpoint list|inspect|verify|export.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/catalog.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/load.h"
#include "commands.h"
#include "config/load.h"
#include "infer/model.h"
#include "train/run_folder.h"
#include "train/run_state.h"
#include "train/scalars.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

struct PathArguments {
  std::string path;
  bool json = false;
};

bool is_run_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(RunPaths(path).source_config(), ignored);
}

// The folder of checkpoints that a path means: a run folder's, or itself.
fs::path checkpoints_of(const fs::path& path) {
  if (!fs::exists(path)) throw InputError(fmt::format("{}: no such folder", path.string()));
  if (fs::exists(path / "checkpoints")) return path / "checkpoints";
  if (fs::exists(path / "manifest.json"))
    throw InputError(
        fmt::format("{} is one checkpoint: give the run folder, or use `checkpoint inspect`", path.string()));
  return path;
}

// One of our checkpoints: given as such, or a run folder's newest.
Checkpoint open_checkpoint(const std::string& path) {
  const LocatedModel located = locate_model(path);
  if (located.source != ModelSource::checkpoint)
    throw InputError(fmt::format("{} is a Hugging Face folder, not a checkpoint of scaletrain", path));
  return Checkpoint(located.path);
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

// What list says of one folder; aside: "damaged" or "abandoned" where it was set aside, else empty.
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
          {"set_aside", aside}};
}

std::string text_of(const CatalogEntry& entry, bool is_best, const std::string& aside) {
  const std::string mark = aside.empty() ? "" : fmt::format("  set aside: {}", aside);
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
  for (const CatalogEntry& entry : entries) {
    const bool is_best = entry.problem.empty() && entry.save_id == best;
    answer.push_back(json_of(entry, is_best, ""));
    text += text_of(entry, is_best, "");
  }
  for (const SetAsideEntry& aside : list_set_aside(folder)) {
    answer.push_back(json_of(aside.entry, false, aside.reason));
    text += text_of(aside.entry, false, aside.reason);
  }
  write_output(arguments.json ? answer.dump(2) + "\n" : text);
  if (entries.empty()) write_message("no checkpoints in " + arguments.path);
  return ExitCode::finished;
}

ExitCode inspect(const PathArguments& arguments) {
  const Checkpoint checkpoint = open_checkpoint(arguments.path);
  const Manifest& manifest = checkpoint.manifest();
  if (arguments.json) {
    nlohmann::json tensors = nlohmann::json::array();
    for (const ManifestTensor& tensor : manifest.tensors) {
      nlohmann::json shape = nlohmann::json::array();
      for (const std::int64_t extent : tensor.shape) shape.push_back(extent);
      tensors.push_back({{"name", tensor.name},
                         {"role", tensor.role},
                         {"dtype", std::string(to_text(tensor.dtype))},
                         {"shape", shape},
                         {"pieces", tensor.pieces.size()}});
    }
    const nlohmann::json answer = {{"path", checkpoint.path().string()},  {"step", manifest.step},
                                   {"tokens", manifest.tokens},           {"generation", manifest.generation},
                                   {"save_id", manifest.save_id},         {"parent_save_id", manifest.parent_save_id},
                                   {"fingerprint", manifest.fingerprint}, {"scalars", manifest.scalars},
                                   {"config", manifest.config},           {"tensors", tensors}};
    write_output(answer.dump(2) + "\n");
    return ExitCode::finished;
  }
  std::string text = fmt::format(
      "checkpoint   {}\nstep         {}\ntokens       {}\ngeneration   {}\nsave id      {}\nparent       "
      "{}\nfingerprint  {}\n",
      checkpoint.path().string(), manifest.step, grouped_digits(static_cast<std::uint64_t>(manifest.tokens)),
      manifest.generation, manifest.save_id, manifest.parent_save_id.empty() ? "none" : manifest.parent_save_id,
      manifest.fingerprint);
  for (const auto& [name, value] : manifest.scalars) {
    text += fmt::format("  {} = {}", name, value);
    // Written as hexadecimal, to the bit; people read decimals.
    if (name == "early_stop.best")
      text += fmt::format(" ({})", json_float(get_double(manifest.scalars, name, checkpoint.path().string())));
    text += "\n";
  }
  text += "tensors\n";
  for (const ManifestTensor& tensor : manifest.tensors)
    text +=
        fmt::format("  {:<52} {:<8} {} {}\n", tensor.name, tensor.role, to_text(tensor.dtype), to_text(tensor.shape));
  text += "config\n" + manifest.config;
  write_output(text);
  return ExitCode::finished;
}

// Of a run: the folders that were passed over for its newest checkpoint.
std::vector<CatalogEntry> unusable_beside(const fs::path& run, const fs::path& checkpoint) {
  std::error_code ignored;
  if (fs::exists(run / "manifest.json", ignored)) return {};
  std::vector<CatalogEntry> entries = list_checkpoints(checkpoint.parent_path());
  std::erase_if(entries, [](const CatalogEntry& entry) { return entry.problem.empty(); });
  return entries;
}

ExitCode verify(const PathArguments& arguments) {
  const Checkpoint checkpoint = open_checkpoint(arguments.path);
  checkpoint.verify();
  nlohmann::json unusable = nlohmann::json::array();
  // Its manifest may say nothing any more, but its name does: a later one that is broken is what was asked for.
  bool is_newest = true;
  for (const CatalogEntry& entry : unusable_beside(arguments.path, checkpoint.path())) {
    unusable.push_back({{"path", entry.path.string()}, {"problem", entry.problem}});
    is_newest = is_newest && entry.path.filename() < checkpoint.path().filename();
    write_message(fmt::format("{}: unusable: {}", entry.path.string(), entry.problem));
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
  return is_newest ? ExitCode::finished : ExitCode::input;
}

struct ExportArguments {
  std::string path;
  std::string output;
  std::string format = "huggingface";
  std::string dtype = "fp32";
};

ExitCode export_model(const ExportArguments& arguments) {
  const LocatedModel located = locate_model(arguments.path);
  for (const std::string& problem : located.passed_over)
    write_message("warning: a damaged checkpoint is passed over: " + problem);
  if (located.path != fs::path(arguments.path)) write_message("using " + located.path.string());
  const DType dtype = arguments.dtype == "bf16" ? DType::bf16 : arguments.dtype == "fp16" ? DType::f16 : DType::f32;
  HuggingFaceExport request{.folder = arguments.output, .model = {}, .dtype = dtype, .tokenizer_files = {}};
  const auto backend = make_reference_backend(DType::f32);
  const auto stream = backend->make_stream();
  LoadedModel model(located, *backend, *stream);
  request.model = model.config().model;
  request.model.vocab = model.transformer().spec().vocab;
  for (const fs::path& file : model.tokenizer().files()) request.tokenizer_files.push_back(file);
  const TensorReader read = [&](const ParamRow& row, View out) {
    backend->run(*stream, Copy{.input = model.store().master(row.name), .output = out});
  };
  export_hugging_face(model.store().table(), read, request);
  write_output(fmt::format("{}: a Hugging Face model, {}\n", arguments.output, arguments.dtype));
  return ExitCode::finished;
}

Command add_path_command(CLI::App& app, const std::string& name, const std::string& help, const std::string& what,
                         ExitCode (*run)(const PathArguments&)) {
  auto arguments = std::make_shared<PathArguments>();
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("path", arguments->path, what)->required();
  command->add_flag("--json", arguments->json, "JSON on standard output");
  return [arguments, run] { return run(*arguments); };
}

}  // namespace

Command add_checkpoint_list(CLI::App& app) {
  return add_path_command(app, "list", "The checkpoints of a run, newest first", "A run folder", list);
}

Command add_checkpoint_inspect(CLI::App& app) {
  return add_path_command(app, "inspect", "What a checkpoint holds", "A checkpoint, or a run folder (its newest)",
                          inspect);
}

Command add_checkpoint_verify(CLI::App& app) {
  return add_path_command(app, "verify", "Read every byte against its checksums",
                          "A checkpoint, or a run folder (its newest)", verify);
}

Command add_checkpoint_export(CLI::App& app) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand("export", "Write the model in another program's format");
  command->add_option("path", arguments->path, "A checkpoint, a run folder (its newest) or a Hugging Face folder")
      ->required();
  command->add_option("--to", arguments->format, "The format")->check(CLI::IsMember({"huggingface"}))->required();
  command->add_option("--output", arguments->output, "A new folder")->required()->type_name("FOLDER");
  command->add_option("--dtype", arguments->dtype, "Of the weights")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  return [arguments] { return export_model(*arguments); };
}

}  // namespace scaletrain
