#include "plan/describe/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/numbers/checked.h"
#include "config/keys/keys.h"
#include "config/keys/unsupported.h"
#include "config/optimizer_rules.h"

namespace scaletrain {

namespace {

// One key with another value.
struct SettingChange {
  std::string key;
  std::string value;
  std::function<void(Config&)> apply;
  bool moves_to_host = false;  // what it saves on a device
  std::string text() const { return key + ": " + value; }
};
// Values of one key, the smallest change first.
using Family = std::vector<SettingChange>;

Family smaller_micro_batches(const Config& config) {
  Family family;
  for (std::int64_t samples = config.train.micro_batch / 2; samples >= 1; samples /= 2)
    family.push_back(
        {"train.micro_batch", std::to_string(samples), [samples](Config& c) { c.train.micro_batch = samples; }});
  return family;
}

Family higher_zero(const Config& config, const Mesh& mesh) {
  Family family;
  if (mesh.degree(Axis::data) == 1) return family;
  for (std::int64_t stage = config.parallel.zero + 1; stage <= 3; ++stage)
    family.push_back({"parallel.zero", std::to_string(stage), [stage](Config& c) { c.parallel.zero = stage; }});
  return family;
}

// Back to what divides most.
Family fewer_copies(const Config& config) {
  Family family;
  if (config.parallel.zero_group)
    family.push_back({"parallel.zero_group", "auto", [](Config& c) { c.parallel.zero_group.reset(); }});
  return family;
}
Family sums_at_use(const Config& config) {
  Family family;
  if (config.parallel.zero_reduce == ZeroReduceKind::step)
    family.push_back({"parallel.zero_reduce", "use", [](Config& c) { c.parallel.zero_reduce = ZeroReduceKind::use; }});
  return family;
}

Family more_recomputation(const Config& config) {
  Family family;
  for (const RecomputeKind kind : {RecomputeKind::selective, RecomputeKind::full})
    if (kind > config.train.recompute)
      family.push_back(
          {"train.recompute", std::string(to_text(kind)), [kind](Config& c) { c.train.recompute = kind; }});
  return family;
}

Family half_precision(const Config& config) {
  // tf32 is kept in four bytes too.
  const Precision precision = config.compute_precision();
  if (precision != Precision::fp32 && precision != Precision::tf32) return {};
  return {{"precision.compute", "bf16", [](Config& c) { c.precision.compute = Precision::bf16; }}};
}

// Twice as often as the layers and heads allow; what does not divide is left out when it is planned.
Family higher_degrees(const std::string& key, std::int64_t degree, std::int64_t most,
                      std::int64_t(ParallelConfig::*member)) {
  Family family;
  for (degree *= 2; degree <= most; degree *= 2)
    family.push_back({key, std::to_string(degree), [degree, member](Config& c) { c.parallel.*member = degree; }});
  return family;
}

std::vector<Family> families_of(const VerdictQuestion& question, const MemoryBudget& budget) {
  const MemoryBudget::Kind kind = budget.kind;
  const Config& config = question.config;
  const Mesh& mesh = question.phase.mesh;
  std::vector<Family> families = {smaller_micro_batches(config), higher_zero(config, mesh), sums_at_use(config),
                                  fewer_copies(config)};
  if (config.parallel.tensor > 1 && !config.parallel.sequence)
    families.push_back({{"parallel.sequence", "true", [](Config& c) { c.parallel.sequence = true; }}});
  if (config.parallel.schedule == ScheduleKind::gpipe && config.parallel.pipeline > 1)
    families.push_back(
        {{"parallel.schedule", "1f1b", [](Config& c) { c.parallel.schedule = ScheduleKind::one_f_one_b; }}});
  if (kind == MemoryBudget::Kind::host && config.checkpoint.background)
    families.push_back({{"checkpoint.background", "false", [](Config& c) { c.checkpoint.background = false; }}});
  families.push_back(more_recomputation(config));
  if (kind == MemoryBudget::Kind::device && may_offload(config))
    families.push_back({{.key = "train.optimizer.offload",
                         .value = "host",
                         .apply = [](Config& c) { c.train.optimizer.offload = OffloadKind::host; },
                         .moves_to_host = true}});
  if (!question.goes_on && may_hold_moments_in_8_bits(config))
    families.push_back(
        {{"train.optimizer.state", "int8", [](Config& c) { c.train.optimizer.state = OptimizerStateType::int8; }}});
  families.push_back(half_precision(config));
  // More ranks on one machine share the memory that there is.
  if (!(kind == MemoryBudget::Kind::host && question.all_on_one_host) && !budget.is_shared) {
    constexpr std::int64_t most_stages = 64;
    families.push_back(higher_degrees("parallel.tensor", config.parallel.tensor,
                                      std::max(common_host, config.parallel.tensor), &ParallelConfig::tensor));
    if (!config.parallel.stage_layers)
      families.push_back(higher_degrees("parallel.pipeline", config.parallel.pipeline,
                                        std::min(most_stages, config.model.layers), &ParallelConfig::pipeline));
  }
  std::erase_if(families, [](const Family& family) { return family.empty(); });
  return families;
}

// Whether everything that it asks for is, but for what the config asked for before.
bool is_supported(const Config& before, const Config& changed) {
  const std::vector<Refusal> known = refusals(before);
  const std::vector<Refusal> refused = refusals(changed);
  return std::all_of(refused.begin(), refused.end(), [&](const Refusal& refusal) {
    return std::any_of(known.begin(), known.end(), [&](const Refusal& other) { return other.path == refusal.path; });
  });
}

// Plans again. Nothing where the settings do not go together.
class Replanner {
 public:
  Replanner(const VerdictQuestion& question, MemoryBudget::Kind kind) : question_(question), kind_(kind) {}

  struct Needs {
    std::uint64_t bytes = 0;
    std::uint64_t beside = 0;  // of the host, by a rank of a device
  };
  std::optional<Needs> needs_with(const Config& config) const {
    if (!optimizer_problems(config.train.optimizer).empty()) return std::nullopt;
    try {
      // Degrees that are raised take replicas where their number is left to a world that stands, else more ranks.
      const bool is_fixed = !config.parallel.data && question_.is_world_given;
      const auto world = is_fixed ? std::optional(question_.phase.mesh.world()) : std::nullopt;
      RunPlan plan = make_run_plan(config, question_.phase.model.vocab, world);
      PhasePlan& phase = plan.phases.front();
      phase.may_be_direct = question_.phase.may_be_direct;
      phase.attention_workspace = question_.phase.attention_workspace;
      const HostPlacement hosts = place_on_hosts(config, phase.mesh, question_.all_on_one_host);
      const auto stages = survey_stages(phase, shorten(phase), question_.backend_workspace);
      const PlanNeeds needs = needs_of(phase.mesh, stages, hosts.ranks_per_host, question_.of_manifest);
      if (kind_ == MemoryBudget::Kind::host) return Needs{needs.host};
      return Needs{needs.rank, needs.rank_host};
    } catch (const UserError&) {
      return std::nullopt;
    } catch (const SizeError&) {  // beyond 64 bits
      return std::nullopt;
    }
  }

 private:
  const VerdictQuestion& question_;
  MemoryBudget::Kind kind_;
};

NearSetting setting_of(const SettingChange& change, const Replanner::Needs& needs, bool is_supported) {
  return {.text = change.text(),
          .bytes = needs.bytes,
          .of_host = change.moves_to_host ? needs.beside : 0,
          .is_supported = is_supported};
}

// The change of a family that saves most.
struct Strongest {
  const SettingChange* change = nullptr;
  std::uint64_t bytes = 0;
};

void add_together(Verdict& verdict, const Config& config, std::vector<Strongest> strongest, const Replanner& replan) {
  std::sort(strongest.begin(), strongest.end(),
            [](const Strongest& a, const Strongest& b) { return a.bytes < b.bytes; });
  Config changed = config;
  std::uint64_t before = verdict.bytes;
  for (const Strongest& next : strongest) {
    Config more = changed;
    next.change->apply(more);
    const auto needs = replan.needs_with(more);
    if (!needs || needs->bytes >= before) continue;
    changed = more;
    before = needs->bytes;
    verdict.together.push_back(setting_of(*next.change, *needs, is_supported(config, changed)));
    verdict.fits_together = needs->bytes <= verdict.budget.memory;
    if (verdict.fits_together) return;
  }
}

}  // namespace

PlanNeeds needs_of(const Mesh& mesh, const std::vector<StageSurvey>& stages, std::int64_t ranks_per_host,
                   std::uint64_t of_manifest) {
  PlanNeeds needs;
  std::vector<std::uint64_t> totals;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const std::uint64_t beside = stages[stage].memory.total_of_host();
    totals.push_back(stages[stage].memory.total());
    const std::uint64_t bytes = totals.back() - beside;
    if (bytes <= needs.rank) continue;
    needs.rank = bytes;
    needs.rank_host = beside;
    needs.stage = static_cast<std::int64_t>(stage);
  }
  needs.host = most_memory_of_a_host(mesh, totals, ranks_per_host, of_manifest);
  return needs;
}

Verdict judge(const VerdictQuestion& question, const MemoryBudget& budget) {
  Verdict verdict{
      .budget = budget,
      .needs = needs_of(question.phase.mesh, question.stages, question.ranks_per_host, question.of_manifest),
      .ranks_per_host = question.ranks_per_host,
      .fitting = {},
      .together = {}};
  verdict.bytes = budget.kind == MemoryBudget::Kind::device ? verdict.needs.rank : verdict.needs.host;
  verdict.fits = verdict.bytes <= budget.memory;
  if (verdict.fits) return verdict;
  const Replanner replan(question, budget.kind);
  const std::vector<Family> families = families_of(question, budget);
  std::vector<Strongest> strongest;
  for (const Family& family : families) {
    Strongest best{.bytes = verdict.bytes};
    for (const SettingChange& change : family) {
      Config changed = question.config;
      change.apply(changed);
      const auto needs = replan.needs_with(changed);
      if (!needs || needs->bytes >= best.bytes) continue;
      best = {&change, needs->bytes};
      if (needs->bytes > budget.memory) continue;
      verdict.fitting.push_back(setting_of(change, *needs, is_supported(question.config, changed)));
      break;
    }
    if (best.change != nullptr) strongest.push_back(best);
  }
  // What can be done now stands first.
  std::stable_sort(verdict.fitting.begin(), verdict.fitting.end(),
                   [](const NearSetting& a, const NearSetting& b) { return a.is_supported && !b.is_supported; });
  if (verdict.fitting.empty()) add_together(verdict, question.config, std::move(strongest), replan);
  return verdict;
}

}  // namespace scaletrain
