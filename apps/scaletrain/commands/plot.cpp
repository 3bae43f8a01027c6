// scaletrain plot: the losses of a run, drawn in the terminal.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "commands.h"
#include "telemetry/loss_curve.h"
#include "telemetry/metrics_reader.h"
#include "train/start/run_folder.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

// A run folder, or its metrics.jsonl.
fs::path metrics_of(const std::string& path) {
  std::error_code error;
  fs::path file = fs::is_directory(path, error) ? RunPaths(path).metrics() : fs::path(path);
  const auto found = fs::status(file, error).type();
  if (found == fs::file_type::none)
    throw InputError(fmt::format("{}: cannot be looked at: {}", file.string(), error.message()));
  if (found != fs::file_type::not_found) return file;
  if (fs::exists(path, error)) throw InputError(fmt::format("{}: no run folder: it has no metrics.jsonl", path));
  throw InputError(fmt::format("{}: no such run folder", path));
}

// Damage costs the lines that it is in and no others.
Metrics sound_metrics(const fs::path& file) {
  Metrics metrics = read_metrics(file, DamagedLines::skip);
  if (metrics.damaged_lines == 0) return metrics;
  if (metrics.damaged_lines == metrics.whole_lines) throw InputError(metrics.first_damage);
  const std::string others =
      metrics.damaged_lines == 1 ? "this line is" : fmt::format("{} such lines are", metrics.damaged_lines);
  write_message(fmt::format("notice: {}; {} left out", metrics.first_damage, others));
  return metrics;
}

// A terminal's width, within what is still easy to read.
std::size_t picture_width() {
  constexpr std::size_t usual = 80;
  constexpr std::size_t widest = 120;
  struct winsize size {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return usual;
  return std::min<std::size_t>(size.ws_col, widest);
}

}  // namespace

Command add_plot(CLI::App& app) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("plot", "Draw the losses of a run in the terminal");
  command->add_option("run", *path, "The run folder, or its metrics.jsonl")->required()->type_name("FOLDER");
  return [path] {
    write_output(draw_loss_curve(sound_metrics(metrics_of(*path)), {.width = picture_width()}));
    return ExitCode::finished;
  };
}

}  // namespace scaletrain
