// From text to Config, and back.
//
// load_config reads YAML events (yaml-cpp's tree drops duplicate keys silently), refuses anchors, aliases, tags,
// unknown and duplicate keys, wrong types and ranges, and reports every error at once: UserError whose message has one
// line per error, "file:line:column: message"; InputError where all of them are the data's. Bounded: at most 1 MiB of
// valid UTF-8, 64 levels. Errors of --set name the override instead.
//
// Order of precedence: defaults < preset < file < overrides. A value whose feature does not exist yet is an error like
// any other ("not supported yet"), from one table (unsupported.h).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/input_paths.h"
#include "config/layout_rules.h"

namespace scaletrain {

// Reads an environment variable; nothing if it is unset. Tests pass their own.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_environment(const std::string& name);

struct LoadedConfig {
  Config config;
  std::string source;  // the file's text, byte for byte
  // Notices for the user that are no errors (most of the run is warm-up, and the like).
  std::vector<std::string> notices;
  // With LoadOptions::allow_unsupported: the refusals of unsupported.h with their places, else empty.
  std::vector<std::string> unsupported;
  // With MissingPaths::list: what is wrong with the paths, with their places, else empty.
  std::vector<std::string> unready;
  bool is_unready_data = false;  // all of that is the data's, and none the config's
  // What the run itself computes in, on its own run.device: not config.precision.compute where that is auto and
  // LoadOptions::device has decided what it is.
  Precision compute_of_run = Precision::fp32;
  // "config.yaml:3:5: " of every key and section and of each data.train.N.epochs, or of what stands above;
  // "config.yaml: " if nothing does.
  std::map<std::string, std::string> places;

  // Lines that begin with a key ("parallel.tensor: 3 does not ...", as a plan's problems do) with its place before it.
  std::string located(std::string_view problems) const;
};

// What a path of the data or the tokenizer that leads nowhere, or to what cannot be read, means.
enum class MissingPaths {
  ignore,
  list,    // for `check`, which has a plan to show also where the data is on another machine: LoadedConfig::unready,
           // unless there are errors, which they join
  refuse,  // an error among the others
};

// Looks at what the paths lead to: data/source_check.h.
using DataLook = std::function<std::vector<InputProblem>(const Config&)>;

// The model that model.init.from leads to.
struct FolderModel {
  ModelConfig model;                   // vocab set
  std::optional<std::int64_t> window;  // the most tokens that a sample may have, whatever its positions
  bool is_of_run = false;              // of a checkpoint of the run, which no longer needs the folder
};
// Of a config whose paths are resolved and that is not complete otherwise. Whatever it throws, the folder cannot be
// read.
using FolderModelLook = std::function<FolderModel(const Config&)>;

struct LoadOptions {
  // For `check`, which plans layouts that cannot run yet: values that are not supported yet are no errors but listed in
  // LoadedConfig::unsupported, unless there are errors, which they join.
  bool allow_unsupported = false;
  MissingPaths missing_paths = MissingPaths::ignore;
  // Of a config whose paths are resolved; may be empty.
  DataLook look_at_data{};
  // Brings what a config with model.init.from leaves out of its model section; train/start/initial_weights.h. Empty:
  // defaults stand for that.
  FolderModelLook look_at_model{};
  // The ranks that there will be, where they are known before the config is: what does not fit them is an error among
  // the others.
  std::optional<WorldSize> world{};
  // What will compute in place of run.device, for `check`, which plans for other machines: precision.compute: auto is
  // what it is there, with a notice where that differs, and tf32 is judged by it.
  std::optional<DeviceKind> device{};
  // What run.device: auto is here, with what is to be told of it; only asked where the config says auto. Empty: it
  // stays auto, which is as good as cpu. The config may be wrong otherwise.
  std::function<DeviceKind(const Config& config, std::vector<std::string>& notices)> choose_device{};
};

// Relative input paths become absolute against the file's folder (data, tokenizer, model.init.from). `overrides` are
// the texts of --set: "train.steps=10", "data.train.0.weight=2" (or data.train[0].weight), values in YAML flow syntax.
LoadedConfig load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                         const EnvironmentLookup& environment = process_environment,
                         const LoadOptions& options = {.missing_paths = MissingPaths::refuse});

// The same from text; `name` stands in messages, `folder` resolves relative paths.
LoadedConfig parse_config(std::string_view text, const std::string& name, const std::filesystem::path& folder,
                          const std::vector<std::string>& overrides, const EnvironmentLookup& environment,
                          const LoadOptions& options = {});

// Every key with its value, in the file's order of sections, as YAML that load_config reads back to an equal Config.
// Floating point numbers read back to the same bits. Used for run folders and manifests.
std::string resolved_yaml(const Config& config);

// A config that this program wrote (a run folder's or a manifest's). What is wrong with it is an InputError that begins
// with `where`: the file is damaged or from elsewhere, no user error. Values that are not supported yet pass: whoever
// runs or computes with the config asks unsupported_values.
Config parse_resolved_config(std::string_view text, const std::string& where);

// The refusals of unsupported.h for a config that did not come through load_config: one line each, "key: message".
std::vector<std::string> unsupported_values(const Config& config);

}  // namespace scaletrain
