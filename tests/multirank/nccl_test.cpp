// Ranks on GPUs of their own, which exchange by NCCL, against the communicators of the host's memory.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
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
#include "comm/collective/direct_communicator.h"
#include "comm/collective/ordered_reduction.h"
#include "gpu_ranks.h"
#include "store/device_communicator.h"
#include "store/staged_communicator.h"
#include "support/cuda/fake_runtime.h"
#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/ranks.h"
#include "support/ranks/test_layout.h"
#include "support/values_to_sum.h"

namespace scaletrain {
namespace {

using Counts = std::vector<std::int64_t>;
using Direction = Transfer::Direction;
using Channel = Transfer::Channel;
using GroupCalls = DeviceTransfers::Calls;

// As the communicators of the host's memory reduce.
template <class T>
std::vector<T> reduced(int ranks, std::int64_t count, ReduceOp op) {
  std::vector<std::vector<T>> all;
  std::vector<const std::byte*> operands;
  all.reserve(at(ranks));
  operands.reserve(at(ranks));
  for (int rank = 0; rank < ranks; ++rank) all.push_back(values_to_sum<T>(rank, count));
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
  const View data = gpu.make(values_to_sum<T>(gpu.rank(), count));
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
  const View input = gpu.make(values_to_sum<T>(gpu.rank(), total));
  const View output = in_place ? piece_of(input, first, own) : gpu.make(std::vector<T>(at(own)));
  meet();
  gpu.group().reduce_scatter(gpu.stream(), input, counts, output).before(gpu.stream());
  gpu.stream().synchronize();
  meet();
  CHECK(same_bits(gpu.read<T>(output), part(reduced<T>(ranks, total, ReduceOp::sum), first, own)));
}

// Losses and norms of rank 0, in some steps, and then an evaluation's.
struct GpuNumbers {
  std::vector<double> losses, grad_norms;
  double evaluation = 0.0;

  bool operator==(const GpuNumbers&) const = default;
};
enum class Exchanged { through_the_host, by_nccl };
enum class Graphs { no, yes };

GpuNumbers train_on_gpus(const Config& config, DType compute, Exchanged exchanged, int steps = 2,
                         Graphs graphs = Graphs::no) {
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
    // The plan knows who is connected to whom.
    if (exchanged == Exchanged::by_nccl)
      CHECK(fake_runtime::taken_memory(static_cast<int>(rank.value())) == plan.device_connections(rank));
    CudaOptions computing = options;
    computing.graphs = graphs == Graphs::yes;
    RankTrainer trainer(config, plan, rank, groups, make_cuda_backend(computing));
    trainer.settled_store();
    phases.meet();
    const std::uint64_t before = fake_runtime::device_waits();
    for (int step = 0; step < steps; ++step) {
      const std::uint64_t waits_before = host_waits();
      const StepRunner::Result result = trainer.step();
      if (exchanged == Exchanged::by_nccl) CHECK(host_waits() - waits_before == 1);  // for its stream
      if (rank.value() != 0) continue;
      numbers.losses.push_back(result.outcome.loss);
      numbers.grad_norms.push_back(result.outcome.grad_norm);
    }
    const double loss_sum = trainer.evaluate(9).loss_sum;
    if (rank.value() == 0) numbers.evaluation = loss_sum;
    trainer.settled_store();
    phases.meet();
    // Nobody has had or given back memory, or loaded a kernel, while peers may have waited. Graphs are made where they
    // wait for nothing that is this rank's to do.
    if (exchanged == Exchanged::by_nccl && graphs == Graphs::no) CHECK(fake_runtime::device_waits() == before);
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

TEST_CASE("cuda graphs change no bit of trainings whose ranks exchange by NCCL, and making them waits for no peer") {
  for (const TestLayout& layout : layouts_of_gpus()) {
    if (layout.data * layout.tensor * layout.pipeline == 2 && layout.zero != 3 && layout.chunks == 1) continue;
    CAPTURE(layout.name);
    Config config = tiny_config({.layers = 2 * layout.chunks});
    config.train.global_batch = 6;
    if (layout.tensor > 1) make_llama(config.model);
    lay_out(config, layout);
    const GpuNumbers without = train_on_gpus(config, DType::bf16, Exchanged::by_nccl, 5);
    const std::uint64_t before = fake_runtime::graph_launches();
    CHECK(train_on_gpus(config, DType::bf16, Exchanged::by_nccl, 5, Graphs::yes) == without);
    CHECK(fake_runtime::graph_launches() - before >= 3);
  }
}

TEST_CASE(
    "links between stages are made side by side: a pipeline takes as long as the joins of two, an odd ring of three") {
  struct Pipeline {
    int stages;
    GroupCalls calls;
    int links;  // one behind the other, at most
  };
  for (const Pipeline& pipeline : {Pipeline{2, GroupCalls::chain_exchanges, 1},
                                   {3, GroupCalls::chain_exchanges, 2},
                                   {8, GroupCalls::chain_exchanges, 2},
                                   {9, GroupCalls::chain_exchanges, 2},
                                   {2, GroupCalls::ring_exchanges, 2},
                                   {3, GroupCalls::ring_exchanges, 3},
                                   {8, GroupCalls::ring_exchanges, 2},
                                   {9, GroupCalls::ring_exchanges, 3}}) {
    CAPTURE(pipeline.stages);
    CAPTURE(pipeline.links);
    int joins = 0;
    on_gpus(pipeline.stages, {.names = {"pipeline"}, .calls = pipeline.calls}, [&](GpuRank& gpu, auto meet) {
      meet();
      if (gpu.rank() == 0) joins = fake_nccl::longest_chain_of_joins();
      meet();
    });
    // A link has a group for each way.
    CHECK(joins == 2 * pipeline.links);
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
        const View given = gpu.make(values_to_sum<float>(gpu.rank(), own));
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
          CHECK(part(gathered, before(counts, rank), counts[at(rank)]) == values_to_sum<float>(rank, counts[at(rank)]));
      }
    }
    // Rank r sends r*p numbers to rank p.
    Counts counts;
    for (std::int64_t peer = 0; peer < 3; ++peer) counts.push_back(gpu.rank() * peer);
    const std::int64_t total = before(counts, 3);
    const View given = gpu.make(values_to_sum<float>(gpu.rank(), total));
    const View taken = gpu.make(std::vector<float>(at(total)));
    meet();
    gpu.group().all_to_all(gpu.stream(), given, counts, taken, counts).before(gpu.stream());
    gpu.stream().synchronize();
    meet();
    const auto result = gpu.read<float>(taken);
    for (std::int64_t peer = 0; peer < 3; ++peer) {
      const auto theirs = values_to_sum<float>(peer, 3 * peer);
      CHECK(part(result, before(counts, peer), counts[at(peer)]) ==
            part(theirs, peer * (gpu.rank() * (gpu.rank() - 1) / 2), counts[at(peer)]));
    }
  });
}

TEST_CASE("calls by NCCL run in the order of issue and the host waits for none of them") {
  on_gpus(2, {}, [](GpuRank& gpu, auto meet) {
    const View data = gpu.make(std::vector<float>(300, 1.0F));
    meet();
    // Rank 0 all of its own before the peer has issued any.
    if (gpu.rank() == 1) meet();
    std::vector<Ticket> tickets;
    tickets.reserve(12);
    for (int round = 0; round < 12; ++round)
      tickets.push_back(gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum));
    if (gpu.rank() == 0) meet();
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
    const View first = gpu.make(values_to_sum<float>(gpu.rank() + 5, 70000));
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
    CHECK(gpu.read<float>(second) == values_to_sum<float>(peer + 5, 70000));
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

TEST_CASE("groups of which two ranks issue the calls in opposite orders run beside each other") {
  // More than would fit if each took what NCCL rounds a share of the GPU up to.
  const std::vector<std::string> names = {"tensor", "data", "tied", "replication", "world"};
  on_gpus(2, {.names = names, .deadline = 5.0}, [&](GpuRank& gpu, auto meet) {
    std::vector<View> data;
    data.reserve(names.size());
    for (std::size_t group = 0; group < names.size(); ++group) data.push_back(gpu.make(std::vector<float>(1024, 1.0F)));
    meet();
    if (gpu.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));  // all of the other's wait at once
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::size_t which = gpu.rank() == 0 ? i : names.size() - 1 - i;
      tickets.push_back(gpu.group(which).all_reduce(gpu.stream(), data[which], ReduceOp::sum));
    }
    for (Ticket& ticket : tickets) ticket.before(gpu.stream());
    gpu.stream().synchronize();
    meet();
    for (const View& sums : data) CHECK(gpu.read<float>(sums) == std::vector<float>(1024, 2.0F));
  });
}

}  // namespace scaletrain
