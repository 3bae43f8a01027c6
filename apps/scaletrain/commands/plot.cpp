// scaletrain plot: the losses of a run, drawn in the terminal.
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "commands.h"
#include "commands/run_metrics.h"
#include "telemetry/loss_curve.h"

namespace scaletrain {

namespace {

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
    write_output(draw_loss_curve(metrics_of_run(*path), {.width = picture_width()}));
    return ExitCode::finished;
  };
}

}  // namespace scaletrain
