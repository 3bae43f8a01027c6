// The start of whole runs whose ranks are on GPUs of their own and exchange by NCCL: what is told of its memory.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/error.h"
#include "base/file.h"
#include "comm/process/process_network.h"
#include "gpu_ranks.h"
#include "launch/workers/communicators.h"
#include "support/cuda/fake_runtime.h"
#include "support/text.h"
#include "train/start/assembly.h"
#include "unit/train/train_helpers.h"

namespace scaletrain {
namespace {

// A run of two replicas; what each rank ends with, empty where it finishes.
struct NcclRun : TinyRun {
  std::vector<std::string> train(const std::vector<std::string>& more = {}) {
    std::vector<std::string> settings = {"run.device=cuda", "parallel.data=2", "train.micro_batch=1", "train.steps=2"};
    settings.insert(settings.end(), more.begin(), more.end());
    const StartPoint start = prepare(config(settings));
    InProcessWorld world(2);
    std::vector<std::string> ends(2);
    run_threads(world, [&](Rank rank) {
      const auto store = world.make_store();
      const std::unique_ptr<std::FILE, int (*)(std::FILE*)> console(std::fopen("/dev/null", "w"), &std::fclose);
      ProcessNetwork network({.address = "127.0.0.1", .secret = "0123456789abcdef"});
      std::string by;
      WorkerOptions options;
      options.place = {.rank = rank,
                       .world = 2,
                       .local_rank = rank.value(),
                       .gpus = {.index = rank.value(), .ranks = 2, .expected = 2},
                       .rendezvous = store.get(),
                       .make_communicators =
                           [&](const PhasePlan&, const LaunchConfig& launch, Backend& backend) {
                             return process_communicators(
                                 {.network = network,
                                  .store = *store,
                                  .self = rank,
                                  .backend = backend,
                                  .connect_seconds = 2.0,
                                  .devices = {.transport = launch.transport,
                                              .interface = launch.interface.value_or(""),
                                              .has_own_gpu = true,
                                              .is_direct = [&by](const std::string& name) { by = "by " + name; }}});
                           },
                       .connection_words = [&by] { return by; }};
      options.paths = paths;
      options.start = start;
      options.version = "test";
      options.threads = 1;
      options.make_gpu_backend = make_cuda_backend;
      options.count_gpus = [] { return 2; };
      options.console = console.get();
      options.calibration_seconds = 0.0;
      std::string& end = ends[at(rank.value())];
      try {
        if (train_run(options) != ExitCode::finished) end = "interrupted";
      } catch (const InputError& error) {
        end = std::string("input: ") + error.what();
      } catch (const PeerError& error) {
        end = std::string("peer: ") + error.what();
      }
    });
    return ends;
  }
  std::string log_of(int rank) const { return read_text_file(rank_log_path(paths.folder, rank), 1U << 20); }
};

}  // namespace

TEST_CASE("a_run_by_nccl_tells_what_its_connections_took_beside_what_was_planned") {
  const Gpus gpus(2);
  NcclRun run;
  CHECK(run.train() == std::vector<std::string>(2));
  // 16 channels of 4 tables of 2 MiB, one where it sends and five where it receives, and three of the group's; the
  // memory for sums is planned too, and the runtime of the tests does not count it.
  for (const int rank : {0, 1})
    CHECK(contains(
        run.log_of(rank),
        fmt::format("by NCCL 2.28.9; to connect rank {} took 326 MiB of its GPU's memory, 342 MiB were planned",
                    rank)));
}

TEST_CASE("nccl_goes_out_by_the_interface_that_launch_names_and_by_any_where_it_names_none") {
  const Gpus gpus(2);
  ::unsetenv("NCCL_SOCKET_IFNAME");
  CHECK(NcclRun().train() == std::vector<std::string>(2));
  CHECK(std::getenv("NCCL_SOCKET_IFNAME") == nullptr);
  CHECK(NcclRun().train({"launch.interface=lo"}) == std::vector<std::string>(2));
  const char* const name = std::getenv("NCCL_SOCKET_IFNAME");
  CHECK(std::string(name == nullptr ? "none" : name) == "=lo");
  ::unsetenv("NCCL_SOCKET_IFNAME");
}

TEST_CASE("a_run_whose_gpu_has_no_memory_for_nccl_says_so_with_the_plan_and_what_was_there") {
  const Gpus gpus(2);
  NcclRun run;
  fake_runtime::leave_memory(1, std::size_t{100} << 20);
  const std::vector<std::string> ends = run.train();
  fake_runtime::free_memory();
  CHECK(ends[1].starts_with("input: rank 1: out of memory while connecting to the other ranks:\n  master weights "));
  CHECK(contains(ends[1], "\n  connections between GPUs          326 MiB\n"));
  CHECK(contains(ends[1],
                 "; the GPU (the host) has 80.0 GiB, of which 79.9 GiB were in use before the first of these (by other "
                 "processes, and by CUDA in this one)"));
  CHECK(ends[0].starts_with("peer: "));
}

}  // namespace scaletrain
