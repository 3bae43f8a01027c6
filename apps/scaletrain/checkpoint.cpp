// scaletrain checkpoint list|inspect|verify|export.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/catalog.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/load.h"
#include "commands.h"
#include "config/load.h"
#include "infer/model.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

struct PathArguments {
  std::string path;
  bool json = false;
};

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

ExitCode list(const PathArguments& arguments) {
  nlohmann::json answer = nlohmann::json::array();
  std::string text;
  const auto entries = list_checkpoints(checkpoints_of(arguments.path));
  for (const CatalogEntry& entry : entries) {
    answer.push_back({{"path", entry.path.string()},
                      {"step", entry.step},
                      {"generation", entry.generation},
                      {"tokens", entry.tokens},
                      {"bytes", entry.bytes},
                      {"save_id", entry.save_id},
                      {"problem", entry.problem}});
    text += entry.problem.empty()
                ? fmt::format("{}  step {}  generation {}  {} tokens  {}\n", entry.path.string(), entry.step,
                              entry.generation, grouped_digits(static_cast<std::uint64_t>(entry.tokens)),
                              bytes_text(entry.bytes))
                : fmt::format("{}  unusable: {}\n", entry.path.string(), entry.problem);
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
  for (const auto& [name, value] : manifest.scalars) text += fmt::format("  {} = {}\n", name, value);
  text += "tensors\n";
  for (const ManifestTensor& tensor : manifest.tensors)
    text +=
        fmt::format("  {:<52} {:<8} {} {}\n", tensor.name, tensor.role, to_text(tensor.dtype), to_text(tensor.shape));
  text += "config\n" + manifest.config;
  write_output(text);
  return ExitCode::finished;
}

ExitCode verify(const PathArguments& arguments) {
  const Checkpoint checkpoint = open_checkpoint(arguments.path);
  checkpoint.verify();
  write_output(fmt::format("{}: every byte is as it was written (step {}, save {})\n", checkpoint.path().string(),
                           checkpoint.manifest().step, checkpoint.manifest().save_id));
  return ExitCode::finished;
}

struct ExportArguments {
  std::string path;
  std::string output;
  std::string format = "huggingface";
  std::string dtype = "fp32";
};

ExitCode export_model(const ExportArguments& arguments) {
  const LocatedModel located = locate_model(arguments.path);
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
                         bool has_json, ExitCode (*run)(const PathArguments&)) {
  auto arguments = std::make_shared<PathArguments>();
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("path", arguments->path, what)->required();
  if (has_json) command->add_flag("--json", arguments->json, "JSON on standard output");
  return [arguments, run] { return run(*arguments); };
}

}  // namespace

Command add_checkpoint_list(CLI::App& app) {
  return add_path_command(app, "list", "The checkpoints of a run, newest first", "A run folder", true, list);
}

Command add_checkpoint_inspect(CLI::App& app) {
  return add_path_command(app, "inspect", "What a checkpoint holds", "A checkpoint, or a run folder (its newest)", true,
                          inspect);
}

Command add_checkpoint_verify(CLI::App& app) {
  return add_path_command(app, "verify", "Read every byte against its checksums",
                          "A checkpoint, or a run folder (its newest)", false, verify);
}

Command add_checkpoint_export(CLI::App& app) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand("export", "Write the model in another program's format");
  command->add_option("path", arguments->path, "A checkpoint, a run folder (its newest) or a Hugging Face folder")
      ->required();
  command->add_option("--to", arguments->format, "The format")->check(CLI::IsMember({"huggingface"}))->required();
  command->add_option("--output", arguments->output, "A new folder")->required()->type_name("FOLDER");
  command->add_option("--dtype", arguments->dtype, "Of the weights")->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  return [arguments] { return export_model(*arguments); };
}

}  // namespace scaletrain
