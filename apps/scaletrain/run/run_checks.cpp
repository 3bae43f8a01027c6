#include "run_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <string_view>

#include "backend/cuda_module.h"
#include "base/error.h"
#include "base/text.h"
#include "commands/commands.h"
#include "config/optimizer_rules.h"
#include "host/machine.h"
#include "host/run_lock.h"
#include "launch/workers/start_needs.h"
#include "plan/hosts.h"
#include "plan/size_limits.h"
#include "train/start/assembly.h"
#include "train/start/initial_weights.h"

namespace scaletrain {

namespace {

// Of ascending ranks: what each stretch of neighbours needs, added up by stage.
HostMemory memory_together(const PhasePlan& phase, const std::vector<std::int64_t>& ranks, std::size_t workspace) {
  HostMemory all;
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    for (const HostMemory::Part& part :
         memory_of_ranks(phase, ranks[begin], static_cast<std::int64_t>(end - begin), workspace).parts) {
      const auto same = std::find_if(all.parts.begin(), all.parts.end(), [&part](const HostMemory::Part& other) {
        return other.stage == part.stage && other.each.items.size() == part.each.items.size();
      });
      if (same == all.parts.end()) {
        all.parts.push_back(part);
      } else {
        same->ranks += part.ranks;
      }
    }
    begin = end;
  }
  return all;
}

// Ranks that need the same, whatever their stage.
struct EqualRanks {
  std::vector<std::int64_t> stages;
  std::int64_t ranks = 0;
  MemoryPlan each;
};

std::vector<EqualRanks> equal_ranks(const HostMemory& memory) {
  std::vector<EqualRanks> groups;
  for (const HostMemory::Part& part : memory.parts) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&part](const EqualRanks& group) {
      return std::equal(group.each.items.begin(), group.each.items.end(), part.each.items.begin(),
                        part.each.items.end(),
                        [](const MemoryItem& a, const MemoryItem& b) { return a.bytes == b.bytes; });
    });
    EqualRanks& group = same == groups.end() ? groups.emplace_back() : *same;
    group.stages.push_back(part.stage);
    group.ranks += part.ranks;
    group.each = part.each;
  }
  return groups;
}

// "stage 3", "stages 0 to 2 and 4".
std::string stages_text(const std::vector<std::int64_t>& stages) {
  std::vector<std::string> runs;
  for (std::size_t begin = 0; begin < stages.size();) {
    std::size_t end = begin + 1;
    while (end < stages.size() && stages[end] == stages[end - 1] + 1) ++end;
    runs.push_back(end - begin == 1 ? fmt::format("{}", stages[begin])
                                    : fmt::format("{} to {}", stages[begin], stages[end - 1]));
    begin = end;
  }
  std::string text = stages.size() == 1 ? "stage " : "stages ";
  for (std::size_t i = 0; i < runs.size(); ++i) text += (i == 0 ? "" : i + 1 == runs.size() ? " and " : ", ") + runs[i];
  return text;
}

std::string memory_by_ranks(const HostMemory& memory, std::int64_t count) {
  const std::vector<EqualRanks> groups = equal_ranks(memory);
  std::string text;
  for (const EqualRanks& group : groups) {
    if (groups.size() == 1 && count > 1) text += fmt::format("each of the {} ranks:\n", count);
    if (groups.size() > 1)
      text += fmt::format("{} of {}{}:\n", counted(group.ranks, "rank"), stages_text(group.stages),
                          group.ranks == 1 ? "" : ", each");
    text += group.each.text();
  }
  return text;
}

// The key whose value weighs most, to name a place: that of the activations, or the model.
std::string heaviest_key(const HostMemory& memory) {
  constexpr std::array<std::string_view, 5> activations = {"saved activations", "activations between layers",
                                                           "deferred weight gradients", "scratch", "batches"};
  double share = 0.0;
  for (const HostMemory::Part& part : memory.parts)
    for (const MemoryItem& item : part.each.items)
      if (std::find(activations.begin(), activations.end(), item.purpose) != activations.end())
        share += static_cast<double>(item.bytes) * static_cast<double>(part.ranks);
  return share > static_cast<double>(memory.total()) / 2 ? "train.micro_batch" : "model";
}

// What makes ranks smaller wherever they compute.
std::string smaller_text(const Config& config) {
  return fmt::format("a smaller {}model.context or model", config.train.micro_batch > 1 ? "train.micro_batch, " : "");
}

// What ZeRO would divide further.
std::string zero_remedies(const Config& config, const PhasePlan& phase) {
  if (phase.mesh.degree(Axis::data) == 1) return "";
  std::string text;
  if (config.parallel.zero < 3) text += fmt::format("; parallel.zero: 3 (it is {})", config.parallel.zero);
  if (config.parallel.zero_reduce == ZeroReduceKind::step) text += "; parallel.zero_reduce: use";
  if (phase.mesh.is_hierarchical()) text += "; parallel.zero_group: auto";
  return text;
}

// Every key that would make the ranks of this host smaller, as far as it is not set so already.
std::string remedies_text(const Config& config, const PhasePlan& phase, std::int64_t count) {
  std::string text = "What helps: " + smaller_text(config);
  text += zero_remedies(config, phase);
  if (phase.mesh.degree(Axis::tensor) > 1 && !phase.sequence) text += "; parallel.sequence: true";
  if (phase.background_saves) text += "; checkpoint.background: false";
  if (count > 1) text += "; fewer ranks on this machine";
  return text + "; more hosts, with parallel.tensor and parallel.pipeline dividing the model among them";
}

// Beside the GPU's, the memory of the host holds copies of what a checkpoint has, and what is offloaded.
void refuse_host_too_small(const LoadedConfig& loaded, const PhasePlan& phase, std::uint64_t needed,
                           std::uint64_t available) {
  if (needed <= available) return;
  const bool is_staged = phase.background_saves;
  throw UserError(loaded.located(fmt::format(
      "{}: this run needs {} of the machine's memory beside the GPU's, and the machine has {}. What helps: {}{}a "
      "smaller model",
      is_staged       ? "checkpoint.background"
      : phase.offload ? "train.optimizer.offload"
                      : "model",
      bytes_text(needed), bytes_text(available), is_staged ? "checkpoint.background: false; " : "",
      phase.offload ? "train.optimizer.offload: none, which takes the GPU's; " : "")));
}

std::uint64_t gpu_memory_together(const PhasePlan& phase, const std::vector<std::int64_t>& ranks) {
  const HostMemory memory = memory_together(phase, ranks, cuda_workspace_bytes);
  return memory.total() - memory.total_of_host();
}

// Not where all of a small model's state passes through the GPU at once.
bool would_offload_help(const PhasePlan& phase, const std::vector<std::int64_t>& ranks) {
  PhasePlan offloaded = phase;
  offloaded.offload = true;
  return gpu_memory_together(offloaded, ranks) < gpu_memory_together(phase, ranks);
}

// The same of ranks of a GPU.
std::string gpu_remedies_text(const Config& config, const PhasePlan& phase, const std::vector<std::int64_t>& ranks) {
  const std::size_t count = ranks.size();
  std::string text = fmt::format("What helps: {}{}", count > 1 ? "one rank on each GPU; " : "", smaller_text(config));
  text += zero_remedies(config, phase);
  if (phase.mesh.degree(Axis::tensor) > 1 && !phase.sequence) text += "; parallel.sequence: true";
  if (config.train.recompute == RecomputeKind::none) text += "; train.recompute: selective or full";
  if (config.train.recompute == RecomputeKind::selective) text += "; train.recompute: full (it is selective)";
  if (may_offload(config) && would_offload_help(phase, ranks)) text += "; train.optimizer.offload: host";
  const Precision precision = config.compute_precision();
  if (precision == Precision::fp32 || precision == Precision::tf32)
    text += fmt::format("; precision.compute: bf16 (it is {})", to_text(precision));
  return text + fmt::format("; run.device: cpu, which has {}", bytes_text(available_memory()));
}

}  // namespace

std::size_t workspace_of_sharers(const PhasePlan& phase, std::int64_t sharers) {
  return workspace_of_rank(phase, static_cast<int>(std::max<std::int64_t>(1, available_processors() / sharers)));
}

void refuse_too_large(const LoadedConfig& loaded, const RunPlan& plan, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  refuse_too_large(loaded, plan, ranks);
}

void refuse_too_large(const LoadedConfig& loaded, const RunPlan& plan, const std::vector<std::int64_t>& ranks) {
  const auto count = static_cast<std::int64_t>(ranks.size());
  const PhasePlan& phase = plan.phases.front();
  const HostMemory memory = within_size_limits(
      loaded.config, [&] { return memory_together(phase, ranks, workspace_of_sharers(phase, count)); });
  const std::uint64_t available = available_memory();
  if (!is_host_accessible(phase.space)) return refuse_host_too_small(loaded, phase, memory.total_of_host(), available);
  if (memory.total() <= available) return;
  throw UserError(loaded.located(fmt::format(
      "{}: this run needs {} of memory and the machine has {}:\n{}{}", heaviest_key(memory), bytes_text(memory.total()),
      bytes_text(available), memory_by_ranks(memory, count), remedies_text(loaded.config, phase, count))));
}

void refuse_too_large_for_gpu(const LoadedConfig& loaded, const RunPlan& plan, const DeviceFacts& gpu,
                              const std::vector<std::int64_t>& ranks) {
  PhasePlan phase = plan.phases.front();
  phase.may_be_direct = phase.may_be_direct && ranks.size() == 1;
  phase.attention_workspace = cuda_attention_workspace_of(gpu.sm);
  const std::uint64_t needed = gpu_memory_together(phase, ranks);
  if (needed <= gpu.memory) return;
  const HostMemory memory = memory_together(phase, ranks, cuda_workspace_bytes);
  const auto count = static_cast<std::int64_t>(ranks.size());
  const std::string who = count == 1 ? "this run needs" : fmt::format("the {} ranks that share a GPU need", count);
  throw UserError(
      loaded.located(fmt::format("{}: {} {} of {} memory, and {} has {}:\n{}{}",
                                 loaded.config.train.micro_batch > 1 ? "train.micro_batch" : "model", who,
                                 bytes_text(needed), count == 1 ? "the GPU's" : "its", gpu.name, bytes_text(gpu.memory),
                                 memory_by_ranks(memory, count), gpu_remedies_text(loaded.config, phase, ranks))));
}

void refuse_beyond_limits(const RunPlan& plan, const HostShare& share) {
  const PhasePlan& phase = plan.phases.front();
  const int threads = share_processors(available_processors(), share.count).threads;
  HostNeeds needs{.workers = share.count,
                  .agents = share.agents,
                  .agent = agent_needs(share.count / share.agents, share.serves ? phase.mesh.world() : 0),
                  .running = share.agents * running_threads()};
  for (std::int64_t rank = share.first; rank < share.first + share.count; ++rank) {
    const ProcessNeeds one = worker_needs(phase.mesh, Rank(rank), phase.group_facts(), threads);
    needs.worker.threads = std::max(needs.worker.threads, one.threads);
    needs.worker.descriptors = std::max(needs.worker.descriptors, one.descriptors);
  }
  if (const auto reason = beyond_limits(needs, thread_limits(), descriptor_limit())) throw UserError(*reason);
}

void notice_crowd(std::int64_t ranks) {
  const std::int64_t processors = available_processors();
  if (ranks <= processors) return;
  write_message(
      fmt::format("notice: {} ranks share the {} of this machine, and each waits for the others'; "
                  "start fewer here, or on more hosts, unless it is for trying a layout out",
                  ranks, counted(processors, "processor")));
}

void with_places(const LoadedConfig& loaded, const std::function<void()>& check) {
  try {
    check();
  } catch (const UserError& error) {
    throw UserError(loaded.located(error.what()));
  } catch (const InputError& error) {
    throw InputError(loaded.located(error.what()));
  }
}

void refuse_unfit_weights(const LoadedConfig& loaded, const RunPlan& plan) {
  with_places(loaded, [&] { check_initial_weights(loaded.config, plan.phases.front().model); });
}

RunPlan checked_plan(const LoadedConfig& loaded, std::optional<std::int64_t> world) {
  try {
    return plan_for(loaded.config, world);
  } catch (const UserError& error) {
    throw UserError(loaded.located(error.what()));
  }
}

std::uint16_t rendezvous_port(const Config& config) {
  return static_cast<std::uint16_t>(config.launch.port.value_or(0));
}

ResumeRequest requested_resume(const std::string& text, const RunPaths& paths) {
  ResumeRequest request = parse_resume(text, paths);
  const RunLockOptions job = run_lock_options_from_environment();
  request.job = {job.job_id, job.restart_count};
  return request;
}

void notice_never(const ResumeRequest& resume, ExitCode code) {
  if (code != ExitCode::interrupted || resume.mode != ResumeRequest::Mode::never) return;
  write_message(
      fmt::format("notice: start again with --resume auto to go on: --resume never refuses a run folder that "
                  "holds checkpoints{}",
                  resume.job.id.empty() ? "" : ", but for this job when it is put back into the queue"));
}

}  // namespace scaletrain
