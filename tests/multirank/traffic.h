// What a rank sends in its groups, and the calls that it issues in their order: as traced, and as the plan foretells
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/collective/tracing.h"
#include "plan/communication/step_calls.h"
#include "plan/run_plan.h"

namespace scaletrain {

struct Traffic {
  std::int64_t calls = 0;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Traffic&) const = default;
};
using GroupTraffic = std::map<std::string, Traffic>;  // by group

inline std::string text(const GroupTraffic& traffic) {
  std::string out;
  for (const auto& entry : traffic)
    out += entry.first + ": " + std::to_string(entry.second.calls) + " calls, " +
           std::to_string(entry.second.elements) + " elements, " + std::to_string(entry.second.bytes) + " bytes; ";
  return out;
}

// Of records [first, end). An exchange counts as its sends.
inline GroupTraffic traced_traffic(const Trace& trace, std::size_t first, std::size_t end) {
  GroupTraffic traffic;
  for (std::size_t i = first; i < end; ++i) {
    const TraceRecord& record = trace.records[i];
    std::int64_t calls = 1;
    if (record.kind == CollectiveKind::exchange) {
      calls = std::count_if(record.messages.begin(), record.messages.end(), [](const TraceRecord::Message& message) {
        return message.direction == Transfer::Direction::send;
      });
      if (calls == 0) continue;
    }
    Traffic& of = traffic[record.group];
    of.calls += calls;
    of.elements += record.sent_elements;
    of.bytes += static_cast<std::uint64_t>(record.sent_elements) * size_of(record.dtype);
  }
  return traffic;
}

inline GroupTraffic planned_traffic(const PhasePlan& plan, Rank rank) {
  GroupTraffic traffic;
  for (const CommunicationVolume& volume : plan.communication(rank)) {
    Traffic& of = traffic[std::string(to_text(volume.kind))];
    of.calls += volume.calls;
    of.elements += volume.elements;
    of.bytes += volume.bytes;
  }
  return traffic;
}

// The record that the tracer makes of a planned call.
inline TraceRecord record_of(const PlannedCall& call) {
  TraceRecord record;
  record.group = to_text(call.group);
  record.kind = call.kind;
  record.dtype = call.dtype;
  record.elements = call.elements;
  record.sent_elements = call.sent;
  if (call.kind == CollectiveKind::exchange)
    record.messages.push_back({call.direction, call.peer, call.dtype, call.elements, call.channel});
  return record;
}

inline std::string text(const TraceRecord& record) {
  std::string out = record.group + " " + std::string(to_text(record.kind)) + " " + record.peers() + " " +
                    std::to_string(record.elements) + " " + std::string(to_text(record.dtype)) + ", " +
                    std::to_string(record.sent_elements) + " sent";
  return record.op == ReduceOp::sum ? out : out + ", no sum";
}

// The first call that is not the planned one, of several equal steps; empty if there is none.
inline std::string order_problem(const std::vector<PlannedCall>& planned, const Trace& trace, std::size_t steps) {
  const std::size_t both = std::min(planned.size() * steps, trace.records.size());
  for (std::size_t i = 0; i < both; ++i) {
    const PlannedCall& call = planned[i % planned.size()];
    if (trace.records[i] == record_of(call)) continue;
    return "call " + std::to_string(i) + " is " + text(trace.records[i]) + ", planned was " + text(record_of(call)) +
           " (" + std::string(to_text(call.purpose)) + ")";
  }
  if (planned.size() * steps == trace.records.size()) return {};
  return std::to_string(trace.records.size()) + " calls, planned were " + std::to_string(planned.size() * steps);
}

}  // namespace scaletrain
