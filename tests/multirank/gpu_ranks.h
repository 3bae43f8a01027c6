// Ranks as threads, each on a GPU that the host carries out (tests/support/cuda) and with groups by a NCCL among the
// threads of this process, whose sends wait for their receives.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "comm/collective/collective_status.h"
#include "store/device_communicator.h"
#include "support/cuda/fake_nccl.h"
#include "support/ranks/ranks.h"

namespace scaletrain {

inline std::size_t at(std::int64_t rank) {
  return static_cast<std::size_t>(rank);
}

// A machine with so many GPUs, whose driver loads kernels ahead.
class Gpus {
 public:
  explicit Gpus(int number, const char* loading = "EAGER") {
    ::setenv("SCALETRAIN_FAKE_GPU", (std::to_string(number) + " GPUs").c_str(), 1);
    ::setenv("CUDA_MODULE_LOADING", loading, 1);
  }
  ~Gpus() {
    ::unsetenv("SCALETRAIN_FAKE_GPU");
    ::unsetenv("CUDA_MODULE_LOADING");
    CHECK(fake_nccl::take_problem() == "");
  }
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

 private:
  fake_nccl::Installed nccl_;
};

struct GroupOptions {
  std::vector<std::string> names = {"world"};  // of the groups, each of all ranks
  DeviceTransfers::Calls calls = DeviceTransfers::Calls::collectives;
  double deadline = 60.0;
  double patience = 1.0;
  double connect_seconds = 20.0;
  std::function<MonotonicTime()> vouched{};
  CollectiveStatus* status = nullptr;  // of rank 0, and so the count
  WorkCount* work = nullptr;
  std::function<int(Rank)> gpu = [](Rank rank) { return static_cast<int>(rank.value()); };
};

inline std::vector<Rank> all_ranks(const InProcessWorld& world) {
  std::vector<Rank> ranks;
  ranks.reserve(at(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) ranks.emplace_back(rank);
  return ranks;
}

// A rank with its GPU and its groups.
class GpuRank {
 public:
  GpuRank(InProcessWorld& world, Rank rank, const GroupOptions& options)
      : rank_(rank.value()),
        backend_(make_cuda_backend({.device = options.gpu(rank)})),
        stream_(backend_->make_stream()),
        transfers_({.backend = *backend_,
                    .deadline = options.deadline,
                    .vouched = options.vouched,
                    .work = rank == Rank(0) ? options.work : nullptr,
                    .status = rank == Rank(0) ? options.status : nullptr,
                    .connect_seconds = options.connect_seconds,
                    .patience = options.patience}) {
    for (const std::string& name : options.names) {
      auto transport = world.make_transport(name, all_ranks(world), rank);
      const DeviceTransfers::Group group{.name = name, .ranks = all_ranks(world), .calls = options.calls};
      obstacle_ = transfers_.obstacle(*transport, group);
      if (obstacle_.empty()) groups_.push_back(transfers_.make(std::move(transport), group));
    }
  }

  std::int64_t rank() const { return rank_; }
  const std::string& obstacle() const { return obstacle_; }
  Communicator& group(std::size_t index = 0) { return *groups_.at(index); }
  void close_groups() { groups_.clear(); }
  void close_group(std::size_t index) { groups_.at(index).reset(); }
  Ticket exchange(std::size_t group, Transfer::Direction direction, const View& data, Transfer::Channel channel) {
    const Transfer one{.direction = direction, .peer = static_cast<int>(1 - rank_), .data = data, .channel = channel};
    return groups_.at(group)->exchange(*stream_, {&one, 1});
  }
  Stream& stream() { return *stream_; }
  Backend& backend() { return *backend_; }

  template <class T>
  View make(const std::vector<T>& values) {
    memory_.push_back(backend_->allocate(values.size() * sizeof(T)));
    const View there = memory_.back().view(0, dtype_of<T>(), {std::ssize(values)});
    if (values.empty()) return there;
    const Buffer pinned = backend_->allocate_pinned(values.size() * sizeof(T));
    std::memcpy(pinned.data(), values.data(), values.size() * sizeof(T));
    backend_->copy(*stream_, pinned.view(0, dtype_of<T>(), there.shape()), there);
    stream_->synchronize();
    return there;
  }
  // In the stream's order.
  template <class T>
  std::vector<T> read(const View& there) {
    std::vector<T> values(static_cast<std::size_t>(there.num_elements()));
    if (values.empty()) return values;
    const Buffer pinned = backend_->allocate_pinned(there.num_bytes());
    backend_->copy(*stream_, there, pinned.view(0, there.dtype(), there.shape()));
    stream_->synchronize();
    std::memcpy(values.data(), pinned.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  std::int64_t rank_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> memory_;
  DeviceTransfers transfers_;
  std::string obstacle_;
  std::vector<std::unique_ptr<Communicator>> groups_;
};

// Runs function(GpuRank&, phase) for each function in turn, all ranks having ended the one before: what allocates waits
// for every GPU of the process, also for those that wait for this rank.
class Phases {
 public:
  explicit Phases(int ranks) : ranks_(ranks) {}
  void meet() {
    const int turn = arrived_++ / ranks_;
    while (arrived_ < (turn + 1) * ranks_) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  int ranks_;
  std::atomic<int> arrived_{0};
};

template <class Function>
void on_gpus(int ranks, const GroupOptions& options, Function function) {
  const Gpus gpus(ranks);
  InProcessWorld world(ranks);
  Phases phases(ranks);
  run_threads(world, [&](Rank rank) {
    GpuRank gpu(world, rank, options);
    REQUIRE(gpu.obstacle() == "");
    function(gpu, [&phases] { phases.meet(); });
  });
}

}  // namespace scaletrain
