// Volumes per rank and step against the published formulas (Rajbhandari et al. 2020, Shoeybi et al. 2019). Padding adds
// less than a thousandth to what is proportional to the parameters.
#include <fmt/format.h>

#include "plan_helpers.h"
#include "support/near.h"
#include "support/sanitizers.h"

using namespace scaletrain;

namespace {

struct Traffic {
  std::int64_t calls = 0;
  double elements = 0.0;
};

Traffic traffic_of(const PhasePlan& plan, Rank rank, GroupKind kind, const std::string& purpose = {}) {
  Traffic sum;
  for (const CommunicationVolume& volume : plan.communication(rank)) {
    if (volume.kind != kind || (!purpose.empty() && volume.purpose != purpose)) continue;
    if (volume.purpose == "loss, norm, votes") continue;  // a few doubles
    CHECK(volume.bytes == 4 * static_cast<std::uint64_t>(volume.elements));
    sum.calls += volume.calls;
    sum.elements += static_cast<double>(volume.elements);
  }
  return sum;
}

// GPT-2 124M: four replicas, three micro-batches each.
PhasePlan replicas(std::int64_t zero) {
  Config config = preset_config("gpt2-124m");
  config.parallel.data = 4;
  config.parallel.zero = zero;
  config.train.global_batch = 12;
  config.train.micro_batch = 1;
  return make_run_plan(config, 50257, std::nullopt).phases.front();
}

}  // namespace

TEST_CASE("one rank sends nothing") {
  const PhasePlan plan = make_run_plan(planned_config(), 61, std::nullopt).phases.front();
  CHECK(plan.communication(Rank(0)).empty());
  CHECK(plan.traffic(Rank(0), plan.schedule(Rank(0))).staging == 0);
}

TEST_CASE("replicas send as much as the literature says at every ZeRO stage") {
  const double share = 124'439'808.0 * 3 / 4;  // parameters * (N - 1) / N
  const auto sent = [](std::int64_t zero) { return traffic_of(replicas(zero), Rank(2), GroupKind::data).elements; };
  CHECK(sent(0) == Near(2 * share).epsilon(1e-3));
  CHECK(sent(1) == Near(2 * share).epsilon(1e-3));
  // The tied embedding's gradient, which two units of the rank add to, is summed once and not with each micro-batch.
  const double embedding = 50257.0 * 768 * 3 / 4;
  CHECK(sent(2) == Near((3 + 1) * share - 2 * embedding).epsilon(1e-3));
  // At most three times per micro-batch; less, since what the forward gathered last the backward uses first, and the
  // tied embedding stays.
  CHECK(sent(3) < 3 * 3 * share);
  CHECK(sent(3) > 2 * 3 * (share - embedding));
}

TEST_CASE("gathers of any number of micro-batches are counted at once, and are those of few repeated") {
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
    const auto gathers = [&](std::int64_t micro_batches) {
      Config config = planned_config();
      config.parallel.data = 2;
      config.parallel.pipeline = 2;
      config.parallel.zero = 3;
      config.parallel.schedule = kind;
      if (kind == ScheduleKind::interleaved) config.parallel.chunks = 3;
      config.train.micro_batch = 1;
      config.train.global_batch = 2 * micro_batches;
      const PhasePlan plan = make_run_plan(config, 61, std::nullopt).phases.front();
      std::int64_t calls = 0;
      for (const CommunicationVolume& volume : plan.communication(Rank(2)))
        if (volume.purpose == "weights") calls += volume.calls;
      return calls;
    };
    const std::int64_t more = gathers(16) - gathers(8);
    CHECK(more > 0);
    CHECK(gathers(24) - gathers(16) == more);
    const std::int64_t many = is_sanitized ? 8'192 : 65'536;
    CHECK(gathers(many) == gathers(16) + more * (many - 16) / 8);
  }
}

TEST_CASE("a tensor group sums four activations per block and micro-batch, in each of its two forms") {
  Config config = planned_config();
  config.model.context = 8;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 3;
  config.train.micro_batch = 16;
  config.train.global_batch = 64;  // four micro-batches
  config.model.hidden = 64;
  const PhasePlan whole = make_run_plan(config, 61, std::nullopt).phases.front();
  // The middle stage has blocks only: M * blocks * 4 all-reduces of b * s * h, of which a rank of two sends one each.
  const std::int64_t blocks = whole.stages[1].count;
  const Rank middle = whole.mesh.rank_of({0, 0, 1});
  const double bsh = 16.0 * 8 * 64;
  const Traffic summed = traffic_of(whole, middle, GroupKind::tensor, "activations");
  CHECK(summed.calls == 4 * blocks * 4);
  CHECK(summed.elements == static_cast<double>(4 * blocks * 4) * bsh);
  // A boundary, micro-batch and direction: b * s * h, or with sequence shards each rank's half.
  CHECK(traffic_of(whole, middle, GroupKind::pipeline).elements == 2 * 4 * bsh);
  config.parallel.sequence = true;
  const PhasePlan shards = make_run_plan(config, 61, std::nullopt).phases.front();
  CHECK(traffic_of(shards, middle, GroupKind::pipeline).elements == 2 * 4 * bsh / 2);
  // Each all-reduce becomes a reduce-scatter and a gather, and the backward gathers two inputs once more (Korthikanti
  // et al. 2022): 4 + 4 + 2 halves.
  CHECK(traffic_of(shards, middle, GroupKind::tensor, "activations").elements ==
        static_cast<double>(4 * blocks * 10) * bsh / 2);
}

TEST_CASE("full recomputation sums one activation of each block again, and asks nothing else of anybody") {
  Config config = planned_config();
  config.model.context = 8;
  config.parallel.data = 2;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 3;
  config.parallel.zero = 3;
  config.train.micro_batch = 16;
  config.train.global_batch = 128;  // four micro-batches of each replica
  config.model.hidden = 64;
  const double bsh = 16.0 * 8 * 64;
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zb_h1}) {
    for (const bool sequence : {false, true}) {
      config.parallel.schedule = kind;
      config.parallel.sequence = sequence;
      const auto plan_with = [&](RecomputeKind recompute) {
        config.train.recompute = recompute;
        return make_run_plan(config, 61, std::nullopt).phases.front();
      };
      const PhasePlan none = plan_with(RecomputeKind::none);
      const Rank middle = none.mesh.rank_of({0, 0, 1});
      const auto blocks = static_cast<double>(none.stages[1].count);
      const PhasePlan full = plan_with(RecomputeKind::full);
      const Traffic again = traffic_of(full, middle, GroupKind::tensor, "recomputed activations");
      // An all-reduce behind the attention; with sequence shards two gathers and a reduce-scatter, of halves each.
      CHECK(again.elements == 4 * blocks * (sequence ? 3 * bsh / 2 : bsh));
      const auto others = [&](const PhasePlan& plan) {
        std::string text;
        for (const CommunicationVolume& volume : plan.communication(middle))
          if (volume.purpose != "recomputed activations")
            text += fmt::format("{} {} {} {} {}; ", to_text(volume.kind), to_text(volume.collective), volume.purpose,
                                volume.calls, volume.bytes);
        return text;
      };
      CHECK(others(full) == others(none));  // weights, too, are gathered as often
      const PhasePlan selective = plan_with(RecomputeKind::selective);
      CHECK(others(selective) == others(none));
      CHECK(traffic_of(selective, middle, GroupKind::tensor, "recomputed activations").calls == 0);
    }
  }
}

TEST_CASE("only the ends of a pipeline sum the tied embedding, and each rank its own share of it") {
  Config config = planned_config();
  config.parallel.pipeline = 3;
  const auto tied = [&](std::int64_t stage) {
    const PhasePlan plan = make_run_plan(config, 61, std::nullopt).phases.front();
    return traffic_of(plan, plan.mesh.rank_of({0, 0, stage}), GroupKind::tied);
  };
  CHECK(tied(0).elements == Near(61 * 24).epsilon(0.02));
  CHECK(tied(1).calls == 0);
  CHECK(tied(2).elements == tied(0).elements);
  config.parallel.data = 2;
  config.train.micro_batch = 1;
  CHECK(tied(2).elements == Near(61 * 12).epsilon(0.02));
  config.model.tie_embeddings = false;
  CHECK(tied(0).calls == 0);
}
