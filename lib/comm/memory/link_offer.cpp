#include "comm/memory/link_offer.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/rendezvous/rendezvous_socket.h"

namespace scaletrain {

namespace {

using namespace std::chrono_literals;

constexpr auto slice = 500ms;      // of a wait, between two looks around
constexpr auto patience = 2000ms;  // for word of who was lost first
constexpr auto nap = 20ms;         // between two looks for it

// As they travel, between processes of one kind of machine.
struct SegmentWords {
  std::uint32_t process = 0;  // 0: no link is wanted
  std::int32_t descriptor = -1;
  LinkMemory::Nonce nonce{};
  std::uint64_t address = 0;  // of the nonce, in that process
};
struct AnswerWords {
  std::uint32_t process = 0;  // 0: no
  std::int32_t error = 0;     // where the process was found, but not read
  std::uint64_t address = 0;
};
struct VerdictWords {
  std::uint32_t is_linked = 0;
};
static_assert(sizeof(SegmentWords) == 48 && sizeof(AnswerWords) == 16 && sizeof(VerdictWords) == 4);

std::optional<std::string> address_of_end(int connection, decltype(&::getsockname) end) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  std::array<char, NI_MAXHOST> host{};
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (end(connection, generic, &length) != 0 ||
      ::getnameinfo(generic, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return std::nullopt;
  return std::string(host.data());
}

// Whether both ends of the connection have one address. Members of other hosts are offered nothing, so that a thousand
// of them cost no descriptors.
bool is_of_this_host(int connection) {
  const std::optional<std::string> here = address_of_end(connection, ::getsockname);
  return here && here == address_of_end(connection, ::getpeername);
}

class Finding {
 public:
  explicit Finding(const LinkSearch& search) : search_(search), own_(search.own), segments_(search.members.size()) {
    found_.peers.resize(search.members.size());
  }

  // Each step needs of others only what they say in an earlier one.
  FoundLinks run() {
    for (int peer = own_ + 1; peer < size(); ++peer) tell_segment(peer);
    std::vector<std::optional<LinkPeer>> answered(segments_.size());
    for (int peer = 0; peer < own_; ++peer) answered[at(peer)] = answer(peer);
    for (int peer = own_ + 1; peer < size(); ++peer) decide(peer);
    for (int peer = 0; peer < own_; ++peer) {
      if (hear<VerdictWords>(peer).is_linked != 0) found_.peers[at(peer)] = std::move(answered[at(peer)]);
    }
    return std::move(found_);
  }

 private:
  static std::size_t at(int place) { return static_cast<std::size_t>(place); }
  int size() const { return narrow<int>(segments_.size()); }

  void tell_segment(int peer) {
    SegmentWords words;
    auto& segment = segments_[at(peer)];
    if (search_.is_wanted && is_of_this_host(search_.connections[at(peer)].get()))
      segment = LinkSegment::create(search_.capacity);
    if (segment) {
      words.process = static_cast<std::uint32_t>(::getpid());
      words.descriptor = segment->descriptor();
      words.nonce = segment->memory().nonce;
      words.address = reinterpret_cast<std::uint64_t>(segment->memory().nonce.data());
    }
    say(peer, words);
  }

  std::optional<LinkPeer> answer(int peer) {
    const auto words = hear<SegmentWords>(peer);
    std::optional<LinkPeer> found;
    AnswerWords reply;
    const auto process = static_cast<pid_t>(words.process);
    if (search_.is_wanted && process > 0) {
      std::optional<LinkSegment> segment = LinkSegment::find(process, words.descriptor, words.nonce);
      if (segment) reply.error = read_nonce(process, words.address, words.nonce);
      if (segment && reply.error == 0) found = LinkPeer{.segment = std::move(*segment), .side = 1, .process = process};
    }
    if (found) {
      reply.process = static_cast<std::uint32_t>(::getpid());
      reply.address = reinterpret_cast<std::uint64_t>(found->segment.memory().nonce.data());
    }
    say(peer, reply);
    return found;
  }

  void decide(int peer) {
    const auto words = hear<AnswerWords>(peer);
    const auto process = static_cast<pid_t>(words.process);
    auto& segment = segments_[at(peer)];
    VerdictWords verdict;
    if (words.error != 0) note_refusal(words.error);
    if (segment && process > 0 && read_nonce(process, words.address, segment->memory().nonce) == 0) {
      verdict.is_linked = 1;
      segment->close_descriptor();
      found_.peers[at(peer)] = LinkPeer{.segment = std::move(*segment), .side = 0, .process = process};
    }
    say(peer, verdict);
  }

  // What is known to lie there. 0, or errno of why it cannot be read.
  int read_nonce(pid_t process, std::uint64_t address, const LinkMemory::Nonce& nonce) {
    LinkMemory::Nonce read{};
    int error = read_memory_of(process, address, reinterpret_cast<std::byte*>(read.data()), read.size());
    if (error == 0 && read != nonce) error = EFAULT;
    if (error != 0) note_refusal(error);
    return error;
  }

  void note_refusal(int error) {
    if (found_.refusal.empty()) found_.refusal = fmt::format("process_vm_readv: {}", std::strerror(error));
  }

  template <class Words>
  void say(int peer, const Words& words) {
    std::array<char, sizeof(Words)> bytes{};
    std::memcpy(bytes.data(), &words, sizeof words);
    const Transferred result =
        send_all(search_.connections[at(peer)].get(), std::string_view(bytes.data(), bytes.size()), search_.deadline);
    if (result != Transferred::done) lost(peer, result == Transferred::late);
  }

  // No byte beyond them: what follows may be another's to read.
  template <class Words>
  Words hear(int peer) {
    const int connection = search_.connections[at(peer)].get();
    std::array<char, sizeof(Words)> bytes{};
    for (std::size_t got = 0; got < bytes.size();) {
      const ssize_t count = ::recv(connection, bytes.data() + got, bytes.size() - got, 0);
      if (count > 0) {
        got += static_cast<std::size_t>(count);
      } else if (count < 0 && errno == EINTR) {
        continue;
      } else if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
        lost(peer, false);
      } else if (!wait_ready(connection, POLLIN, std::min(search_.deadline, monotonic_now() + slice))) {
        if (monotonic_now() >= search_.deadline) lost(peer, true);
        if (search_.look_around) search_.look_around();
      }
    }
    Words words;
    std::memcpy(&words, bytes.data(), sizeof words);
    return words;
  }

  [[noreturn]] void lost(int peer, bool is_late) const {
    if (search_.look_around) {
      // It may know who was lost first, for whose sake this one has left, or hear of it in a moment.
      const MonotonicTime end = std::min(search_.deadline, monotonic_now() + patience);
      for (search_.look_around(); monotonic_now() < end; search_.look_around()) std::this_thread::sleep_for(nap);
    }
    throw PeerError(fmt::format("rank {} {} while it was met", search_.members[at(peer)].value(),
                                is_late ? "fell silent" : "went away"));
  }

  const LinkSearch& search_;
  int own_;
  std::vector<std::optional<LinkSegment>> segments_;  // for those behind in the group
  FoundLinks found_;
};

}  // namespace

FoundLinks find_links(const LinkSearch& search) {
#ifdef PR_SET_PTRACER
  // Where a process may read the memory of its descendants only (Yama, as many distributions set it), those of our
  // parent may read ours: the ranks of the same agent, which outlives them. An error: there is no such rule here.
  if (search.is_wanted) ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(::getppid()), 0, 0, 0);
#endif
  return Finding(search).run();
}

}  // namespace scaletrain
