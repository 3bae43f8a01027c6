#include "launch/coordination/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

// What a library does not know how to write: nothing as null, a strong number as its value.
template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& object, const std::optional<T>& value) { object = value ? json(*value) : json(nullptr); }
  static void from_json(const json& object, std::optional<T>& value) {
    if (!object.is_null()) value = object.get<T>();
  }
};
template <>
struct nlohmann::adl_serializer<scaletrain::Rank> {
  static void to_json(json& object, scaletrain::Rank rank) { object = rank.value(); }
  static void from_json(const json& object, scaletrain::Rank& rank) {
    rank = scaletrain::Rank(object.get<std::int64_t>());
  }
};
template <>
struct nlohmann::adl_serializer<std::filesystem::path> {
  static void to_json(json& object, const std::filesystem::path& path) { object = path.string(); }
  static void from_json(const json& object, std::filesystem::path& path) { path = object.get<std::string>(); }
};

namespace scaletrain {

// Members under their own names. What is not named here is not sent.
NLOHMANN_JSON_SERIALIZE_ENUM(OrderKind, {{OrderKind::wait, "wait"},
                                         {OrderKind::run, "run"},
                                         {OrderKind::leave, "leave"},
                                         {OrderKind::end, "end"},
                                         {OrderKind::over, "over"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ExitStatus, code, message)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PlaceMachine, host, processors, gpus)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Pace, steps, busy_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GroupStatus, progress, working, waiting, step, still_seconds, stalled_seconds,
                                   stalled_text, paces)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundResult, result, started, ended_for_others, lost_peer_only, rank, step,
                                   description, message, is_alike)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AgentStatus, place, host, machine, incarnation, beat, round, report, workers,
                                   is_interrupted, left)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StartPoint, checkpoint, step, generation, asked, cause)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RendezvousAddress, host, port)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorkersRendezvous, address, salt)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundPlan, start, lock_id, world, data, rendezvous)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Dismissal, place, incarnation, status)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Orders, command, round, plan, reason, is_hang, code, dismissed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PlaceShare, place, first, count, on_host, on_processors, on_gpus)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunBasis, config, version)

namespace {

// A place's share of a round.
struct ShareMessage {
  std::int64_t round = 0;
  std::string incarnation{};
  PlaceShare share{};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ShareMessage, round, incarnation, share)

std::string share_key(std::int64_t place) {
  return fmt::format("orders/share/{}", place);
}

template <class Message>
std::string message_text(const Message& message) {
  // Messages may quote what is no text.
  return nlohmann::json(message).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

template <class Message>
Message parse_message(const std::string& text, const std::string& where) {
  try {
    return parse_json(text, where).get<Message>();
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{}: {}", where, error.what()));
  }
}

}  // namespace

std::string status_key(std::int64_t place) {
  return fmt::format("agents/{}", place);
}

std::string to_text(const AgentStatus& status) {
  return message_text(status);
}
std::string to_text(const Orders& orders) {
  return message_text(orders);
}
std::string to_text(const RunBasis& basis) {
  return message_text(basis);
}

AgentStatus parse_status(const std::string& text) {
  return parse_message<AgentStatus>(text, "an agent's status");
}
Orders parse_orders(const std::string& text) {
  return parse_message<Orders>(text, orders_key);
}
RunBasis parse_basis(const std::string& text) {
  return parse_message<RunBasis>(text, basis_key);
}

void publish_orders(KeyValueStore& store, const Orders& orders) {
  for (std::size_t i = 0; orders.command == OrderKind::run && i < orders.plan.shares.size(); ++i) {
    const PlaceShare& share = orders.plan.shares[i];
    store.set(
        share_key(share.place),
        message_text(ShareMessage{.round = orders.round, .incarnation = orders.plan.incarnations[i], .share = share}));
  }
  store.set(orders_key, to_text(orders));
  store.add(orders_serial_key, 1);
}

Orders fetch_orders(KeyValueStore& store, std::int64_t place, double seconds) {
  Orders orders = parse_orders(store.wait(orders_key, seconds));
  const auto text = store.find(share_key(place));
  if (!text) return orders;
  auto own = parse_message<ShareMessage>(*text, share_key(place));
  // Else of an earlier round, or of one whose orders are read next.
  if (own.round == orders.round) {
    orders.plan.shares.push_back(std::move(own.share));
    orders.plan.incarnations.push_back(std::move(own.incarnation));
  }
  return orders;
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
