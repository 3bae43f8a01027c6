#include "launch/communicators.h"

#include <string>

#include "comm/communicator.h"
#include "comm/direct_communicator.h"

namespace scaletrain {

CommunicatorFactory process_communicators(const ProcessCommunication& communication) {
  return [communication](const GroupSpec& group) -> std::unique_ptr<Communicator> {
    if (group.members.size() == 1) return make_single_communicator(std::string(to_text(group.kind)));
    const bool is_waited_for = group.kind == GroupKind::tensor || group.kind == GroupKind::holders;
    auto transport = communication.device.connect(communication.store, group.name, group.members, communication.self,
                                                  communication.connect_seconds);
    auto direct = make_direct_communicator(
        std::move(transport), {.group_name = std::string(to_text(group.kind)),
                               .ranks = group.members,
                               .deadline = communication.deadline,
                               .mode = is_waited_for ? DirectOptions::Mode::caller : DirectOptions::Mode::queue});
    if (communication.status == nullptr) return direct;
    return make_reporting_communicator(std::move(direct), group.members, *communication.status);
  };
}

}  // namespace scaletrain
