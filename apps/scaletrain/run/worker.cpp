// The hidden command `worker`: one rank's process, started by the agent.
#include <fmt/format.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/process/last_words.h"
#include "base/text.h"
#include "checkpoint/load.h"
#include "comm/rendezvous/locked_store.h"
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/watched_store.h"
#include "commands/commands.h"
#include "commands/option_checks.h"
#include "host/address.h"
#include "host/machine.h"
#include "host/process/signals.h"
#include "host/process/storage_probe.h"
#include "launch/watch/hang_report.h"
#include "launch/workers/worker_channel.h"
#include "observed.h"
#include "rank_process.h"
#include "telemetry/log.h"
#include "train/start/assembly.h"

namespace scaletrain {

namespace {

constexpr double connect_seconds = 60.0;  // to the agent's rendezvous, which is there already

struct WorkerArguments {
  std::string run_folder;
  std::string lock;
  std::int64_t generation = 0;
  std::int64_t rank = 0;
  std::int64_t world = 1;
  std::optional<std::int64_t> local_rank;  // nothing: the rank
  std::optional<std::int64_t> data;        // degree in place of the config's
  std::string rendezvous;
  std::string address;  // that the data planes bind to; empty: the one towards the rendezvous
  std::int64_t sharers = 1;
  std::int64_t gpu_index = 0;  // among the ranks that see the same GPUs
  std::int64_t gpu_ranks = 1;  // how many those are
  std::int64_t gpus = 0;       // that they see, as their agents have found
  double heartbeat = 60.0;
  double report = 1.0;
  std::string from;
  std::string asked;
  std::string cause;
  int channel = -1;
};

// HOST:PORT
RendezvousAddress parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const bool is_whole =
      colon != std::string::npos && std::from_chars(text.data() + colon + 1, end, port).ptr == end && port != 0;
  if (!is_whole) throw UserError("--rendezvous: expected HOST:PORT, not " + quoted(text));
  return {.host = text.substr(0, colon), .port = port};
}

std::string job_secret() {
  const char* const secret = std::getenv("SCALETRAIN_SECRET");
  if (secret == nullptr)
    throw UserError("worker: SCALETRAIN_SECRET is not set; workers are started by `scaletrain run`");
  return secret;
}

std::unique_ptr<KeyValueStore> connect(const WorkerArguments& arguments, const std::string& secret) {
  return connect_store(parse_address(arguments.rendezvous), secret, connect_seconds, arguments.rank);
}

GpuPlace gpu_place(const WorkerArguments& arguments) {
  return {.index = arguments.gpu_index, .ranks = arguments.gpu_ranks, .expected = arguments.gpus};
}

ExitCode train(const WorkerArguments& arguments, const InterruptWatcher& signals, WorkerReporter& reporter,
               Observed& observed) {
  RankProcess process{.paths = RunPaths(arguments.run_folder),
                      .start = {},
                      .lock_id = arguments.lock,
                      .interrupts = signals,
                      .sharers = arguments.sharers,
                      .work = &observed.work};
  process.start.generation = arguments.generation;
  process.start.asked = arguments.asked;
  process.start.cause = arguments.cause;
  process.gpus = gpu_place(arguments);
  process.data_degree = arguments.data;
  if (!arguments.from.empty()) {
    process.start.checkpoint = arguments.from;
    process.start.step = Checkpoint(arguments.from).manifest().step;
  }
  bool is_training = false;
  PaceMeter meter(observed.collectives);
  process.entered = [&](std::int64_t step, bool waiting) {
    is_training = is_training || !waiting;
    observed.step.store(step, std::memory_order_relaxed);
    if (meter.entered(step, waiting)) reporter.pace(meter.pace());
    reporter.entered(step, waiting);
  };
  std::unique_ptr<KeyValueStore> store;
  std::optional<LockedStore> shared;  // by the thread that trains and the one that writes checkpoints
  std::optional<WatchedStore> watched;
  std::optional<WatchedStore> watched_in_background;
  if (arguments.world > 1) {
    process.secret = job_secret();
    store = connect(arguments, process.secret);
    shared.emplace(*store);
    watched_in_background.emplace(*shared, WatchedStore::Options{});
    watched.emplace(*shared, WatchedStore::Options{.interrupted = [&signals, &is_training] {
      return !is_training && signals.interrupted();
    }});
    process.rank = Rank(arguments.rank);
    process.world = arguments.world;
    process.local_rank = arguments.local_rank.value_or(arguments.rank);
    process.store = &*watched;
    process.background_store = &*watched_in_background;
    process.address =
        arguments.address.empty() ? address_towards(parse_address(arguments.rendezvous).host) : arguments.address;
    process.heartbeat = arguments.heartbeat;
    process.vouched = [&reporter] { return reporter.vouched(); };
    process.collectives = &observed.collectives;
  }
  // The agent hears of an error before the others lose this rank, and say so.
  process.failed = [&watched, &reporter](const std::exception_ptr& error) {
    if (watched && watched->was_interrupted()) return;
    const CommandResult result = run_guarded([&error]() -> ExitCode { std::rethrow_exception(error); });
    reporter.error(result.code, result.message);
  };
  try {
    return train_rank(process);
  } catch (const PeerError&) {
    if (watched && watched->was_interrupted()) return ExitCode::interrupted;
    throw;
  }
}

// Before the first thread, which may find no room.
void set_early_memory_words(const WorkerArguments& arguments) {
  WorkerOptions options;
  options.place.rank = Rank(arguments.rank);
  options.place.world = arguments.world;
  options.place.gpus = gpu_place(arguments);
  options.paths = RunPaths(arguments.run_folder);
  options.data_degree = arguments.data;
  options.threads = share_processors(available_processors(), arguments.sharers).threads;
  try {
    set_memory_words(early_memory_words(options));
  } catch (const std::exception&) {  // what is wrong is told by the training
  }
}

// The agent shows the error and returns its exit code; without an agent main() does.
ExitCode work(const WorkerArguments& arguments) {
  // In lists of processes; started from /proc/self/exe it would be "exe". The kernel keeps 15 bytes.
  ::prctl(PR_SET_NAME, fmt::format("scaletrain r{}", arguments.rank).c_str());
  block_interrupt_signals();
  block_hang_signal();
  set_early_memory_words(arguments);
  const InterruptWatcher signals;
  Observed observed;
  WorkerReporter reporter(arguments.channel, arguments.report);
  const HangReport hang_report({.file = rank_log_path(arguments.run_folder, arguments.rank),
                                .place = [&] { return place_of(arguments.rank, observed); },
                                .told = reporter.descriptor()});
  reporter.watch([&observed] { return observed.work.load(std::memory_order_relaxed); });
  reporter.watch_collective([&observed]() -> std::optional<InCollective> {
    auto wait = observed.collectives.wait();
    if (!wait) return std::nullopt;
    return InCollective{.text = std::move(wait->text), .seconds = wait->seconds};
  });
  StorageProbe storage;
  reporter.watch_storage([&storage] { return storage.look(); });
  const auto train_guarded = [&] { return train(arguments, signals, reporter, observed); };
  const CommandResult result = run_guarded(train_guarded);
  reporter.watch({});
  reporter.watch_collective({});
  reporter.watch_storage({});
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
  command->add_option("--rank", arguments->rank);
  command->add_option("--world", arguments->world);
  command->add_option("--local-rank", arguments->local_rank);
  command->add_option("--data", arguments->data)->transform(whole_number(1));
  command->add_option("--rendezvous", arguments->rendezvous);
  command->add_option("--address", arguments->address);
  command->add_option("--sharers", arguments->sharers)->transform(whole_number(1));
  command->add_option("--gpu-index", arguments->gpu_index);
  command->add_option("--gpu-ranks", arguments->gpu_ranks)->transform(whole_number(1));
  command->add_option("--gpus", arguments->gpus)->transform(whole_number(1));
  command->add_option("--heartbeat", arguments->heartbeat)->check(CLI::PositiveNumber);
  command->add_option("--report", arguments->report)->check(CLI::PositiveNumber);
  command->add_option("--from", arguments->from);
  command->add_option("--asked", arguments->asked);
  command->add_option("--cause", arguments->cause);
  command->add_option("--channel", arguments->channel);
  return [arguments] { return work(*arguments); };
}

}  // namespace scaletrain
