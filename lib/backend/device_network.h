// Transfers between the memories of GPUs without their hosts: what a library is asked for, NCCL, and nothing else of
// it. Which messages make a collective, what a rank may wait and what is said of a peer that does not come is decided
// above (store/device_communicator.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tensor/dtype.h"
#include "tensor/stream.h"

namespace scaletrain {

// Bytes from one rank of a group to another, or to itself.
struct DeviceMessage {
  enum class Direction { send, receive };
  Direction direction = Direction::send;
  int peer = 0;
  std::byte* data = nullptr;  // of the device; a send only reads it
  std::size_t bytes = 0;
};

// output[i] = (operands[0][i] + operands[1][i]) + operands[2][i] ..., in the type itself (f32, f64, i64) or, for
// halves, in f32 and rounded once; likewise the maximum, which is NaN where one of them is. The output may be the own
// operand, or lie elsewhere.
struct DeviceReduction {
  enum class Operator { sum, maximum };
  Operator op = Operator::sum;
  DType dtype = DType::f32;
  std::int64_t count = 0;  // elements of an operand
  int operands = 1;
  int own = 0;  // which of them is the rank's own
  const std::byte* own_data = nullptr;
  const std::byte* others = nullptr;  // in their order, each so many bytes behind the one before
  std::size_t stride = 0;
  std::byte* output = nullptr;
};

// A rank's part of a group, with a stream of its own. Calls by one thread at a time, but where another is named.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;  // waits for what is under way, unless it has been aborted
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  // Where all of it runs, in the order of issue: the caller orders it behind other streams, and them behind it.
  virtual Stream& stream() = 0;
  // Whether the group has come together, and what was issued has been given to the GPU: until then nothing more may be
  // issued, nor a moment of the stream recorded. PeerError for whatever has gone wrong since; std::bad_alloc where the
  // device or the host has lacked the memory that joining and the first messages need. Any thread.
  virtual bool is_ready() = 0;
  // Issues messages that begin together, so that none waits for another one of them. Between two ranks the n-th send
  // meets the n-th receive, of as many bytes; it may wait for it. PeerError
  virtual void issue(std::span<const DeviceMessage> messages) = 0;
  virtual void reduce(const DeviceReduction& reduction) = 0;
  // Ends what the GPU has under way. Who waits for the stream, or for one that waits for it, gets a PeerError of these
  // words from now on. Does not wait for anything. Any thread; the first call counts.
  virtual void abort(const std::string& reason) noexcept = 0;

 protected:
  DeviceGroup() = default;
};

struct DeviceMembership {
  std::string id;  // of the group, by make_id() of one of its members
  int size = 1;
  int rank = 0;
  // Of the GPU's processors one in so many, at most: messages wait for peers there, and all groups together must fit.
  int share = 8;
};

class DeviceNetwork {
 public:
  virtual ~DeviceNetwork() = default;
  DeviceNetwork(const DeviceNetwork&) = delete;
  DeviceNetwork& operator=(const DeviceNetwork&) = delete;

  virtual std::string name() const = 0;  // "NCCL 2.28.9": all members need the same
  virtual std::string make_id() = 0;     // of a new group: device_group_id_bytes. PeerError
  // Begins to join; is_ready() tells when all have come.
  virtual std::unique_ptr<DeviceGroup> join(const DeviceMembership& membership) = 0;

 protected:
  DeviceNetwork() = default;
};

inline constexpr std::size_t device_group_id_bytes = 128;

struct DeviceNetworkOptions {
  // Of the host, by name, for what ranks tell each other beside it; empty: whichever is found.
  std::string interface;
};

// A network, or why there is none.
struct FoundDeviceNetwork {
  std::unique_ptr<DeviceNetwork> network{};
  std::string obstacle{};
};

}  // namespace scaletrain
