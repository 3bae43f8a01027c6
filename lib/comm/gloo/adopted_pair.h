// A Gloo pair on a connection that exists already. Gloo's own pairs listen, each at a port of its own, for whoever
// comes first, and take his words for a member's: garbage from a stranger ends the process. See peer_meeting.h for who
// comes here.
#pragma once

#include "base/file.h"

namespace gloo::transport {
class Context;
namespace tcp {
class Device;
}
}  // namespace gloo::transport

namespace scaletrain {

// Puts a pair on the connection into its place in a context of the device's. Connected from then on; this side of it
// may not have been used by Gloo before, and nothing that the peer has said since the meeting been read.
//
// On the thread of the device's loop only: a pair begins to listen when it is made, and has ended that, here, before
// the loop looks. Throws Gloo's exceptions.
void adopt(gloo::transport::Context& context, gloo::transport::tcp::Device& device, int peer,
           FileDescriptor connection);

}  // namespace scaletrain
