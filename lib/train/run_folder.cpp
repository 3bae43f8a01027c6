#include "train/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/catalog.h"
#include "config/keys.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

// What a run folder may hold before its first start: what a user or a scheduler puts there ahead (logs), and ours.
constexpr std::array<std::string_view, 7> own_entries = {"config.yaml", "config.source.yaml", "metrics.jsonl", "logs",
                                                         "checkpoints", "lock.json",          "tensorboard"};

bool is_own(const std::string& name) {
  return std::find(own_entries.begin(), own_entries.end(), name) != own_entries.end() ||
         name.starts_with(".lock.json") || name.starts_with(".tmp-");
}

// Refuses a resume that changes what must not change; reports what changes with a notice.
void check_resume(const Manifest& manifest, const fs::path& checkpoint, const Config& now, const Report& report) {
  const std::string where = (checkpoint / "manifest.json").string() + ": config";
  const Config before = parse_resolved_config(manifest.config, where);
  std::string refused;
  for (const KeyDifference& difference : compare_configs(before, now)) {
    const std::string text =
        fmt::format("{}: {} in the checkpoint, {} now", difference.path, difference.before, difference.after);
    if (difference.rule == ResumeRule::never) refused += "\n  " + text;
    if (difference.rule == ResumeRule::with_notice) report("notice: this resume changes " + text);
  }
  if (!refused.empty())
    throw UserError(
        fmt::format("{} cannot be resumed with another value of:{}\nRestore the values, or start a new run in "
                    "another run.directory",
                    checkpoint.string(), refused));
}

bool inside(const fs::path& path, const fs::path& folder) {
  std::error_code ignored;
  const fs::path parent = fs::weakly_canonical(path, ignored).parent_path();
  return parent == fs::weakly_canonical(folder, ignored);
}

std::int64_t newest_generation(const fs::path& checkpoints) {
  std::int64_t generation = -1;
  for (const CatalogEntry& entry : list_checkpoints(checkpoints))
    if (entry.problem.empty()) generation = std::max(generation, entry.generation);
  return generation;
}

StartPoint start_from(const RunPaths& paths, const fs::path& path, const Config& config, const Report& report) {
  const Checkpoint checkpoint(path);
  checkpoint.verify();
  check_resume(checkpoint.manifest(), path, config, report);
  const std::int64_t newest = newest_generation(paths.checkpoints());
  if (inside(path, paths.checkpoints())) {
    for (const fs::path& aside : set_aside_later(paths.checkpoints(), checkpoint.manifest().step))
      report(fmt::format("notice: a later checkpoint of the abandoned branch was set aside as {}", aside.string()));
  } else if (newest >= 0) {
    throw UserError(fmt::format("--resume {}: {} already holds checkpoints of its own; choose another run.directory",
                                path.string(), paths.checkpoints().string()));
  }
  return {path, checkpoint.manifest().step, std::max(newest, checkpoint.manifest().generation) + 1};
}

StartPoint choose_start(const RunPaths& paths, const Config& config, const ResumeRequest& resume,
                        const Report& report) {
  if (resume.mode == ResumeRequest::Mode::from_checkpoint) return start_from(paths, resume.checkpoint, config, report);
  if (resume.mode == ResumeRequest::Mode::never) {
    if (const auto entries = list_checkpoints(paths.checkpoints()); !entries.empty())
      throw UserError(
          fmt::format("--resume never: {} holds {} checkpoint{} that a new run would lose; choose another "
                      "run.directory or remove the folder",
                      paths.folder.string(), entries.size(), entries.size() == 1 ? "" : "s"));
    return {};
  }
  const std::optional<Checkpoint> newest = newest_usable(paths.checkpoints(), report);
  if (!newest) {
    if (resume.mode == ResumeRequest::Mode::required)
      throw InputError(fmt::format("--resume required: {} holds no checkpoint", paths.checkpoints().string()));
    return {};
  }
  check_resume(newest->manifest(), newest->path(), config, report);
  return {newest->path(), newest->manifest().step, newest->manifest().generation + 1};
}

}  // namespace

ResumeRequest parse_resume(const std::string& text) {
  if (text == "auto") return {};
  if (text == "never") return {ResumeRequest::Mode::never, {}};
  if (text == "required") return {ResumeRequest::Mode::required, {}};
  const fs::path path(text);
  std::error_code ignored;
  if (!fs::exists(path / "manifest.json", ignored))
    throw UserError(
        fmt::format("--resume {}: expected auto, never, required or a checkpoint's folder, and {} does not exist", text,
                    (path / "manifest.json").string()));
  // "step-00000200/" and "step-00000200" are the same folder.
  const fs::path whole = fs::absolute(path).lexically_normal();
  return {ResumeRequest::Mode::from_checkpoint, whole.has_filename() ? whole : whole.parent_path()};
}

void open_run_folder(const RunPaths& paths) {
  std::error_code error;
  const fs::file_status status = fs::status(paths.folder, error);
  if (fs::exists(status)) {
    if (!fs::is_directory(status))
      throw UserError(fmt::format("run.directory: {} exists and is no folder", paths.folder.string()));
    fs::directory_iterator entry(paths.folder, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (is_own(name)) continue;
      throw UserError(
          fmt::format("run.directory: {} holds \"{}\", which no run of scaletrain writes; choose an empty or new "
                      "folder",
                      paths.folder.string(), name));
    }
    if (error)
      throw InputError(fmt::format("run.directory: {} cannot be listed: {}", paths.folder.string(), error.message()));
    if (::access(paths.folder.c_str(), W_OK | X_OK) != 0)
      throw InputError(fmt::format("run.directory: {} cannot be written to", paths.folder.string()));
  }
  create_folders(paths.folder);
  create_folders(paths.logs());
  create_folders(paths.checkpoints());
}

StartPoint prepare_run_folder(const RunPaths& paths, const LoadedConfig& config, const ResumeRequest& resume,
                              const Report& report) {
  StartPoint start = choose_start(paths, config.config, resume, report);
  write_file_durably(paths.config(), resolved_yaml(config.config));
  write_file_durably(paths.source_config(), config.source);
  return start;
}

StartPoint restart_point(const RunPaths& paths, const StartPoint& before, const Report& report) {
  const std::optional<Checkpoint> newest = newest_usable(paths.checkpoints(), report);
  if (!newest) {
    // Nothing was saved since the start: that start is repeated.
    StartPoint again = before;
    ++again.generation;
    return again;
  }
  return {newest->path(), newest->manifest().step, std::max(before.generation, newest->manifest().generation) + 1};
}

}  // namespace scaletrain
