// A stream of the host's processor, for calls that want one where everything is there already.
#pragma once

#include "tensor/stream.h"

namespace scaletrain {

inline HostStream& host_stream() {
  static HostStream stream;  // without state
  return stream;
}

}  // namespace scaletrain
