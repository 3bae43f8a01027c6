// What a rank sends in its groups: as traced, and as the plan foretells it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "comm/tracing.h"
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

}  // namespace scaletrain
