#include "rank_process.h"

#include <optional>

#include "base/process/last_words.h"
#include "commands/commands.h"
#include "host/address.h"
#include "host/machine.h"
#include "host/run_lock.h"
#include "launch/workers/communicators.h"
#include "plan/longest_wait.h"
#include "train/start/assembly.h"

namespace scaletrain {

ExitCode train_rank(const RankProcess& process) {
  WorkerOptions options;
  options.paths = process.paths;
  options.start = process.start;
  options.version = program_version;
  const ProcessorShare share = share_processors(available_processors(), process.sharers);
  options.threads = share.threads;
  options.work = process.work;
  options.knows_memory = [](const std::string& words) { set_memory_words(words); };
  options.hooks.interrupted = [&process] { return process.interrupts.interrupted(); };
  options.hooks.interrupts_evaluation = options.hooks.interrupted;
  options.hooks.may_commit = [&process] { return lock_is_held(process.paths.lock(), process.lock_id); };
  options.hooks.entered = process.entered;
  options.failed = process.failed;
  options.data_degree = process.data_degree;
  options.place.gpus = process.gpus;
  std::optional<ProcessNetwork> network;
  std::string staged_because;
  std::string device_network;
  if (process.world > 1) {
    options.place = {
        .rank = process.rank,
        .world = process.world,
        .local_rank = process.local_rank,
        .gpus = process.gpus,
        .rendezvous = process.store,
        .background_rendezvous = process.background_store,
        .make_communicators =
            [&process, &network, &staged_because, &device_network](const PhasePlan& plan, const LaunchConfig& launch,
                                                                   Backend& backend) {
              if (!network)
                network.emplace(ProcessNetwork::Options{.address = process.address,
                                                        .secret = process.secret,
                                                        .uses_memory = launch.transport != RankTransport::tcp});
              return process_communicators(
                  {.network = *network,
                   .store = *process.store,
                   .self = process.rank,
                   .backend = backend,
                   .deadline = collective_deadline(process.heartbeat, longest_wait(plan)),
                   .vouched = process.vouched,
                   .work = process.work,
                   .status = process.collectives,
                   .devices = {
                       .transport = launch.transport,
                       .interface = launch.interface ? interface_of_address(process.address) : "",
                       .has_own_gpu = process.gpus.is_own(),
                       .is_ring = plan.chunks > 1,
                       .is_direct = [&device_network](const std::string& name) { device_network = name; },
                       .is_staged = [&staged_because](const std::string& obstacle) { staged_because = obstacle; }}});
            },
        .connection_notice =
            [&network, &staged_because] {
              return staged_because.empty() ? connection_notice(network->reach()) : staging_notice(staged_because);
            },
        .connection_words =
            [&device_network] { return device_network.empty() ? "" : "ranks on GPUs exchange by " + device_network; },
        .processors_per_thread = share.processors_per_thread};
  }
  return train_run(options);
}

}  // namespace scaletrain
