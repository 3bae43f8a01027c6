#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/keys/keys.h"
#include "plan/describe/instruction_list.h"
#include "plan/describe/plan_facts.h"

namespace scaletrain {

namespace {

using nlohmann::json;

// Of all stages together. More pieces of work lose their middle.
constexpr std::size_t max_timeline_work = 8'192;

json memory_json(const MemoryPlan& memory) {
  json items = json::object();
  for (const MemoryItem& item : memory.items) items[item.purpose] = item.bytes;
  return {{"items", items}, {"total", memory.total()}};
}

json communication_json(const PlanFacts& facts, const std::vector<CommunicationVolume>& volumes) {
  json out = json::array();
  for (const CommunicationVolume& volume : volumes)
    out.push_back({{"group", std::string(to_text(volume.kind))},
                   {"hosts", std::string(to_text(reach_of(facts, volume.kind)))},
                   {"collective", collective_name(volume.collective)},
                   {"purpose", volume.purpose},
                   {"calls", volume.calls},
                   {"elements", volume.elements},
                   {"bytes", volume.bytes}});
  return out;
}

json groups_json(const PlanFacts& facts) {
  json out = json::array();
  for (const GroupFact& group : facts.groups)
    out.push_back({{"group", std::string(to_text(group.kind))},
                   {"size", group.size},
                   {"count", group.count},
                   {"stride", group.second.value() - group.first.value()},
                   {"hosts", std::string(to_text(group.reach))}});
  return out;
}

json work_json(const WorkInterval& interval, std::int64_t chunks) {
  return {{"work", to_text(interval.instruction, chunks)}, {"start", interval.start}, {"end", interval.end}};
}

// The work of each stage with its times: of its beginning and its end where it is long.
json timeline_json(const PlanFacts& facts) {
  const auto& stages = facts.replay.timetable.work;
  const std::size_t most = std::max<std::size_t>(2, max_timeline_work / stages.size());
  std::size_t left_out = 0;
  json rows = json::array();
  for (const auto& work : stages) {
    const std::size_t head = work.size() <= most ? work.size() : most / 2;
    const std::size_t tail = work.size() <= most ? 0 : most / 2;
    left_out = std::max(left_out, work.size() - head - tail);
    json row = json::array();
    for (std::size_t i = 0; i < head; ++i) row.push_back(work_json(work[i], facts.phase.chunks));
    for (std::size_t i = work.size() - tail; i < work.size(); ++i)
      row.push_back(work_json(work[i], facts.phase.chunks));
    rows.push_back(std::move(row));
  }
  return {{"unit", "forward of one micro-batch through the mean model chunk"},
          {"micro_batches", facts.short_step.micro_batches},
          {"left_out_in_the_middle_of_each_stage", left_out},
          {"stages", rows}};
}

std::string basis_name(HostPlacement::Basis basis) {
  switch (basis) {
    case HostPlacement::Basis::one_host:
      return "one host";
    case HostPlacement::Basis::configured:
      return "launch.ranks_per_node";
    case HostPlacement::Basis::assumed:
      return "assumed";
  }
  return {};
}

json hosts_json(const PlanFacts& facts) {
  json out = {{"ranks_per_host", facts.hosts.ranks_per_host},
              {"basis", basis_name(facts.hosts.basis)},
              {"memory_of_all_ranks", facts.world_memory},
              {"memory_of_largest_host", facts.host_memory},
              {"run_refuses", facts.refused}};
  out["this_machine_has"] = facts.options.machine_memory ? json(*facts.options.machine_memory) : json(nullptr);
  return out;
}

json stages_json(const PlanFacts& facts) {
  json out = json::array();
  for (const StageFacts& stage : facts.stages)
    out.push_back({{"stage", stage.stage},
                   {"contents", stage.blocks},
                   {"parameters_per_rank", stage.parameters},
                   {"work_to_mean", stage.work},
                   {"saved_micro_batches", stage.survey.saved},
                   {"deferred_weight_parts", stage.survey.deferred_weight_parts},
                   {"memory_per_rank", memory_json(stage.survey.memory)},
                   {"sent_per_rank_and_step", communication_json(facts, stage.survey.communication)}});
  return out;
}

json balance_json(const PlanFacts& facts) {
  return {{"slowest_stage", facts.balance.slowest},
          {"equally_slow", facts.balance.as_slow},
          {"most_to_mean", facts.balance.ratio},
          {"least_to_mean", facts.balance.least},
          {"head_share_of_last_stage", facts.work.head_share}};
}

json settings_json(const std::vector<NearSetting>& settings) {
  json out = json::array();
  for (const NearSetting& setting : settings)
    out.push_back({{"setting", setting.text},
                   {"bytes", setting.bytes},
                   {"of_host", setting.of_host},
                   {"supported", setting.is_supported}});
  return out;
}

json verdict_json(const Verdict& verdict) {
  const bool is_device = verdict.budget.kind == MemoryBudget::Kind::device;
  return {{"against", verdict.budget.name},
          {"memory_of", is_device ? "device" : "host"},
          {"available", verdict.budget.memory},
          {"needed", verdict.bytes},
          {"needed_by_stage", verdict.needs.stage},
          {"host_memory_beside_the_device", is_device ? verdict.needs.rank_host : 0},
          {"fits", verdict.fits},
          {"fits_with", settings_json(verdict.fitting)},
          {"together", settings_json(verdict.together)},
          {"fits_together", verdict.fits_together}};
}

// Of the whole run; nothing where its length is not known.
json whole(const PlanFacts& facts, double value) {
  return facts.options.step_count == StepCount::unknown ? json(nullptr) : json(value);
}

json work_json(const PlanFacts& facts) {
  const RunWork& work = facts.work_of_run;
  json epochs = json::array();
  for (const RunWork::Epochs& source : work.epochs)
    epochs.push_back({{"path", source.path},
                      {"tokens_estimated", source.size.tokens},
                      {"basis", source.size.basis},
                      {"epochs", source.epochs}});
  return {{"samples", whole(facts, work.samples)},
          {"sources_of_unknown_caps", work.uncounted_caps},
          {"read_from_step", work.first_step},
          {"samples_that_caps_leave", work.allowed_samples ? json(*work.allowed_samples) : json(nullptr)},
          {"tokens", whole(facts, work.tokens)},
          {"flops", whole(facts, work.flops)},
          {"sources", epochs}};
}

json phase_json(const PlanFacts& facts, const RunWork::Phase& of) {
  json weights = json::object();
  for (std::size_t i = 0; i < of.phase.weights.size(); ++i)
    if (of.phase.weights[i] > 0) weights[name_of_source(facts.config.data, i)] = of.phase.weights[i];
  const auto seconds = seconds_of_phase(facts, of);
  return {{"first_step", of.phase.first_step},
          {"steps", of.phase.steps},
          {"context", of.phase.context},
          {"global_batch", of.phase.global_batch},
          {"weights", weights},
          {"learning_rate_factor", of.phase.learning_rate_factor},
          {"tokens", of.tokens},
          {"flops", of.flops},
          {"seconds", seconds ? json(*seconds) : json(nullptr)}};
}

json update_json(const PlanFacts& facts) {
  if (!facts.phase.offload) return nullptr;
  const double link = facts.options.budget->host_link;
  return {{"bytes_each_way", facts.time->update.each_way},
          {"assumed_bytes_per_second", link > 0 ? json(link) : json(nullptr)},
          {"seconds", link > 0 ? json(facts.time->update_seconds) : json(nullptr)}};
}

json time_json(const PlanFacts& facts) {
  if (!facts.time) return nullptr;
  const bool is_device = facts.options.budget->kind == MemoryBudget::Kind::device;
  json time = {{"assumed_share_of_peak", assumed_share_of_peak},
               {"peak_flops_of_each", facts.options.budget->peak_flops},
               {is_device ? "devices" : "hosts", facts.time->devices},
               {"bubble", facts.time->bubble},
               {"recomputed", facts.time->recomputed},
               {"steps_in_halves", facts.time->halves},
               {"offloaded_update", update_json(facts)},
               {"step_seconds", facts.time->step_seconds},
               {"tokens_per_second", facts.time->tokens_per_second},
               {"seconds", whole(facts, facts.time->seconds)},
               {is_device ? "device_hours" : "host_hours",
                whole(facts, facts.time->seconds / 3600 * static_cast<double>(facts.time->devices))}};
  if (facts.time->product_seconds > 0) time["update_product_seconds"] = facts.time->product_seconds;
  return time;
}

json tasks_json(const PlanFacts& facts) {
  if (facts.options.task_choices == 0) return nullptr;
  const double steps = steps_of_tasks(facts);
  return {{"choices", facts.options.task_choices},
          {"as_steps", steps},
          {"seconds", facts.time ? json(steps * facts.time->step_seconds) : json(nullptr)}};
}

std::string steps_are(StepCount count) {
  return count == StepCount::exact ? "exact" : count == StepCount::estimated ? "estimated" : "unknown";
}

}  // namespace

std::string facts_json(const PlanFacts& facts) {
  const PhasePlan& phase = facts.phase;
  json out = {
      {"verdict", facts.verdict ? verdict_json(*facts.verdict) : json(nullptr)},
      {"work", work_json(facts)},
      {"time", time_json(facts)},
      {"tasks", tasks_json(facts)},
      {"parameters", phase.table.num_parameters()},
      {"frozen_parameters", phase.table.num_parameters(ParamRole::frozen)},
      {"checkpoint",
       {{"bytes", facts.save.bytes},
        {"files", facts.save.files},
        {"pieces", facts.save.pieces},
        {"most_pieces_of_a_tensor", facts.save.most_pieces},
        {"manifest_bytes", facts.save.manifest_bytes},
        {"list_bytes", facts.save.list_bytes}}},
      {"flops_per_token", model_flops_per_token(phase.model, phase.table)},
      {"steps", facts.options.step_count == StepCount::unknown ? json(nullptr) : json(phase.num_steps)},
      {"steps_are", steps_are(facts.options.step_count)},
      {"global_batch", phase.global_batch},
      {"micro_batch", phase.micro_batch.samples},
      {"micro_batches", phase.num_micro_batches},
      {"world", phase.mesh.world()},
      {"mesh",
       {{"data", phase.mesh.degree(Axis::data)},
        {"tensor", phase.mesh.degree(Axis::tensor)},
        {"pipeline", phase.mesh.degree(Axis::pipeline)}}},
      {"rank_of", rank_pattern(phase)},
      {"groups", groups_json(facts)},
      {"hosts", hosts_json(facts)},
      {"sequence", phase.sequence},
      {"zero", facts.config.parallel.zero},
      {"zero_group", phase.mesh.shards()},
      {"zero_reduce", std::string(to_text(facts.config.parallel.zero_reduce))},
      {"schedule", std::string(to_text(phase.schedule_kind))},
      {"chunks", phase.chunks},
      {"stages", stages_json(facts)},
      {"balance", balance_json(facts)},
      {"costs", cost_lines(facts)},
      {"notices", facts.plan.notices},
      {"bubble", facts.replay.bubble},
      {"bubble_of_equal_stages", facts.replay.equal_bubble},
      {"timeline", timeline_json(facts)},
  };
  for (const RunWork::Phase& phase : facts.work_of_run.phases) out["phases"].push_back(phase_json(facts, phase));
  for (const auto& [step, parameters] : joining_parameters(phase.table))
    out["joining_parameters"].push_back({{"step", step}, {"parameters", parameters}});
  if (facts.options.instructions) out["instructions"] = instructions_of(phase);
  return out.dump(2);
}

}  // namespace scaletrain
