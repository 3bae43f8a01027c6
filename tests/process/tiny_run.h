// What the process tests share: a workspace with real text, configs of tiny models, the metrics of a run, and the
// manifest of a checkpoint opened up and closed again.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/program.h"
#include "support/temp_folder.h"

namespace scaletrain {

// A folder of its own with train.txt, held.txt, config.yaml and the cache of tokenised text. One per test program.
class Workspace {
 public:
  Workspace();

  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    return folder_.write(name, content);
  }
  // The program with these arguments, in this folder.
  Launch launch(std::vector<std::string> arguments) const;
  Ended run(std::vector<std::string> arguments, double timeout_seconds = 60.0) const;
  // run config.yaml --set run.directory=NAME and the other settings.
  std::vector<std::string> training(const std::string& run, const std::vector<std::string>& settings = {}) const;

 private:
  TempFolder folder_;
};
const Workspace& workspace();

// The same program, where each small matrix product of rank 0 takes so many milliseconds more, for so many seconds from
// the first one on: a tiny run ends in a tenth of a second, before anybody who is to disturb it may have had the
// processor.
Launch slowed(Launch launch, double milliseconds, double seconds);

inline constexpr int tiny_steps = 200;

// The trajectory of a run: what counts of its metrics.jsonl, with the numbers as the file spells them.
struct Trajectory {
  std::map<long, std::string> steps;                                // "loss learning_rate grad_norm"
  std::map<std::pair<long, std::string>, std::string> evaluations;  // by step and set
  long last_step() const { return steps.empty() ? 0 : steps.rbegin()->first; }
};
Trajectory trajectory_of(const std::filesystem::path& run);
// The largest step in the file, whatever restarts say; 0 if there is none yet. Cheap enough to be polled.
long newest_step(const std::filesystem::path& run);

// A finished run of config.yaml that nothing disturbed, with the checkpoints of steps 20, 40, ... 200. Not to be
// changed: copy_run makes a copy under another name.
const std::filesystem::path& undisturbed_run();
std::filesystem::path copy_run(const std::filesystem::path& from, const std::string& name);

// Names of the checkpoints that count, ascending.
std::vector<std::string> checkpoint_names(const std::filesystem::path& run);
// Hidden folders in checkpoints/ whose names begin with `prefix`.
std::vector<std::string> hidden_names(const std::filesystem::path& run, std::string_view prefix);
std::filesystem::path checkpoint(const std::filesystem::path& run, int step);

std::string read_file(const std::filesystem::path& file);
void write_file(const std::filesystem::path& file, std::string_view content);
// Every file below a folder with its content and time of change.
std::map<std::string, std::string> snapshot(const std::filesystem::path& folder);

// manifest.json without its digest, and with a digest that is right again.
nlohmann::json open_manifest(const std::filesystem::path& checkpoint);
void seal_manifest(const std::filesystem::path& checkpoint, const nlohmann::json& manifest);
// Puts other bytes into a checkpoint's file and tells the manifest, so that only the content itself can be refused.
void replace_file(const std::filesystem::path& checkpoint, const std::string& name, const std::string& content);

// 8 bytes of length, the JSON text, the data.
std::string safetensors(const std::string& header, const std::string& data);

}  // namespace scaletrain
