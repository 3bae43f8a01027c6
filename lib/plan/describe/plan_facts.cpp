#include "plan/describe/plan_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "comm/collective/direct_communicator.h"
#include "config/batch_ramp.h"
#include "config/keys/keys.h"
#include "plan/describe/run_time.h"
#include "plan/describe/source_draws.h"
#include "store/group_call.h"

namespace scaletrain {

namespace {

std::int64_t num_blocks(const PhasePlan& phase, std::int64_t stage) {
  std::int64_t sum = 0;
  const std::int64_t degree = phase.mesh.degree(Axis::pipeline);
  for (std::int64_t chunk = 0; chunk < phase.chunks; ++chunk)
    sum += phase.stages[static_cast<std::size_t>(chunk * degree + stage)].count;
  return sum;
}

std::vector<StageFacts> stage_facts(const PlanFacts& facts) {
  std::vector<StageFacts> stages;
  for (StageSurvey& survey : survey_stages(facts.phase, facts.short_step, facts.options.backend_workspace)) {
    const auto stage = static_cast<std::int64_t>(stages.size());
    const Rank rank = facts.phase.mesh.rank_of({.pipeline = stage});
    stages.push_back({.stage = stage,
                      .blocks = contents_text(facts.phase, {stage, stage}),
                      .parameters = facts.phase.layout(rank).num_elements(ParamRole::trained) +
                                    facts.phase.layout(rank).num_elements(ParamRole::frozen),
                      .work = facts.work.stages[static_cast<std::size_t>(stage)],
                      .survey = std::move(survey)});
  }
  return stages;
}

std::vector<GroupFact> group_facts_of(const PhasePlan& phase, std::int64_t ranks_per_host) {
  std::vector<GroupFact> out;
  for (const GroupKind kind : group_kinds) {
    const auto group = group_of(phase.mesh, kind, Rank(0), phase.group_facts());
    if (!group) continue;
    const auto size = static_cast<std::int64_t>(group->members.size());
    const std::int64_t members =
        kind == GroupKind::tied ? 2 * phase.mesh.world() / phase.mesh.degree(Axis::pipeline) : phase.mesh.world();
    out.push_back({kind, size, members / size, group->members[0], group->members[1], group->members.back(),
                   reach_of(kind, phase.mesh, phase.group_facts(), ranks_per_host)});
  }
  return out;
}

Balance balance_of(const StageWork& work) {
  const auto most = std::max_element(work.stages.begin(), work.stages.end());
  Balance balance{.slowest = most - work.stages.begin(),
                  .ratio = *most,
                  .least = *std::min_element(work.stages.begin(), work.stages.end())};
  constexpr double alike = 1e-9;  // sums of the same numbers, but for rounding
  balance.as_slow = std::count_if(work.stages.begin(), work.stages.end(),
                                  [&](double stage) { return stage >= *most * (1 - alike); }) -
                    1;
  return balance;
}

// By stage, of one rank.
bool is_on_devices(const PlanFacts& facts) {
  return !is_host_accessible(facts.phase.space);
}

// Of the memory of hosts.
std::vector<std::uint64_t> rank_totals(const PlanFacts& facts) {
  std::vector<std::uint64_t> totals;
  for (const StageFacts& stage : facts.stages) {
    const MemoryPlan& memory = stage.survey.memory;
    totals.push_back(is_on_devices(facts) ? memory.total_of_host() : memory.total());
  }
  return totals;
}

// The last sample of an epoch is padded.
double samples_per_epoch(const SourceSize& size, std::int64_t context) {
  return std::max(1.0, static_cast<double>(size.tokens) / static_cast<double>(context));
}

// What is drawn by the same weights, one part of the run behind the other: as many samples as model.context long.
struct DrawnPart {
  std::vector<double> weights;
  double samples = 0;
};

std::vector<DrawnPart> drawn_parts(const RunWork& work, const PlanFacts& facts) {
  std::vector<DrawnPart> parts;
  if (work.phases.empty()) {
    parts.push_back({.weights = {}, .samples = work.samples_left});
    for (const SourceConfig& source : facts.config.data.train) parts.back().weights.push_back(source.weight);
  }
  for (const RunWork::Phase& of : work.phases) {
    const TrainingPhase& phase = of.phase;
    const auto end = static_cast<double>(phase.first_step + phase.steps);
    const double steps = std::max(0.0, end - std::max(work.first_step, static_cast<double>(phase.first_step)));
    const double length = static_cast<double>(phase.context) / static_cast<double>(facts.phase.model.context);
    parts.push_back({.weights = phase.weights, .samples = steps * static_cast<double>(phase.global_batch) * length});
  }
  return parts;
}

void add_epochs(RunWork& work, const PlanFacts& facts) {
  const auto& sources = facts.config.data.train;
  std::vector<std::optional<SourceSize>> sizes = facts.options.sources;
  sizes.resize(sources.size());
  const auto& so_far = facts.options.so_far;
  const bool goes_on = work.first_step > 0;
  const bool is_complete = so_far && so_far->step >= so_far->last_step;
  std::vector<DrawnSource> drawn;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sizes[i] && sizes[i]->tokens == 0) sizes[i].reset();
    drawn.emplace_back();
    if (!sources[i].epochs) continue;
    if (!sizes[i]) {
      work.uncounted_caps.push_back(sources[i].path);
      continue;
    }
    const double an_epoch = samples_per_epoch(*sizes[i], facts.phase.model.context);
    const double cap = std::max(1.0, *sources[i].epochs * an_epoch);
    const double read = goes_on ? so_far->epochs_read.at(i) * an_epoch : 0.0;
    drawn.back().cap = std::max(0.0, cap - read);
    work.most_allowed += cap;
  }
  // Of phases one may be short while others have enough.
  if (!work.phases.empty()) work.most_allowed = std::numeric_limits<double>::infinity();
  std::vector<double> samples(sources.size(), 0.0);
  double allowed = 0;
  bool is_short = false;
  for (const DrawnPart& part : drawn_parts(work, facts)) {
    for (std::size_t i = 0; i < sources.size(); ++i) drawn[i].weight = part.weights[i];
    const SourceDraws draws = draw_samples(drawn, part.samples);
    is_short = is_short || (draws.allowed && *draws.allowed < part.samples);
    allowed += draws.allowed && work.phases.empty() ? *draws.allowed
                                                    : std::min(part.samples, draws.allowed.value_or(part.samples));
    for (std::size_t i = 0; i < sources.size(); ++i) {
      samples[i] += draws.samples[i];
      if (drawn[i].cap) *drawn[i].cap = std::max(0.0, *drawn[i].cap - draws.samples[i]);
    }
  }
  if (!sources.empty() && !is_complete && is_short) work.allowed_samples = allowed;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sizes[i]) continue;
    const double epochs = samples[i] / samples_per_epoch(*sizes[i], facts.phase.model.context);
    work.epochs.push_back({sources[i].path, *sizes[i], epochs});
  }
}

double samples_of_steps(const PlanFacts& facts, double first, double count) {
  if (!facts.config.train.batch_ramp && facts.config.train.phases.empty())
    return count * static_cast<double>(facts.phase.global_batch);
  return static_cast<double>(
      samples_from(facts.config.train, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count)));
}

// Of a run of so many tokens whose batch is auto: steps fall to `min` where caps leave no more
// (train/data/data_left.h).
std::optional<double> samples_left_of_auto(const PlanFacts& facts) {
  const TrainConfig& train = facts.config.train;
  if (!train.adapts_batch || !train.tokens) return std::nullopt;
  const std::int64_t consumed = facts.options.so_far ? facts.options.so_far->tokens : 0;
  const std::int64_t left = std::max<std::int64_t>(0, *train.tokens - consumed);
  return static_cast<double>(round_up(ceil_div(left, facts.config.model.context), train.batch_auto->min));
}

void add_phases(RunWork& work, const PlanFacts& facts) {
  if (facts.config.train.phases.empty()) return;
  work.tokens = 0;
  work.flops = 0;
  ModelSpec model = facts.phase.model;
  for (TrainingPhase& phase : training_phases(facts.config)) {
    model.context = phase.context;
    const double tokens =
        static_cast<double>(phase.steps) * static_cast<double>(phase.global_batch) * static_cast<double>(phase.context);
    const double flops = tokens * model_flops_per_token(model, facts.phase.table);
    work.tokens += tokens;
    work.flops += flops;
    work.phases.push_back({.phase = std::move(phase), .tokens = tokens, .flops = flops});
  }
}

// What the run is, in samples, tokens and operations.
RunWork run_work(const PlanFacts& facts) {
  const PhasePlan& phase = facts.phase;
  RunWork work;
  work.steps = static_cast<double>(phase.num_steps);
  work.samples = samples_of_steps(facts, 0.0, work.steps);
  work.tokens = work.samples * static_cast<double>(phase.model.context);
  work.flops = work.tokens * model_flops_per_token(phase.model, phase.table);
  add_phases(work, facts);
  work.steps_left = work.steps;
  if (const auto& so_far = facts.options.so_far; so_far && so_far->step < so_far->last_step) {
    work.first_step = static_cast<double>(so_far->step);
    work.steps_left = static_cast<double>(so_far->last_step - so_far->step);
  }
  work.samples_left = samples_left_of_auto(facts).value_or(samples_of_steps(facts, work.first_step, work.steps_left));
  if (!work.phases.empty()) {
    const std::vector<DrawnPart> parts = drawn_parts(work, facts);
    work.samples_left = std::accumulate(parts.begin(), parts.end(), 0.0,
                                        [](double sum, const DrawnPart& part) { return sum + part.samples; });
  }
  // What caps leave of a run whose length is not known nobody can tell.
  if (facts.options.step_count != StepCount::unknown) add_epochs(work, facts);
  return work;
}

std::vector<StageSurvey> surveys_of(const PlanFacts& facts) {
  std::vector<StageSurvey> surveys;
  for (const StageFacts& stage : facts.stages) surveys.push_back(stage.survey);
  return surveys;
}

// What a stage has most of.
template <class Measure>
const StageFacts& stage_with_most(const PlanFacts& facts, Measure measure) {
  return *std::max_element(facts.stages.begin(), facts.stages.end(),
                           [&](const StageFacts& a, const StageFacts& b) { return measure(a) < measure(b); });
}

// Empty where nothing is gathered more often than once a step.
std::string gather_cost(const PlanFacts& facts) {
  const auto gathers_of = [&](const StageFacts& stage) {
    const CommunicationVolume* weights = find_volume(stage, shard_group_of(facts.phase.mesh), "weights");
    return weights == nullptr ? 0 : weights->calls;
  };
  const StageFacts& most = stage_with_most(facts, gathers_of);
  const ShardLayout layout = facts.phase.layout(facts.phase.mesh.rank_of({.pipeline = most.stage}));
  const auto once = std::count_if(layout.buckets().begin(), layout.buckets().end(), [&](const Bucket& bucket) {
    return layout.buffers()[static_cast<std::size_t>(bucket.buffer)].role == ParamRole::trained;
  });
  if (gathers_of(most) <= once) return {};
  return fmt::format("parallel.zero 3 gathers weights when they are needed: {} a step on stage {}, where 1 and 2 do {}",
                     counted(gathers_of(most), "gather"), most.stage, once);
}

// What the activations of a stage's first rank put on the tensor group, and what they would without sequence shards: an
// all-reduce in place of each reduce-scatter, and no gathers.
struct SequenceTraffic {
  std::uint64_t with = 0;
  std::uint64_t without = 0;
};

SequenceTraffic sequence_traffic(const PhasePlan& phase, const StageFacts& stage) {
  const std::int64_t whole = checked_mul(phase.micro_batch.rows(), phase.model.hidden);
  const auto sent = static_cast<std::uint64_t>(
      direct_all_reduce_sent(phase.compute, whole, narrow<int>(phase.mesh.degree(Axis::tensor)), 0));
  SequenceTraffic traffic;
  for (const CommunicationVolume& volume : stage.survey.communication) {
    if (volume.kind != GroupKind::tensor || volume.purpose != "activations") continue;
    traffic.with += volume.bytes;
    if (volume.collective == CollectiveKind::reduce_scatter)
      traffic.without += static_cast<std::uint64_t>(volume.calls) * sent * size_of(phase.compute);
  }
  return traffic;
}

std::string sequence_cost(const PlanFacts& facts) {
  const auto extra = [&](const StageFacts& stage) {
    const SequenceTraffic traffic = sequence_traffic(facts.phase, stage);
    return traffic.with - std::min(traffic.with, traffic.without);
  };
  const StageFacts& most = stage_with_most(facts, extra);
  const SequenceTraffic traffic = sequence_traffic(facts.phase, most);
  if (traffic.with <= traffic.without) return {};
  return fmt::format(
      "parallel.sequence gathers activations again in the backward{}: {} a step in the tensor group of "
      "stage {}, without it {} (+{:.0f} %)",
      facts.phase.schedule_kind == ScheduleKind::zb_h1 ? ", with zb-h1 in both of its parts" : "",
      bytes_text(traffic.with), most.stage, bytes_text(traffic.without),
      100.0 * static_cast<double>(traffic.with - traffic.without) / static_cast<double>(traffic.without));
}

// Recomputation: what is computed and what is asked of the tensor group for the second time.
std::string recompute_cost(const PlanFacts& facts) {
  if (facts.phase.recompute == RecomputeKind::none) return {};
  if (facts.phase.recompute == RecomputeKind::selective)
    return "train.recompute selective computes norms and activation functions again in the backward: no matrix product";
  std::string text = fmt::format(
      "train.recompute full computes blocks again in the backward: {:.1f} % more work, which MFU leaves out",
      100.0 * facts.work.recomputed);
  const auto bytes_of = [](const StageFacts& stage) {
    std::uint64_t bytes = 0;
    for (const CommunicationVolume& volume : stage.survey.communication)
      if (volume.purpose == to_text(CallPurpose::recomputed_activations)) bytes += volume.bytes;
    return bytes;
  };
  const StageFacts& most = stage_with_most(facts, bytes_of);
  if (const std::uint64_t bytes = bytes_of(most); bytes > 0)
    text += fmt::format("; and {} more a step in the tensor group of stage {}", bytes_text(bytes), most.stage);
  return text;
}

// What is offloaded goes to the device and comes back at every update.
std::string offload_cost(const PlanFacts& facts) {
  if (!facts.phase.offload) return {};
  const auto bytes_of = [&](const StageFacts& stage) { return update_pass_of(facts.phase, stage.stage).each_way; };
  const StageFacts& most = stage_with_most(facts, bytes_of);
  return fmt::format(
      "train.optimizer.offload host takes {} from the host's memory to the device's and back at each update, by each "
      "rank{}",
      bytes_text(bytes_of(most)), facts.stages.size() == 1 ? "" : fmt::format(" of stage {}", most.stage));
}

// Reductions of half a batch are as large as those of a whole one.
std::string noise_cost(const PlanFacts& facts) {
  const PhasePlan& phase = facts.phase;
  if (!phase.gradient_noise || phase.global_batch < 2) return {};
  const auto [first, second] = halves_of(phase.global_batch);
  return fmt::format(
      "log.gradient_noise makes one step of {} in two halves, of {} and {} in place of {}, which takes {:.0f} % "
      "longer{}",
      phase.gradient_noise->every, phase.micro_batches_of(first),
      counted(phase.micro_batches_of(second), "micro-batch", "es"), phase.num_micro_batches,
      100.0 * added_by_halves(phase, facts.replay.bubble),
      phase.mesh.world() > 1 ? " but for its sums of gradients, which are made twice" : "");
}

// ZB-H1 puts off the weight part of each backward.
std::vector<std::string> weight_pass_costs(const PlanFacts& facts) {
  std::vector<std::string> lines;
  const ModelSpec& model = facts.phase.model;
  const double logits = 2.0 * static_cast<double>(model.vocab) * static_cast<double>(model.hidden);
  lines.push_back(
      fmt::format("zb-h1 computes the head's logits twice, for the input and for the weight part: {:.1f} % more work",
                  100.0 * logits / model_flops_per_token(model, facts.phase.table)));
  const auto bytes_of = [](const StageFacts& stage) {
    const auto& items = stage.survey.memory.items;
    const auto found = std::find_if(items.begin(), items.end(),
                                    [](const MemoryItem& item) { return item.purpose == "deferred weight gradients"; });
    return found == items.end() ? std::size_t{0} : found->bytes;
  };
  const StageFacts& most = stage_with_most(facts, bytes_of);
  lines.push_back(fmt::format("zb-h1 keeps what the deferred weight gradients need: {} on stage {}",
                              bytes_text(bytes_of(most)), most.stage));
  return lines;
}

}  // namespace

std::optional<double> seconds_of_phase(const PlanFacts& facts, const RunWork::Phase& phase) {
  if (!facts.time) return std::nullopt;
  const double update = facts.time->update_seconds + facts.time->product_seconds;
  return (facts.time->seconds - facts.work_of_run.steps * update) * phase.flops / facts.work_of_run.flops +
         static_cast<double>(phase.phase.steps) * update;
}

std::string contents_text(const PhasePlan& phase, const StageRange& stages) {
  std::string text;
  const std::int64_t degree = phase.mesh.degree(Axis::pipeline);
  const bool is_one = stages.first == stages.last;
  for (std::int64_t chunk = 0; chunk < phase.chunks; ++chunk) {
    const StageBlocks& first = phase.stages[static_cast<std::size_t>(chunk * degree + stages.first)];
    const StageBlocks& last = phase.stages[static_cast<std::size_t>(chunk * degree + stages.last)];
    const std::int64_t end = last.first + last.count;
    if (!text.empty()) text += "; ";
    if (first.embedding) text += "embedding, ";
    if (end == first.first) {
      text += "no blocks";
    } else if (end == first.first + 1) {
      text += fmt::format("block {}", first.first);
    } else {
      text += fmt::format("blocks {}-{}", first.first, end - 1);
    }
    if (!is_one && first.count > 0) text += fmt::format(", {} each", first.count);
    if (last.head) text += ", head";
  }
  return text;
}

std::vector<StageRange> alike_stages(const PlanFacts& facts) {
  const PhasePlan& phase = facts.phase;
  const std::int64_t degree = phase.mesh.degree(Axis::pipeline);
  const auto alike = [&](std::int64_t a, std::int64_t b) {
    for (std::int64_t chunk = 0; chunk < phase.chunks; ++chunk) {
      const StageBlocks& of_a = phase.stages[static_cast<std::size_t>(chunk * degree + a)];
      const StageBlocks& of_b = phase.stages[static_cast<std::size_t>(chunk * degree + b)];
      if (of_a.count != of_b.count || of_a.embedding != of_b.embedding || of_a.head != of_b.head) return false;
    }
    return facts.stages[static_cast<std::size_t>(a)].parameters == facts.stages[static_cast<std::size_t>(b)].parameters;
  };
  std::vector<StageRange> ranges;
  for (std::int64_t stage = 0; stage < degree; ++stage) {
    if (!ranges.empty() && alike(ranges.back().first, stage)) {
      ranges.back().last = stage;
    } else {
      ranges.push_back({stage, stage});
    }
  }
  return ranges;
}

std::string rank_pattern(const PhasePlan& phase) {
  const std::int64_t tensor = phase.mesh.degree(Axis::tensor);
  const std::int64_t data = phase.mesh.degree(Axis::data);
  return fmt::format("rank = tensor + {} * (data + {} * pipeline)", tensor, data);
}

const CommunicationVolume* find_volume(const StageFacts& stage, GroupKind kind, const std::string& purpose) {
  for (const CommunicationVolume& volume : stage.survey.communication)
    if (volume.kind == kind && volume.purpose == purpose) return &volume;
  return nullptr;
}

GroupReach reach_of(const PlanFacts& facts, GroupKind kind) {
  return reach_of(kind, facts.phase.mesh, facts.phase.group_facts(), facts.hosts.ranks_per_host);
}

std::string collective_name(CollectiveKind kind) {
  if (kind == CollectiveKind::exchange) return "send";
  std::string name(to_text(kind));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::vector<std::string> cost_lines(const PlanFacts& facts) {
  const PhasePlan& phase = facts.phase;
  const std::int64_t data = phase.mesh.degree(Axis::data);
  const std::int64_t stages = phase.mesh.degree(Axis::pipeline);
  const std::int64_t tensor = phase.mesh.degree(Axis::tensor);
  const std::int64_t m = phase.num_micro_batches;
  std::vector<std::string> lines;
  const auto add = [&lines](std::string line) {
    if (!line.empty()) lines.push_back(std::move(line));
  };
  if (phase.sequence) add(sequence_cost(facts));
  add(recompute_cost(facts));
  add(offload_cost(facts));
  add(noise_cost(facts));
  if (data > 1 && phase.zero.shard_parameters) add(gather_cost(facts));
  if (data > 1 && phase.zero.shard_gradients && m > 1)
    lines.push_back(
        fmt::format("parallel.zero {} sums gradients after every micro-batch: {} times a step, where 1 does once{}",
                    facts.config.parallel.zero, m, phase.zero.shard_parameters ? ", and zero_reduce: step too" : ""));
  if (phase.chunks > 1 && stages > 1)
    lines.push_back(fmt::format("parallel.chunks {} sends activations between stages {} times as often as 1f1b",
                                phase.chunks, phase.chunks));
  if (phase.schedule_kind == ScheduleKind::zb_h1) {
    for (std::string& line : weight_pass_costs(facts)) lines.push_back(std::move(line));
  }
  if (phase.chunks > 1 && m % stages != 0)
    lines.push_back(fmt::format(
        "interleaved goes by groups of {} micro-batches, and {} is no multiple: the last group idles", stages, m));
  if (stages > 1 && m < stages)
    lines.push_back(
        fmt::format("{} for {} stages: the pipeline is never full", counted(m, "micro-batch", "es"), stages));
  if (phase.model.kv_heads < tensor)
    lines.push_back(fmt::format("{} key/value heads on {} tensor ranks: each is held and computed {} times",
                                phase.model.kv_heads, tensor, tensor / phase.model.kv_heads));
  return lines;
}

std::string balance_text(const PlanFacts& facts) {
  const std::int64_t stages = facts.phase.mesh.degree(Axis::pipeline);
  if (stages == 1) return {};
  const Balance& balance = facts.balance;
  constexpr double alike = 0.005;  // less than the printed digits show
  if (balance.ratio < 1 + alike && balance.least > 1 - alike) return "all stages take equally long";
  const std::string who = balance.as_slow > 0
                              ? fmt::format("stage {} and {} are", balance.slowest, counted(balance.as_slow, "other"))
                              : fmt::format("stage {} is", balance.slowest);
  const std::string why =
      balance.slowest == stages - 1
          ? fmt::format("{:.0f} % of its work is the head", 100.0 * facts.work.head_share)
          : fmt::format("{} of {} blocks", num_blocks(facts.phase, balance.slowest), facts.phase.model.layers);
  return fmt::format("{} the slowest, {:.2f} x the mean ({}); the fastest takes {:.2f} x", who, balance.ratio, why,
                     balance.least);
}

std::string placement_text(const PlanFacts& facts) {
  const std::int64_t world = facts.phase.mesh.world();
  const std::int64_t size = facts.hosts.ranks_per_host;
  switch (facts.hosts.basis) {
    case HostPlacement::Basis::one_host:
      return "all ranks on one";
    case HostPlacement::Basis::configured:
      return fmt::format("{} of {} (launch.ranks_per_node)", ceil_div(world, size), counted(size, "rank"));
    case HostPlacement::Basis::assumed:
      return fmt::format("{} of {}{} are assumed; launch.ranks_per_node sets it", ceil_div(world, size),
                         counted(size, "rank"),
                         size > 1 && size == facts.phase.mesh.degree(Axis::tensor) ? ", a tensor group each," : "");
  }
  SCALETRAIN_CHECK(false);
}

std::vector<std::string> host_memory_lines(const PlanFacts& facts) {
  const std::int64_t world = facts.phase.mesh.world();
  const std::string all = world == 1 ? "the rank needs" : fmt::format("the {} ranks need", world);
  const std::string beside = is_on_devices(facts) ? " of host memory" : "";
  const auto& available = facts.options.machine_memory;
  std::vector<std::string> lines;
  if (facts.refused) {
    lines.push_back(fmt::format("this machine has {} and {} {}{}: `scaletrain run` refuses to start them all here",
                                bytes_text(*available), all, bytes_text(facts.world_memory), beside));
  } else if (available && facts.hosts.basis == HostPlacement::Basis::one_host) {
    lines.push_back(fmt::format("this machine has {} and {} {}{}", bytes_text(*available), all,
                                bytes_text(facts.world_memory), beside));
  } else if (world > 1) {
    lines.push_back(fmt::format("{} {}{} together", all, bytes_text(facts.world_memory), beside));
  }
  if (facts.hosts.basis != HostPlacement::Basis::one_host)
    lines.push_back(fmt::format("a host of {} needs up to {}{}", counted(facts.hosts.ranks_per_host, "rank"),
                                bytes_text(facts.host_memory), beside));
  return lines;
}

PlanFacts gather_facts(const Config& config, const RunPlan& plan, const DescribeOptions& options) {
  SCALETRAIN_CHECK(!plan.phases.empty());
  const PhasePlan& phase = plan.phases.front();
  PlanFacts facts{.config = config,
                  .plan = plan,
                  .phase = phase,
                  .options = options,
                  .hosts = place_on_hosts(config, phase.mesh, options.all_on_one_host),
                  .stages = {},
                  .groups = {},
                  .work = stage_work(phase),
                  .balance = {},
                  .short_step = shorten(phase),
                  .replay = {},
                  .save = save_size(phase)};
  facts.stages = stage_facts(facts);
  facts.balance = balance_of(facts.work);
  facts.replay = replay_step(phase, facts.short_step, facts.work);
  const std::vector<std::uint64_t> totals = rank_totals(facts);
  const std::uint64_t of_manifest = manifest_memory(facts.save);
  facts.world_memory = most_memory_of_a_host(phase.mesh, totals, phase.mesh.world(), of_manifest);
  if (options.all_on_one_host && facts.hosts.basis == HostPlacement::Basis::one_host && options.machine_memory &&
      facts.world_memory > *options.machine_memory) {
    facts.refused = true;
    // If they are to run, then on other hosts.
    facts.hosts = place_on_hosts(config, phase.mesh, false);
  }
  facts.host_memory = most_memory_of_a_host(phase.mesh, totals, facts.hosts.ranks_per_host, of_manifest);
  facts.groups = group_facts_of(phase, facts.hosts.ranks_per_host);
  facts.work_of_run = run_work(facts);
  facts.time = run_time(facts);
  if (options.budget) {
    const HostPlacement hosts = place_on_hosts(config, phase.mesh, options.all_on_one_host);
    facts.verdict = judge({.config = config,
                           .phase = phase,
                           .stages = surveys_of(facts),
                           .ranks_per_host = hosts.ranks_per_host,
                           .all_on_one_host = hosts.basis == HostPlacement::Basis::one_host,
                           .is_world_given = options.is_world_given,
                           .goes_on = options.so_far && options.so_far->step > 0,
                           .backend_workspace = options.backend_workspace,
                           .of_manifest = of_manifest},
                          *options.budget);
  }
  return facts;
}

std::map<std::int64_t, std::int64_t> joining_parameters(const ParamTable& table) {
  std::map<std::int64_t, std::int64_t> joining;
  for (const Parameter& parameter : table.parameters())
    if (parameter.joins_after > 0 && !parameter.tied_to)
      joining[parameter.joins_after] += parameter.shape.num_elements();
  return joining;
}

}  // namespace scaletrain
