#include "agent.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/shell_word.h"
#include "data/source_check.h"
#include "device_choice.h"
#include "host/address.h"
#include "host/machine.h"
#include "host/run_lock.h"
#include "launch/agent/agent.h"
#include "launch/coordination/coordinator.h"
#include "launch/coordination/places.h"
#include "launch/meeting/meeting.h"
#include "plan/describe/trained_text.h"
#include "run_checks.h"
#include "start_agreement.h"
#include "telemetry/log.h"
#include "telemetry/progress.h"
#include "train/end_of_run.h"
#include "train/start/assembly.h"
#include "train/start/initial_weights.h"

namespace scaletrain {

namespace {

// How long an agent that cannot take part tries to tell the others so.
constexpr double tell_seconds = 20.0;
// How long a start looks at the data's files before it meets the others, which wait: what it has not seen by then its
// workers find.
constexpr double look_seconds = 10.0;
// How old the note of the end may be for an agent that was cut off, where notes say nothing of a job.
constexpr double note_seconds = 60.0;

struct PlaceRun {
  LoadedConfig loaded;  // of a config that is wrong only run.directory
  RunPaths paths;
  LauncherPlace place;
  const InterruptWatcher& interrupts;
  std::string command{};  // that goes on with the run, for people
  std::string secret{};
  ResumeRequest resume{};
  VisibleGpus gpus{};  // of run.device: cuda
  PlaceLayout layout{};
  std::optional<RunPlan> plan{};
  CommandResult problem{};  // why this place cannot take part

  bool is_first() const { return place.rank == 0; }
  bool is_on_gpus() const { return loaded.config.run.device == DeviceKind::cuda; }
  bool is_refused() const { return !problem.message.empty(); }
  // Of one that is refused there is nothing to compare with.
  RunBasis basis() const {
    if (is_refused()) return {};
    return {.config = shared_config(agreed()), .version = program_identity()};
  }
  // What all have to start with. A number of ranks that is left to the GPUs is that of this node's.
  Config agreed() const {
    Config config = loaded.config;
    if (place.is_per_node && is_on_gpus() && !config.parallel.data)
      config.launch.ranks_per_node = layout.ranks_per_place;
    return config;
  }
  // "scaletrain: rank 3: ", as its messages begin.
  std::string prefix() const {
    return place.is_alone() ? "scaletrain: " : fmt::format("scaletrain: {}: ", place.name());
  }
};

// With so many replicas; UserError if the run cannot have that many.
RunPlan plan_with(const LoadedConfig& loaded, std::int64_t data, std::int64_t world) {
  if (!loaded.config.parallel.data || *loaded.config.parallel.data == data) return checked_plan(loaded, world);
  LoadedConfig other = loaded;
  other.config.parallel.data = data;
  return checked_plan(other, world);
}

PlaceLayout layout_of(const PlaceRun& run) {
  const Config& config = run.loaded.config;
  const LauncherPlace& place = run.place;
  if (!place.is_per_node) {
    const std::int64_t replica = config.parallel.tensor * config.parallel.pipeline;
    return {.ranks_per_place = 1, .replica = replica, .data = std::max<std::int64_t>(1, place.world / replica)};
  }
  // On the first node alone, so that all find the same; one host may be crowded, to try a layout out.
  const bool is_judge = run.is_first() && !place.is_alone();
  const std::int64_t processors = is_judge ? available_processors() : std::numeric_limits<std::int64_t>::max();
  const LaunchConfig launch =
      run.is_on_gpus() ? launch_on_gpus(config.parallel, config.launch, place.world, run.gpus.count()) : config.launch;
  try {
    return lay_out_nodes(config.parallel, launch, place.world, processors);
  } catch (const UserError& error) {
    throw UserError(run.loaded.located(error.what()));
  }
}

void check_elastic(const PlaceRun& run) {
  const auto& min_data = run.loaded.config.supervise.elastic_min_data;
  if (!min_data) return;
  if (run.place.is_alone())
    return write_message("notice: supervise.elastic is for several nodes: where this one goes, the run ends");
  if (*min_data > run.layout.data)
    throw UserError(run.loaded.located(fmt::format(
        "supervise.elastic.min_data: {} replicas at least, and the run has {}", *min_data, run.layout.data)));
  for (std::int64_t data = *min_data; data < run.layout.data; ++data)
    plan_with(run.loaded, data, data * run.layout.replica);
}

// The memory of this place, and what processes it may have, before the others are met. Of how many ranks share this
// host only some launchers give account.
void check_room(const PlaceRun& run) {
  const LauncherPlace& place = run.place;
  std::int64_t first = place.rank * run.layout.ranks_per_place;
  std::int64_t count = run.layout.ranks_per_place;
  if (!place.is_per_node && (place.local_world == place.world || place.launcher == "torchrun")) {
    first = std::max<std::int64_t>(0, place.rank - place.local_rank);
    count = std::min(place.local_world, place.world - first);
  }
  refuse_too_large(run.loaded, *run.plan, first, count);
  refuse_beyond_limits(
      *run.plan, {.first = first, .count = count, .agents = place.is_per_node ? 1 : count, .serves = run.is_first()});
}

// Of the ranks that see the same GPUs, ascending.
void check_gpus(const PlaceRun& run, const std::vector<std::int64_t>& ranks) {
  refuse_unfit_gpus(run.loaded, *run.plan, run.gpus, ranks);
  const std::string notice = gpus_notice(run.gpus, std::ssize(ranks));
  if (!notice.empty()) write_message("notice: " + notice);
}

// What can be told before the others are met.
void check_alone(const AgentCommand& command, PlaceRun& run) {
  const Config& config = run.loaded.config;
  const LauncherPlace& place = run.place;
  if (!place.is_per_node && config.supervise.elastic_min_data)
    throw UserError(run.loaded.located(
        fmt::format("supervise.elastic: ranks that {} has started stay as many as they are; start one agent per node "
                    "(srun with one task per node), or set null",
                    place.launcher)));
  run.resume = requested_resume(command.resume, run.paths);
  if (run.is_on_gpus()) with_places(run.loaded, [&run] { run.gpus = VisibleGpus::look(); });
  run.layout = layout_of(run);
  const std::int64_t world = place.is_per_node ? run.layout.world() : place.world;
  run.plan = plan_with(run.loaded, run.layout.data, world);
  if (run.is_first()) {
    for (const std::string& notice : run.plan->notices) write_message("notice: " + notice);
    const std::string unasked = run.is_on_gpus() ? unasked_gpus_notice() : "";
    if (!unasked.empty()) write_message("notice: " + unasked);
    check_elastic(run);
  }
  if (!place.is_alone()) run.secret = secret_of_environment();
  if (run.is_on_gpus() && place.is_per_node) {
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(run.layout.ranks_per_place));
    std::iota(ranks.begin(), ranks.end(), place.rank * run.layout.ranks_per_place);
    check_gpus(run, ranks);
  } else if (run.is_on_gpus()) {
    refuse_unfit_gpu(run.loaded, *run.plan, run.gpus, likely_gpu(place, run.gpus.count()), {place.rank});
  }
  check_room(run);
  if (run.is_first() && place.is_per_node) notice_crowd(run.layout.ranks_per_place);
  refuse_unfit_weights(run.loaded, *run.plan);
  if (config.launch.interface) address_of_interface(*config.launch.interface);
}

// What can be told of a host once the ranks on it are known: by its first place, where each has one worker.
void check_host(const PlaceRun& run, const PlaceShare& share) {
  if (run.place.is_per_node) return;
  if (run.is_on_gpus() && share.on_gpus.front() == share.first) check_gpus(run, share.on_gpus);
  const auto here = static_cast<std::int64_t>(share.on_host.size());
  const auto& ranks = run.loaded.config.launch.ranks_per_node;
  if (ranks && here != *ranks)
    throw UserError(
        fmt::format("launch.ranks_per_node: {}, and {} has started {} on this host", *ranks, run.place.launcher, here));
  if (share.on_host.front() != share.first) return;
  refuse_too_large(run.loaded, *run.plan, share.on_host);
  notice_crowd(here);
}

// Of --resume a path stays: until the first save nothing else leads to it, and later it means the run's newest.
std::string command_to_go_on(const AgentCommand& command) {
  if (!command.place.is_alone()) return "start the same again, at every " + std::string(command.place.kind());
  std::string text = "scaletrain run " + shell_word(command.config);
  for (const std::string& setting : command.overrides) text += " --set " + shell_word(setting);
  const bool is_path = command.resume != "auto" && command.resume != "never" && command.resume != "required";
  return is_path ? text + " --resume " + shell_word(command.resume) : text;
}

// Its signals are blocked: an interruption must be asked for.
DataLook look_at_data(const InterruptWatcher& interrupts) {
  return [&interrupts](const Config& config) {
    return source_problems(config.data, {.seconds = look_seconds,
                                         .interrupted = [&interrupts] { return interrupts.interrupted(); },
                                         .has_begun = [&config] { return checkpoint_of_run(config).has_value(); }});
  };
}

// Each place for itself: where one chooses otherwise than the first, its config is another.
std::function<DeviceKind(const Config&, std::vector<std::string>&)> device_chooser(const LauncherPlace& place) {
  return [&place](const Config& config, std::vector<std::string>& notices) {
    return choose_device(config, place, std::nullopt, notices);
  };
}

PlaceRun begin(const AgentCommand& command, LoadedConfig loaded) {
  RunPaths paths(std::filesystem::absolute(loaded.config.run.directory));
  PlaceRun run{.loaded = std::move(loaded),
               .paths = std::move(paths),
               .place = command.place,
               .interrupts = command.interrupts,
               .command = command_to_go_on(command)};
  if (run.is_first())
    for (const std::string& notice : run.loaded.notices) write_message("notice: " + notice);
  return run;
}

// Nothing: this place cannot reach the others; `problem` says why.
std::optional<PlaceRun> prepare(const AgentCommand& command, CommandResult& problem) {
  std::optional<WorldSize> world;
  if (!command.place.is_per_node)
    world = WorldSize{.ranks = command.place.world, .told = command.place.launcher + " has started"};
  // One place of each host looks at the data.
  const bool looks = command.place.is_per_node || command.place.local_rank == 0;
  std::optional<LoadedConfig> loaded =
      load_for_start(command.config, command.overrides,
                     {.missing_paths = MissingPaths::refuse,
                      .look_at_data = looks ? look_at_data(command.interrupts) : nullptr,
                      .look_at_model = look_at_folder_model,
                      .world = world,
                      .choose_device = device_chooser(command.place)},
                     problem);
  if (!loaded) return std::nullopt;
  PlaceRun run = begin(command, std::move(*loaded));
  run.problem = problem;
  if (run.is_first()) forget_end_note(run.paths);
  if (!run.is_refused())
    run.problem = run_guarded([&] {
      check_alone(command, run);
      return ExitCode::finished;
    });
  return run;
}

Meeting::Options meeting_options(const PlaceRun& run) {
  const InterruptWatcher& interrupts = run.interrupts;
  const LauncherPlace& place = run.place;
  Meeting::Options options{.paths = run.paths,
                           .place = place,
                           .heartbeat = run.loaded.config.supervise.heartbeat,
                           .secret = run.secret,
                           .port = rendezvous_port(run.loaded.config),
                           .interrupted = [&interrupts] { return interrupts.interrupted(); }};
  // Where the first is missing, a few say so.
  if (place.is_per_node || place.rank <= 1 || place.local_rank <= 1)
    options.waiting = waiting_teller(place.name(), agent_log_path(run.paths, place));
  // Without the interface, which may be what does not exist.
  if (!run.is_refused()) options.interface = run.loaded.config.launch.interface;
  if (run.is_refused()) options.seconds = tell_seconds;
  return options;
}

// Without a file where the start cannot be: that leaves nothing in the run folder.
Log make_log(const PlaceRun& run, bool has_file) {
  LogOptions options;
  if (has_file) options.file = agent_log_path(run.paths, run.place);
  // Why it cannot be was said when it was found.
  if (run.is_first() && !run.is_refused()) {
    // The worker's live line may stand on the same terminal; a message takes its place.
    const std::string_view take_line = progress_options_for(stderr, 0, 1).live ? "\r\x1b[K" : "";
    options.console = [take_line](std::string_view text) { write_message(fmt::format("{}{}", take_line, text)); };
  }
  return Log(std::move(options));
}

AgentOptions agent_options(const PlaceRun& run, const Meeting& meeting, Log& log) {
  const Config& config = run.loaded.config;
  AgentOptions options{.paths = run.paths,
                       .meeting = meeting,
                       .heartbeat = config.supervise.heartbeat,
                       .data_degree = config.parallel.data,
                       .log = log,
                       .interrupts = run.interrupts,
                       .command = run.command,
                       .check_host = [&run](const PlaceShare& share) { check_host(run, share); },
                       .check_round =
                           [&run](const PlaceShare& share) {
                             refuse_beyond_limits(
                                 *run.plan, {.first = share.first, .count = share.count, .serves = run.is_first()});
                           }};
  if (run.is_on_gpus()) {
    options.gpus = run.gpus.identity();
    options.num_gpus = run.gpus.count();
    options.near_gpus = run.gpus.near_processors();
  }
  if (!run.is_refused() && config.launch.interface) options.address = address_of_interface(*config.launch.interface);
  return options;
}

// Chooses where to begin; or, if there is nothing to begin, what the run came to.
CommandResult choose_start(const PlaceRun& run, StartPoint& start) {
  start = prepare_run_folder(run.paths, run.loaded, run.resume, write_message);
  const auto complete = already_complete(start, run.loaded.config);
  if (start.checkpoint && !complete)
    write_message(fmt::format("resuming from {} (step {})", start.checkpoint->string(), start.step));
  if (const std::string trained = trained_text(run.plan->phases.front().table, start.step);
      !complete && !trained.empty())
    write_message("trained: " + trained);
  return {ExitCode::finished, complete.value_or("")};
}

Coordinator::Options coordinator_options(const PlaceRun& run, const StartPoint& start, Meeting& meeting,
                                         const RunLock& lock, Log& log) {
  const SuperviseConfig& supervise = run.loaded.config.supervise;
  return {.layout = run.layout,
          .places = run.place.world,
          .is_per_node = run.place.is_per_node,
          .stages = run.loaded.config.parallel.pipeline,
          .min_data = supervise.elastic_min_data,
          .start = start,
          .lock_id = lock.lock_id(),
          .max_restarts = supervise.max_restarts,
          .heartbeat = supervise.heartbeat,
          .log = log,
          .next_start =
              [&run, &log](const StartPoint& before) {
                return restart_point(run.paths, before, [&log](const std::string& text) { log.warn(text); });
              },
          .serve =
              [&run, &meeting](std::int64_t world, bool is_one_host) {
                // Before the round takes a thread: it would be refused with no name to it.
                refuse_beyond_limits(*run.plan, {.count = run.layout.ranks_per_place, .serves = true});
                return meeting.serve_workers(world, is_one_host);
              },
          .holds_lock = [&lock] { return !lock.lost(); },
          .interrupted = [&run] { return run.interrupts.interrupted(); }};
}

// The first place's part from its lock on. over: what all others are told in place of a start.
AgentEnd lead(const PlaceRun& run, Meeting& meeting, const RunLock& lock, const StartPoint& start,
              const CommandResult& over) {
  Log log = make_log(run, !run.is_refused());
  Coordinator coordinator(coordinator_options(run, start, meeting, lock, log));
  if (!over.message.empty()) coordinator.finish(over.code, over.message);
  EndOfRun end_of_run(run.paths.metrics(), [&lock] { return !lock.lost(); });
  AgentOptions options = agent_options(run, meeting, log);
  options.holds_lock = [&lock] { return !lock.lost(); };
  AgentEnd end = run_first_agent(options, coordinator);
  if (over.message.empty())
    end_of_run.tell(end.status.code, end.status.message, [&log](const std::string& text) { log.warn(text); });
  // For those that were not there to hear it.
  if (!coordinator.roster().have_all_left()) leave_end_note(run.paths, run.place, end.status);
  return end;
}

// Its problems with the place of the key.
void open_folder(const PlaceRun& run) {
  with_places(run.loaded, [&] { open_run_folder(run.paths, run.resume); });
}

ExitCode run_alone(const AgentCommand& command) {
  PlaceRun run = begin(command, load_config(command.config, command.overrides, process_environment,
                                            {.missing_paths = MissingPaths::refuse,
                                             .look_at_data = look_at_data(command.interrupts),
                                             .look_at_model = look_at_folder_model,
                                             .choose_device = device_chooser(command.place)}));
  check_alone(command, run);
  open_folder(run);
  const RunLock lock = RunLock::acquire(run.paths.lock(), run_lock_options_from_environment());
  StartPoint start;
  if (const CommandResult done = choose_start(run, start); !done.message.empty()) {
    write_message(done.message);
    return ExitCode::finished;
  }
  std::optional<ExitStatus> noted;
  const auto meeting = Meeting::join(meeting_options(run), {}, noted);
  const AgentEnd end = lead(run, *meeting, lock, start, {});
  if (end.error) std::rethrow_exception(end.error);
  notice_never(run.resume, end.status.code);
  return end.status.code;
}

ExitCode run_first(const PlaceRun& run) {
  // Before the others can hear of it: many launchers end all once one has left.
  if (run.is_refused()) write_message(run.prefix() + run.problem.message);
  std::optional<RunLock> lock;
  const CommandResult locked = run_guarded([&] {
    open_folder(run);
    lock.emplace(RunLock::acquire(run.paths.lock(), run_lock_options_from_environment()));
    return ExitCode::finished;
  });
  if (!lock) {
    const CommandResult& told = run.is_refused() ? run.problem : locked;
    leave_end_note(run.paths, run.place, told);
    if (!run.is_refused()) write_message(run.prefix() + told.message);
    return told.code;
  }
  std::unique_ptr<Meeting> meeting;
  AgentEnd end;
  const CommandResult result = run_guarded([&] {
    std::optional<ExitStatus> noted;
    meeting = Meeting::join(meeting_options(run), run.basis(), noted);
    StartPoint start;
    CommandResult over = run.problem;
    if (!run.is_refused()) {
      const CommandResult failed = run_guarded([&] {
        over = choose_start(run, start);
        return ExitCode::finished;
      });
      if (!failed.message.empty()) over = failed;
    }
    end = lead(run, *meeting, *lock, start, over);
    if (end.error) std::rethrow_exception(end.error);
    return end.status.code;
  });
  if (!meeting) leave_end_note(run.paths, run.place, result);
  if (!result.message.empty()) write_message(run.prefix() + result.message);
  notice_never(run.resume, result.code);
  return result.code;
}

// What a place that is not the first prints of its end.
void show(const PlaceRun& run, const CommandResult& result, bool is_own) {
  if (result.code == ExitCode::finished || result.message.empty()) return;
  const bool is_same = run.is_refused() && !is_own;
  write_message(run.prefix() + (is_same  ? fmt::format("exit code {} for the reason that {} gives",
                                                       static_cast<int>(result.code), run.place.name_of(0))
                                : is_own ? result.message
                                         : brief(result.message)));
}

// Why this place cannot take part, as far as it can tell by itself and from what the first says of itself.
CommandResult problem_of(const PlaceRun& run, const Meeting& meeting) {
  if (run.is_refused() || meeting.basis().version.empty()) return run.problem;
  return run_guarded([&] {
    refuse_other_start(run.place.kind(), run.place.rank, run.agreed(), meeting.basis().config, meeting.basis().version);
    return ExitCode::finished;
  });
}

ExitCode run_other(const PlaceRun& run) {
  std::optional<ExitStatus> noted;
  std::unique_ptr<Meeting> meeting;
  const CommandResult met = run_guarded([&] {
    meeting = Meeting::join(meeting_options(run), {}, noted);
    return meeting ? ExitCode::finished : ExitCode::interrupted;
  });
  if (!meeting) {
    if (!run.is_refused()) {
      const CommandResult& result = noted ? *noted : met;
      show(run, result, !noted);
      return result.code;
    }
    // What the first on a host found is the others' reason too, most likely.
    const bool is_said = noted && noted->message == run.problem.message;
    if (is_said || run.place.is_per_node || run.place.local_rank == 0) {
      show(run, run.problem, !is_said);
    } else {
      write_message(run.prefix() + brief(run.problem.message));
    }
    return run.problem.code;
  }
  CommandResult failed = run_guarded([&] {
    // Of a first place that is refused there is no basis.
    Log log = make_log(run, !run.is_refused() && !meeting->basis().version.empty());
    AgentEnd end = run_agent(agent_options(run, *meeting, log), problem_of(run, *meeting));
    // The first may have left because the run is over.
    if (end.is_cut_off) {
      const auto end_of_run = noted_end(run.paths, run.place, note_seconds);
      if (run.is_refused()) {
        end.is_own = !end_of_run || end_of_run->message != end.status.message;
      } else if (end_of_run) {
        end.status = *end_of_run;
      }
    }
    if (!end.status.message.empty()) log.info(end.status.message);
    show(run, end.status, end.is_own);
    return end.status.code;
  });
  show(run, failed, true);
  return failed.code;
}

}  // namespace

ExitCode run_as_agent(const AgentCommand& command) {
  if (command.place.is_alone()) return run_alone(command);
  CommandResult problem;
  const std::optional<PlaceRun> run = prepare(command, problem);
  if (!run) {
    const bool is_full = command.place.is_per_node || command.place.rank == 0 || command.place.local_rank == 0;
    write_message(
        fmt::format("scaletrain: {}: {}", command.place.name(), is_full ? problem.message : brief(problem.message)));
    return problem.code;
  }
  const std::filesystem::path first_new = first_new_folder(run->paths.folder);
  const ExitCode code = run->is_first() ? run_first(*run) : run_other(*run);
  if (run->is_first() && run->is_refused() && !first_new.empty()) remove_unused_folder(run->paths, first_new);
  return code;
}

}  // namespace scaletrain
