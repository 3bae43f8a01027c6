// Ranks as threads of one process: runs a function once per rank, with the communicators that the rank would have. A
// rank that throws fails in the world, so that the others end too; the first error that is not a mere echo of another
// rank's is thrown to the test.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/collective/direct_communicator.h"
#include "comm/collective/tracing.h"
#include "comm/in_process/world.h"
#include "store/rank_groups.h"
#include "support/ranks/fenced_communicator.h"
#include "support/ranks/queue_transport.h"

namespace scaletrain {

// Runs function(rank) on a thread per rank and joins them all. A PeerError is thrown only where no rank has another
// error: the first one in time.
template <class Function>
void run_threads(InProcessWorld& world, Function function) {
  const auto count = static_cast<std::size_t>(world.size());
  std::mutex mutex;
  std::exception_ptr first_peer;
  std::exception_ptr first_other;
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (std::size_t index = 0; index < count; ++index) {
    threads.emplace_back([&, rank = Rank(static_cast<std::int64_t>(index))] {
      const auto keep = [&](std::exception_ptr& kept, const std::string& reason) {
        {
          const std::lock_guard lock(mutex);
          if (!kept) kept = std::current_exception();
        }
        world.fail(rank, reason);
      };
      try {
        function(rank);
      } catch (const PeerError& error) {
        keep(first_peer, error.what());
      } catch (const std::exception& error) {
        keep(first_other, error.what());
      } catch (...) {
        keep(first_other, "something that is no std::exception");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first_other) std::rethrow_exception(first_other);
  if (first_peer) std::rethrow_exception(first_peer);
}

// One group of all ranks of the world, without a mesh.
inline std::unique_ptr<Communicator> make_world_group(InProcessWorld& world, Rank rank, DirectOptions::Mode mode,
                                                      double deadline = 60.0, const std::string& name = "world") {
  DirectOptions options{.group_name = name, .ranks = {}, .deadline = deadline, .mode = mode};
  for (int member = 0; member < world.size(); ++member) options.ranks.emplace_back(member);
  auto transport = world.make_transport(name, options.ranks, rank);
  return make_direct_communicator(std::move(transport), std::move(options));
}

struct RanksOptions {
  double deadline = 60.0;
  // One per rank (resized), filled with what the rank asks of its groups.
  std::vector<Trace>* traces = nullptr;
  // Instead of the default (tensor and replication: caller, all others: queue).
  std::optional<DirectOptions::Mode> mode;
  // The stages of a pipeline have nothing but ordered queues between them (queue_transport.h).
  bool queues_only = false;
  // If there is one: what stands before each of a rank's groups.
  std::function<std::unique_ptr<Communicator>(Rank, GroupKind, std::unique_ptr<Communicator>)> decorate{};
};

// The communicators of one rank in an in-process world.
inline RankGroups make_rank_groups(const Mesh& mesh, const GroupFacts& facts, Rank rank, InProcessWorld& world,
                                   const RanksOptions& options = {}) {
  return make_groups(mesh, rank, facts, [&](const GroupSpec& spec) {
    // Tensor parallel transfers are waited for at once; the others run beside the compute.
    const auto mode = is_waited_at_once(spec.kind) ? DirectOptions::Mode::caller : DirectOptions::Mode::queue;
    auto transport = world.make_transport(spec.name, spec.members, rank);
    if (options.queues_only && spec.kind == GroupKind::pipeline)
      transport = std::make_unique<QueueTransport>(std::move(transport));
    auto group = make_direct_communicator(std::move(transport), {.group_name = std::string(to_text(spec.kind)),
                                                                 .ranks = spec.members,
                                                                 .deadline = options.deadline,
                                                                 .mode = options.mode.value_or(mode)});
    group = std::make_unique<FencedCommunicator>(std::move(group), memory_reach_of(spec.kind, facts));
    if (options.decorate) group = options.decorate(rank, spec.kind, std::move(group));
    if (options.traces == nullptr) return group;
    return make_tracing_communicator(std::move(group), options.traces->at(static_cast<std::size_t>(rank.value())));
  });
}

// Runs function(Rank, RankGroups&, InProcessWorld&) for every rank of the mesh. Communicators live until all ranks have
// ended.
template <class Function>
void run_ranks(const Mesh& mesh, const GroupFacts& facts, Function function, const RanksOptions& options = {}) {
  const auto count = static_cast<std::size_t>(mesh.world());
  InProcessWorld world(static_cast<int>(mesh.world()));
  if (options.traces != nullptr) options.traces->assign(count, {});
  std::vector<RankGroups> groups(count);
  run_threads(world, [&](Rank rank) {
    RankGroups& own = groups[static_cast<std::size_t>(rank.value())];
    own = make_rank_groups(mesh, facts, rank, world, options);
    function(rank, own, world);
  });
}

// What compare_traces wants to know about the traces of run_ranks. `traces` must outlive the result.
inline std::vector<RankTrace> rank_traces(const Mesh& mesh, const GroupFacts& facts, const std::vector<Trace>& traces) {
  std::vector<RankTrace> ranks;
  for (std::size_t index = 0; index < traces.size(); ++index) {
    RankTrace& own = ranks.emplace_back();
    own.trace = &traces[index];
    for (const GroupKind kind : group_kinds) {
      const auto spec = group_of(mesh, kind, Rank(static_cast<std::int64_t>(index)), facts);
      if (spec) own.groups.emplace_back(to_text(kind), spec->name);
    }
  }
  return ranks;
}

}  // namespace scaletrain
