#include "store/rank_groups.h"

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

Communicator* RankGroups::find(GroupKind kind) const {
  switch (kind) {
    case GroupKind::tensor:
      return tensor.get();
    case GroupKind::replication:
      return replication.get();
    case GroupKind::data:
      return data.get();
    case GroupKind::pipeline:
      return pipeline.get();
    case GroupKind::tied:
      return tied.get();
    case GroupKind::tensor_control:
      return tensor_control.get();
    case GroupKind::data_control:
      return data_control.get();
    case GroupKind::pipeline_control:
      return pipeline_control.get();
  }
  SCALETRAIN_CHECK(false);
}

void RankGroups::abort() const noexcept {
  for (const GroupKind kind : group_kinds)
    if (Communicator* group = find(kind)) group->abort();
}

RankGroups make_groups(const Mesh& mesh, Rank rank, const GroupFacts& facts, const CommunicatorFactory& make) {
  const auto make_one = [&](GroupKind kind) -> std::unique_ptr<Communicator> {
    const auto spec = group_of(mesh, kind, rank, facts);
    return spec ? make(*spec) : nullptr;
  };
  // One statement each: connecting may block until all members have come, so that the order must be the same
  // everywhere.
  RankGroups groups;
  groups.tensor = make_one(GroupKind::tensor);
  groups.replication = make_one(GroupKind::replication);
  groups.data = make_one(GroupKind::data);
  groups.pipeline = make_one(GroupKind::pipeline);
  groups.tied = make_one(GroupKind::tied);
  groups.tensor_control = make_one(GroupKind::tensor_control);
  groups.data_control = make_one(GroupKind::data_control);
  groups.pipeline_control = make_one(GroupKind::pipeline_control);
  return groups;
}

namespace {
constexpr GroupKind world_axes[] = {GroupKind::tensor, GroupKind::data, GroupKind::pipeline};
constexpr DType summed_type = DType::f64;
}  // namespace

void sum_over_world(const RankGroups& groups, std::span<double> numbers) {
  if (numbers.empty()) return;
  HostStream now;  // the host's numbers are there
  const View all(numbers.data(), summed_type, {narrow<std::int64_t>(numbers.size())});
  for (const GroupKind axis : world_axes) {
    Communicator* control = groups.find(control_of(axis));
    Communicator* group = control != nullptr ? control : groups.find(axis);
    if (group != nullptr) group->all_reduce(now, all, ReduceOp::sum).wait();
  }
}

std::vector<GroupCall> world_sum_calls(const GroupFacts& facts, std::int64_t count) {
  std::vector<GroupCall> calls;
  for (const GroupKind axis : world_axes) {
    calls.push_back({.group = facts.control ? control_of(axis) : axis,
                     .kind = CollectiveKind::all_reduce,
                     .purpose = CallPurpose::decisions,
                     .dtype = summed_type,
                     .elements = count});
  }
  return calls;
}

}  // namespace scaletrain
