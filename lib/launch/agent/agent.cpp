#include "launch/agent/agent.h"

#include <fmt/format.h>

#include <thread>
#include <utility>

#include "base/error.h"
#include "launch/coordination/coordinator_thread.h"

namespace scaletrain {
namespace {

constexpr double look_seconds = 0.25;

std::string cut_off_text(const LauncherPlace& place) {
  return fmt::format(
      "the coordinator (the agent of {}) cannot be reached, or this agent stood still for longer than its lease",
      place.name_of(0));
}

// Of this very agent: one that has come back has no part in a round that its predecessor was in.
const PlaceShare* share_of(const Orders& orders, const AgentLink& link) {
  if (orders.plan.shares.empty() || orders.plan.incarnations.front() != link.incarnation()) return nullptr;
  return &orders.plan.shares.front();
}

GroupOptions group_of(const AgentOptions& options, AgentLink& link, const Orders& orders, const PlaceShare& share) {
  const std::int64_t round = orders.round;
  GroupOptions group{.paths = options.paths,
                     .start = orders.plan.start,
                     .lock_id = orders.plan.lock_id,
                     .first_rank = share.first,
                     .count = share.count,
                     .world = orders.plan.world,
                     .on_host = share.on_host,
                     .on_processors = share.on_processors,
                     .on_gpus = share.on_gpus,
                     .num_gpus = options.num_gpus,
                     .near_gpus = options.near_gpus,
                     .heartbeat = options.heartbeat,
                     .settle_seconds = options.settle_seconds,
                     .log = options.log,
                     .interrupts = options.interrupts,
                     .executable = options.executable,
                     .arguments = options.arguments,
                     .holds_lock = options.holds_lock};
  if (options.data_degree && *options.data_degree != orders.plan.data) group.data_degree = orders.plan.data;
  if (group.world > 1) {
    const WorkersRendezvous& rendezvous = orders.plan.rendezvous;
    group.rendezvous = {.address = rendezvous.address, .secret = options.meeting.workers_secret(rendezvous)};
    group.address = options.address;
  }
  group.status = [&link](const GroupStatus& workers) { link.set_workers(workers); };
  group.told_to_end = [&link, &options, round]() -> std::optional<EndOrder> {
    if (link.is_cut_off()) return EndOrder{.reason = cut_off_text(options.meeting.place())};
    const Orders now = link.orders();
    if (now.round == round && (now.command == OrderKind::run || now.command == OrderKind::leave)) return std::nullopt;
    return EndOrder{.reason = now.reason, .is_hang = now.is_hang};
  };
  group.told_to_leave = [&link] { return link.orders().command == OrderKind::leave; };
  return group;
}

// Of a round that was called off before this place had begun it.
RoundResult never_begun(const Orders& orders) {
  RoundResult round;
  round.started = orders.command != OrderKind::leave;
  round.ended_for_others = orders.command == OrderKind::end;
  round.step = orders.plan.start.step;
  round.description = "no worker was started: the round had ended before";
  return round;
}

// Workers that tell of nothing but somebody who is gone, or of a thread that the system refused them, may have met a
// limit. Where it leaves no room for their next start, it is what ends the run: before a restart is counted, and also
// where none is allowed. An interruption has its own end.
void look_for_limit(const AgentOptions& options, const PlaceShare& share, RoundResult& round) {
  if (!round.lost_peer_only || !options.check_round || options.interrupts.interrupted()) return;
  try {
    options.check_round(share);
  } catch (const UserError& limit) {
    round.result = ExitCode::usage;
    round.lost_peer_only = false;
    round.message = fmt::format("{}. What the workers told: {}{}", limit.what(), round.is_alike ? "all ranks: " : "",
                                round.message.value_or("nothing"));
    round.is_alike = false;
    round.rank.reset();
  }
}

void take_part(const AgentOptions& options, AgentLink& link, const Orders& orders, const PlaceShare& share) {
  link.begin_round(orders.round, orders.plan.start.step);
  if (orders.command != OrderKind::run) return link.report(never_begun(orders));
  const GroupOptions group = group_of(options, link, orders, share);
  require_lock(group);
  RoundResult round = options.run_workers ? options.run_workers(group) : run_worker_group(group);
  look_for_limit(options, share, round);
  // Where there are no others the coordinator tells it, in the same log.
  if (!options.meeting.place().is_alone()) options.log.info(round.description);
  link.report(round);
}

AgentLink::Options link_options(const AgentOptions& options) {
  const Meeting& meeting = options.meeting;
  const InterruptWatcher& interrupts = options.interrupts;
  AgentLink::Options link{.place = meeting.place().rank,
                          .gpus = options.gpus,
                          .lease = meeting.lease(),
                          .num_places = meeting.place().world,
                          .interrupted = [&interrupts] { return interrupts.interrupted(); }};
  if (meeting.is_serving()) {
    link.store = meeting.connect();
  } else {
    link.reconnect = [&meeting] { return meeting.connect(); };
  }
  return link;
}

// An agent that only says why it cannot take part. A first place that cannot either, which is known by its having no
// basis, says so as soon as it leads.
AgentEnd decline(const AgentOptions& options, const ExitStatus& problem) {
  AgentLink::Options said = link_options(options);
  said.left = problem;
  AgentLink link(std::move(said));
  const bool comes = options.meeting.basis().version.empty();
  const MonotonicTime begin = monotonic_now();
  while (link.orders().command != OrderKind::over && (comes || seconds_since(begin) < options.verdict_seconds) &&
         !link.is_cut_off())
    link.wait_for_orders(look_seconds);
  const Orders orders = link.orders();
  const bool is_heard = orders.command == OrderKind::over;
  link.leave(problem);
  return {.status = problem, .is_own = !is_heard || orders.reason != problem.message, .is_cut_off = comes && !is_heard};
}

AgentEnd take_whole_part(const AgentOptions& options, AgentLink& link) {
  AgentEnd end;
  try {
    end.status = follow_orders(options, link);
    end.is_cut_off = link.is_cut_off();
  } catch (...) {
    end.error = std::current_exception();
    end.status = exit_status_of(end.error);
    end.is_own = true;
  }
  link.leave(end.status);
  return end;
}

// start: where the last workers began.
void tell_end(const AgentOptions& options, const ExitStatus& end, const StartPoint& start) {
  if (end.message.empty()) return;
  // A run that another start has taken over is not this one's to go on with.
  const bool is_ours = !options.holds_lock || options.holds_lock();
  const auto saved = [&] { return saved_text(options.paths, start, options.command); };
  if (end.code == ExitCode::interrupted && is_ours) {
    options.log.info(fmt::format("{}: {}", end.message, saved()));
  } else if (end.code == ExitCode::finished || end.code == ExitCode::interrupted) {
    options.log.info(end.message);
  } else if (end.code == ExitCode::peer || end.code == ExitCode::no_progress) {
    options.log.error(fmt::format("{}. More is in the logs in {}", end.message, options.paths.logs().string()));
    // Why it ended is said before anything is looked for: that the storage does not answer may be the reason.
    if (end.code == ExitCode::peer && is_ours) options.log.info(saved());
  } else {
    options.log.error(end.message);
  }
}

}  // namespace

ExitStatus follow_orders(const AgentOptions& options, AgentLink& link) {
  const LauncherPlace& place = options.meeting.place();
  std::int64_t done = 0;  // the last round that ended here
  for (;;) {
    if (link.is_cut_off())
      return {place.is_per_node ? ExitCode::interrupted : ExitCode::peer,
              cut_off_text(place) + ": its workers are ended; run again to go on"};
    const Orders orders = link.orders();
    if (orders.command == OrderKind::over) return {orders.code, orders.reason};
    for (const Dismissal& dismissal : orders.dismissed)
      if (dismissal.incarnation == link.incarnation()) return dismissal.status;
    const PlaceShare* const share = share_of(orders, link);
    if (orders.round > done && share != nullptr) {
      if (done == 0 && options.check_host) options.check_host(*share);
      if (options.check_round) options.check_round(*share);
      done = orders.round;
      take_part(options, link, orders, *share);
      continue;
    }
    link.wait_for_orders(look_seconds);
  }
}

AgentEnd run_agent(const AgentOptions& options, const ExitStatus& problem) {
  if (!problem.message.empty()) return decline(options, problem);
  AgentLink link(link_options(options));
  return take_whole_part(options, link);
}

AgentEnd run_first_agent(const AgentOptions& options, Coordinator& coordinator) {
  CoordinatorThread thread(coordinator, options.meeting.connect());
  AgentLink::Options own = link_options(options);
  own.published = [&thread] { thread.look_now(); };
  AgentLink link(std::move(own));
  thread.start([&link] { link.refresh(); });
  AgentEnd end = take_whole_part(options, link);
  thread.join();
  if (const std::exception_ptr error = thread.error()) end = {exit_status_of(error), true, false, error};
  if (!end.error) tell_end(options, end.status, coordinator.orders().plan.start);
  return end;
}

std::filesystem::path agent_log_path(const RunPaths& paths, const LauncherPlace& place) {
  if (!place.is_per_node && place.rank > 0) return rank_log_path(paths.folder, place.rank);
  return paths.logs() / fmt::format("agent-{:02}.log", place.rank);
}

}  // namespace scaletrain
