// What NCCL takes of a GPU's memory for a rank's part of a group, for plans: an estimate, since NCCL tells nothing of
// it. Sizes are those of the sources of NCCL 2.28 as long as the environment sets none (NCCL_BUFFSIZE and others):
//
//   - A channel has three tables of its own and one of multicasts (src/channel.cc), a group two and one of credits
//     (src/init.cc, src/transport/nvls.cc), each in a piece of 2 MiB: a driver gives out no less (cuMemCreate).
//   - With a GPU of the same host a channel has a connection each way (src/transport/p2p.cc): a buffer for each of
//     NCCL's protocols where it is received (LL 0.5 MiB, LL128 4.7, simple 4), a page where it is sent, in such pieces.
//     Between GPUs of Ampere the simple one lies where it is sent: both ways together are as much.
//   - All connections of a group with other hosts share 2 MiB for each channel and way (src/transport/net.cc).
//
// A channel takes one of the GPU's processors, and all that a group has connect each two GPUs that NVLink joins; over
// PCIe two of them do. Rings and trees are connected by collectives, of which none is called.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

namespace scaletrain {

// Of a GPU that has so many processors, at most one in `share`. NCCL rounds what messages take up to a power of two.
constexpr int nccl_channels(int processors, int share) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(std::max(1, processors / share))));
}

// Processors of a GPU that is not at hand: an H100's. Those from 128 to 255 make the same of it.
inline constexpr int planned_processors = 132;

// Members that a rank sends to or receives from.
struct NcclConnections {
  int channels = 1;
  int sends_on_host = 0;  // to those of its host
  int receives_on_host = 0;
  bool sends_to_others = false;  // to any of another host
  bool receives_from_others = false;
};

constexpr std::size_t nccl_memory(const NcclConnections& connections) {
  constexpr std::size_t piece = std::size_t{2} << 20;
  constexpr std::size_t page = 4096;
  constexpr std::size_t steps = 8;
  constexpr std::size_t ll = std::size_t{8} * 512 * steps * 16;  // lines of a thread, threads, steps, bytes of a line
  constexpr std::size_t ll128 =
      std::size_t{120} * 640 * steps * 8;  // words of a thread, threads, steps, bytes of a word
  constexpr std::size_t simple = std::size_t{4} << 20;
  constexpr auto in_pieces = [](std::size_t bytes) { return (bytes + piece - 1) / piece * piece; };
  constexpr std::size_t of_receive = in_pieces(ll + ll128 + simple + page);
  constexpr std::size_t of_send = in_pieces(page);
  constexpr std::size_t of_others = std::size_t{16} * (std::size_t{128} << 10);  // messages under way, bytes of one
  const std::size_t of_channel = 4 * piece + static_cast<std::size_t>(connections.sends_on_host) * of_send +
                                 static_cast<std::size_t>(connections.receives_on_host) * of_receive +
                                 (connections.sends_to_others ? of_others : 0) +
                                 (connections.receives_from_others ? of_others : 0);
  return static_cast<std::size_t>(connections.channels) * of_channel + 3 * piece;
}

}  // namespace scaletrain
