#include "launch/coordination.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace scaletrain {
namespace {

constexpr std::array<std::pair<NodeCommand, const char*>, 5> command_names = {{{NodeCommand::wait, "wait"},
                                                                               {NodeCommand::run, "run"},
                                                                               {NodeCommand::leave, "leave"},
                                                                               {NodeCommand::end, "end"},
                                                                               {NodeCommand::over, "over"}}};

std::string dumped(const nlohmann::json& object) {
  // Messages may quote what is no text.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

const char* name_of(NodeCommand command) {
  for (const auto& entry : command_names)
    if (entry.first == command) return entry.second;
  SCALETRAIN_CHECK(false);
}

NodeCommand command_of(const std::string& name) {
  for (const auto& entry : command_names)
    if (entry.second == name) return entry.first;
  throw InputError(fmt::format("{}: unknown command \"{}\"", orders_key, name));
}

ExitCode code_of(const nlohmann::json& object, const std::string& where) {
  return static_cast<ExitCode>(json_integer(object, "code", where));
}

nlohmann::json json_of(const Attempt& attempt) {
  nlohmann::json object{{"result", nullptr},
                        {"started", attempt.started},
                        {"for_others", attempt.ended_for_others},
                        {"lost_peer", attempt.lost_peer_only},
                        {"rank", nullptr},
                        {"step", attempt.step},
                        {"description", attempt.description},
                        {"message", nullptr},
                        {"alike", attempt.is_alike}};
  if (attempt.result) object["result"] = static_cast<int>(*attempt.result);
  if (attempt.rank) object["rank"] = attempt.rank->value();
  if (attempt.message) object["message"] = *attempt.message;
  return object;
}

Attempt parse_attempt(const nlohmann::json& object, const std::string& where) {
  Attempt attempt;
  if (!json_member(object, "result", where).is_null())
    attempt.result = static_cast<ExitCode>(json_integer(object, "result", where));
  attempt.started = json_bool(object, "started", where);
  attempt.ended_for_others = json_bool(object, "for_others", where);
  attempt.lost_peer_only = json_bool(object, "lost_peer", where);
  if (!json_member(object, "rank", where).is_null()) attempt.rank = Rank(json_integer(object, "rank", where));
  attempt.step = json_integer(object, "step", where);
  attempt.description = json_string(object, "description", where);
  if (!json_member(object, "message", where).is_null()) attempt.message = json_string(object, "message", where);
  attempt.is_alike = json_bool(object, "alike", where);
  return attempt;
}

nlohmann::json json_of(const AttemptPlan& plan) {
  nlohmann::json shares = nlohmann::json::array();
  for (const NodeShare& share : plan.shares)
    shares.push_back({{"node", share.node}, {"first", share.first}, {"count", share.count}});
  nlohmann::json object{{"checkpoint", nullptr},
                        {"step", plan.start.step},
                        {"generation", plan.start.generation},
                        {"asked", plan.start.asked},
                        {"cause", plan.start.cause},
                        {"lock", plan.lock_id},
                        {"shares", std::move(shares)},
                        {"incarnations", plan.incarnations},
                        {"world", plan.world},
                        {"data", plan.data},
                        {"host", plan.rendezvous.address.host},
                        {"port", plan.rendezvous.address.port},
                        {"salt", plan.rendezvous.salt}};
  if (plan.start.checkpoint) object["checkpoint"] = plan.start.checkpoint->string();
  return object;
}

AttemptPlan parse_plan(const nlohmann::json& object, const std::string& where) {
  AttemptPlan plan;
  if (!json_member(object, "checkpoint", where).is_null())
    plan.start.checkpoint = json_string(object, "checkpoint", where);
  plan.start.step = json_integer(object, "step", where);
  plan.start.generation = json_integer(object, "generation", where);
  plan.start.asked = json_string(object, "asked", where);
  plan.start.cause = json_string(object, "cause", where);
  plan.lock_id = json_string(object, "lock", where);
  for (const nlohmann::json& share : json_member(object, "shares", where))
    plan.shares.push_back({.node = json_integer(share, "node", where),
                           .first = json_integer(share, "first", where),
                           .count = json_integer(share, "count", where)});
  for (const nlohmann::json& incarnation : json_member(object, "incarnations", where)) {
    if (!incarnation.is_string()) throw InputError(where + ": incarnations: expected text");
    plan.incarnations.push_back(incarnation.get<std::string>());
  }
  if (plan.incarnations.size() != plan.shares.size()) throw InputError(where + ": as many incarnations as shares");
  plan.world = json_integer(object, "world", where);
  plan.data = json_integer(object, "data", where);
  const std::int64_t port = json_integer(object, "port", where);
  if (port < 0 || port > 65535) throw InputError(where + ": no port");
  plan.rendezvous = {.address = {.host = json_string(object, "host", where), .port = static_cast<std::uint16_t>(port)},
                     .salt = json_string(object, "salt", where)};
  return plan;
}

}  // namespace

std::string status_key(std::int64_t node) {
  return fmt::format("agents/{}", node);
}

std::string to_text(const NodeStatus& status) {
  nlohmann::json paces = nlohmann::json::array();
  for (const Pace& pace : status.pulse.paces) paces.push_back({{"steps", pace.steps}, {"busy", pace.busy_seconds}});
  nlohmann::json object{{"node", status.node},
                        {"host", status.host},
                        {"incarnation", status.incarnation},
                        {"beat", status.beat},
                        {"attempt", status.attempt},
                        {"report", nullptr},
                        {"progress", status.pulse.progress},
                        {"working", status.pulse.working},
                        {"waiting", status.pulse.waiting},
                        {"step", status.pulse.step},
                        {"still", status.pulse.still_seconds},
                        {"stalled", status.pulse.stalled_seconds},
                        {"storage", status.pulse.stalled_text},
                        {"paces", std::move(paces)},
                        {"interrupted", status.is_interrupted},
                        {"left", nullptr}};
  if (status.report) object["report"] = json_of(*status.report);
  if (status.left) object["left"] = {{"code", static_cast<int>(status.left->code)}, {"message", status.left->message}};
  return dumped(object);
}

NodeStatus parse_status(const std::string& text) {
  const std::string where = "an agent's status";
  const nlohmann::json object = parse_json(text, where);
  NodeStatus status;
  status.node = json_integer(object, "node", where);
  status.host = json_string(object, "host", where);
  status.incarnation = json_string(object, "incarnation", where);
  status.beat = json_unsigned(object, "beat", where);
  status.attempt = json_integer(object, "attempt", where);
  if (const auto& report = json_member(object, "report", where); !report.is_null())
    status.report = parse_attempt(report, where);
  status.pulse.progress = json_unsigned(object, "progress", where);
  status.pulse.working = json_integer(object, "working", where);
  status.pulse.waiting = json_integer(object, "waiting", where);
  status.pulse.step = json_integer(object, "step", where);
  status.pulse.still_seconds = json_number(object, "still", where);
  status.pulse.stalled_seconds = json_number(object, "stalled", where);
  status.pulse.stalled_text = json_string(object, "storage", where);
  for (const nlohmann::json& pace : json_member(object, "paces", where))
    status.pulse.paces.push_back(
        {.steps = json_integer(pace, "steps", where), .busy_seconds = json_number(pace, "busy", where)});
  status.is_interrupted = json_bool(object, "interrupted", where);
  if (const auto& left = json_member(object, "left", where); !left.is_null())
    status.left = Departure{.code = code_of(left, where), .message = json_string(left, "message", where)};
  return status;
}

std::string to_text(const Orders& orders) {
  nlohmann::json dismissed = nlohmann::json::array();
  for (const Dismissal& dismissal : orders.dismissed)
    dismissed.push_back({{"node", dismissal.node},
                         {"incarnation", dismissal.incarnation},
                         {"code", static_cast<int>(dismissal.departure.code)},
                         {"message", dismissal.departure.message}});
  return dumped({{"command", name_of(orders.command)},
                 {"attempt", orders.attempt},
                 {"plan", json_of(orders.plan)},
                 {"reason", orders.reason},
                 {"hang", orders.is_hang},
                 {"code", static_cast<int>(orders.code)},
                 {"dismissed", std::move(dismissed)}});
}

void publish_orders(KeyValueStore& store, const Orders& orders) {
  store.set(orders_key, to_text(orders));
  store.add(orders_serial_key, 1);
}

Orders parse_orders(const std::string& text) {
  const std::string where = orders_key;
  const nlohmann::json object = parse_json(text, where);
  std::vector<Dismissal> dismissed;
  for (const nlohmann::json& one : json_member(object, "dismissed", where))
    dismissed.push_back({.node = json_integer(one, "node", where),
                         .incarnation = json_string(one, "incarnation", where),
                         .departure = {.code = code_of(one, where), .message = json_string(one, "message", where)}});
  return {.command = command_of(json_string(object, "command", where)),
          .attempt = json_integer(object, "attempt", where),
          .plan = parse_plan(json_member(object, "plan", where), where),
          .reason = json_string(object, "reason", where),
          .is_hang = json_bool(object, "hang", where),
          .code = code_of(object, where),
          .dismissed = std::move(dismissed)};
}

std::string to_text(const RunBasis& basis) {
  return dumped({{"config", basis.config}, {"version", basis.version}});
}

RunBasis parse_basis(const std::string& text) {
  const std::string where = basis_key;
  const nlohmann::json object = parse_json(text, where);
  return {.config = json_string(object, "config", where), .version = json_string(object, "version", where)};
}

double agent_lease(double heartbeat) {
  constexpr double longest = 10.0;
  constexpr double leases_in_heartbeat = 3.0;
  return std::min(longest, heartbeat / leases_in_heartbeat);
}

double lease_run_out(double lease) {
  return 1.5 * lease;
}

}  // namespace scaletrain
