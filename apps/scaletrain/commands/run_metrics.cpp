#include "commands/run_metrics.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "commands/commands.h"
#include "train/start/run_folder.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

// A run folder, or its metrics.jsonl.
fs::path metrics_file(const std::string& path) {
  std::error_code error;
  fs::path file = fs::is_directory(path, error) ? RunPaths(path).metrics() : fs::path(path);
  const auto found = fs::status(file, error).type();
  if (found == fs::file_type::none)
    throw InputError(fmt::format("{}: cannot be looked at: {}", file.string(), error.message()));
  if (found != fs::file_type::not_found) return file;
  if (fs::exists(path, error)) throw InputError(fmt::format("{}: no run folder: it has no metrics.jsonl", path));
  throw InputError(fmt::format("{}: no such run folder", path));
}

}  // namespace

Metrics metrics_of_run(const std::string& path) {
  const fs::path file = metrics_file(path);
  Metrics metrics = read_metrics(file, DamagedLines::skip);
  if (metrics.damaged_lines == 0) return metrics;
  if (metrics.damaged_lines == metrics.whole_lines) throw InputError(metrics.first_damage);
  const std::string others =
      metrics.damaged_lines == 1 ? "this line is" : fmt::format("{} such lines are", metrics.damaged_lines);
  write_message(fmt::format("notice: {}; {} left out", metrics.first_damage, others));
  return metrics;
}

}  // namespace scaletrain
