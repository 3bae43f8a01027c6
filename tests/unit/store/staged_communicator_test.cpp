// Collectives of ranks whose memory the host cannot touch, against those of the host's memory. Streams run late.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "store/staged_communicator.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/late_backend.h"
#include "support/ranks/ranks.h"

namespace scaletrain {
namespace {

constexpr int world_size = 3;

// A rank of the device: its values go in and out through pinned memory.
class DeviceRank {
 public:
  DeviceRank(InProcessWorld& world, Rank rank)
      : rank_(rank.value()),
        backend_(std::make_unique<FencedBackend>(make_reference_backend(DType::f32))),
        stream_(backend_.make_stream()),
        group_(make_staged_communicator(make_world_group(world, rank, DirectOptions::Mode::caller), backend_)) {}

  std::int64_t rank() const { return rank_; }
  Communicator& group() { return *group_; }
  Stream& stream() { return *stream_; }

  View make(const std::vector<float>& values) {
    memory_.push_back(backend_.allocate(values.size() * sizeof(float)));
    const View there = memory_.back().view(0, DType::f32, {std::ssize(values)});
    const Buffer pinned = backend_.allocate_pinned(values.size() * sizeof(float));
    const View here = pinned.view(0, DType::f32, {std::ssize(values)});
    std::copy(values.begin(), values.end(), here.as<float>());
    backend_.copy(*stream_, here, there);
    stream_->synchronize();
    return there;
  }
  void copy(const View& from, const View& to) { backend_.copy(*stream_, from, to); }
  // In the stream's order.
  std::vector<float> read(const View& there) {
    const Buffer pinned = backend_.allocate_pinned(there.num_bytes());
    const View here = pinned.view(0, DType::f32, there.shape());
    backend_.copy(*stream_, there, here);
    stream_->synchronize();
    return {here.as<float>(), here.as<float>() + here.num_elements()};
  }

 private:
  std::int64_t rank_;
  LateBackend backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> memory_;
  std::unique_ptr<Communicator> group_;
};

std::vector<float> values_of(std::int64_t rank, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((static_cast<std::int64_t>(i) * 37 + rank * 11) % 1009) / 7.0f;
  return values;
}

std::vector<float> sum_of_ranks(std::int64_t count) {
  std::vector<float> sum = values_of(0, count);
  for (std::int64_t rank = 1; rank < world_size; ++rank) {
    const std::vector<float> more = values_of(rank, count);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  return sum;
}

std::vector<float> part(const std::vector<float>& values, std::int64_t first, std::int64_t count) {
  return {values.begin() + first, values.begin() + first + count};
}

template <class Function>
void on_devices(Function function) {
  InProcessWorld world(world_size);
  run_threads(world, [&](Rank rank) {
    DeviceRank device(world, rank);
    function(device, world);
  });
}

}  // namespace

TEST_CASE("collectives of a device's memory give the bits of the host's, over more than a stretch") {
  const std::int64_t long_one = static_cast<std::int64_t>(staged_stretch_bytes / sizeof(float)) + 1001;
  on_devices([&](DeviceRank& device, InProcessWorld&) {
    for (const std::int64_t count : {long_one, std::int64_t{5}, std::int64_t{0}}) {
      const View data = device.make(values_of(device.rank(), count));
      device.group().all_reduce(device.stream(), data, ReduceOp::sum).before(device.stream());
      CHECK(device.read(data) == sum_of_ranks(count));
    }
    const std::vector<std::int64_t> counts = {long_one, 0, 7};
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const auto at = static_cast<std::size_t>(device.rank());
    const std::int64_t first = std::accumulate(counts.begin(), counts.begin() + device.rank(), std::int64_t{0});
    const View input = device.make(values_of(device.rank(), total));
    const View own = device.make(std::vector<float>(static_cast<std::size_t>(counts[at])));
    device.group().reduce_scatter(device.stream(), input, counts, own).before(device.stream());
    CHECK(device.read(own) == part(sum_of_ranks(total), first, counts[at]));

    // In place, behind a copy that the stream has not made yet.
    const View all = device.make(std::vector<float>(static_cast<std::size_t>(total)));
    const View piece(static_cast<std::byte*>(all.data()) + first * sizeof(float), DType::f32, {counts[at]},
                     all.space());
    const View mine = device.make(part(values_of(device.rank(), total), first, counts[at]));
    device.copy(mine, piece);
    device.group().all_gather(device.stream(), piece, counts, all).before(device.stream());
    const std::vector<float> gathered = device.read(all);
    for (std::int64_t rank = 0, begin = 0; rank < world_size; begin += counts[static_cast<std::size_t>(rank++)]) {
      const std::int64_t count = counts[static_cast<std::size_t>(rank)];
      CHECK(part(gathered, begin, count) == part(values_of(rank, total), begin, count));
    }

    const std::vector<std::int64_t> each = {2, 2, 2};
    const View given = device.make(values_of(device.rank(), 6));
    const View taken = device.make(std::vector<float>(6));
    device.group().all_to_all(device.stream(), given, each, taken, each).before(device.stream());
    for (std::int64_t rank = 0; rank < world_size; ++rank)
      CHECK(part(device.read(taken), 2 * rank, 2) == part(values_of(rank, 6), 2 * device.rank(), 2));
  });
}

TEST_CASE("a receive that is posted ahead holds up neither sends nor the other channel") {
  on_devices([](DeviceRank& device, InProcessWorld&) {
    if (device.rank() == 2) return;
    const int peer = device.rank() == 0 ? 1 : 0;
    const auto transfer = [&](Transfer::Direction direction, const View& data, Transfer::Channel channel) {
      const Transfer one{.direction = direction, .peer = peer, .data = data, .channel = channel};
      return device.group().exchange(device.stream(), {&one, 1});
    };
    using Direction = Transfer::Direction;
    using Channel = Transfer::Channel;
    const View ahead = device.make(std::vector<float>(9));
    const View soon = device.make(std::vector<float>(4));
    // What comes last is asked for first.
    Ticket late = transfer(Direction::receive, ahead, Channel::activations);
    Ticket first = transfer(Direction::receive, soon, Channel::gradients);
    Ticket sent = transfer(Direction::send, device.make(values_of(device.rank(), 4)), Channel::gradients);
    first.before(device.stream());
    CHECK(device.read(soon) == values_of(peer, 4));
    transfer(Direction::send, device.make(values_of(device.rank() + 5, 9)), Channel::activations).wait();
    sent.before(device.stream());
    late.before(device.stream());
    late.before(device.stream());
    CHECK(device.read(ahead) == values_of(peer + 5, 9));
  });
}

TEST_CASE("a rank that is gone ends the calls of the others, also those that nobody waits for") {
  std::atomic<int> failed{0};
  CHECK_THROWS_AS(on_devices([&](DeviceRank& device, InProcessWorld&) {
                    if (device.rank() == 2) throw PeerError("the GPU of rank 2");
                    const View data = device.make(values_of(device.rank(), 8));
                    const Transfer receive{.direction = Transfer::Direction::receive, .peer = 2, .data = data};
                    { const Ticket forgotten = device.group().exchange(device.stream(), {&receive, 1}); }
                    Ticket sum =
                        device.group().all_reduce(device.stream(), device.make(values_of(0, 8)), ReduceOp::sum);
                    try {
                      sum.before(device.stream());
                    } catch (const PeerError&) {
                      ++failed;
                      throw;
                    }
                  }),
                  PeerError);
  CHECK(failed == 2);
}

}  // namespace scaletrain
