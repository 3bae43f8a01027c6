#include "launch/workers/communicators.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/collective/direct_communicator.h"
#include "comm/communicator.h"
#include "store/device_communicator.h"
#include "store/staged_communicator.h"

namespace scaletrain {

bool is_staged(GroupKind kind, const GroupFacts& facts) {
  return facts.control && !is_control(kind);
}

bool has_queue(GroupKind kind, const GroupFacts& facts) {
  return is_staged(kind, facts) || !is_waited_at_once(kind);
}

namespace {

std::string ranks_text(const std::vector<Rank>& ranks) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(ranks.size());
  for (const Rank rank : ranks) numbers.push_back(rank.value());
  return fmt::format("{}", fmt::join(numbers, ", "));
}

// Null, and the transport is the caller's still, where the members have to exchange through the host's memory.
std::unique_ptr<Communicator> from_device_to_device(DeviceTransfers& transfers, const DeviceExchange& devices,
                                                    const GroupSpec& spec, std::unique_ptr<Transport>& transport) {
  const DeviceTransfers::Group group{.name = std::string(to_text(spec.kind)),
                                     .ranks = spec.members,
                                     .calls = device_calls(spec.kind, devices.is_ring)};
  const std::string obstacle = transfers.obstacle(*transport, group);
  if (obstacle.empty()) {
    if (devices.is_direct) devices.is_direct(transfers.network_name());
    return transfers.make(std::move(transport), group);
  }
  if (devices.transport == RankTransport::nccl)
    throw UserError(
        fmt::format("launch.transport: nccl: the {} group of ranks {} cannot exchange so ({}): see to that, "
                    "or set launch.transport: auto",
                    group.name, ranks_text(group.ranks), obstacle));
  if (devices.is_staged) devices.is_staged(obstacle);
  return nullptr;
}

}  // namespace

CommunicatorFactory process_communicators(const ProcessCommunication& communication) {
  const auto transfers = std::make_shared<std::optional<DeviceTransfers>>();  // from the first group on that needs it
  return [communication, transfers](const GroupSpec& group) -> std::unique_ptr<Communicator> {
    if (group.members.size() == 1) return make_single_communicator(std::string(to_text(group.kind)));
    const GroupFacts facts{.control = !is_host_accessible(communication.backend.space())};
    const bool staged = is_staged(group.kind, facts);
    const bool queued = !staged && has_queue(group.kind, facts);
    auto transport = communication.network.connect(communication.store, group.name, group.members, communication.self,
                                                   communication.connect_seconds);
    if (staged && may_use_nccl(communication.devices.transport)) {
      if (!*transfers)
        transfers->emplace(DeviceTransfers::Options{.backend = communication.backend,
                                                    .network = {.interface = communication.devices.interface},
                                                    .has_own_gpu = communication.devices.has_own_gpu,
                                                    .deadline = communication.deadline,
                                                    .vouched = communication.vouched,
                                                    .work = communication.work,
                                                    .status = communication.status,
                                                    .connect_seconds = communication.connect_seconds});
      if (auto made = from_device_to_device(**transfers, communication.devices, group, transport)) return made;
    }
    auto made = make_direct_communicator(std::move(transport),
                                         {.group_name = std::string(to_text(group.kind)),
                                          .ranks = group.members,
                                          .deadline = communication.deadline,
                                          .mode = queued ? DirectOptions::Mode::queue : DirectOptions::Mode::caller,
                                          .vouched = communication.vouched,
                                          .work = communication.work});
    if (staged) made = make_staged_communicator(std::move(made), communication.backend);
    if (communication.status == nullptr) return made;
    return make_reporting_communicator(std::move(made), group.members, *communication.status);
  };
}

std::string staging_notice(const std::string& obstacle) {
  return fmt::format(
      "ranks on GPUs exchange through the host's memory, which is slower than from GPU to GPU: NCCL is not used ({}); "
      "set launch.transport: host to hear no more of it",
      obstacle);
}

std::string connection_notice(const ProcessNetwork::Reach& reach) {
  if (reach.refusal.empty()) return "";
  return fmt::format(
      "ranks of this host exchange by TCP, which is slower: the system does not let one read another's memory ({}); "
      "allow it (in a container CAP_SYS_PTRACE; kernel.yama.ptrace_scope 0 where every rank has an agent of its "
      "own), or set launch.transport: tcp to hear no more of it",
      reach.refusal);
}

double collective_deadline(double heartbeat, std::int64_t longest_wait) {
  constexpr std::int64_t fewest_beats = 10;
  return heartbeat * static_cast<double>(std::max(fewest_beats, longest_wait));
}

}  // namespace scaletrain
