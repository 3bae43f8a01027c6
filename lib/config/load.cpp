#include "config/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/environment.h"
#include "config/folder_model.h"
#include "config/input_paths.h"
#include "config/keys/key_table.h"
#include "config/keys/keys.h"
#include "config/keys/unsupported.h"
#include "config/overrides.h"
#include "config/validate.h"
#include "config/yaml/yaml_tree.h"

namespace scaletrain {

namespace {

// The preset comes before every other key of the model, wherever it stands. A wrong name is reported by its row.
void apply_preset(const YamlNode& root, Config& config) {
  const YamlNode* model = find_child(root, "model");
  const YamlNode* preset = model == nullptr ? nullptr : find_child(*model, "preset");
  if (preset == nullptr || preset->kind != YamlNode::Kind::scalar) return;
  if (const ModelConfig* known = find_model_preset(preset->text)) config.model = *known;
}

struct ReadResult {
  Config config;
  Precision compute_of_run = Precision::fp32;
  std::vector<std::string> notices;
};

ReadResult read_tree(const YamlNode& root, Origin origin, const LoadOptions& options,
                     const std::filesystem::path& folder, ReadContext& context) {
  ReadResult out;
  apply_preset(root, out.config);
  read_config(root, out.config, context);
  add_held_out_sets(out.config.data);
  take_folder_model(options.look_at_model, folder, out.config, context, out.notices);
  if (out.config.run.device == DeviceKind::automatic && options.choose_device && !is_broken(context, "run.device"))
    out.config.run.device = options.choose_device(out.config, out.notices);
  out.compute_of_run = out.config.compute_precision();
  fill_defaults(out.config, origin, options.device, context, out.notices);
  validate_config(out.config, origin, options.world, options.device, context, out.notices);
  if (origin == Origin::user) add_notices(out.config, context, out.notices);
  return out;
}

// With their places.
std::vector<InputProblem> input_problems(const Config& config, const std::filesystem::path& folder,
                                         const LoadOptions& options, const ReadContext& context) {
  if (options.missing_paths == MissingPaths::ignore) return {};
  std::vector<InputProblem> problems = missing_paths(config, folder, context);
  if (!options.look_at_data) return problems;
  Config resolved = config;
  resolve_paths(resolved, folder);
  for (InputProblem& problem : options.look_at_data(resolved))
    if (!is_broken(context, problem.key)) problems.push_back(std::move(problem));
  return problems;
}

void report_input_problems(const std::filesystem::path& folder, const LoadOptions& options, ReadContext& context,
                           LoadedConfig& out) {
  const std::vector<InputProblem> problems = input_problems(out.config, folder, options, context);
  const bool lists = options.missing_paths == MissingPaths::list && context.diagnostics.empty();
  out.is_unready_data =
      context.diagnostics.empty() && !problems.empty() &&
      std::none_of(problems.begin(), problems.end(), [](const InputProblem& problem) { return problem.is_config; });
  for (const InputProblem& problem : problems) {
    const Place place = place_of(context, problem.key);
    const std::string text = fmt::format("{}: {}", problem.key, problem.message);
    if (lists) {
      out.unready.push_back(context.diagnostics.line(place, text));
    } else {
      context.diagnostics.add(place, text);
    }
  }
}

// Whether the key or a section above it was written; else there is no line to name.
bool stands_in_config(const ReadContext& context, std::string path) {
  for (; !path.empty(); path.resize(path.rfind('.') == std::string::npos ? 0 : path.rfind('.')))
    if (context.given.contains(path)) return true;
  return false;
}

std::map<std::string, std::string> places_of_keys(const Config& config, const ReadContext& context) {
  std::map<std::string, std::string> places;
  const auto add = [&](std::string path) {
    while (!path.empty() && !places.contains(path)) {
      places[path] =
          context.diagnostics.line(stands_in_config(context, path) ? place_of(context, path) : Place{0, 0, 0}, "");
      const std::size_t dot = path.rfind('.');
      path.resize(dot == std::string::npos ? 0 : dot);
    }
  };
  for (const Key<Config>& key : config_table()) add(key.info.path);
  for (std::size_t i = 0; i < config.data.train.size(); ++i)
    if (config.data.train[i].epochs) add(fmt::format("data.train.{}.epochs", i));
  return places;
}

// The tree with overrides and environment, or nothing after reporting.
std::optional<YamlNode> build_tree(std::string_view text, const std::vector<std::string>& overrides,
                                   const EnvironmentLookup& environment, Diagnostics& diagnostics) {
  auto root = parse_yaml(text, 0, diagnostics);
  if (!root) return std::nullopt;
  if (root->kind == YamlNode::Kind::scalar || root->kind == YamlNode::Kind::list) {
    diagnostics.add(root->place, fmt::format("expected sections such as \"run:\", found {}{}", describe(*root),
                                             root->text.find(':') == std::string::npos
                                                 ? ""
                                                 : "; a colon needs a space or a line end behind it"));
    return std::nullopt;
  }
  apply_overrides(*root, overrides, diagnostics);
  expand_environment(*root, environment, diagnostics);
  return root;
}

}  // namespace

std::string LoadedConfig::located(std::string_view problems) const {
  std::string out;
  while (!problems.empty()) {
    const std::string_view line = problems.substr(0, problems.find('\n'));
    problems.remove_prefix(std::min(line.size() + 1, problems.size()));
    const auto place = places.find(std::string(line.substr(0, line.find(": "))));
    if (!out.empty()) out += '\n';
    if (place != places.end()) out += place->second;
    out += line;
  }
  return out;
}

LoadedConfig parse_config(std::string_view text, const std::string& name, const std::filesystem::path& folder,
                          const std::vector<std::string>& overrides, const EnvironmentLookup& environment,
                          const LoadOptions& options) {
  Diagnostics diagnostics(name, overrides);
  ReadContext context(diagnostics);
  LoadedConfig out;
  if (const auto root = build_tree(text, overrides, environment, diagnostics)) {
    ReadResult result = read_tree(*root, Origin::user, options, folder, context);
    out.places = places_of_keys(result.config, context);
    out.config = std::move(result.config);
    out.compute_of_run = result.compute_of_run;
    out.notices = std::move(result.notices);
    // Beside errors there is no plan to show, so that these are errors too.
    const bool lists_unsupported = options.allow_unsupported && diagnostics.empty();
    Config asked = out.config;
    asked.parallel.data = data_degree(asked.parallel, options.world);
    for (const Refusal& refusal : refusals(asked)) {
      const Place place = place_of(context, refusal.path);
      if (lists_unsupported) {
        out.unsupported.push_back(diagnostics.line(place, refusal.message));
      } else {
        diagnostics.add(place, refusal.message);
      }
    }
    report_input_problems(folder, options, context, out);
  }
  if (!diagnostics.empty() && out.is_unready_data) throw InputError(diagnostics.report());
  if (!diagnostics.empty()) throw UserError(diagnostics.report());
  resolve_paths(out.config, folder);
  out.source = text;
  return out;
}

LoadedConfig load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                         const EnvironmentLookup& environment, const LoadOptions& options) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::status_known(status))
    throw UserError(fmt::format("{}: the config file cannot be looked at: {}", file.string(), error.message()));
  if (!std::filesystem::exists(status)) throw UserError(fmt::format("{}: no such config file", file.string()));
  if (!std::filesystem::is_regular_file(status))
    throw UserError(fmt::format("{}: not a regular file; expected a YAML config", file.string()));
  const auto size = std::filesystem::file_size(file, error);
  if (!error && size > kMaxConfigBytes)
    throw UserError(fmt::format("{}:1:1: {} of YAML; a config is at most {}", file.string(), bytes_text(size),
                                bytes_text(kMaxConfigBytes)));
  std::string text;
  try {
    text = read_text_file(file, kMaxConfigBytes);
  } catch (const InputError& failure) {
    throw UserError(failure.what());  // the config is the user's, not the data's
  }
  const auto folder = std::filesystem::absolute(file).parent_path();
  return parse_config(text, file.string(), folder, overrides, environment, options);
}

Config parse_resolved_config(std::string_view text, const std::string& where) {
  Diagnostics diagnostics(where, {});
  ReadContext context(diagnostics);
  ReadResult result;
  const EnvironmentLookup nothing = [](const std::string&) { return std::nullopt; };
  if (const auto root = build_tree(text, {}, nothing, diagnostics))
    result = read_tree(*root, Origin::program, {}, {}, context);
  if (!diagnostics.empty()) throw InputError(diagnostics.report());
  return std::move(result.config);
}

}  // namespace scaletrain
