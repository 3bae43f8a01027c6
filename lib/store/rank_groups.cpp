#include "store/rank_groups.h"

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

void RankGroups::abort() const noexcept {
  for (const auto& group : groups_)
    if (group) group->abort();
}

RankGroups make_groups(const Mesh& mesh, Rank rank, const GroupFacts& facts, const CommunicatorFactory& make) {
  RankGroups groups;
  for (const GroupKind kind : group_kinds)
    if (const auto spec = group_of(mesh, kind, rank, facts))
      groups.groups_[static_cast<std::size_t>(kind)] = make(*spec);
  return groups;
}

namespace {
constexpr std::array world_axes = {Axis::tensor, Axis::data, Axis::pipeline};
constexpr std::array stage_axes = {Axis::tensor, Axis::data};
constexpr DType summed_type = DType::f64;

void sum_over(std::span<const Axis> axes, const RankGroups& groups, std::span<double> numbers) {
  if (numbers.empty()) return;
  HostStream now;  // the host's numbers are there
  const View all(numbers.data(), summed_type, {narrow<std::int64_t>(numbers.size())});
  for (const Axis axis : axes) {
    Communicator* control = groups.find(control_of(axis));
    Communicator* group = control != nullptr ? control : groups.find(group_kind_of(axis));
    if (group != nullptr) group->all_reduce(now, all, ReduceOp::sum).wait();
  }
}

std::vector<GroupCall> sum_calls(std::span<const Axis> axes, const GroupFacts& facts, std::int64_t count,
                                 CallPurpose purpose) {
  std::vector<GroupCall> calls;
  for (const Axis axis : axes) {
    calls.push_back({.group = facts.control ? control_of(axis) : group_kind_of(axis),
                     .kind = CollectiveKind::all_reduce,
                     .purpose = purpose,
                     .dtype = summed_type,
                     .elements = count});
  }
  return calls;
}

}  // namespace

void sum_over_world(const RankGroups& groups, std::span<double> numbers) {
  sum_over(world_axes, groups, numbers);
}
std::vector<GroupCall> world_sum_calls(const GroupFacts& facts, std::int64_t count) {
  return sum_calls(world_axes, facts, count, CallPurpose::decisions);
}

void sum_over_stage(const RankGroups& groups, std::span<double> numbers) {
  sum_over(stage_axes, groups, numbers);
}
std::vector<GroupCall> stage_sum_calls(const GroupFacts& facts, std::int64_t count) {
  return sum_calls(stage_axes, facts, count, CallPurpose::squares);
}

}  // namespace scaletrain
