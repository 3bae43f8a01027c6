#include "launch/communicators.h"

#include <string>

#include "comm/communicator.h"
#include "comm/direct_communicator.h"

namespace scaletrain {

CommunicatorFactory process_communicators(const ProcessCommunication& communication) {
  return [communication](const GroupSpec& group) {
    if (group.members.size() == 1) return make_single_communicator(std::string(to_text(group.kind)));
    const bool is_waited_for = group.kind == GroupKind::tensor || group.kind == GroupKind::holders;
    auto transport = communication.device.connect(communication.store, group.name, group.members, communication.self,
                                                  communication.connect_seconds);
    return make_direct_communicator(std::move(transport),
                                    {.group_name = std::string(to_text(group.kind)),
                                     .ranks = group.members,
                                     .deadline = communication.deadline,
                                     .mode = is_waited_for ? DirectOptions::Mode::caller : DirectOptions::Mode::queue});
  };
}

}  // namespace scaletrain
