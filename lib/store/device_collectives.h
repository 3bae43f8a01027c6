// The collectives of a group, as messages between each two ranks and sums in the order of the ranks. Included by
// device_communicator.cpp alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "base/numbers/checked.h"
#include "comm/communicator.h"
#include "store/device_lane.h"

namespace scaletrain {

// An all-reduce of no more is one batch of messages: everything to everybody.
inline constexpr std::size_t small_all_reduce_bytes = std::size_t{32} << 10;
// Pieces and stretches of so many elements begin where kernels read fastest.
inline constexpr std::int64_t device_piece_unit = 64;

// Elements [first, first + count) of a piece, as a stretch has them.
struct DeviceStretches {
  std::int64_t longest = 0;  // elements of one
  std::int64_t count = 0;

  std::int64_t length(std::int64_t index, std::int64_t piece) const {
    return std::clamp<std::int64_t>(piece - index * longest, 0, longest);
  }
};

class DeviceCollectives final : public DeviceLanes {
 public:
  DeviceCollectives(CollectiveStatus::Group its_group, int rank, std::unique_ptr<DeviceLane> lane, Buffer staging,
                    Backend& backend, DeviceWatch& watch)
      : DeviceLanes(std::move(its_group), watch),
        rank_(rank),
        backend_(backend),
        staging_(std::move(staging)),
        lane_(add_lane(std::move(lane))) {}

  int size() const { return static_cast<int>(group().ranks.size()); }
  DeviceLane& lane() { return lane_; }
  bool is_busy() { return DeviceLanes::is_busy(watch().waits()); }

  // Each to each, so that all are connected.
  Event greet() {
    std::vector<DeviceMessage> messages;
    for_each_peer([&](int peer) {
      messages.push_back({DeviceMessage::Direction::send, peer, staging_.data(), devices::first_message_bytes});
      messages.push_back({DeviceMessage::Direction::receive, peer,
                          place_of(peer, devices::first_message_bytes) + devices::first_message_bytes,
                          devices::first_message_bytes});
    });
    lane_.issue(messages, watch().waits());
    return lane_.stream().record();
  }

  // What it follows, until `body` has issued everything.
  template <class Body>
  Event issue(Stream& stream, const char* collective, Body body) {
    const DeviceLane::Call call{.collective = collective, .sequence = sequence_++, .with = {}};
    Event done;
    run(call, [&] {
      Event ready = stream.record();
      lane_.stream().after(ready);
      body();
      done = lane_.stream().record();
      lane_.add(call, std::move(ready), done);
    });
    watch().wake();
    return done;
  }

  void all_reduce(const View& data, ReduceOp op) {
    if (data.num_bytes() <= small_all_reduce_bytes &&
        align_up(data.num_bytes()) * devices::index_of(size()) <= device_stretch_bytes)
      return all_reduce_small(data, op);
    const std::int64_t piece = round_up(ceil_div<std::int64_t>(data.num_elements(), size()), device_piece_unit);
    std::vector<std::int64_t> counts;
    counts.reserve(devices::index_of(size()));
    for (int rank = 0; rank < size(); ++rank)
      counts.push_back(std::clamp<std::int64_t>(data.num_elements() - rank * piece, 0, piece));
    std::byte* const own = devices::bytes_of(data) + offset_of(counts, rank_) * size_of(data.dtype());
    reduce_scatter(data, counts, own, op);
    gather(own, data.dtype(), counts, devices::bytes_of(data));
  }

  // Of piece r, rank r sums a stretch while no rank sends it anything else.
  void reduce_scatter(const ConstView& input, const std::vector<std::int64_t>& counts, std::byte* output,
                      ReduceOp op = ReduceOp::sum) {
    const std::size_t width = size_of(input.dtype());
    const DeviceStretches stretches = stretches_of(input.dtype(), counts);
    const std::int64_t own = counts[devices::index_of(rank_)];
    std::byte* const all = devices::bytes_of(input);
    for (std::int64_t index = 0; index < stretches.count; ++index) {
      const std::int64_t length = stretches.length(index, own);
      const auto place = [&](int piece) {
        return all + (offset_of(counts, piece) + static_cast<std::size_t>(index * stretches.longest)) * width;
      };
      const std::size_t bytes = static_cast<std::size_t>(length) * width;
      const std::size_t stride = align_up(bytes);
      std::vector<DeviceMessage> messages;
      for_each_peer([&](int peer) {
        const auto sent = static_cast<std::size_t>(stretches.length(index, counts[devices::index_of(peer)])) * width;
        if (sent > 0) messages.push_back({DeviceMessage::Direction::send, peer, place(peer), sent});
        if (bytes > 0) messages.push_back({DeviceMessage::Direction::receive, peer, place_of(peer, stride), bytes});
      });
      lane_.issue(messages, watch().waits());
      if (length > 0)
        reduce({.dtype = input.dtype(),
                .count = length,
                .own_data = place(rank_),
                .stride = stride,
                .output = output + static_cast<std::size_t>(index * stretches.longest) * width},
               op);
    }
  }

  void gather(std::byte* own, DType dtype, const std::vector<std::int64_t>& counts, std::byte* all) {
    const std::size_t width = size_of(dtype);
    std::vector<DeviceMessage> messages;
    const std::size_t bytes = static_cast<std::size_t>(counts[devices::index_of(rank_)]) * width;
    for_each_peer([&](int peer) {
      const std::size_t received = static_cast<std::size_t>(counts[devices::index_of(peer)]) * width;
      if (bytes > 0) messages.push_back({DeviceMessage::Direction::send, peer, own, bytes});
      if (received > 0)
        messages.push_back({DeviceMessage::Direction::receive, peer, all + offset_of(counts, peer) * width, received});
    });
    copy(own, all + offset_of(counts, rank_) * width, bytes);
    lane_.issue(messages, watch().waits());
  }

  void all_to_all(const ConstView& input, const std::vector<std::int64_t>& send_counts, const View& output,
                  const std::vector<std::int64_t>& receive_counts) {
    const std::size_t width = size_of(input.dtype());
    const auto from = [&](int peer) { return devices::bytes_of(input) + offset_of(send_counts, peer) * width; };
    const auto to = [&](int peer) { return devices::bytes_of(output) + offset_of(receive_counts, peer) * width; };
    std::vector<DeviceMessage> messages;
    for_each_peer([&](int peer) {
      const std::size_t sent = static_cast<std::size_t>(send_counts[devices::index_of(peer)]) * width;
      const std::size_t received = static_cast<std::size_t>(receive_counts[devices::index_of(peer)]) * width;
      if (sent > 0) messages.push_back({DeviceMessage::Direction::send, peer, from(peer), sent});
      if (received > 0) messages.push_back({DeviceMessage::Direction::receive, peer, to(peer), received});
    });
    copy(from(rank_), to(rank_), static_cast<std::size_t>(send_counts[devices::index_of(rank_)]) * width);
    lane_.issue(messages, watch().waits());
  }

 private:
  // The other ranks, beginning after this one, so that not all turn to the same one first.
  template <class Function>
  void for_each_peer(Function function) const {
    for (int step = 1; step < size(); ++step) function((rank_ + step) % size());
  }
  // Elements before piece `piece`.
  static std::size_t offset_of(const std::vector<std::int64_t>& counts, int piece) {
    return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.begin() + piece, std::int64_t{0}));
  }
  // Of the staged operands, which lie there in the order of the ranks.
  std::byte* place_of(int peer, std::size_t stride) const {
    return staging_.data() + devices::index_of(peer < rank_ ? peer : peer - 1) * stride;
  }

  DeviceStretches stretches_of(DType dtype, const std::vector<std::int64_t>& counts) const {
    const std::size_t bytes = device_stretch_bytes / devices::index_of(std::max(1, size() - 1));
    const std::int64_t longest =
        static_cast<std::int64_t>(bytes / size_of(dtype)) / device_piece_unit * device_piece_unit;
    SCALETRAIN_CHECK_LE(device_piece_unit, longest);
    return {.longest = longest, .count = ceil_div(*std::max_element(counts.begin(), counts.end()), longest)};
  }

  void all_reduce_small(const View& data, ReduceOp op) {
    const std::size_t stride = align_up(data.num_bytes());
    std::vector<DeviceMessage> messages;
    if (data.num_bytes() > 0)
      for_each_peer([&](int peer) {
        messages.push_back({DeviceMessage::Direction::send, peer, devices::bytes_of(data), data.num_bytes()});
        messages.push_back({DeviceMessage::Direction::receive, peer, place_of(peer, stride), data.num_bytes()});
      });
    lane_.issue(messages, watch().waits());
    reduce({.dtype = data.dtype(),
            .count = data.num_elements(),
            .own_data = devices::bytes_of(data),
            .stride = stride,
            .output = devices::bytes_of(data)},
           op);
  }

  void reduce(DeviceReduction reduction, ReduceOp op) {
    reduction.op = op == ReduceOp::sum ? DeviceReduction::Operator::sum : DeviceReduction::Operator::maximum;
    reduction.operands = size();
    reduction.own = rank_;
    reduction.others = staging_.data();
    lane_.group().reduce(reduction);
  }

  void copy(std::byte* from, std::byte* to, std::size_t bytes) {
    if (bytes == 0 || from == to) return;
    const Shape shape{static_cast<std::int64_t>(bytes)};
    backend_.copy(lane_.stream(), ConstView(from, DType::u8, shape, Space::device),
                  View(to, DType::u8, shape, Space::device));
  }

  int rank_;
  Backend& backend_;
  Buffer staging_;
  DeviceLane& lane_;
  std::uint64_t sequence_ = 0;
};

}  // namespace scaletrain
