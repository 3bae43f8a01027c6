#include "launch/workers/communicators.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "comm/collective/direct_communicator.h"
#include "comm/communicator.h"
#include "store/staged_communicator.h"

namespace scaletrain {

bool is_staged(GroupKind kind, const GroupFacts& facts) {
  return facts.control && !is_control(kind);
}

bool has_queue(GroupKind kind, const GroupFacts& facts) {
  return is_staged(kind, facts) || !is_waited_at_once(kind);
}

CommunicatorFactory process_communicators(const ProcessCommunication& communication) {
  return [communication](const GroupSpec& group) -> std::unique_ptr<Communicator> {
    if (group.members.size() == 1) return make_single_communicator(std::string(to_text(group.kind)));
    const GroupFacts facts{.control = !is_host_accessible(communication.backend.space())};
    const bool staged = is_staged(group.kind, facts);
    const bool queued = !staged && has_queue(group.kind, facts);
    auto transport = communication.network.connect(communication.store, group.name, group.members, communication.self,
                                                   communication.connect_seconds);
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

std::string connection_notice(const ProcessNetwork::Reach& reach) {
  if (reach.refusal.empty()) return "";
  return fmt::format(
      "ranks of this host exchange by TCP, which is slower: the system does not let one read another's memory ({}); "
      "allow it (in a container CAP_SYS_PTRACE; kernel.yama.ptrace_scope 0 where every rank has an agent of its own), "
      "or "
      "set launch.transport: tcp to hear no more of it",
      reach.refusal);
}

double collective_deadline(double heartbeat, std::int64_t longest_wait) {
  constexpr std::int64_t fewest_beats = 10;
  return heartbeat * static_cast<double>(std::max(fewest_beats, longest_wait));
}

}  // namespace scaletrain
