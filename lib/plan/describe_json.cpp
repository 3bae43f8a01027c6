#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/keys.h"
#include "plan/instruction_list.h"
#include "plan/plan_facts.h"

namespace scaletrain {

namespace {

using nlohmann::json;

// A timeline of more pieces of work is null: nobody looks at it.
constexpr std::size_t max_timeline_work = 4'096;

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

// The work of each stage with its times, in units of the mean chunk's forward; null where there is none to show.
json timeline_json(const PlanFacts& facts) {
  if (!facts.timetable) return nullptr;
  std::size_t pieces = 0;
  for (const auto& work : facts.timetable->work) pieces += work.size();
  if (pieces > max_timeline_work) return nullptr;
  json out = json::array();
  for (const auto& work : facts.timetable->work) {
    json row = json::array();
    for (const WorkInterval& interval : work)
      row.push_back({{"work", to_text(interval.instruction, facts.phase.chunks)},
                     {"start", interval.start},
                     {"end", interval.end}});
    out.push_back(std::move(row));
  }
  return out;
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
  json out = {{"ranks_per_host", facts.hosts.ranks_per_host}, {"basis", basis_name(facts.hosts.basis)},
              {"memory_of_all_ranks", facts.world_memory},    {"memory_of_largest_host", facts.host_memory},
              {"memory_is_bound", !facts.lists_all_stages()}, {"run_refuses", facts.refused}};
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
                   {"memory_per_rank", memory_json(stage.memory)},
                   {"sent_per_rank_and_step", communication_json(facts, stage.communication)}});
  return out;
}

json balance_json(const PlanFacts& facts) {
  return {{"slowest_stage", facts.balance.slowest},
          {"equally_slow", facts.balance.as_slow},
          {"most_to_mean", facts.balance.ratio},
          {"least_to_mean", facts.balance.least},
          {"head_share_of_last_stage", facts.work.head_share}};
}

}  // namespace

std::string facts_json(const PlanFacts& facts) {
  const PhasePlan& phase = facts.phase;
  json out = {
      {"parameters", phase.table.num_parameters()},
      {"flops_per_token", model_flops_per_token(phase.model)},
      {"steps", phase.num_steps},
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
      {"schedule", std::string(to_text(phase.schedule_kind))},
      {"chunks", phase.chunks},
      {"stages", stages_json(facts)},
      {"balance", balance_json(facts)},
      {"costs", cost_lines(facts)},
      {"notices", facts.plan.notices},
      {"timeline", timeline_json(facts)},
  };
  out["bubble"] = facts.timetable ? json(facts.timetable->simulation.bubble) : json(nullptr);
  out["bubble_of_equal_stages"] = facts.timetable ? json(facts.equal_bubble) : json(nullptr);
  if (facts.options.instructions) out["instructions"] = instructions_of(phase);
  return out.dump(2);
}

}  // namespace scaletrain
