// Traps in which ranks that hold the same part of the model drift apart: after twenty steps they must still have the
// same bits, in the weights as layers read them and in what the optimizer keeps.
#include <doctest/doctest.h>

#include <filesystem>

#include "checkpoint/load.h"
#include "checkpoint/save/save.h"
#include "support/temp_folder.h"
#include "trap_runs.h"

using namespace scaletrain;

namespace {

constexpr int many_steps = 20;

// What the ranks of a run hold alike.
struct Held {
  explicit Held(const ParamTable& table) : masters(table), averages(table), squares(table) {}
  void add(RankTrainer& trainer, TestBackend backend) {
    weights.add_weights(trainer, backend);
    ParamStore& store = trainer.settled_store();
    masters.add(store, StateKind::master);
    averages.add(store, StateKind::optimizer, 0);
    squares.add(store, StateKind::optimizer, 1);
  }
  std::string problem() const {
    for (const std::string& text : {weights.problem(), masters.problem(), averages.problem(), squares.problem()})
      if (!text.empty()) return text;
    return {};
  }
  Agreement weights;
  TensorAssembler masters, averages, squares;
};

std::filesystem::path save(RankTrainer& trainer, Rank rank, InProcessWorld& world, std::int64_t step,
                           const std::filesystem::path& folder) {
  const PhasePlan& plan = trainer.plan();
  const auto store = world.make_store();
  SaveRequest request;
  request.folder = folder;
  request.manifest.step = step;
  request.manifest.history = "[]";
  request.group.rank = rank;
  request.group.world = plan.mesh.world();
  request.group.store = plan.mesh.world() > 1 ? store.get() : nullptr;
  request.group.deadline = 60.0;
  request.group.attempt = 1;
  request.group.plan_of = [&plan](Rank of) { return plan.save_plan(of); };
  return save_checkpoint(trainer.settled_store(), request).path;
}

// The ranks' agreement after many steps; `part` must be held by several ranks.
void check_agreement(const Config& config, const std::vector<std::string>& parts) {
  const PhasePlan plan = make_test_plan(config, TestBackend::reference_f64);
  Held held(plan.table);
  const auto losses = on_ranks<std::vector<double>>(config, plan, [&](RankTrainer& trainer, Rank, InProcessWorld&) {
    std::vector<double> own;
    own.reserve(many_steps);
    for (int step = 0; step < many_steps; ++step) own.push_back(trainer.step().outcome.loss);
    held.add(trainer, TestBackend::reference_f64);
    return own;
  });
  CHECK(held.problem() == "");
  for (const auto& own : losses) CHECK(own == losses.front());
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(held.weights.compared(part) > 0);
  }
}

}  // namespace

TEST_CASE("trap_replicas_have_the_same_bits_after_twenty_steps_at_every_zero_stage") {
  for (const TrapLayout& layout : trap_layouts()) {
    if (layout.data == 1) continue;
    for (const std::int64_t zero : layout.zero_stages()) {
      CAPTURE(layout.name);
      CAPTURE(zero);
      check_agreement(layout.on(trap_config(), zero), {"embedding.token.weight", "blocks.3.ffn", "head.norm"});
    }
  }
}

TEST_CASE("trap_norm_weights_and_row_parallel_biases_are_equal_on_all_tensor_ranks_after_twenty_steps") {
  for (const bool sequence : {false, true}) {
    for (const TrapLayout& layout :
         {TrapLayout{"tensor 2", 1, 2, 1}, TrapLayout{"tensor 4", 1, 4, 1}, TrapLayout{"tensor 2, data 2", 2, 2, 1}}) {
      for (const std::int64_t zero : layout.zero_stages()) {
        CAPTURE(layout.name);
        CAPTURE(sequence);
        CAPTURE(zero);
        Config config = layout.on(trap_config(), zero);
        config.parallel.sequence = sequence;
        check_agreement(config, {"attention_norm.weight", "ffn_norm.bias", "head.norm.weight", "attention.output.bias",
                                 "ffn.down.bias", "embedding.position"});
      }
    }
  }
}

TEST_CASE("trap_key_value_heads_fewer_than_tensor_ranks_are_equal_in_their_replication_group_after_twenty_steps") {
  for (const std::int64_t heads : {1, 2}) {
    for (const TrapLayout& layout : {TrapLayout{"tensor 4", 1, 4, 1}, TrapLayout{"tensor 4, data 2", 2, 4, 1},
                                     TrapLayout{"tensor 4, pipeline 2", 1, 4, 2}}) {
      for (const std::int64_t zero : layout.zero_stages()) {
        CAPTURE(heads);
        CAPTURE(layout.name);
        CAPTURE(zero);
        Config config = layout.on(trap_config(), zero);
        config.model.kv_heads = heads;
        check_agreement(config, {"attention.key.weight", "attention.value.weight", "attention.value.bias"});
      }
    }
  }
}

TEST_CASE("trap_tied_embeddings_are_equal_on_both_stages_after_twenty_steps_and_stay_tied_after_loading") {
  constexpr TestBackend backend = TestBackend::reference_f32;
  const std::string tied = "embedding.token.weight";
  for (const TrapLayout& layout :
       {TrapLayout{"pipeline 2", 1, 1, 2}, TrapLayout{"data 2, pipeline 3, zb-h1", 2, 1, 3, ScheduleKind::zb_h1},
        TrapLayout{"data 2, pipeline 2, two chunks", 2, 1, 2, ScheduleKind::interleaved, 2},
        TrapLayout{"tensor 2, pipeline 2", 1, 2, 2}}) {
    for (const std::int64_t zero : layout.zero_stages()) {
      CAPTURE(layout.name);
      CAPTURE(zero);
      const TempFolder folder;
      const Config config = layout.on(trap_config(), zero);
      const PhasePlan plan = make_test_plan(config, backend);
      Held held(plan.table);
      const auto paths = on_ranks<std::filesystem::path>(
          config, plan,
          [&](RankTrainer& trainer, Rank rank, InProcessWorld& world) {
            for (int step = 0; step < many_steps; ++step) trainer.step();
            held.add(trainer, backend);
            return save(trainer, rank, world, many_steps, folder.path());
          },
          backend);
      CHECK(held.problem() == "");
      CHECK(held.weights.compared(tied) > 0);
      // On other layouts: loaded, and after a step of them.
      for (const TrapLayout& other : {TrapLayout{"pipeline 4", 1, 1, 4}, TrapLayout{"data 2, pipeline 2", 2, 1, 2}}) {
        const Config there = other.on(trap_config(), other.data > 1 ? 3 : 0);
        const PhasePlan other_plan = make_test_plan(there, backend);
        Held loaded(other_plan.table);
        Held stepped(other_plan.table);
        on_ranks<int>(
            there, other_plan,
            [&](RankTrainer& trainer, Rank, InProcessWorld&) {
              Checkpoint(paths.front(), OpenCheck::none).load(trainer.settled_store(), trainer.stream(), true);
              trainer.continue_at(many_steps);
              loaded.add(trainer, backend);
              trainer.step();
              stepped.add(trainer, backend);
              return 0;
            },
            backend);
        CHECK(loaded.problem() == "");
        CHECK(stepped.problem() == "");
        CHECK(loaded.weights.compared(tied) > 0);
        CHECK(loaded.masters.tensors() == held.masters.tensors());
        CHECK(loaded.squares.tensors() == held.squares.tensors());
        CHECK(stepped.masters.tensors().at(tied) != held.masters.tensors().at(tied));
      }
    }
  }
}

TEST_CASE("trap_sharded_parameters_are_gathered_again_and_compute_forms_made_anew_after_a_load") {
  // Into a store that has trained on meanwhile, so that what it had gathered and packed is another step's.
  for (const TrapLayout& layout : trap_layouts()) {
    for (const std::int64_t zero : layout.zero_stages()) {
      CAPTURE(layout.name);
      CAPTURE(zero);
      const TempFolder folder;
      const Config config = layout.on(trap_config(), zero);
      const PhasePlan plan = make_test_plan(config, TestBackend::cpu);
      struct Losses {
        std::vector<double> first, again;
        double evaluated_first = 0.0, evaluated_later = 0.0, evaluated_again = 0.0;
      };
      const auto losses = on_ranks<Losses>(
          config, plan,
          [&](RankTrainer& trainer, Rank rank, InProcessWorld& world) {
            Losses own;
            trainer.step();
            const std::filesystem::path saved = save(trainer, rank, world, 1, folder.path());
            own.evaluated_first = trainer.evaluate(5).loss_sum;
            for (int step = 0; step < 2; ++step) own.first.push_back(trainer.step().outcome.loss);
            own.evaluated_later = trainer.evaluate(5).loss_sum;  // leaves weights gathered and packed
            Checkpoint(saved, OpenCheck::none).load(trainer.settled_store(), trainer.stream(), true);
            trainer.continue_at(1);
            own.evaluated_again = trainer.evaluate(5).loss_sum;
            for (int step = 0; step < 2; ++step) own.again.push_back(trainer.step().outcome.loss);
            return own;
          },
          TestBackend::cpu);
      for (const Losses& own : losses) {
        CHECK(own.evaluated_later != own.evaluated_first);
        CHECK(own.evaluated_again == own.evaluated_first);
        CHECK(own.again == own.first);
        CHECK(own.first[0] != own.first[1]);
      }
    }
  }
}
