// Which members of a group are processes of this host whose memory can be read, and read ours: found out over the
// connections on which they have met (process/peer_meeting.h), by trying.
//
//   the one before in the group              the one behind
//   segment: process, descriptor, nonce   ->
//                                         <-  found and read; its own process
//   read as well; the link is made        ->
//
// Two sides agree on what they have found; where one of them cannot, or does not want to, both go by the connection.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/numbers/strong.h"
#include "comm/memory/link_segment.h"

namespace scaletrain {

struct LinkPeer {
  LinkSegment segment;
  int side = 0;  // this process's in the segment
  pid_t process = 0;
};

struct FoundLinks {
  std::vector<std::optional<LinkPeer>> peers;  // by place in the group
  // Why memory of a process that was found on this host, or this one's by that process, cannot be read; else empty.
  std::string refusal;
};

struct LinkSearch {
  const std::vector<Rank>& members;  // members, own, connections: of the meeting
  int own = 0;
  const std::vector<FileDescriptor>& connections;
  bool is_wanted = true;  // false tells the others that this process links with nobody
  MonotonicTime deadline{};
  std::function<void()> look_around{};  // every now and then while it waits; what it throws ends the search
  std::uint32_t capacity = LinkSide::most_offers;
};

// Every member calls it, and nothing else is said on the connections meanwhile. PeerError if one of them is gone, or
// silent at the deadline.
FoundLinks find_links(const LinkSearch& search);

}  // namespace scaletrain
