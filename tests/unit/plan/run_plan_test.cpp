#include "plan/run_plan.h"

#include <algorithm>

#include "plan_helpers.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

RunPlan plan_of(const Config& config, std::optional<std::int64_t> world = std::nullopt) {
  return make_run_plan(config, 61, world);
}

}  // namespace

TEST_CASE("presets have the parameters that their authors report") {
  struct Known {
    const char* preset;
    std::int64_t parameters;
  };
  // GPT-2: sums over the published shapes, head tied. Llama 3: as in the released safetensors indices (8B, 70B, 405B).
  for (const Known& known :
       {Known{"gpt2-124m", 124'439'808}, Known{"gpt2-355m", 354'823'168}, Known{"gpt2-774m", 774'030'080},
        Known{"gpt2-1558m", 1'557'611'200}, Known{"llama-8b", 8'030'261'248}, Known{"llama-70b", 70'553'706'496},
        Known{"llama-405b", 405'853'388'800}}) {
    CAPTURE(known.preset);
    const Config config = preset_config(known.preset);
    REQUIRE(config.model.vocab.has_value());
    CHECK(make_run_plan(config, 257, std::nullopt).phases.front().table.num_parameters() == known.parameters);
  }
}

TEST_CASE("the tokenizer's size is used where the config says auto") {
  Config config = planned_config();
  config.model.vocab.reset();
  CHECK(make_run_plan(config, 99, std::nullopt).phases.front().model.vocab == 99);
  CHECK(plan_of(planned_config()).phases.front().model.vocab == 61);
}

TEST_CASE("parameters have the rates and the decays that finetune gives them") {
  Config config = planned_config();
  config.finetune.learning_rates = {{"blocks.1.*", 0.5}};
  config.finetune.weight_decays = {{"blocks.1.*", 3.0}, {"embedding.*", 0.0}};
  const ParamTable table = plan_of(config).phases.front().table;
  CHECK(table.find("blocks.1.ffn.up.weight")->rate_factor == 0.5);
  CHECK(table.find("blocks.1.ffn.up.weight")->decay_factor == 3.0);
  CHECK(table.find("blocks.0.ffn.up.weight")->decay_factor == 1.0);
  CHECK_FALSE(table.find("embedding.token.weight")->decays);
  config.finetune.weight_decays = {{"block.1.*", 3.0}};
  CHECK(contains(message_of<UserError>([&] { plan_of(config); }), "finetune.weight_decays: \"block.1.*\" matches no"));
}

TEST_CASE("data: auto takes what the world leaves") {
  Config config = planned_config();
  config.parallel.data.reset();
  config.parallel.tensor = 2;
  config.train.micro_batch = 1;
  CHECK(plan_of(config).phases.front().mesh.world() == 2);
  const PhasePlan phase = plan_of(config, 12).phases.front();
  CHECK(phase.mesh.degree(Axis::data) == 6);
  CHECK(phase.num_micro_batches == 2);
  CHECK(contains(message_of<UserError>([&] { plan_of(config, 7); }), "take 6 or 8 ranks"));
  CHECK(contains(message_of<UserError>([&] { plan_of(config, 0); }),
                 "the world has 0 ranks, and parallel.data: auto needs"));
  CHECK(contains(message_of<UserError>([&] { plan_of(config, -4); }),
                 "the world has -4 ranks, and parallel.data: auto needs"));
}

TEST_CASE("a world that the degrees do not make up is refused with all numbers") {
  Config config = planned_config();
  config.parallel.data = 2;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  const std::string text = message_of<UserError>([&] { plan_of(config, 16); });
  CHECK(contains(text, "data 2 x tensor 2 x pipeline 2 = 8"));
  CHECK(contains(text, "16"));
  CHECK(contains(text, "parallel.data"));
  CHECK(plan_of(config, 8).phases.front().mesh.world() == 8);
}

TEST_CASE("a world that does not fit is named together with the other degrees") {
  Config config = planned_config();
  config.parallel.data = 2;
  config.parallel.pipeline = 7;
  const std::string given = message_of<UserError>([&] { plan_of(config, 16); });
  CHECK(contains(given, "= 14 ranks, but the world has 16"));
  CHECK(contains(given, "model.layers is 6"));
  config.parallel.data.reset();
  const std::string automatic = message_of<UserError>([&] { plan_of(config, 16); });
  CHECK(contains(automatic, "parallel.data: auto needs a multiple of"));
  CHECK(contains(automatic, "model.layers is 6"));
}

TEST_CASE("degrees that do not fit name their keys") {
  const auto refusal = [](auto change) {
    Config config = planned_config();
    change(config);
    return message_of<UserError>([&] { plan_of(config); });
  };
  CHECK(refusal([](Config&) {}).empty());
  std::string text = refusal([](Config& c) { c.parallel.tensor = 3; });
  CHECK(contains(text, "parallel.tensor: 3 does not divide model.heads: 4; use 1, 2 or 4"));
  text = refusal([](Config& c) {
    c.model.heads = 12;
    c.model.kv_heads = 4;
    c.model.hidden = 24;
    c.parallel.tensor = 6;
  });
  CHECK(contains(text,
                 "parallel.tensor: 6 neither divides model.kv_heads: 4 nor is a multiple of it; use 1, 2, 4 or 12"));
  CHECK_FALSE(contains(text, "model.ffn_hidden"));                   // parts may be uneven
  CHECK(refusal([](Config& c) { c.parallel.tensor = 4; }).empty());  // grouped heads on neighbours
  text = refusal([](Config& c) {
    c.parallel.tensor = 4;
    c.model.ffn_hidden = 41;
    c.model.vocab = 63;
  });
  CHECK(text.empty());
  text = refusal([](Config& c) {
    c.parallel.chunks = 2;
    c.parallel.tensor = 8;
  });
  CHECK(contains(text, "parallel.chunks: 2 chunks per stage, but parallel.schedule is 1f1b"));
  CHECK(contains(text, "parallel.tensor: 8 does not divide model.heads: 4"));
  text = refusal([](Config& c) { c.parallel.pipeline = 7; });
  CHECK(contains(text, "parallel.pipeline: 7"));
  CHECK(contains(text, "model.layers is 6"));
  text = refusal([](Config& c) {
    c.parallel.schedule = ScheduleKind::interleaved;
    c.parallel.pipeline = 4;
    c.parallel.chunks = 2;
  });
  CHECK(contains(text, "4 stages x 2 chunks"));
  text = refusal([](Config& c) { c.parallel.data = 13; });
  CHECK(contains(text, "parallel.data: 13 replicas share the 12 samples of a step"));
  text = refusal([](Config& c) {
    c.train.global_batch = 1'000'000;
    c.train.micro_batch = 1;
  });
  CHECK(contains(text, "train.global_batch"));
  CHECK(contains(text, "train.micro_batch"));
  CHECK(refusal([](Config& c) {
          c.train.global_batch = 65536;
          c.train.micro_batch = 1;
        }).empty());
}

TEST_CASE("every unit is on one stage, in order") {
  for (const std::int64_t chunks : {1, 3}) {
    Config config = planned_config();
    config.parallel.pipeline = 2;
    config.parallel.chunks = chunks;
    if (chunks > 1) config.parallel.schedule = ScheduleKind::interleaved;
    const PhasePlan phase = plan_of(config).phases.front();
    std::vector<int> seen;
    for (std::int64_t stage = 0; stage < 2; ++stage) {
      const std::vector<int> units = phase.units_of_stage(stage);
      CHECK(std::is_sorted(units.begin(), units.end()));
      seen.insert(seen.end(), units.begin(), units.end());
    }
    std::sort(seen.begin(), seen.end());
    CHECK(seen == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  }
}

TEST_CASE("stages_that_are_chosen_count_the_attention_that_a_longer_context_costs_beside_the_head") {
  Config config = preset_config("gpt2-124m");
  config.parallel.pipeline = 2;
  const auto blocks_of_first = [&](std::int64_t context) {
    config.model.context = context;
    return make_run_plan(config, 50257, std::nullopt).phases.front().stages.front().count;
  };
  // The head is as much as 5.5 blocks without their attention: 9 against 8.5. At 1024 it is 4.9: 8 against 8.9.
  CHECK(blocks_of_first(64) == 9);
  CHECK(blocks_of_first(1024) == 8);
}

TEST_CASE("layers per stage that the user gives are used") {
  Config config = planned_config();
  config.parallel.pipeline = 2;
  config.parallel.stage_layers = std::vector<std::int64_t>{4, 2};
  const PhasePlan phase = plan_of(config).phases.front();
  CHECK(phase.units_of_stage(0) == std::vector<int>{0, 1, 2, 3, 4});
  CHECK(phase.units_of_stage(1) == std::vector<int>{5, 6, 7});
  config.parallel.stage_layers = std::vector<std::int64_t>{6, 0};  // the head alone
  CHECK(plan_of(config).phases.front().units_of_stage(1) == std::vector<int>{7});
  config.parallel.stage_layers = std::vector<std::int64_t>{4, 3};
  config.parallel.tensor = 3;
  const std::string text = message_of<UserError>([&] { plan_of(config); });
  CHECK(contains(text, "parallel.stage_layers: the numbers sum to 7"));
  CHECK(contains(text, "parallel.tensor: 3"));  // all at once
}

TEST_CASE("a stage with no layers is planned if it has the embedding or the head, and refused by name else") {
  Config config = planned_config();
  config.parallel.pipeline = 8;  // more stages than layers
  CHECK(contains(message_of<UserError>([&] { plan_of(config); }), "parallel.stage_layers which stage has none"));
  config.parallel.stage_layers = std::vector<std::int64_t>{0, 1, 1, 1, 1, 1, 1, 0};
  const PhasePlan phase = plan_of(config).phases.front();
  CHECK(phase.units_of_stage(0) == std::vector<int>{0});
  CHECK(phase.units_of_stage(6) == std::vector<int>{6});
  CHECK(phase.units_of_stage(7) == std::vector<int>{7});
  config.parallel.stage_layers = std::vector<std::int64_t>{1, 1, 1, 0, 1, 1, 1, 0};
  CHECK(contains(message_of<UserError>([&] { plan_of(config); }), "parallel.stage_layers: number 4 is 0"));
}

TEST_CASE("sequence shards of a tensor degree of one are no shards") {
  Config config = planned_config();
  config.parallel.sequence = true;
  CHECK_FALSE(plan_of(config).phases.front().sequence);
  CHECK_FALSE(plan_of(config).phases.front().tensor_part(Rank(0)).sequence);
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  const PhasePlan phase = plan_of(config).phases.front();
  CHECK(phase.sequence);
  CHECK(phase.tensor_part(Rank(1)) == TensorPart{.degree = 2, .rank = 1, .sequence = true});
  CHECK(phase.tensor_part(Rank(2)) == TensorPart{.degree = 2, .rank = 0, .sequence = true});
  CHECK(phase.store_options(DType::f64).sequence);
}

TEST_CASE("the store's options and the groups' facts are the plan's") {
  Config config = planned_config();
  config.parallel.data = 2;
  config.parallel.zero = 2;
  const PhasePlan phase = plan_of(config).phases.front();
  const ParamStore::Options options = phase.store_options(DType::f64);
  CHECK(options.state_names == phase.optimizer_states);
  CHECK(options.dtype == DType::f64);
  CHECK((options.gradients && options.zero == ZeroPolicy::of_stage(2) && options.groups == nullptr));
  CHECK((phase.group_facts().kv_heads == 2 && phase.group_facts().tied));
  config.model.tie_embeddings = false;
  CHECK_FALSE(plan_of(config).phases.front().group_facts().tied);
}

TEST_CASE("the constant of the loss is one over the tokens of a full global batch") {
  const PhasePlan phase = plan_of(planned_config()).phases.front();
  CHECK(phase.loss_gradient == Near(1.0 / (12 * 7)));
  CHECK(phase.num_micro_batches == 4);
  CHECK(phase.micro_batch == BatchShape{3, 7});
  CHECK(plan_of(planned_config()).phase_at(9).num_steps == 10);
}

TEST_CASE("a batch that does not divide is padded, evenly and with a notice") {
  struct Case {
    std::int64_t global_batch, data, micro_batch;
    std::int64_t count, samples;
    const char* notice;
  };
  const std::vector<Case> cases = {
      {12, 2, 3, 2, 3, ""},
      {12, 5, 3, 1, 3,
       "train.global_batch: 12 samples leave 3 of 15 places empty (5 replicas x 1 micro-batch x 3 samples): 20.0 % "
       "of "
       "the work is idle"},
      // A replica with fewer samples than a micro-batch has room for gets smaller ones.
      {12, 4, 64, 1, 3, "train.micro_batch: 3 samples are used in place of 64, to divide the 3 of a replica evenly"},
      {4, 4, 8, 1, 1, "train.micro_batch: 1 sample is used in place of 8, to divide the 1 of a replica evenly"},
      // 5 samples in two micro-batches: of three and two rather than of four and one.
      {10, 2, 4, 2, 3,
       "train.micro_batch: 3 samples are used in place of 4, to divide the 5 of a replica evenly; train.global_batch: "
       "10 "
       "samples leave 2 of 12 places empty (2 replicas x 2 micro-batches x 3 samples): 16.7 % of the work is idle"},
      // The second and third replica have an empty micro-batch.
      {7, 3, 1, 3, 1,
       "train.global_batch: 7 samples leave 2 of 9 places empty (3 replicas x 3 micro-batches x 1 sample): 22.2 % of "
       "the work is idle"},
  };
  for (const Case& one : cases) {
    Config config = planned_config();
    config.train.global_batch = one.global_batch;
    config.train.micro_batch = one.micro_batch;
    config.parallel.data = one.data;
    const RunPlan plan = plan_of(config);
    const PhasePlan& phase = plan.phases.front();
    CAPTURE(one.notice);
    CHECK(phase.global_batch == one.global_batch);
    CHECK(phase.num_micro_batches == one.count);
    CHECK(phase.micro_batch == BatchShape{one.samples, 7});
    CHECK(phase.loss_gradient == Near(1.0 / static_cast<double>(one.global_batch * 7)));
    CHECK((plan.notices.empty() ? "" : plan.notices.front()) == one.notice);
  }
}

TEST_CASE("every sample has a place in the plan's micro-batches, whatever the sizes") {
  Config config = planned_config();
  for (const std::int64_t global_batch : {1, 2, 5, 7, 12, 31})
    for (std::int64_t data = 1; data <= global_batch && data <= 9; ++data)
      for (const std::int64_t micro_batch : {1, 2, 3, 4, 40}) {
        config.train.global_batch = global_batch;
        config.train.micro_batch = micro_batch;
        config.parallel.data = data;
        const PhasePlan phase = plan_of(config).phases.front();
        const std::int64_t share = (global_batch + data - 1) / data;
        CHECK(phase.num_micro_batches == (share + micro_batch - 1) / micro_batch);
        CHECK(phase.micro_batch.samples <= micro_batch);
        CHECK(phase.num_micro_batches * phase.micro_batch.samples >= share);
        CHECK(phase.num_micro_batches * (phase.micro_batch.samples - 1) < share);
      }
}

TEST_CASE("tokens instead of steps round up") {
  Config config = planned_config();
  config.train.steps.reset();
  config.train.tokens = 12 * 7 * 3 + 1;
  CHECK(plan_of(config).phases.front().num_steps == 4);
}

TEST_CASE("the save plan of one rank writes every tensor and every optimizer state") {
  const RunPlan plan = make_run_plan(planned_config(), 61, std::nullopt);
  const PhasePlan& phase = plan.phases.front();
  CHECK(phase.optimizer_states == std::vector<std::string>{"exp_avg", "exp_avg_sq"});
  std::int64_t masters = 0;
  std::int64_t states = 0;
  for (const SavePiece& piece : phase.save_plan(Rank(0))) {
    (piece.state < 0 ? masters : states) += piece.box.num_elements();
    CHECK(piece.file == (piece.state < 0 ? "model-00000.safetensors" : "optimizer-00000.safetensors"));
  }
  CHECK(masters == phase.table.num_parameters());
  CHECK(states == 2 * masters);
}

TEST_CASE("the save plans of all ranks write each element once, every rank into files of its own") {
  Config config = planned_config();
  config.parallel.data = 2;
  config.parallel.tensor = 4;  // key/value heads are held twice
  config.parallel.pipeline = 2;
  config.train.micro_batch = 1;
  for (const std::int64_t zero : {0, 3}) {
    config.parallel.zero = zero;
    const PhasePlan phase = plan_of(config).phases.front();
    std::int64_t masters = 0;
    for (std::int64_t rank = 0; rank < 16; ++rank) {
      for (const SavePiece& piece : phase.save_plan(Rank(rank))) {
        if (piece.state < 0) masters += piece.box.num_elements();
        CHECK(contains(piece.file, rank < 10 ? "-0000" + std::to_string(rank) : "-000" + std::to_string(rank)));
      }
    }
    CHECK(masters == phase.table.num_parameters());
  }
}
