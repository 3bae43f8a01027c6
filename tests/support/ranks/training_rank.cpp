// One of TrainingRanks: training_rank CONFIG RANK PROCESSOR PORT, the config as text.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "backend/backend.h"
#include "base/clock.h"
#include "comm/collective/collective_status.h"
#include "comm/collective/direct_communicator.h"
#include "comm/process/process_network.h"
#include "comm/rendezvous/rendezvous.h"
#include "config/load.h"
#include "nn/init.h"
#include "optim/optimizer.h"
#include "plan/run_plan.h"
#include "support/random_tokens.h"
#include "support/ranks/training_ranks.h"
#include "support/resident_memory.h"
#include "train/step/step_runner.h"

namespace scaletrain {
namespace {

void pin_to(std::int64_t processor) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<std::size_t>(processor) % std::max(1u, std::thread::hardware_concurrency()), &mask);
  ::sched_setaffinity(0, sizeof mask, &mask);
}

double processor_seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The code and tables of libraries are no part of a plan: by a backend whose workspace is gone afterwards.
void touch_code(const CpuOptions& options) {
  const auto backend = make_cpu_backend(options);
  calibrate_matmul(*backend, *backend->make_stream(), 0.05);
}

// One rank: reads "step" from standard input and answers with the seconds it took, those that the training thread
// computed in it, the processor time of the other threads (transfers) and the seconds that it waited for other ranks,
// until the input ends; then with the growth of its memory and the plan's.
int run_training_rank(const std::string& config_text, std::int64_t rank_number, std::int64_t processor,
                      std::uint16_t port) {
  const char* const secret = std::getenv(rank_secret_variable);
  if (secret == nullptr) throw std::runtime_error("a rank is started by TrainingRanks alone");
  const Rank rank(rank_number);
  pin_to(processor);
  const Config config = parse_resolved_config(config_text, "the first argument");
  const RunPlan plan = make_run_plan(config, *config.model.vocab, std::nullopt);
  const PhasePlan& phase = plan.phases.front();
  const auto store_of_names = connect_store({"127.0.0.1", port}, secret, 60.0);
  ProcessNetwork network(
      {.address = "127.0.0.1", .secret = secret, .uses_memory = config.launch.transport == RankTransport::automatic});
  CollectiveStatus status;  // as a worker's, so that a wait is what a run's own record calls one
  const auto make = [&](const GroupSpec& spec) {
    auto made = make_direct_communicator(network.connect(*store_of_names, spec.name, spec.members, rank, 60.0),
                                         {.group_name = std::string(to_text(spec.kind)),
                                          .ranks = spec.members,
                                          .deadline = 600.0,
                                          .mode = DirectOptions::Mode::queue});
    return make_reporting_communicator(std::move(made), spec.members, status);
  };
  const RankGroups groups = make_groups(phase.mesh, rank, phase.group_facts(), make);
  const CpuOptions on_one_thread{.threads = 1, .compute = phase.compute};
  touch_code(on_one_thread);
  const std::uint64_t before = resident_memory();

  const auto backend = make_cpu_backend(on_one_thread);
  const auto stream = backend->make_stream();
  const auto optimizer = make_optimizer(config.train.optimizer);
  const ShardLayout shards = phase.layout(rank);
  ParamStore::Options options = phase.store_options(backend->compute_type());
  options.groups = &groups;
  ParamStore store(*backend, phase.table, shards, options);
  initialise_parameters(store, *stream, 1, 1);
  const Transformer model = phase.transformer(rank);
  StageMemory memory(*backend, phase.activations(rank));
  StepRunner runner({.plan = phase,
                     .rank = rank,
                     .backend = *backend,
                     .stream = *stream,
                     .model = model,
                     .store = store,
                     .optimizer = *optimizer,
                     .memory = memory,
                     .groups = groups});
  RandomTokens source(phase.model.vocab, phase.model.context);
  StepSettings settings;
  settings.learning_rate = 1e-4;
  std::array<char, 16> line{};
  while (std::fgets(line.data(), line.size(), stdin) != nullptr) {
    const MonotonicTime start = monotonic_now();
    const double own = processor_seconds(CLOCK_THREAD_CPUTIME_ID);
    const double all = processor_seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double waited = status.waited_seconds();
    runner.step(source, settings);
    ++settings.update;
    const double computed = processor_seconds(CLOCK_THREAD_CPUTIME_ID) - own;
    fmt::print("{} {} {} {}\n", seconds_since(start), computed,
               processor_seconds(CLOCK_PROCESS_CPUTIME_ID) - all - computed, status.waited_seconds() - waited);
    std::fflush(stdout);
  }
  const std::size_t planned = phase.memory(rank, backend->workspace_bytes()).total();
  fmt::print("{} {}\n", peak_memory() - before, planned);
  return 0;
}

}  // namespace
}  // namespace scaletrain

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw std::runtime_error("started by TrainingRanks alone");
    return scaletrain::run_training_rank(argv[1], std::stoll(argv[2]), std::stoll(argv[3]),
                                         static_cast<std::uint16_t>(std::stoi(argv[4])));
  } catch (const std::exception& error) {
    fmt::print(stderr, "training_rank: {}\n", error.what());
    return 1;
  }
}
