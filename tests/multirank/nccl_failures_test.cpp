// What ranks on GPUs of their own that exchange by NCCL say and do when a peer is silent, gives up or fails, and when
// NCCL cannot be used.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/error.h"
#include "comm/collective/collective_status.h"
#include "comm/process/process_network.h"
#include "gpu_ranks.h"
#include "launch/workers/communicators.h"
#include "store/device_communicator.h"
#include "support/cuda/fake_nccl.h"
#include "support/cuda/fake_runtime.h"
#include "support/eventually.h"
#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/ranks.h"
#include "support/ranks/test_layout.h"

namespace scaletrain {

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
  std::vector<std::string> words;
  on_gpus(2, {.names = {"data", "tensor"}, .deadline = 1.0}, [&](GpuRank& gpu, auto meet) {
    const View first = gpu.make(std::vector<float>(10, 1.0F));
    const View second = gpu.make(std::vector<float>(10, 1.0F));
    const auto other = gpu.backend().make_stream();
    meet();
    if (gpu.rank() == 0) {
      gpu.group(0).all_reduce(gpu.stream(), first, ReduceOp::sum).before(gpu.stream());
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      // Of its deadline 0.6 s are left when the first one's passes.
      gpu.group(1).all_reduce(*other, second, ReduceOp::sum).before(*other);
      for (Stream* const waited : {&gpu.stream(), other.get()}) {
        try {
          waited->synchronize();
        } catch (const PeerError& error) {
          words.emplace_back(error.what());
        }
      }
    }
    meet();
  });
  REQUIRE(words.size() == 2);
  CHECK(words[0].starts_with("group data: all_reduce #0: waited 1 s"));
  CHECK(words[1] == words[0]);
}

TEST_CASE("while somebody looks after the ranks a wait by NCCL lasts as long as it takes, and says in what it is") {
  CollectiveStatus status;
  WorkCount work{0};
  const GroupOptions options{
      .names = {"data"}, .deadline = 0.2, .vouched = [] { return monotonic_now(); }, .status = &status, .work = &work};
  on_gpus(2, options, [&](GpuRank& gpu, auto meet) {
    const View data = gpu.make(std::vector<float>(10, 1.0F));
    meet();
    if (gpu.rank() == 1) {
      CHECK(eventually([&] { return status.wait().has_value(); }));
      const auto wait = status.wait();
      if (wait) CHECK(wait->text == "group data (ranks 0, 1): all_reduce #0");
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      CHECK(work == 0);
    }
    gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum).wait();
    if (gpu.rank() == 0) {
      CHECK(eventually([&] { return work == 1; }));
      CHECK(eventually([&] { return !status.wait().has_value(); }));
    }
    meet();
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
  CHECK(words.starts_with("group world: all_reduce #0: GPU 0 (the host at fa4e:1b:00.0) of "));
  CHECK(words.ends_with(": NCCL: remote process exited or there was a network error"));
}

TEST_CASE("while NCCL takes its time to end one of a rank's groups, calls of the others end by their deadline") {
  std::string words;
  bool was_ending = false;
  const GroupOptions options{
      .names = {"first", "second"}, .calls = DeviceTransfers::Calls::chain_exchanges, .deadline = 1.0};
  on_gpus(2, options, [&](GpuRank& gpu, auto meet) {
    const View data = gpu.make(std::vector<float>(8, 1.0F));
    meet();
    if (gpu.rank() == 0) {
      fake_nccl::hold_ends(true);
      gpu.exchange(0, Transfer::Direction::send, data, Transfer::Channel::activations).before(gpu.stream());
      // Who watches the calls looks at both groups when one of them is closed.
      fake_nccl::hold_looks(0);
      CHECK(eventually([] { return fake_nccl::held_looks() > 0; }));
      std::atomic<bool> is_closed{false};
      std::thread closing([&] {
        gpu.close_group(1);
        is_closed = true;
      });
      eventually([&] { return is_closed.load(); }, 0.2);
      fake_nccl::hold_looks(-1);
      try {
        gpu.stream().synchronize();
      } catch (const PeerError& error) {
        words = error.what();
      }
      was_ending = fake_nccl::ending_communicators() > 0;
      fake_nccl::hold_ends(false);
      closing.join();
    }
    meet();
  });
  CHECK(words ==
        "group first: exchange #0: waited 1 s for rank 1 (of the world); it is dead, stuck, or issued another "
        "collective");
  CHECK(was_ending);
}

TEST_CASE("while NCCL does not give a GPU a message, somebody sees that others of the rank's have arrived") {
  using Channel = Transfer::Channel;
  using Direction = Transfer::Direction;
  // The message that is not given: one that the rank issues, or one that it has posted, and that is overdue.
  for (const bool is_posted : {false, true}) {
    CAPTURE(is_posted);
    WorkCount work{0};
    const GroupOptions options{.names = {"first", "second"},
                               .calls = DeviceTransfers::Calls::chain_exchanges,
                               .patience = 0.02,
                               .work = &work};
    on_gpus(2, options, [&](GpuRank& gpu, auto meet) {
      const View data = gpu.make(std::vector<float>(8, 1.0F));
      const View other = gpu.make(std::vector<float>(8, 2.0F));
      meet();
      if (gpu.rank() == 0) {
        Ticket first = gpu.exchange(0, Direction::send, data, Channel::activations);
        fake_nccl::hold_messages(0);
        Ticket second = is_posted ? gpu.exchange(1, Direction::receive, other, Channel::gradients)
                                  : gpu.exchange(1, Direction::send, other, Channel::activations);
        first.wait();
        second.wait();
      } else {
        CHECK(eventually([] { return fake_nccl::held_messages() > 0; }));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // longer than their patience
        CHECK(work == 0);
        gpu.exchange(0, Direction::receive, data, Channel::activations).wait();
        CHECK(eventually([&] { return work > 0; }, 10.0));
        fake_nccl::hold_messages(-1);
        if (is_posted)
          gpu.exchange(1, Direction::send, other, Channel::gradients).wait();
        else
          gpu.exchange(1, Direction::receive, other, Channel::activations).wait();
      }
      meet();
    });
  }
}

TEST_CASE("where a GPU lacks the memory to join a group or to connect it, that is told and no failure of a peer") {
  const auto mebi = [](std::size_t number) { return number << 20; };
  // Of a group of two: tables for 16 channels, 134 MiB, then 32 where it sends and 160 where it receives. While joining
  // NCCL says what it lacks; while connecting it does not, and hardly anything is left.
  for (const std::size_t left : {mebi(100), mebi(134 + 32 + 8)}) {
    CAPTURE(left);
    const Gpus gpus(2);
    fake_runtime::leave_memory(0, left);
    InProcessWorld world(2);
    std::string ends[2];
    run_threads(world, [&](Rank rank) {
      std::string& end = ends[at(rank.value())];
      try {
        const GpuRank gpu(world, rank, {.connect_seconds = 1.0});
        end = "connected";
      } catch (const std::bad_alloc&) {
        end = "out of memory";
      } catch (const PeerError& error) {
        end = error.what();
      }
    });
    CHECK(ends[0] == "out of memory");
    CHECK(ends[1].starts_with("group world: NCCL 2.28.9: waited 1 s for "));
    CHECK(fake_runtime::taken_memory(0) == 0);
    fake_runtime::free_memory();
  }
}

TEST_CASE("a GPU that fails when its groups are connected is no want of memory, though none is left") {
  std::string words;
  on_gpus(2, {}, [&](GpuRank& gpu, auto meet) {
    const View data = gpu.make(std::vector<float>(8, 1.0F));
    meet();
    if (gpu.rank() == 0) {
      gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum).before(gpu.stream());
      fake_runtime::leave_memory(0, 0);
      fake_nccl::break_gpu(0, fake_nccl::Failure::cuda);
      try {
        gpu.stream().synchronize();
      } catch (const PeerError& error) {
        words = error.what();
      }
      fake_nccl::break_gpu(-1);
      fake_runtime::free_memory();
    }
    meet();
  });
  CHECK(words.starts_with("group world: all_reduce #0: GPU 0 (the host at fa4e:1b:00.0) of "));
  CHECK(
      words.ends_with(": NCCL: unhandled cuda error: Cuda failure 'unspecified launch failure'; the kernel's log "
                      "(dmesg, Xid) and nvidia-smi -q may say why"));
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

TEST_CASE("a group with calls under way that is closed ends them") {
  on_gpus(2, {}, [](GpuRank& gpu, auto meet) {
    const View data = gpu.make(std::vector<float>(8, 1.0F));
    meet();
    if (gpu.rank() == 0) {
      gpu.group().all_reduce(gpu.stream(), data, ReduceOp::sum).before(gpu.stream());
      gpu.close_groups();
      CHECK_THROWS_WITH_AS(gpu.stream().synchronize(),
                           "group world: the communicator was closed before its calls had run", PeerError);
    }
    meet();
  });
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
