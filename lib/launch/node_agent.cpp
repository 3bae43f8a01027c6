#include "launch/node_agent.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace scaletrain {
namespace {

constexpr double look_seconds = 0.25;

const char* const cut_off_text =
    "the coordinator (the agent of node 0) cannot be reached, or this agent stood still for longer than its lease";

// Of this very agent: one that has come back has no part in an attempt that its predecessor was in.
const NodeShare* share_of(const Orders& orders, const NodeLink& link, std::int64_t node) {
  for (std::size_t i = 0; i < orders.plan.shares.size(); ++i)
    if (orders.plan.shares[i].node == node && orders.plan.incarnations[i] == link.incarnation())
      return &orders.plan.shares[i];
  return nullptr;
}

CrewOptions crew_of(const NodeAgentOptions& options, const Orders& orders, const NodeShare& share) {
  NodeLink& link = options.link;
  const std::int64_t attempt = orders.attempt;
  CrewOptions crew{.paths = options.paths,
                   .start = orders.plan.start,
                   .lock_id = orders.plan.lock_id,
                   .first_rank = share.first,
                   .count = share.count,
                   .world = orders.plan.world,
                   .heartbeat = options.heartbeat,
                   .log = options.log,
                   .interrupts = options.interrupts,
                   .holds_lock = options.holds_lock,
                   .stages = options.stages};
  if (options.data_degree && *options.data_degree != orders.plan.data) crew.data_degree = orders.plan.data;
  if (crew.world > 1) {
    const WorkersRendezvous& rendezvous = orders.plan.rendezvous;
    crew.rendezvous = {.address = rendezvous.address, .secret = options.workers_secret(rendezvous)};
  }
  if (!options.address.empty() && crew.world > 1) {
    crew.arguments = [crew, address = options.address](const StartPoint& start, const WorkerSlot& slot) {
      std::vector<std::string> arguments = worker_arguments(crew, start, slot);
      arguments.insert(arguments.end(), {"--address", address});
      return arguments;
    };
  }
  crew.judges_stillness = false;
  crew.judges_pace = false;
  crew.pulse = [&link](const CrewPulse& pulse) { link.set_pulse(pulse); };
  crew.told_to_end = [&link, attempt]() -> std::optional<EndOrder> {
    if (link.is_cut_off()) return EndOrder{.reason = cut_off_text};
    const Orders now = link.orders();
    if (now.attempt == attempt && (now.command == NodeCommand::run || now.command == NodeCommand::leave))
      return std::nullopt;
    return EndOrder{.reason = now.reason, .is_hang = now.is_hang};
  };
  crew.told_to_leave = [&link] { return link.orders().command == NodeCommand::leave; };
  return crew;
}

// Of an attempt that was called off before this node had begun it.
Attempt never_begun(const Orders& orders) {
  Attempt attempt;
  attempt.started = orders.command != NodeCommand::leave;
  attempt.ended_for_others = orders.command == NodeCommand::end;
  attempt.step = orders.plan.start.step;
  attempt.description = "no worker was started: the attempt had ended before";
  return attempt;
}

void take_part(const NodeAgentOptions& options, const Orders& orders, const NodeShare& share) {
  options.link.begin_attempt(orders.attempt);
  if (orders.command != NodeCommand::run) return options.link.report(never_begun(orders));
  const CrewOptions crew = crew_of(options, orders, share);
  const Attempt attempt = options.run_workers ? options.run_workers(crew) : run_crew(crew);
  options.log.info(attempt.description);
  options.link.report(attempt);
}

}  // namespace

Departure run_node_agent(const NodeAgentOptions& options) {
  std::int64_t done = 0;  // the last attempt that ended here
  for (;;) {
    if (options.link.is_cut_off())
      return {ExitCode::interrupted, fmt::format("{}: its workers are ended; run again to go on", cut_off_text)};
    const Orders orders = options.link.orders();
    if (orders.command == NodeCommand::over) return {orders.code, orders.reason};
    for (const Dismissal& dismissal : orders.dismissed)
      if (dismissal.incarnation == options.link.incarnation()) return dismissal.departure;
    const NodeShare* const share = share_of(orders, options.link, options.node);
    if (orders.attempt > done && share != nullptr) {
      done = orders.attempt;
      take_part(options, orders, *share);
      continue;
    }
    options.link.wait_for_orders(look_seconds);
  }
}

}  // namespace scaletrain
