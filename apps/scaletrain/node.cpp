#include "node.h"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "launch/agent.h"
#include "launch/coordinator.h"
#include "launch/machine.h"
#include "launch/node_agent.h"
#include "launch/node_layout.h"
#include "launch/node_link.h"
#include "launch/node_world.h"
#include "launch/run_lock.h"
#include "run_checks.h"
#include "start_agreement.h"
#include "telemetry/log.h"
#include "telemetry/progress.h"
#include "train/assembly.h"
#include "train/end_of_run.h"

namespace scaletrain {

namespace {

// How long an agent that cannot take part tries to tell the others so.
constexpr double tell_seconds = 20.0;
// How old node 0's note of the end may be for an agent that it has cut off, where notes say nothing of a job.
constexpr double note_seconds = 60.0;

struct NodeRun {
  LoadedConfig loaded;  // of a config that is wrong only run.directory
  RunPaths paths;
  LauncherPlace place;
  const InterruptWatcher& interrupts;
  std::string secret{};
  ResumeRequest resume{};
  NodeLayout layout{};
  CommandResult problem{};  // why this node cannot take part

  bool is_first() const { return place.rank == 0; }
  bool is_refused() const { return !problem.message.empty(); }
  RunBasis basis() const { return {.config = shared_config(loaded.config), .version = program_identity()}; }
};

// With so many replicas; UserError if the run cannot have that many.
RunPlan plan_with(const LoadedConfig& loaded, std::int64_t data, std::int64_t world) {
  if (!loaded.config.parallel.data || *loaded.config.parallel.data == data) return checked_plan(loaded, world);
  LoadedConfig other = loaded;
  other.config.parallel.data = data;
  return checked_plan(other, world);
}

void check_elastic(const NodeRun& run) {
  const auto& min_data = run.loaded.config.supervise.elastic_min_data;
  if (!min_data) return;
  if (*min_data > run.layout.data)
    throw UserError(run.loaded.located(fmt::format(
        "supervise.elastic.min_data: {} replicas at least, and the run has {}", *min_data, run.layout.data)));
  for (std::int64_t data = *min_data; data < run.layout.data; ++data)
    plan_with(run.loaded, data, data * run.layout.replica);
}

void check_alone(const LaunchedCommand& command, NodeRun& run) {
  const Config& config = run.loaded.config;
  // On node 0 alone, so that all find the same.
  const std::int64_t processors = run.is_first() ? available_processors() : std::numeric_limits<std::int64_t>::max();
  try {
    run.layout = lay_out_nodes(config.parallel, config.launch, run.place.world, processors);
  } catch (const UserError& error) {
    throw UserError(run.loaded.located(error.what()));
  }
  const RunPlan plan = plan_with(run.loaded, run.layout.data, run.layout.world());
  if (run.is_first()) {
    for (const std::string& notice : plan.notices) write_message("notice: " + notice);
    check_elastic(run);
  }
  run.secret = secret_of_environment();
  run.resume = requested_resume(command.resume, run.paths);
  refuse_too_large(run.loaded, plan, run.place.rank * run.layout.ranks_per_node, run.layout.ranks_per_node);
  if (run.is_first()) notice_crowd(run.layout.ranks_per_node);
  check_initial_weights(config);
  if (config.launch.interface) address_of_interface(*config.launch.interface);
}

// Nothing: this node cannot reach the others; `problem` says why.
std::optional<NodeRun> prepare(const LaunchedCommand& command, CommandResult& problem) {
  std::optional<LoadedConfig> loaded = load_for_start(command.config, command.overrides, std::nullopt, problem);
  if (!loaded) return std::nullopt;
  RunPaths paths(std::filesystem::absolute(loaded->config.run.directory));
  NodeRun run{.loaded = std::move(*loaded),
              .paths = std::move(paths),
              .place = command.place,
              .interrupts = command.interrupts,
              .problem = problem};
  if (run.is_first()) {
    forget_refusal(run.paths);
    for (const std::string& notice : run.loaded.notices) write_message("notice: " + notice);
  }
  if (!run.is_refused())
    run.problem = run_guarded([&] {
      check_alone(command, run);
      return ExitCode::finished;
    });
  return run;
}

LaunchedWorld::Options world_options(const NodeRun& run) {
  const InterruptWatcher& interrupts = run.interrupts;
  LaunchedWorld::Options options{.paths = run.paths,
                                 .place = run.place,
                                 .secret = run.secret,
                                 .port = rendezvous_port(run.loaded.config),
                                 .interrupted = [&interrupts] { return interrupts.interrupted(); },
                                 .waiting = waiting_teller(fmt::format("node {}", run.place.rank),
                                                           agent_log_path(run.paths, static_cast<int>(run.place.rank))),
                                 .kind = "node"};
  // Without the interface, which may be what does not exist.
  if (!run.is_refused()) options.interface = run.loaded.config.launch.interface;
  if (run.is_refused()) options.seconds = tell_seconds;
  return options;
}

Log make_log(const NodeRun& run) {
  LogOptions options;
  // A start that cannot be leaves nothing in the run folder.
  if (!run.is_refused()) options.file = agent_log_path(run.paths, static_cast<int>(run.place.rank));
  if (run.is_first()) {
    // The worker's live line may stand on the same terminal; a message takes its place.
    const std::string_view take_line = progress_options_for(stderr, 0, 1).live ? "\r\x1b[K" : "";
    options.console = [take_line](std::string_view text) { write_message(fmt::format("{}{}", take_line, text)); };
  }
  return Log(std::move(options));
}

struct NodeEnd {
  CommandResult result;
  bool is_own = false;      // nobody else knows why
  bool is_cut_off = false;  // the coordinator's word was not heard
};

// Why this node cannot take part, as far as it can tell by itself and from what node 0 says of itself.
CommandResult problem_of(const NodeRun& run, const NodeWorld& world) {
  if (run.is_refused() || run.is_first()) return run.problem;
  return run_guarded([&] {
    refuse_other_start("node", run.place.rank, run.loaded.config, world.basis().config, world.basis().version);
    return ExitCode::finished;
  });
}

// Follows the coordinator's orders until the run is over, and says farewell.
NodeEnd follow_orders(const NodeRun& run, const NodeWorld& world, Log& log, const RunLock* lock) {
  const Config& config = run.loaded.config;
  const InterruptWatcher& interrupts = run.interrupts;
  NodeLink::Options link_options{.node = run.place.rank, .lease = world.lease(), .interrupted = [&interrupts] {
                                   return interrupts.interrupted();
                                 }};
  if (world.is_serving()) {
    link_options.store = world.connect();
  } else {
    link_options.reconnect = [&world] { return world.connect(); };
  }
  const CommandResult problem = problem_of(run, world);
  if (!problem.message.empty()) link_options.departure = Departure{problem.code, problem.message};
  NodeLink link(std::move(link_options));
  if (!problem.message.empty()) {
    link.leave({problem.code, problem.message});
    return {problem, true};
  }
  Departure end;
  CommandResult failed = run_guarded([&] {
    NodeAgentOptions options{
        .node = run.place.rank,
        .paths = run.paths,
        .link = link,
        .heartbeat = config.supervise.heartbeat,
        .data_degree = config.parallel.data,
        .stages = config.parallel.pipeline,
        .address = config.launch.interface ? address_of_interface(*config.launch.interface) : std::string(),
        .log = log,
        .interrupts = interrupts,
        .workers_secret = [&world](const WorkersRendezvous& rendezvous) { return world.workers_secret(rendezvous); }};
    if (lock != nullptr) options.holds_lock = [lock] { return !lock->lost(); };
    end = run_node_agent(options);
    return end.code;
  });
  const bool is_own = !failed.message.empty();
  if (!is_own) failed = {end.code, end.message};
  const bool is_cut_off = link.is_cut_off();
  link.leave({failed.code, failed.message});
  return {std::move(failed), is_own, is_cut_off};
}

// Chooses where to begin; the coordinator is told to end the run where that is nowhere.
void prepare_start(const NodeRun& run, StartPoint& start, CommandResult& nothing_to_do) {
  nothing_to_do = run_guarded([&] {
    start = prepare_run_folder(run.paths, run.loaded, run.resume, write_message);
    if (start.checkpoint)
      write_message(fmt::format("resuming from {} (step {})", start.checkpoint->string(), start.step));
    return ExitCode::finished;
  });
  if (!nothing_to_do.message.empty()) return;
  if (const auto complete = already_complete(start, run.loaded.config)) nothing_to_do.message = *complete;
}

CommandResult coordinate(const NodeRun& run, NodeWorld& world, const RunLock& lock) {
  Log log = make_log(run);
  StartPoint start;
  CommandResult over = run.problem;
  if (!run.is_refused()) prepare_start(run, start, over);
  const SuperviseConfig& supervise = run.loaded.config.supervise;
  Coordinator coordinator({.layout = run.layout,
                           .nodes = run.place.world,
                           .stages = run.loaded.config.parallel.pipeline,
                           .min_data = supervise.elastic_min_data,
                           .start = start,
                           .lock_id = lock.lock_id(),
                           .max_restarts = supervise.max_restarts,
                           .heartbeat = supervise.heartbeat,
                           .log = log,
                           .next_start =
                               [&run, &log](const StartPoint& before) {
                                 const Report report = [&log](const std::string& text) { log.warn(text); };
                                 return restart_point(run.paths, before, report);
                               },
                           .serve = [&world](std::int64_t ranks) { return world.serve_workers(ranks); },
                           .holds_lock = [&lock] { return !lock.lost(); },
                           .interrupted = [&run] { return run.interrupts.interrupted(); }});
  if (!over.message.empty()) coordinator.finish(over.code, over.message);
  EndOfRun end_of_run(run.paths.metrics(), [&lock] { return !lock.lost(); });
  CommandResult failed;  // a bug, most likely
  std::jthread thread([&] {
    const auto store = world.connect();
    failed = run_guarded([&] {
      run_coordinator(coordinator, *store, run.place.world);
      return ExitCode::finished;
    });
    if (failed.message.empty()) return;
    // Nobody is left who could give other orders.
    Orders orders;
    orders.command = NodeCommand::over;
    orders.code = failed.code;
    orders.reason = failed.message;
    publish_orders(*store, orders);
  });
  NodeRun taking_part = run;
  taking_part.problem = {};
  const CommandResult result = follow_orders(taking_part, world, log, &lock).result;
  if (!result.message.empty()) {
    if (result.code == ExitCode::finished || result.code == ExitCode::interrupted) {
      log.info(result.message);
    } else {
      log.error(result.message);
    }
  }
  thread.join();
  if (over.message.empty())
    end_of_run.tell(result.code, result.message, [&log](const std::string& text) { log.warn(text); });
  // For those that were not there to hear it.
  if (!coordinator.roster().have_all_left())
    refuse_start(run.paths, run.place, {.rank = 0, .code = result.code, .message = result.message});
  return failed.message.empty() ? result : failed;
}

ExitCode run_first(const NodeRun& run) {
  std::optional<RunLock> lock;
  const CommandResult locked = run_guarded([&] {
    open_run_folder(run.paths, run.resume);
    lock.emplace(RunLock::acquire(run.paths.lock(), run_lock_options_from_environment()));
    return ExitCode::finished;
  });
  if (!lock) {
    const CommandResult& shown = run.is_refused() ? run.problem : locked;
    refuse_start(run.paths, run.place, {.rank = 0, .code = shown.code, .message = shown.message});
    write_message("scaletrain: " + shown.message);
    return shown.code;
  }
  std::unique_ptr<NodeWorld> world;
  const CommandResult result = run_guarded([&] {
    std::optional<SharedFailure> refused;
    world = NodeWorld::join(world_options(run), run.loaded.config.supervise.heartbeat, run.basis(), refused);
    return coordinate(run, *world, *lock).code;
  });
  if (!result.message.empty()) {
    if (!world) refuse_start(run.paths, run.place, {.rank = 0, .code = result.code, .message = result.message});
    write_message("scaletrain: " + result.message);
  }
  return result.code;
}

ExitCode run_other(const NodeRun& run) {
  std::optional<SharedFailure> refused;
  std::unique_ptr<NodeWorld> world;
  CommandResult result = run_guarded([&] {
    world = NodeWorld::join(world_options(run), run.loaded.config.supervise.heartbeat, {}, refused);
    return world ? ExitCode::finished : ExitCode::interrupted;
  });
  if (refused) result = {refused->code, refused->message};
  bool is_own = !refused;
  if (world) {
    result = run_guarded([&] {
      Log log = make_log(run);
      NodeEnd end = follow_orders(run, *world, log, nullptr);
      // Node 0 may have left because the run is over.
      if (end.is_cut_off)
        if (const auto noted = noted_end(run.paths, run.place, note_seconds))
          end.result = {noted->code, noted->message};
      if (!end.result.message.empty()) log.info(end.result.message);
      if (end.result.code != ExitCode::finished)
        write_message(fmt::format("scaletrain: node {}: {}", run.place.rank,
                                  end.is_own ? end.result.message : brief(end.result.message)));
      return end.result.code;
    });
  } else if (run.is_refused() && !refused) {
    result = run.problem;
  }
  if (!result.message.empty())
    write_message(
        fmt::format("scaletrain: node {}: {}", run.place.rank, is_own ? result.message : brief(result.message)));
  return result.code;
}

}  // namespace

ExitCode run_as_node_agent(const LaunchedCommand& command) {
  CommandResult problem;
  const std::optional<NodeRun> run = prepare(command, problem);
  if (!run) {
    write_message(fmt::format("scaletrain: node {}: {}", command.place.rank, problem.message));
    return problem.code;
  }
  const std::filesystem::path first_new = first_new_folder(run->paths.folder);
  const ExitCode code = run->is_first() ? run_first(*run) : run_other(*run);
  if (run->is_first()) notice_never(run->resume, code);
  if (run->is_first() && run->is_refused() && !first_new.empty()) remove_unused_folder(run->paths, first_new);
  return code;
}

}  // namespace scaletrain
