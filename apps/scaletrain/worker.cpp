// The hidden command `worker`: one rank's process, started by the agent.
#include <CLI/CLI.hpp>
#include <atomic>
#include <memory>

#include "base/error.h"
#include "checkpoint/load.h"
#include "commands.h"
#include "launch/machine.h"
#include "launch/run_lock.h"
#include "launch/signals.h"
#include "launch/worker_channel.h"
#include "train/assembly.h"

namespace scaletrain {

namespace {

struct WorkerArguments {
  std::string run_folder;
  std::string lock;
  std::int64_t generation = 0;
  std::string from;
  std::string asked;
  int channel = -1;
};

ExitCode train(const WorkerArguments& arguments, const InterruptWatcher& signals, WorkerReporter& reporter,
               std::atomic<std::uint64_t>& progress) {
  WorkerOptions options;
  options.paths = RunPaths(arguments.run_folder);
  options.start.generation = arguments.generation;
  options.start.asked = arguments.asked;
  options.version = program_version;
  options.threads = available_processors();
  options.progress = &progress;
  if (!arguments.from.empty()) {
    options.start.checkpoint = arguments.from;
    options.start.step = Checkpoint(arguments.from).manifest().step;
  }
  options.hooks.interrupted = [&signals] { return signals.interrupted(); };
  options.hooks.may_commit = [&] { return lock_is_held(options.paths.lock(), arguments.lock); };
  options.hooks.entered = [&reporter](std::int64_t step, bool waiting) { reporter.entered(step, waiting); };
  return train_run(options);
}

// The agent shows the error and returns its exit code; without an agent main() does.
ExitCode work(const WorkerArguments& arguments) {
  block_interrupt_signals();
  const InterruptWatcher signals;
  std::atomic<std::uint64_t> progress{0};
  WorkerReporter reporter(arguments.channel);
  reporter.watch([&progress] { return progress.load(std::memory_order_relaxed); });
  const auto train_guarded = [&] { return train(arguments, signals, reporter, progress); };
  const CommandResult result = run_guarded(train_guarded);
  reporter.watch({});
  if (!result.message.empty() && !reporter.error(result.code, result.message))
    write_message("scaletrain: " + result.message);
  return result.code;
}

}  // namespace

Command add_worker(CLI::App& app) {
  auto arguments = std::make_shared<WorkerArguments>();
  CLI::App* command = app.add_subcommand("worker", "One rank of a run; started by `run`");
  command->group("");  // not shown in --help
  command->add_option("--run-folder", arguments->run_folder)->required();
  command->add_option("--lock", arguments->lock)->required();
  command->add_option("--generation", arguments->generation)->required();
  command->add_option("--from", arguments->from);
  command->add_option("--asked", arguments->asked);
  command->add_option("--channel", arguments->channel);
  return [arguments] { return work(*arguments); };
}

}  // namespace scaletrain
