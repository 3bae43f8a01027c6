#include "rank_process.h"

#include <optional>

#include "commands.h"
#include "launch/communicators.h"
#include "launch/machine.h"
#include "launch/run_lock.h"
#include "train/assembly.h"

namespace scaletrain {

ExitCode train_rank(const RankProcess& process) {
  WorkerOptions options;
  options.paths = process.paths;
  options.start = process.start;
  options.version = program_version;
  const ProcessorShare share = share_processors(available_processors(), process.sharers);
  options.threads = share.threads;
  options.progress = process.progress;
  options.hooks.interrupted = [&process] { return process.interrupts.interrupted(); };
  options.hooks.interrupts_evaluation = options.hooks.interrupted;
  options.hooks.may_commit = [&process] { return lock_is_held(process.paths.lock(), process.lock_id); };
  options.hooks.entered = process.entered;
  options.failed = process.failed;
  options.data_degree = process.data_degree;
  std::optional<GlooDevice> device;
  if (process.world > 1) {
    device.emplace(process.address);
    options.place = {.rank = process.rank,
                     .world = process.world,
                     .local_rank = process.local_rank,
                     .rendezvous = process.store,
                     .background_rendezvous = process.background_store,
                     .make_communicator = process_communicators({.device = *device,
                                                                 .store = *process.store,
                                                                 .self = process.rank,
                                                                 .deadline = process.deadline,
                                                                 .status = process.collectives}),
                     .processors_per_thread = share.processors_per_thread};
  }
  return train_run(options);
}

}  // namespace scaletrain
