// Ranks on GPUs of their own, which exchange by NCCL, against the communicators of the host's memory: GPUs that the
// host carries out (tests/support/cuda) and a NCCL among the threads of this process, whose sends wait for their
// receives.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/error.h"
#include "comm/collective/collective_status.h"
#include "comm/collective/ordered_reduction.h"
#include "comm/process/process_network.h"
#include "launch/workers/communicators.h"
#include "store/device_communicator.h"
#include "store/staged_communicator.h"
#include "support/cuda/fake_nccl.h"
#include "support/cuda/fake_runtime.h"
#include "support/eventually.h"
#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/ranks.h"
#include "support/ranks/test_layout.h"

namespace scaletrain {
namespace {

using Counts = std::vector<std::int64_t>;
using Direction = Transfer::Direction;
using Channel = Transfer::Channel;
using GroupCalls = DeviceTransfers::Calls;

std::size_t at(std::int64_t rank) {
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
  GroupCalls calls = GroupCalls::collectives;
  double deadline = 60.0;
  double patience = 1.0;
  CollectiveStatus* status = nullptr;
  WorkCount* work = nullptr;
  std::function<int(Rank)> gpu = [](Rank rank) { return static_cast<int>(rank.value()); };
};

std::vector<Rank> all_ranks(const InProcessWorld& world) {
  std::vector<Rank> ranks;
  ranks.reserve(at(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) ranks.emplace_back(rank);
  return ranks;
}

// A rank with its GPU and one group of all.
class GpuRank {
 public:
  GpuRank(InProcessWorld& world, Rank rank, const GroupOptions& options)
      : rank_(rank.value()),
        backend_(make_cuda_backend({.device = options.gpu(rank)})),
        stream_(backend_->make_stream()),
        transfers_({.backend = *backend_,
                    .deadline = options.deadline,
                    .work = options.work,
                    .status = options.status,
                    .connect_seconds = 20.0,
                    .patience = options.patience}) {
    auto transport = world.make_transport("world", all_ranks(world), rank);
    const DeviceTransfers::Group group{.name = "world", .ranks = all_ranks(world), .calls = options.calls};
    obstacle_ = transfers_.obstacle(*transport, group);
    if (obstacle_.empty()) group_ = transfers_.make(std::move(transport), group);
  }

  std::int64_t rank() const { return rank_; }
  const std::string& obstacle() const { return obstacle_; }
  Communicator& group() { return *group_; }
  void close_group() { group_.reset(); }
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
  std::unique_ptr<Communicator> group_;
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

// Values whose sum depends on the order in which they are added.
template <class T>
std::vector<T> values_of(std::int64_t rank, std::int64_t count) {
  constexpr double unit = std::is_same_v<T, F16> ? 1e-6 : 1.0;  // so that no sum overflows
  std::vector<T> values(at(count));
  std::uint64_t state = 88172645463325252ULL + static_cast<std::uint64_t>(rank) * 977;
  for (T& value : values) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const auto small = static_cast<std::int64_t>(state % 2001) - 1000;
    value = std::is_integral_v<T> ? static_cast<T>(small)
                                  : static_cast<T>(static_cast<double>(small) * std::pow(10.0, state % 7) * unit);
  }
  return values;
}

// As the communicators of the host's memory reduce.
template <class T>
std::vector<T> reduced(int ranks, std::int64_t count, ReduceOp op) {
  std::vector<std::vector<T>> all;
  std::vector<const std::byte*> operands;
  all.reserve(at(ranks));
  operands.reserve(at(ranks));
  for (int rank = 0; rank < ranks; ++rank) all.push_back(values_of<T>(rank, count));
  for (const auto& values : all) operands.push_back(reinterpret_cast<const std::byte*>(values.data()));
  std::vector<T> result(at(count));
  reduce_in_order(dtype_of<T>(), op, operands, reinterpret_cast<std::byte*>(result.data()), count);
  return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
template <class T>
std::vector<T> part(const std::vector<T>& values, std::int64_t first, std::int64_t count) {
  return {values.begin() + first, values.begin() + first + count};
}
std::int64_t before(const Counts& counts, std::int64_t rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}
View piece_of(const View& all, std::int64_t first, std::int64_t count) {
  return {static_cast<std::byte*>(all.data()) + at(first) * size_of(all.dtype()), all.dtype(), {count}, all.space()};
}

template <class T, class Meet>
void check_all_reduce(GpuRank& gpu, int ranks, std::int64_t count, ReduceOp op, Meet meet) {
  const View data = gpu.make(values_of<T>(gpu.rank(), count));
  meet();
  gpu.group().all_reduce(gpu.stream(), data, op).before(gpu.stream());
  gpu.stream().synchronize();
  meet();
  CHECK(same_bits(gpu.read<T>(data), reduced<T>(ranks, count, op)));
}

template <class T, class Meet>
void check_reduce_scatter(GpuRank& gpu, const Counts& counts, bool in_place, Meet meet) {
  const int ranks = static_cast<int>(counts.size());
  const std::int64_t total = before(counts, ranks);
  const std::int64_t first = before(counts, gpu.rank());
  const std::int64_t own = counts[at(gpu.rank())];
  const View input = gpu.make(values_of<T>(gpu.rank(), total));
  const View output = in_place ? piece_of(input, first, own) : gpu.make(std::vector<T>(at(own)));
  meet();
  gpu.group().reduce_scatter(gpu.stream(), input, counts, output).before(gpu.stream());
  gpu.stream().synchronize();
  meet();
  CHECK(same_bits(gpu.read<T>(output), part(reduced<T>(ranks, total, ReduceOp::sum), first, own)));
}

// Losses and norms of rank 0, in two steps, and then an evaluation's.
struct GpuNumbers {
  std::vector<double> losses, grad_norms;
  double evaluation = 0.0;

  bool operator==(const GpuNumbers&) const = default;
};
enum class Exchanged { through_the_host, by_nccl };

GpuNumbers train_on_gpus(const Config& config, DType compute, Exchanged exchanged) {
  PhasePlan plan = make_run_plan(config, config.model.vocab.value_or(257), std::nullopt).phases.front();
  plan.compute = compute;
  const auto world_size = static_cast<int>(plan.mesh.world());
  const Gpus gpus(world_size);
  plan.compute_on(*make_cuda_backend({.compute = compute}));
  GpuNumbers numbers;
  InProcessWorld world(world_size);
  Phases phases(world_size);
  std::vector<RankGroups> all_groups(at(world_size));
  run_threads(world, [&](Rank rank) {
    const CudaOptions options{.device = static_cast<int>(rank.value()), .compute = compute};
    const auto copying = make_cuda_backend(options);
    DeviceTransfers transfers({.backend = *copying, .deadline = 5.0});
    RankGroups& groups = all_groups[at(rank.value())];
    groups = make_groups(plan.mesh, rank, plan.group_facts(), [&](const GroupSpec& spec) {
      auto transport = world.make_transport(spec.name, spec.members, rank);
      const std::string name(to_text(spec.kind));
      if (!is_control(spec.kind) && exchanged == Exchanged::by_nccl) {
        const auto calls = spec.kind != GroupKind::pipeline ? GroupCalls::collectives
                           : plan.chunks > 1                ? GroupCalls::ring_exchanges
                                                            : GroupCalls::chain_exchanges;
        return transfers.make(std::move(transport), {.name = name, .ranks = spec.members, .calls = calls});
      }
      auto group = make_direct_communicator(
          std::move(transport), {.group_name = name, .ranks = spec.members, .mode = DirectOptions::Mode::caller});
      return is_control(spec.kind) ? std::move(group) : make_staged_communicator(std::move(group), *copying);
    });
    RankTrainer trainer(config, plan, rank, groups, make_cuda_backend(options));
    trainer.settled_store();
    phases.meet();
    const std::uint64_t before = fake_runtime::device_waits();
    for (int step = 0; step < 2; ++step) {
      const StepRunner::Result result = trainer.step();
      if (rank.value() != 0) continue;
      numbers.losses.push_back(result.outcome.loss);
      numbers.grad_norms.push_back(result.outcome.grad_norm);
    }
    const double loss_sum = trainer.evaluate(9).loss_sum;
    if (rank.value() == 0) numbers.evaluation = loss_sum;
    trainer.settled_store();
    phases.meet();
    // Nobody has had or given back memory, or loaded a kernel, while peers may have waited.
    if (exchanged == Exchanged::by_nccl) CHECK(fake_runtime::device_waits() == before);
    phases.meet();
    groups = {};
  });
  return numbers;
}

// Every kind of transfer.
std::vector<TestLayout> layouts_of_gpus() {
  return {{"data 2", 2, 1, 1, 0},
          {"data 2, ZeRO 1", 2, 1, 1, 1},
          {"data 3, ZeRO 2", 3, 1, 1, 2},
          {"data 2, ZeRO 3", 2, 1, 1, 3},
          {"tensor 2", 1, 2, 1, 0},
          {"gpipe 2", 1, 1, 2, 0, ScheduleKind::gpipe},
          {"1f1b 2", 1, 1, 2, 0, ScheduleKind::one_f_one_b},
          {"zb-h1 2", 1, 1, 2, 0, ScheduleKind::zb_h1},
          {"interleaved 2", 1, 1, 2, 0, ScheduleKind::interleaved, 2},
          {"data 2, tensor 2, 1f1b 2, ZeRO 1", 2, 2, 2, 1, ScheduleKind::one_f_one_b}};
}

}  // namespace

TEST_CASE("trainings whose ranks exchange by NCCL have the bits of those that exchange through the host's memory") {
  for (const TestLayout& layout : layouts_of_gpus()) {
    CAPTURE(layout.name);
    Config config = tiny_config({.layers = 2 * layout.chunks});
    config.train.global_batch = 6;
    if (layout.tensor > 1) make_llama(config.model);
    lay_out(config, layout);
    // In halves where ranks gather weights and sum activations in them.
    const DType compute = layout.zero > 0 ? DType::bf16 : DType::f32;
    CHECK(train_on_gpus(config, compute, Exchanged::by_nccl) ==
          train_on_gpus(config, compute, Exchanged::through_the_host));
  }
}

TEST_CASE("ranks on GPUs reduce by NCCL to the bits of the host's communicators, in every type") {
  on_gpus(3, {}, [](GpuRank& gpu, auto meet) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      for (const std::int64_t count : {0, 1, 5, 4099, 20011}) {
        check_all_reduce<float>(gpu, 3, count, op, meet);
        check_all_reduce<Bf16>(gpu, 3, count, op, meet);
        check_all_reduce<F16>(gpu, 3, count, op, meet);
      }
      check_all_reduce<double>(gpu, 3, 5003, op, meet);
      check_all_reduce<std::int64_t>(gpu, 3, 5003, op, meet);
    }
    for (const bool in_place : {false, true}) {
      check_reduce_scatter<float>(gpu, {0, 4097, 1}, in_place, meet);
      check_reduce_scatter<Bf16>(gpu, {1000, 0, 3000}, in_place, meet);
      check_reduce_scatter<float>(gpu, {0, 0, 0}, in_place, meet);
    }
  });
}

TEST_CASE("reductions by NCCL of more than a stretch have the same bits") {
  // Of two ranks, whose one peer has all of the staging memory.
  const auto longest = static_cast<std::int64_t>(device_stretch_bytes / sizeof(float));
  on_gpus(2, {}, [&](GpuRank& gpu, auto meet) { check_reduce_scatter<float>(gpu, {longest + 1001, 7}, true, meet); });
}

TEST_CASE("a maximum by NCCL with a NaN is NaN whoever has it") {
  on_gpus(3, {}, [](GpuRank& gpu, auto meet) {
    for (std::int64_t holder = 0; holder < 3; ++holder) {
      std::vector<float> values(9000, 1.0F);
      if (gpu.rank() == holder) values[0] = values[8999] = std::numeric_limits<float>::quiet_NaN();
      const View data = gpu.make(values);
      meet();
      gpu.group().all_reduce(gpu.stream(), data, ReduceOp::max).before(gpu.stream());
      gpu.stream().synchronize();
      meet();
      const auto result = gpu.read<float>(data);
      CHECK(std::isnan(result[0]));
      CHECK(result[1] == 1.0F);
      CHECK(std::isnan(result[8999]));
    }
  });
}

TEST_CASE("gathers and all-to-alls by NCCL take pieces of any length, in place too, behind what the stream was given") {
  on_gpus(3, {}, [](GpuRank& gpu, auto meet) {
    for (const Counts& counts : {Counts{0, 3, 5}, Counts{30000, 1, 701}, Counts{0, 0, 0}}) {
      for (const bool in_place : {false, true}) {
        const std::int64_t total = before(counts, 3);
        const std::int64_t own = counts[at(gpu.rank())];
        const View all = gpu.make(std::vector<float>(at(total), 9.0F));
        const View given = gpu.make(values_of<float>(gpu.rank(), own));
        const View place =
            in_place ? piece_of(all, before(counts, gpu.rank()), own) : gpu.make(std::vector<float>(at(own)));
        meet();
        // Not made yet when the call is issued.
        gpu.backend().copy(gpu.stream(), given, place);
        gpu.group().all_gather(gpu.stream(), place, counts, all).before(gpu.stream());
        gpu.stream().synchronize();
        meet();
        const auto gathered = gpu.read<float>(all);
        for (std::int64_t rank = 0; rank < 3; ++rank)
          CHECK(part(gathered, before(counts, rank), counts[at(rank)]) == values_of<float>(rank, counts[at(rank)]));
      }
    }
    // Rank r sends r*p numbers to rank p.
    Counts counts;
    for (std::int64_t peer = 0; peer < 3; ++peer) counts.push_back(gpu.rank() * peer);
    const std::int64_t total = before(counts, 3);
    const View given = gpu.make(values_of<float>(gpu.rank(), total));
    const View taken = gpu.make(std::vector<float>(at(total)));
    meet();
    gpu.group().all_to_all(gpu.stream(), given, counts, taken, counts).before(gpu.stream());
    gpu.stream().synchronize();
    meet();
    const auto result = gpu.read<float>(taken);
    for (std::int64_t peer = 0; peer < 3; ++peer) {
      const auto theirs = values_of<float>(peer, 3 * peer);
      CHECK(part(result, before(counts, peer), counts[at(peer)]) ==
            part(theirs, peer * (gpu.rank() * (gpu.rank() - 1) / 2), counts[at(peer)]));
    }
  });
}

TEST_CASE("calls by NCCL run in the order of issue and the host waits for none of them") {
  on_gpus(2, {}, [](GpuRank& gpu, auto meet) {
    const View data = gpu.make(std::vector<float>(300, 1.0F));
    meet();
    std::vector<Ticket> tickets;
    tickets.reserve(12);
    for (int round = 0; round < 12; ++round)
      tickets.push_back(gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum));
    tickets.back().before(gpu.stream());
    gpu.stream().synchronize();
    meet();
    CHECK(gpu.read<float>(data) == std::vector<float>(300, 4096.0F));
  });
}

TEST_CASE("receives that are posted ahead hold up neither sends, nor the other channel, nor what allocates") {
  on_gpus(2, {.calls = GroupCalls::chain_exchanges}, [](GpuRank& gpu, auto meet) {
    const int peer = static_cast<int>(1 - gpu.rank());
    const auto exchange = [&](Direction direction, const View& data, Channel channel) {
      const Transfer one{.direction = direction, .peer = peer, .data = data, .channel = channel};
      return gpu.group().exchange(gpu.stream(), {&one, 1});
    };
    const View first = gpu.make(values_of<float>(gpu.rank() + 5, 70000));
    const View second = gpu.make(std::vector<float>(70000));
    meet();
    if (gpu.rank() == 0) {
      Ticket answer = exchange(Direction::receive, second, Channel::gradients);
      // Until the answer is waited for, nothing waits for the peer.
      CHECK(gpu.read<float>(gpu.make(std::vector<float>(5, 3.0F))) == std::vector<float>(5, 3.0F));
      meet();
      Ticket sent = exchange(Direction::send, first, Channel::activations);
      answer.before(gpu.stream());
      sent.before(gpu.stream());
    } else {
      meet();
      exchange(Direction::receive, second, Channel::activations).before(gpu.stream());
      exchange(Direction::send, first, Channel::gradients).before(gpu.stream());
    }
    gpu.stream().synchronize();
    meet();
    CHECK(gpu.read<float>(second) == values_of<float>(peer + 5, 70000));
  });
}

TEST_CASE("a peer whose send waits for a receive that is not asked for yet gets further") {
  on_gpus(2, {.calls = GroupCalls::chain_exchanges, .patience = 0.05}, [](GpuRank& gpu, auto meet) {
    const int peer = static_cast<int>(1 - gpu.rank());
    const auto exchange = [&](Direction direction, const View& data, Channel channel) {
      const Transfer one{.direction = direction, .peer = peer, .data = data, .channel = channel};
      return gpu.group().exchange(gpu.stream(), {&one, 1});
    };
    const View data = gpu.make(std::vector<float>(100, static_cast<float>(gpu.rank())));
    const View got = gpu.make(std::vector<float>(100, -1.0F));
    meet();
    if (gpu.rank() == 0) {
      Ticket later = exchange(Direction::receive, got, Channel::gradients);
      exchange(Direction::send, data, Channel::activations).before(gpu.stream());
      gpu.stream().synchronize();
      later.before(gpu.stream());
    } else {
      // Takes what rank 0 sends only when its own send is done.
      exchange(Direction::send, data, Channel::gradients).before(gpu.stream());
      gpu.stream().synchronize();
      exchange(Direction::receive, got, Channel::activations).before(gpu.stream());
    }
    gpu.stream().synchronize();
    meet();
    CHECK(gpu.read<float>(got) == std::vector<float>(100, static_cast<float>(peer)));
  });
}

TEST_CASE("calls by NCCL that do not fit are bugs and harm nothing") {
  on_gpus(2, {}, [](GpuRank& gpu, auto meet) {
    const View data = gpu.make(std::vector<float>(9, 1.0F));
    const View own = gpu.make(std::vector<float>(3, 1.0F));
    const View halves(data.data(), DType::u16, {3}, data.space());
    std::vector<float> of_host(3);
    const View host(of_host.data(), DType::f32, {3});
    Communicator& group = gpu.group();
    CHECK_THROWS_AS(group.all_reduce(gpu.stream(), halves, ReduceOp::sum), BugError);
    CHECK_THROWS_AS(group.all_reduce(gpu.stream(), host, ReduceOp::sum), BugError);
    CHECK_THROWS_AS(group.reduce_scatter(gpu.stream(), data, Counts{3, 3}, own), BugError);
    CHECK_THROWS_AS(group.all_gather(gpu.stream(), own, Counts{4, 5}, data), BugError);
    const Transfer send{.direction = Direction::send, .peer = 1, .data = own};
    CHECK_THROWS_AS(group.exchange(gpu.stream(), {&send, 1}), BugError);
    meet();
    group.all_reduce(gpu.stream(), own, ReduceOp::sum).wait();
    meet();
    CHECK(gpu.read<float>(own) == std::vector<float>(3, 2.0F));
  });
}

TEST_CASE(
    "a silent peer ends the calls of the others by the deadline, in words that name it, and no stream stays behind") {
  std::string words[2];
  on_gpus(2, {.deadline = 0.3}, [&](GpuRank& gpu, auto meet) {
    const View data = gpu.make(std::vector<float>(8, 1.0F));
    meet();
    if (gpu.rank() == 0) {
      gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum).before(gpu.stream());
      try {
        gpu.stream().synchronize();
      } catch (const PeerError& error) {
        words[0] = error.what();
      }
      try {
        gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum);
      } catch (const PeerError& error) {
        words[1] = error.what();
      }
      gpu.group().abort();
      gpu.group().abort();
    }
    meet();
  });
  CHECK(words[0] ==
        "group world: all_reduce #0: waited 0.3 s for rank 1 (of the world); it is dead, stuck, or issued another "
        "collective");
  CHECK(words[1] == words[0]);
}

TEST_CASE("a group that has lost a peer ends the calls of the rank's other groups, not each at a deadline of its own") {
  const Gpus gpus(2);
  InProcessWorld world(2);
  Phases phases(2);
  std::vector<std::string> words;
  run_threads(world, [&](Rank rank) {
    const auto backend = make_cuda_backend({.device = static_cast<int>(rank.value())});
    const auto stream = backend->make_stream();
    const auto other = backend->make_stream();
    DeviceTransfers transfers({.backend = *backend, .deadline = 1.0});
    const auto make = [&](const char* name) {
      return transfers.make(world.make_transport(name, all_ranks(world), rank),
                            {.name = name, .ranks = all_ranks(world)});
    };
    auto data = make("data");
    auto tensor = make("tensor");
    const Buffer memory = backend->allocate(128);
    phases.meet();
    if (rank == Rank(0)) {
      const auto issue_and_wait = [&](Communicator& group, Stream& at, std::size_t first) {
        group.all_reduce(at, memory.view(first, DType::f32, {10}), ReduceOp::sum).before(at);
      };
      issue_and_wait(*data, *stream, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      issue_and_wait(*tensor, *other, 64);  // of which 0.6 s are left when the other's deadline passes
      for (Stream* const waited : {stream.get(), other.get()}) {
        try {
          waited->synchronize();
        } catch (const PeerError& error) {
          words.emplace_back(error.what());
        }
      }
    }
    phases.meet();
    data->abort();
    tensor->abort();
  });
  REQUIRE(words.size() == 2);
  CHECK(words[0].starts_with("group data: all_reduce #0: waited 1 s"));
  CHECK(words[1] == words[0]);
}

TEST_CASE("while somebody looks after the ranks a wait by NCCL lasts as long as it takes, and says in what it is") {
  CollectiveStatus status;
  WorkCount work{0};
  const Gpus gpus(2);
  InProcessWorld world(2);
  Phases phases(2);
  run_threads(world, [&](Rank rank) {
    const auto backend = make_cuda_backend({.device = static_cast<int>(rank.value())});
    const auto stream = backend->make_stream();
    DeviceTransfers transfers({.backend = *backend,
                               .deadline = 0.2,
                               .vouched = [] { return monotonic_now(); },
                               .work = rank == Rank(0) ? &work : nullptr,
                               .status = rank == Rank(0) ? &status : nullptr});
    auto group = transfers.make(world.make_transport("data", all_ranks(world), rank),
                                {.name = "data", .ranks = all_ranks(world)});
    const Buffer memory = backend->allocate(40);
    const View data = memory.view(0, DType::f32, {10});
    phases.meet();
    if (rank == Rank(1)) {
      CHECK(eventually([&] { return status.wait().has_value(); }));
      const auto wait = status.wait();
      if (wait) CHECK(wait->text == "group data (ranks 0, 1): all_reduce #0");
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      CHECK(work == 0);
    }
    group->all_reduce(*stream, data, ReduceOp::sum).wait();
    if (rank == Rank(0)) {
      CHECK(eventually([&] { return work == 1; }));
      CHECK(eventually([&] { return !status.wait().has_value(); }));
    }
    phases.meet();
  });
}

TEST_CASE("a rank that gives up ends its own calls at once, from any thread, and though NCCL's abort hangs") {
  fake_nccl::hold_aborts(true);
  CHECK_THROWS_WITH_AS(on_gpus(2, {},
                               [](GpuRank& gpu, auto meet) {
                                 const View data = gpu.make(std::vector<float>(8, 1.0F));
                                 meet();
                                 if (gpu.rank() == 0) {
                                   gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum).before(gpu.stream());
                                   std::thread([&gpu] { gpu.group().abort(); }).join();
                                   meet();
                                   fake_nccl::hold_aborts(false);
                                   gpu.stream().synchronize();
                                 } else {
                                   meet();
                                 }
                               }),
                       "group world: this rank has given it up", PeerError);
}

TEST_CASE("an asynchronous error of NCCL ends the call under way, and what was computed behind it is not used") {
  std::string words;
  on_gpus(2, {}, [&](GpuRank& gpu, auto meet) {
    const View data = gpu.make(std::vector<float>(8, 1.0F));
    const auto saves = gpu.backend().make_stream();  // a third one, behind the others
    meet();
    if (gpu.rank() == 0) {
      gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum).before(gpu.stream());
      fake_nccl::break_gpu(0);
      saves->after(gpu.stream().record());
      try {
        saves->record().wait();
      } catch (const PeerError& error) {
        words = error.what();
      }
      fake_nccl::break_gpu(-1);
    }
    meet();
  });
  CHECK(words == "group world: all_reduce #0: NCCL: remote process exited or there was a network error");
}

TEST_CASE("groups of which two ranks issue the calls in opposite orders run beside each other") {
  const Gpus gpus(2);
  InProcessWorld world(2);
  Phases phases(2);
  run_threads(world, [&](Rank rank) {
    const auto backend = make_cuda_backend({.device = static_cast<int>(rank.value())});
    const auto stream = backend->make_stream();
    DeviceTransfers transfers({.backend = *backend, .deadline = 5.0});
    std::vector<std::unique_ptr<Communicator>> groups;
    for (const char* name : {"tensor", "data", "tied"})
      groups.push_back(transfers.make(world.make_transport(name, all_ranks(world), rank),
                                      {.name = name, .ranks = all_ranks(world)}));
    const Buffer memory = backend->allocate(3 * 4096);
    phases.meet();
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::size_t which = rank == Rank(0) ? i : 2 - i;
      tickets.push_back(
          groups[which]->all_reduce(*stream, memory.view(which * 4096, DType::f32, {1024}), ReduceOp::sum));
    }
    for (Ticket& ticket : tickets) ticket.before(*stream);
    stream->synchronize();
    phases.meet();
  });
}

TEST_CASE("a group that is made anew meets nothing of one that was given up") {
  const Gpus gpus(2);
  for (int start = 0; start < 3; ++start) {
    InProcessWorld world(2);
    Phases phases(2);
    run_threads(world, [&](Rank rank) {
      GpuRank gpu(world, rank, {});
      const View data = gpu.make(std::vector<float>(4, 1.0F));
      phases.meet();
      if (start < 2) {
        // One rank is in a call, the other one goes.
        Ticket sum = rank.value() == start ? gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum) : Ticket();
        gpu.group().abort();
      } else {
        gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum).before(gpu.stream());
        gpu.stream().synchronize();
      }
      phases.meet();
      if (start == 2) CHECK(gpu.read<float>(data) == std::vector<float>(4, 2.0F));
    });
  }
}

TEST_CASE("a rank that stands still in a training by NCCL ends the others by the deadline, in words that name it") {
  Config config = tiny_config({.layers = 1});
  lay_out(config, {"", 2, 1, 1, 1});
  const PhasePlan plan = [&] {
    PhasePlan made = make_run_plan(config, config.model.vocab.value_or(257), std::nullopt).phases.front();
    made.compute_on(*make_cuda_backend({}));
    return made;
  }();
  const Gpus gpus(2);
  InProcessWorld world(2);
  Phases phases(2);
  std::string words;
  run_threads(world, [&](Rank rank) {
    const CudaOptions options{.device = static_cast<int>(rank.value())};
    const auto copying = make_cuda_backend(options);
    DeviceTransfers transfers({.backend = *copying, .deadline = 0.5});
    const RankGroups groups = make_groups(plan.mesh, rank, plan.group_facts(), [&](const GroupSpec& spec) {
      auto transport = world.make_transport(spec.name, spec.members, rank);
      const std::string name(to_text(spec.kind));
      if (!is_control(spec.kind)) return transfers.make(std::move(transport), {.name = name, .ranks = spec.members});
      return make_direct_communicator(std::move(transport),
                                      {.group_name = name, .ranks = spec.members, .mode = DirectOptions::Mode::caller});
    });
    RankTrainer trainer(config, plan, rank, groups, make_cuda_backend(options));
    trainer.settled_store();
    phases.meet();
    trainer.step();
    if (rank == Rank(0)) {
      try {
        trainer.step();
      } catch (const PeerError& error) {
        words = error.what();
      }
    }
    phases.meet();
    groups.abort();
  });
  CHECK(words.starts_with("group data: "));
  CHECK(words.ends_with(": waited 0.5 s for rank 1 (of the world); it is dead, stuck, or issued another collective"));
}

TEST_CASE("the ranks of a run exchange as launch.transport says, and say why where they cannot") {
  // What a rank is told, or why it ends.
  const auto told = [](RankTransport transport, bool has_own_gpu) {
    InProcessWorld world(2);
    std::string all[2];
    run_threads(world, [&](Rank rank) {
      const auto backend = make_cuda_backend({.device = static_cast<int>(rank.value())});
      const auto stream = backend->make_stream();
      ProcessNetwork network({.address = "127.0.0.1", .secret = "0123456789abcdef"});
      const auto store = world.make_store();
      std::string& own = all[at(rank.value())];
      own = "through the host";
      const auto make =
          process_communicators({.network = network,
                                 .store = *store,
                                 .self = rank,
                                 .backend = *backend,
                                 .devices = {.transport = transport,
                                             .has_own_gpu = has_own_gpu || rank == Rank(0),
                                             .is_direct = [&own](const std::string& name) { own = name; },
                                             .is_staged = [&own](const std::string& why) { own = why; }}});
      try {
        const auto group = make({.kind = GroupKind::data,
                                 .name = "data.0",
                                 .members = all_ranks(world),
                                 .index = static_cast<int>(rank.value())});
        const Buffer memory = backend->allocate(40);
        group->all_reduce(*stream, memory.view(0, DType::f32, {10}), ReduceOp::sum).wait();
      } catch (const UserError& error) {
        own = error.what();
      }
    });
    CHECK(all[0] == all[1]);
    return all[0];
  };
  const Gpus gpus(2);
  CHECK(told(RankTransport::automatic, true) == "NCCL 2.28.9");
  CHECK(told(RankTransport::nccl, true) == "NCCL 2.28.9");
  CHECK(told(RankTransport::host, true) == "through the host");
  CHECK(told(RankTransport::tcp, true) == "through the host");
  CHECK(told(RankTransport::automatic, false) == "rank 1: another rank computes on its GPU too");
  CHECK(told(RankTransport::nccl, false) ==
        "launch.transport: nccl: the data group of ranks 0, 1 cannot exchange so (rank 1: another rank computes on its "
        "GPU too): see to that, or set launch.transport: auto");
}

TEST_CASE("a group with calls under way that is closed ends them") {
  on_gpus(2, {}, [](GpuRank& gpu, auto meet) {
    const View data = gpu.make(std::vector<float>(8, 1.0F));
    meet();
    if (gpu.rank() == 0) {
      gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum).before(gpu.stream());
      gpu.close_group();
      CHECK_THROWS_WITH_AS(gpu.stream().synchronize(),
                           "group world: the communicator was closed before its calls had run", PeerError);
    }
    meet();
  });
}

TEST_CASE(
    "ranks that share a GPU, that have no NCCL or one too old, or a driver that loads kernels late, are told so") {
  const auto obstacles = [](const GroupOptions& options) {
    InProcessWorld world(2);
    std::string all[2];
    run_threads(world, [&](Rank rank) { all[at(rank.value())] = GpuRank(world, rank, options).obstacle(); });
    CHECK(all[0] == all[1]);
    return all[0];
  };
  {
    const Gpus gpus(2);
    CHECK(obstacles({.gpu = [](Rank) { return 1; }}) == "ranks 0 and 1 compute on one GPU");
    const fake_nccl::Installed old(22600);
    CHECK(obstacles({}) == "rank 0: NCCL 2.26.0 is too old: NCCL 2.27.0 is the first that is used");
  }
  {
    const Gpus gpus(2, "LAZY");
    CHECK(obstacles({}) ==
          "rank 0: the driver would load kernels at their first launch, which waits for peers then: unset "
          "CUDA_MODULE_LOADING, or set it to EAGER");
  }
  ::setenv("SCALETRAIN_FAKE_GPU", "2 GPUs", 1);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  CHECK(obstacles({}) == "rank 0: libnccl.so.2 is not found");
  ::unsetenv("SCALETRAIN_FAKE_GPU");
  ::unsetenv("CUDA_MODULE_LOADING");
}

}  // namespace scaletrain
