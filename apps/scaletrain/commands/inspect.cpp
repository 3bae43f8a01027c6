// scaletrain checkpoint inspect: what a checkpoint holds, by its manifest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/load.h"
#include "commands.h"
#include "config/load.h"
#include "model_choice.h"
#include "telemetry/loss_text.h"
#include "train/run_state.h"
#include "train/step/scalars.h"

namespace scaletrain {

namespace {

struct InspectArguments {
  std::string path;
  bool best = false;
  bool all = false;
  bool json = false;
};

std::string inspected_json(const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  nlohmann::json tensors = nlohmann::json::array();
  for (const ManifestTensor& tensor : manifest.tensors) {
    nlohmann::json shape = nlohmann::json::array();
    for (const std::int64_t extent : tensor.shape) shape.push_back(extent);
    tensors.push_back({{"name", tensor.name},
                       {"role", tensor.role},
                       {"dtype", std::string(to_text(tensor.dtype))},
                       {"shape", shape},
                       {"pieces", tensor.num_pieces()}});
  }
  nlohmann::json answer = {{"path", checkpoint.path().string()},  {"step", manifest.step},
                           {"tokens", manifest.tokens},           {"generation", manifest.generation},
                           {"save_id", manifest.save_id},         {"parent_save_id", manifest.parent_save_id},
                           {"fingerprint", manifest.fingerprint}, {"scalars", manifest.scalars},
                           {"config", manifest.config},           {"tensors", tensors}};
  if (manifest.base) answer["base"] = {{"path", manifest.base->path}, {"content", to_hex(manifest.base->content)}};
  return answer.dump(2) + "\n";
}

std::string summary_line(const std::string& name, const std::string& value) {
  return fmt::format("{:<12} {}\n", name, value);
}

std::string grouped_count(std::size_t count) {
  return grouped_digits(static_cast<std::uint64_t>(count));
}

// One line for each role and type.
std::string tensors_text(const Manifest& manifest) {
  struct Sum {
    std::size_t tensors = 0;
    std::uint64_t elements = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::pair<std::string, std::string>, Sum> sums;
  for (const ManifestTensor& tensor : manifest.tensors) {
    // "slot" is the format's word.
    const std::string role = tensor.role == "slot" ? "optimizer state" : tensor.role;
    Sum& sum = sums[{role, std::string(to_text(tensor.dtype))}];
    ++sum.tensors;
    sum.elements += static_cast<std::uint64_t>(tensor.shape.num_elements());
    sum.bytes += static_cast<std::uint64_t>(tensor.shape.num_elements()) * size_of(tensor.dtype);
  }
  std::string text;
  for (const auto& [kind, sum] : sums)
    text += summary_line(text.empty() ? "tensors" : "",
                         fmt::format("{} {} {}: {} elements, {}", grouped_count(sum.tensors), kind.first, kind.second,
                                     grouped_digits(sum.elements), bytes_text(sum.bytes)));
  return text;
}

std::string files_text(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const ManifestFile& file : manifest.files) bytes += file.bytes;
  std::uint64_t pieces = 0;
  std::uint64_t most = 0;
  for (const ManifestTensor& tensor : manifest.tensors) {
    pieces += tensor.num_pieces();
    most = std::max(most, tensor.num_pieces());
  }
  return summary_line("files", fmt::format("{} of {} together; {} pieces of tensors, at most {} of one",
                                           grouped_count(manifest.files.size()), bytes_text(bytes),
                                           grouped_count(pieces), grouped_count(most)));
}

std::string early_stop_text(const RunState& state, const Manifest& manifest) {
  std::string text;
  const EarlyStopState& early = state.early_stop;
  if (early.best)
    text += summary_line("best loss", fmt::format("{} at step {}, {} since", loss_text(*early.best), early.best_step,
                                                  counted(early.without_improvement, "evaluation")));
  if (state.best_save_id)
    text +=
        summary_line("pinned", *state.best_save_id == manifest.save_id ? "this checkpoint is the best one"
                                                                       : "the best one, save " + *state.best_save_id);
  if (early.stopped) text += summary_line("stopped", *early.stopped);
  return text;
}

std::string head_text(const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  return summary_line("checkpoint", checkpoint.path().string()) + summary_line("step", std::to_string(manifest.step)) +
         summary_line("tokens", grouped_digits(static_cast<std::uint64_t>(manifest.tokens))) +
         summary_line("generation", std::to_string(manifest.generation)) + summary_line("save id", manifest.save_id) +
         summary_line("parent", manifest.parent_save_id.empty() ? "none" : manifest.parent_save_id) +
         (manifest.base ? summary_line("adapters of", fmt::format("the model in {}, content {}", manifest.base->path,
                                                                  to_hex(manifest.base->content)))
                        : "") +
         summary_line("fingerprint", manifest.fingerprint);
}

std::string summary_text(const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  const std::string where = (checkpoint.path() / "manifest.json").string();
  const RunState state = read_state(manifest, where);
  const Config config = parse_resolved_config(manifest.config, where + ": config");
  const ModelConfig& model = config.model;
  std::string text = head_text(checkpoint);
  text += summary_line("run", config.run.name);
  text += summary_line("model", fmt::format("{} layers, hidden {}, {} heads, context {}", model.layers, model.hidden,
                                            model.heads, model.context));
  text += summary_line("updates", fmt::format("{} of {} steps; {} were skipped as not finite", state.updates,
                                              state.step, state.nonfinite.total));
  if (state.loss_scale)
    text += summary_line("loss scale", fmt::format("{}, {} since it changed", state.loss_scale->scale,
                                                   counted(state.loss_scale->good_steps, "step")));
  text += early_stop_text(state, manifest) + tensors_text(manifest) + files_text(manifest);
  return text + "\nEvery tensor, scalar and config key: --all\n";
}

std::string all_text(const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  std::string text = head_text(checkpoint) + files_text(manifest) + "scalars\n";
  for (const auto& [name, value] : manifest.scalars) {
    text += fmt::format("  {} = {}", name, value);
    // Written as hexadecimal, to the bit; people read decimals.
    if (name == "early_stop.best" || name == "loss_scale.scale")
      text += fmt::format(" ({})", json_float(get_double(manifest.scalars, name, checkpoint.path().string())));
    text += "\n";
  }
  text += "tensors\n";
  for (const ManifestTensor& tensor : manifest.tensors)
    text +=
        fmt::format("  {:<52} {:<8} {} {}\n", tensor.name, tensor.role, to_text(tensor.dtype), to_text(tensor.shape));
  return text + "config\n" + manifest.config;
}

ExitCode inspect(const InspectArguments& arguments) {
  const LocatedModel located = choose_checkpoint(arguments.path, arguments.best);
  std::string text;
  with_older_named(located, [&] {
    const Checkpoint checkpoint(located.path);
    text = arguments.json  ? inspected_json(checkpoint)
           : arguments.all ? all_text(checkpoint)
                           : summary_text(checkpoint);
  });
  write_output(text);
  return ExitCode::finished;
}

}  // namespace

Command add_checkpoint_inspect(CLI::App& app) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand("inspect", "What a checkpoint holds");
  command->add_option("path", arguments->path, "A checkpoint, or a run folder (its newest)")->required();
  declare_best(*command, arguments->best);
  command->add_flag("--all", arguments->all, "Every tensor, scalar and config key");
  command->add_flag("--json", arguments->json, "JSON on standard output, of everything");
  return [arguments] { return inspect(*arguments); };
}

}  // namespace scaletrain
