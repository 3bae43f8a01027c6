// What a rank sends in one step: the calls of step_calls.h, added up.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/numbers/checked.h"
#include "comm/collective/direct_communicator.h"
#include "plan/communication/step_calls.h"
#include "plan/run_plan.h"

namespace scaletrain {

namespace {

std::vector<CommunicationVolume> volumes_of(const StepCalls& calls) {
  std::map<std::tuple<GroupKind, CallPurpose, CollectiveKind>, CommunicationVolume> volumes;
  for (const StepCalls::Piece& piece : calls.pieces) {
    for (const PlannedCall& call : piece.calls) {
      if (call.kind == CollectiveKind::exchange && call.direction == Transfer::Direction::receive) continue;
      CommunicationVolume& volume = volumes[{call.group, call.purpose, call.kind}];
      volume.kind = call.group;
      volume.collective = call.kind;
      volume.purpose = to_text(call.purpose);
      const std::int64_t elements = checked_mul(piece.times, call.sent);
      volume.calls += piece.times;
      volume.elements += elements;
      volume.bytes += static_cast<std::uint64_t>(elements) * size_of(call.dtype);
    }
  }
  std::vector<CommunicationVolume> listed;
  listed.reserve(volumes.size());
  for (auto& entry : volumes) listed.push_back(std::move(entry.second));
  return listed;
}

// A communicator keeps the most that one of its calls has needed.
std::size_t staging_of(const StepCalls& calls) {
  std::map<GroupKind, std::size_t> most;
  for (const StepCalls::Piece& piece : calls.pieces) {
    for (const PlannedCall& call : piece.calls) {
      if (call.kind != CollectiveKind::all_reduce && call.kind != CollectiveKind::reduce_scatter) continue;
      const std::size_t bytes =
          call.kind == CollectiveKind::all_reduce
              ? direct_all_reduce_staging(call.dtype, call.elements, call.group_size, call.group_rank)
              : direct_reduce_scatter_staging(call.dtype, call.own, call.group_size);
      most[call.group] = std::max(most[call.group], bytes);
    }
  }
  std::size_t bytes = 0;
  for (const auto& entry : most) bytes += entry.second;
  return bytes;
}

}  // namespace

RankTraffic PhasePlan::traffic(Rank rank, const std::vector<ScheduleStep>& steps) const {
  const ExecutionOrder order =
      execution_order(steps, units_by_chunk(mesh.position_of(rank).pipeline), table.first_trained_unit());
  const StepCalls calls = calls_of_step(*this, rank, order);
  return {.volumes = volumes_of(calls), .staging = staging_of(calls)};
}

}  // namespace scaletrain
