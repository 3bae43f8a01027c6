#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config_helpers.h"

using namespace scaletrain;

TEST_CASE("heads divide the width and are shared evenly") {
  CHECK(contains(override_errors({"model.heads=7"}), "model.hidden: 768 is no multiple of heads 7"));
  CHECK(contains(override_errors({"model.kv_heads=5"}), "model.kv_heads: heads 12 is no multiple of kv_heads 5"));
  CHECK(contains(override_errors({"model.kv_heads=24"}), "model.kv_heads: heads 12 is no multiple of kv_heads 24"));
  CHECK(override_errors({"model.kv_heads=4"}) == "accepted");
  CHECK(contains(override_errors({"model.position=rope", "model.hidden=36"}), "a head of hidden / heads = 3 is odd"));
  CHECK(override_errors({"model.hidden=36"}) == "accepted");
}

TEST_CASE("a rule that an override breaks is told at the override, whatever else the file says") {
  struct Case {
    std::string file;
    std::string setting;
    std::string message;
  };
  const std::string two_sets = "data: {train: [{path: a}], validation: [{name: web, path: b}]}\ntrain: {steps: 200}\n";
  const std::vector<Case> cases = {
      {kLeast + "model: {hidden: 64, heads: 4}\n", "model.heads=5", "model.hidden: 64 is no multiple of heads 5"},
      {kLeast + "model: {hidden: 64, heads: 4}\n", "model={heads: 5}", "model.hidden: 64 is no multiple of heads 5"},
      {kLeast + "model: {hidden: 64, heads: 4}\n", "model.hidden=63", "model.hidden: 63 is no multiple of heads 4"},
      {kLeast + "model: {heads: 24}\n", "model.preset=llama-8b", "model.hidden: 4096 (from preset llama-8b) is no"},
      {kLeast + "model: {hidden: 64, heads: 4, kv_heads: 2}\n", "model.heads=1", "model.kv_heads: heads 1 is no"},
      {kLeast + "model: {position: rope, hidden: 64, heads: 4}\n", "model.heads=64", "model.position: rope rotates"},
      {kLeast + "model: {hidden: 4096, heads: 2}\n", "precision.compute=bf16", "model.heads: a head of hidden"},
      {kLeast + "model: {vocab: 300}\n" + "parallel: {tensor: 2, data: 1}\n", "model.heads=3",
       "parallel.tensor: 2 does"},
      {"data: {train: [{path: a}]}\ntrain: {steps: 200, lr_schedule: {warmup: 20}}\n", "train.steps=10",
       "train.lr_schedule.warmup: warm-up of 20 steps exceeds"},
      {"data: {train: [{path: a}], tokenizer: {type: ids, end_of_document: 3}}\ntrain: {steps: 9}\n"
       "model: {vocab: 300}\n",
       "data.tokenizer.type=bytes", "data.tokenizer.end_of_document: tokenizer bytes has a token for it already"},
      {"data: {train: [{path: a, type: text}]}\ntrain: {steps: 9}\nmodel: {vocab: 300}\n", "data.tokenizer.type=ids",
       "data.train.0.type: text needs a tokenizer"},
      {"data: {train: [{path: a, type: jsonl, field: body}]}\ntrain: {steps: 9}\n", "data.train.0.type=text",
       "data.train.0.field: only for jsonl"},
      {two_sets + "early_stop: {metric: validation/web/loss, patience: 3}\n", "data.validation=[]",
       "early_stop.metric: there is nothing to watch"},
      {two_sets + "early_stop: {metric: validation/web/loss, patience: 3}\n", "data.validation=[{name: a, path: b}]",
       "early_stop.metric: \"validation/web/loss\" is no metric"},
      {two_sets + "early_stop: {metric: validation/web/loss, patience: 3}\n", "evaluate.every=0",
       "early_stop: needs evaluations"},
  };
  for (const Case& broken : cases) {
    CHECK_MESSAGE(errors_of(broken.file) == "accepted", broken.file);
    const std::string report = errors_of(broken.file, {broken.setting});
    CHECK_MESSAGE(report.starts_with("--set " + broken.setting + ": " + broken.message), report);
  }
  // One that has nothing to do with it is not blamed.
  CHECK(errors_of(kLeast + "model: {hidden: 64, heads: 5}\n", {"model.layers=3"}).starts_with("c.yaml:3:17: "));
}

TEST_CASE("heads in half precision are as long as its kernels take") {
  CHECK(override_errors({"model.hidden=2048", "model.heads=2", "precision.compute=bf16"}) == "accepted");
  CHECK(override_errors({"model.hidden=2050", "model.heads=2"}) == "accepted");
  CHECK(contains(override_errors({"model.hidden=2050", "model.heads=2", "precision.compute=bf16"}),
                 "a head of hidden / heads = 1025 is longer than 1024"));
  CHECK(contains(override_errors({"model.hidden=2050", "model.heads=2", "precision.compute=fp16"}),
                 "the most that precision.compute fp16 takes"));
}

TEST_CASE("a loss scale is for fp16 alone, and refused where nothing reads it") {
  CHECK(override_errors({"precision.compute=fp16", "precision.loss_scale=1024"}) == "accepted");
  CHECK(override_errors({"precision.compute=bf16", "precision.loss_scale=dynamic"}) == "accepted");
  CHECK(contains(override_errors({"precision.loss_scale=1024"}),
                 "precision.loss_scale: has no effect: it is only for precision.compute fp16; this one is fp32; remove "
                 "the key, or change precision.compute"));
  CHECK(contains(override_errors({"precision.compute=bf16", "precision.loss_scale=1"}), "this one is bf16"));
  // Below 1 a scale only makes gradients vanish.
  for (const std::string scale : {"0", "1e-300", "0.5"})
    CHECK(contains(override_errors({"precision.compute=fp16", "precision.loss_scale=" + scale}),
                   "precision.loss_scale: " + scale + " is out of range; expected at least 1"));
  // A file that is for fp16, run in another type.
  const LoadedConfig other =
      load_text(kLeast + "precision: {compute: fp16, loss_scale: 1024}\n", {"precision.compute=fp32"});
  CHECK_FALSE(other.config.precision.loss_scale.has_value());
  REQUIRE(other.notices.size() == 1);
  CHECK(contains(other.notices[0], "precision.loss_scale: the file's value is not used"));
}

TEST_CASE("exactly one of steps, tokens and epochs") {
  CHECK(contains(errors_of("data: {train: [{path: a}]}\ntrain: {steps: 200, tokens: 1M}\n"),
                 "train.tokens: steps and tokens are both set"));
  CHECK(contains(override_errors({"train.steps=null"}),
                 "train.steps: is missing; set steps, tokens such as 10B, or epochs"));
  CHECK(override_errors({"train.steps=null", "train.tokens=10B"}) == "accepted");
  CHECK(override_errors({"train.steps=null", "train.epochs=1.5"}) == "accepted");
  CHECK(contains(errors_of("data: {train: [{path: a}]}\ntrain: {steps: 200, epochs: 2}\n"),
                 "train.epochs: steps and epochs are both set; keep one"));
  CHECK(contains(errors_of("data: {train: [{path: a}]}\ntrain: {tokens: 200, epochs: 2}\n"),
                 "train.epochs: tokens and epochs are both set; keep one"));
  for (const char* refused : {"train.epochs=0", "train.epochs=-1", "train.epochs=1e9", "train.epochs=all"}) {
    CAPTURE(refused);
    CHECK(contains(override_errors({"train.steps=null", refused}), "train.epochs"));
  }
}

TEST_CASE("the run's length follows from tokens, rounded up") {
  TrainConfig train;
  train.global_batch = 8;
  train.tokens = 8 * 16 * 5;
  CHECK(train.num_steps(16) == 5);
  train.tokens = 8 * 16 * 5 + 1;
  CHECK(train.num_steps(16) == 6);
  train.tokens.reset();
  train.steps = 77;
  CHECK(train.num_steps(16) == 77);
}

TEST_CASE("a count of tokens beyond 64 bits is refused") {
  CHECK(contains(override_errors({"train.steps=1e18", "train.global_batch=1Mi", "train.micro_batch=1"}),
                 "more tokens than 64 bits count"));
}

TEST_CASE("what has no effect beside the other keys is noticed") {
  struct Case {
    std::vector<std::string> settings;
    std::string notice;  // empty: none
  };
  const std::vector<Case> cases = {
      {{"data.train.0.records=messages"}, ""},
      {{"data.train.0.records=messages", "data.documents.attention=across"},
       "data.documents.attention: across lets each conversation read those that were packed before it into the same "
       "sample; within, the default of such data, keeps them apart"},
      {{"data.validation=[{name: v, path: a, records: prompt_completion}]"}, ""},
      {{"data.instructions.loss=all"},
       "data.instructions.loss has no effect, because no source names records: messages or prompt_completion"},
      {{"data.instructions.loss=all", "data.train.0.records=prompt_completion"}, ""},
      {{"data.instructions.chat_template=qwen3"},
       "data.instructions.chat_template has no effect, because no source names records: messages or "
       "prompt_completion"},
      {{"parallel.sequence=true"}, "parallel.sequence: true has no effect, because parallel.tensor is 1"},
      {{"parallel.sequence=true", "parallel.tensor=2"}, ""},
      {{"parallel.schedule=gpipe"},
       "parallel.schedule: gpipe has no effect, because parallel.pipeline is 1: it orders the stages of a pipeline"},
      {{"parallel.schedule=interleaved", "parallel.chunks=2"},
       "parallel.schedule: interleaved has no effect, because parallel.pipeline is 1: it orders the stages of a "
       "pipeline"},
      {{"parallel.schedule=gpipe", "parallel.pipeline=2"}, ""},
      {{"precision.reduce=bf16"},
       "precision.reduce: bf16 has no effect, because parallel.data is 1: gradients travel between replicas"},
      {{"parallel.zero=3"}, "parallel.zero: 3 has no effect, because parallel.data is 1: it divides among replicas"},
      {{"parallel.zero=1"}, ""},
      {{"parallel.zero=0"}, ""},
      {{"parallel.zero=3", "parallel.data=2"}, ""},
      {{"parallel.zero=3", "parallel.data=auto"}, ""},
      {{"parallel.zero=3", "parallel.data=2", "parallel.zero_reduce=step"}, ""},
      {{"launch.port=4000"}, "launch.port: 4000 has no effect, because the run is one rank: nobody meets it at a port"},
      {{"launch.port=4000", "parallel.data=2"}, ""},
      {{"launch.port=4000", "parallel.tensor=2"}, ""},
      {{"launch.port=4000", "parallel.pipeline=2"}, ""},
      {{"launch.port=4000", "parallel.data=auto"}, ""},
      {{"evaluate.every=10"}, "evaluate.every: 10 has no effect, because data.validation names no set"},
      {{"evaluate.every=0"}, ""},
      {{"train.ema={decay: 0.9}", "evaluate.ema=true"},
       "evaluate.ema: true has no effect, because data.validation names no set"},
      {{"train.batch_ramp={from: 16, by: 16, steps: 200}"},
       "train.batch_ramp: the batch never comes to train.global_batch 32, for which the learning rate is, because it "
       "grows for 200 steps and the run has 200"},
      {{"train.batch_ramp={from: 16, by: 16, steps: 199}"}, ""},
      {{"log.gradient_noise={every: 201}"},
       "log.gradient_noise: it is measured every 201 steps, and the run has 200: never"},
      {{"log.gradient_noise={every: 200}"}, ""},
      {{"evaluate.batches=0"}, "evaluate.batches: 0 has no effect, because data.validation names no set"},
      {{"evaluate.every=10", "evaluate.batches=3", "data.validation=[{name: a, path: b}]"}, ""},
      {{"train.spike={window: 200}"},
       "train.spike: a window of 200 steps must be full before a loss is judged, and the run has 200"},
      {{"train.spike={window: 199}"}, ""},
      {{"train.spike={window: 40, action: rollback}", "checkpoint={every: 10, keep: 3}"},
       "train.spike: a rollback should go back further than the window of 40 steps, and checkpoint.keep: 3 of a "
       "checkpoint every 10 steps may reach back 20 only; set checkpoint.keep: 5, or checkpoint.keep_every"},
      {{"train.spike={window: 40, action: rollback}", "checkpoint={every: 10, keep: 5}"}, ""},
      {{"train.spike={window: 40, action: rollback}", "checkpoint={every: 10, keep: 3, keep_every: 20}"}, ""},
      {{"train.spike={window: 40, action: rollback}", "checkpoint={every: 30m}"}, ""},
      {{"train.spike={window: 40, action: skip}", "checkpoint={every: 10, keep: 2}"}, ""},
      {{"supervise.elastic={min_data: 2}", "parallel.data=2"},
       "supervise.elastic: min_data is parallel.data: 2, so the run never goes on with fewer"},
      {{"supervise.elastic={min_data: 1}", "parallel.data=2"}, ""},
      {{"train.optimizer.scale_with_batch={base: 8}", "train.optimizer.learning_rate=0.5", "train.global_batch=32"},
       "train.optimizer.scale_with_batch: the learning rate is 2: 0.5 of 8 samples, scaled to 32 (linear)"},
      {{"train.optimizer.scale_with_batch={rule: sqrt, base: 8}", "train.optimizer.learning_rate=0.5",
        "train.global_batch=32"},
       "train.optimizer.scale_with_batch: the learning rate is 1: 0.5 of 8 samples, scaled to 32 (sqrt)"},
      {{"supervise.elastic={min_data: 2}", "parallel.data=auto"}, ""},
      {{"parallel.tensor=4", "parallel.data=3", "launch.ranks_per_node=6"},
       "parallel.tensor: groups of 4 ranks span hosts of 6 (launch.ranks_per_node), which is slow"},
      {{"parallel.tensor=2", "parallel.data=3", "launch.ranks_per_node=6"}, ""},
  };
  for (const Case& one : cases) {
    const std::vector<std::string> notices = load_text(kLeast, one.settings).notices;
    CAPTURE(one.settings.front());
    if (one.notice.empty()) {
      CHECK(notices.empty());
    } else {
      REQUIRE(notices.size() == 1);
      CHECK(notices[0] == one.notice);
    }
  }
  // Beside that the tokens overrule the file's steps. Of these nothing is said: how many they are the noise decides.
  const std::vector<std::string> of_auto =
      load_text(kLeast, {"train.global_batch=auto", "train.batch_auto={min: 8, max: 32}", "train.tokens=1K",
                         "log.gradient_noise={every: 1000}", "train.spike={window: 1000}",
                         "train.optimizer={learning_rate: 1e-3, scale_with_batch: {rule: linear, base: 8}}"})
          .notices;
  REQUIRE(of_auto.size() == 2);
  CHECK(std::find(of_auto.begin(), of_auto.end(),
                  "train.optimizer.scale_with_batch: the learning rate follows the batch, from 0.001 with 8 samples to "
                  "0.004 with 32 (linear)") != of_auto.end());
}

TEST_CASE("an elastic run has no more replicas at least than at most") {
  CHECK(override_errors({"supervise.elastic={min_data: 3}", "parallel.data=2"}) ==
        "--set supervise.elastic={min_data: 3}: supervise.elastic.min_data: 3 replicas at least, but parallel.data is "
        "2; use at most that many");
  CHECK(contains(override_errors({"supervise.elastic={min_data: 0}"}), "out of range"));
  CHECK(contains(override_errors({"supervise.elastic={}"}), "supervise.elastic.min_data: is missing"));
}

TEST_CASE("a warm-up that nobody names is a twentieth of the run, at most 2000 steps") {
  for (const auto& [steps, warmup] : {std::pair{1, 1}, {19, 1}, {100, 5}, {2000, 100}, {40000, 2000}, {900000, 2000}})
    CHECK(default_warmup(steps) == warmup);
  const LoadedConfig loaded = load_text(kLeast, {"train.steps=50"});
  CHECK_FALSE(loaded.config.train.lr_schedule.warmup.has_value());
  CHECK(loaded.notices.empty());
  CHECK(load_text(kLeast, {"train.lr_schedule.warmup=0"}).config.train.lr_schedule.warmup == 0);
  CHECK_FALSE(load_text(kLeast, {"train.lr_schedule.warmup=auto"}).config.train.lr_schedule.warmup.has_value());
}

TEST_CASE("a run folder's config gives way to a shorter run") {
  const std::string resolved = resolved_yaml(load_text(kLeast, {"train.steps=2000"}).config);
  CHECK(contains(resolved, "warmup: auto"));
  CHECK(load_text(resolved, {"train.steps=10"}).config.train.num_steps(16) == 10);
  CHECK(load_text(resolved, {"train.tokens=10K"}).config.train.tokens == 10000);
}

TEST_CASE("a warm-up longer than the run is refused, one that is most of it is told") {
  CHECK(
      contains(override_errors({"train.steps=50", "train.lr_schedule.warmup=51"}),
               "--set train.lr_schedule.warmup=51: train.lr_schedule.warmup: warm-up of 51 steps exceeds the run's 50 "
               "steps; lower warmup, leave it out (auto) or raise steps"));
  const auto notices = [](const std::string& warmup) {
    return load_text(kLeast, {"train.steps=100", "train.lr_schedule.warmup=" + warmup}).notices;
  };
  CHECK(notices("50").empty());
  for (const char* warmup : {"51", "100"}) {
    REQUIRE(notices(warmup).size() == 1);
    CHECK(notices(warmup)[0] == fmt::format("train.lr_schedule.warmup: {} of the run's 100 steps are warm-up; set a "
                                            "smaller number, or auto (5)",
                                            warmup));
  }
}

TEST_CASE("a warm-up longer than a run in tokens that begins is told before the run refuses it") {
  // 5 steps of 8 samples of 16 tokens.
  const auto notices = [](const std::string& warmup) {
    return load_text(kLeast, {"train.steps=null", "train.tokens=640", "train.global_batch=8", "model.context=16",
                              "train.lr_schedule.warmup=" + warmup})
        .notices;
  };
  CHECK(notices("2").empty());
  REQUIRE(notices("6").size() == 1);
  CHECK(notices("6")[0] ==
        "train.lr_schedule.warmup: a run that begins would be refused, because its train.tokens: 640 are 5 steps and 6 "
        "are warm-up (one that is resumed may have more steps); lower train.lr_schedule.warmup, leave it out (auto) or "
        "raise train.tokens");
  REQUIRE(notices("5").size() == 1);
  CHECK(contains(notices("5")[0], "5 of the run's 5 steps are warm-up"));
}

TEST_CASE("an override of one of steps and tokens beats the file's other one") {
  const LoadedConfig tokens = load_text(kLeast, {"train.tokens=1M"});
  CHECK(tokens.config.train.tokens == 1000000);
  CHECK_FALSE(tokens.config.train.steps.has_value());
  REQUIRE(tokens.notices.size() == 1);
  CHECK(tokens.notices[0] == "train.steps: the file's value is not used: train.tokens is overridden");
  const LoadedConfig steps = load_text(resolved_yaml(tokens.config), {"train.steps=9"});
  CHECK(steps.config.train.steps == 9);
  CHECK_FALSE(steps.config.train.tokens.has_value());
  CHECK(contains(override_errors({"train.steps=9", "train.tokens=1M"}), "steps and tokens are both set"));
  const LoadedConfig epochs = load_text(resolved_yaml(tokens.config), {"train.epochs=1.5"});
  CHECK(epochs.config.train.epochs == 1.5);
  CHECK_FALSE(epochs.config.train.tokens.has_value());
  CHECK(epochs.config.train.length_key() == std::string("train.epochs"));
  CHECK(load_text(resolved_yaml(epochs.config), {"train.steps=9"}).config.train.steps == 9);
  CHECK(load_text(resolved_yaml(epochs.config), {}).config.train.epochs == 1.5);
}

TEST_CASE("phases come in their order, unfreeze what is frozen, and are told where the run never comes to them") {
  const std::string freeze = "finetune.freeze=[blocks.*]";
  const std::string first = "{step: 3, patterns: [blocks.1.*]}";
  CHECK(override_errors({freeze, "finetune.unfreeze=[" + first + ", {step: 9, patterns: [blocks.0.*]}]"}) ==
        "accepted");
  CHECK(contains(override_errors({freeze, "finetune.unfreeze=[" + first + ", {step: 3, patterns: [blocks.0.*]}]"}),
                 "finetune.unfreeze.1.step: 3 does not come behind the 3 of the phase before"));
  CHECK(contains(override_errors({"finetune.unfreeze=[" + first + "]"}),
                 "finetune.unfreeze: nothing is frozen that could join"));
  CHECK(
      contains(override_errors({freeze, "finetune.unfreeze=[{step: 3}]"}), "finetune.unfreeze.0.patterns: is missing"));
  CHECK(contains(override_errors({freeze, "finetune.unfreeze=[{step: 3, patterns: []}]"}),
                 "finetune.unfreeze.0.patterns: is empty: name the parameters that join, or remove the phase"));
  CHECK(contains(override_errors({freeze, "finetune.unfreeze=[{step: 0, patterns: [blocks.0.*]}]"}),
                 "finetune.unfreeze.0.step"));
  const auto notices = [&](const std::string& steps) {
    return load_text(kLeast, {freeze, "finetune.unfreeze=[" + first + "]", "train.steps=" + steps}).notices;
  };
  CHECK(notices("4").empty());
  REQUIRE(notices("3").size() == 1);
  CHECK(contains(notices("3")[0], "what joins after 3 steps is never trained, because the run has 3"));
}

TEST_CASE(
    "the rate and the decay of adafactor are those of a step in proportion to the tensor, unless they are given") {
  const auto optimizer_of = [](std::vector<std::string> given) {
    given.emplace_back("train.optimizer.type=adafactor");
    return load_text(kLeast, given).config.train.optimizer;
  };
  CHECK(optimizer_of({}).learning_rate == 1e-2);
  CHECK(optimizer_of({}).weight_decay == 0);
  CHECK(optimizer_of({"train.optimizer.learning_rate=6e-4"}).learning_rate == 6e-4);
  CHECK(optimizer_of({"train.optimizer.weight_decay=0.1"}).weight_decay == 0.1);
}

TEST_CASE("keys that nothing would read are refused, their defaults are not") {
  struct Case {
    std::vector<std::string> settings;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{"train.optimizer.type=sgd", "train.optimizer.betas=[0.9, 0.99]"},
       "betas: has no effect: it is only for train.optimizer.type adamw, lion, lamb, ademamix and muon; this one is "
       "sgd; "
       "remove the key, or change train.optimizer.type"},
      {{"train.optimizer.type=lion", "train.optimizer.epsilon=1e-6"},
       "epsilon: has no effect: it is only for train.optimizer.type adamw, lamb, ademamix and muon; this one is lion"},
      {{"train.optimizer.momentum=0.9"},
       "momentum: has no effect: it is only for train.optimizer.type sgd, lars and muon; this one is adamw"},
      {{"train.optimizer.type=lars", "train.optimizer.nesterov=true"},
       "nesterov: has no effect: it is only for train.optimizer.type sgd and muon; this one is lars"},
      {{"train.optimizer.type=lamb", "train.optimizer.trust_coefficient=0.1"},
       "trust_coefficient: has no effect: it is only for train.optimizer.type lars; this one is lamb"},
      {{"train.optimizer.alpha=2"}, "alpha: has no effect: it is only for train.optimizer.type ademamix"},
      {{"train.optimizer.beta3=0.9"}, "beta3: has no effect: it is only for train.optimizer.type ademamix"},
      {{"train.optimizer.slow_warmup=9"}, "slow_warmup: has no effect: it is only for train.optimizer.type ademamix"},
      {{"train.optimizer.type=sgd", "train.optimizer.nesterov=true"},
       "train.optimizer.nesterov: there is no momentum for it: set train.optimizer.momentum"},
      {{"run.device=cuda", "train.optimizer.type=lamb", "train.optimizer.offload=host"},
       "train.optimizer.offload: host is not possible with lamb, whose step follows from the norms of whole tensors"},
      {{"run.device=cuda", "train.optimizer.type=lars", "train.optimizer.offload=host"},
       "train.optimizer.offload: host is not possible with lars"},
      {{"run.device=cuda", "train.optimizer.type=muon", "train.optimizer.offload=host"},
       "train.optimizer.offload: host is not possible with muon, which orthogonalises whole matrices"},
      {{"train.optimizer.step_scale=original"},
       "step_scale: has no effect: it is only for train.optimizer.type muon; this one is adamw"},
      {{"run.device=cuda", "train.optimizer.type=adafactor", "train.optimizer.offload=host"},
       "train.optimizer.offload: host is not possible with adafactor, whose step follows from the norms of whole"},
      {{"train.optimizer.type=adafactor", "train.optimizer.betas=[0.9, 0.99]"},
       "betas: has no effect: it is only for train.optimizer.type adamw, lion, lamb, ademamix and muon; this one is "
       "adafactor"},
      {{"train.optimizer.beta2_exponent=0.5"},
       "beta2_exponent: has no effect: it is only for train.optimizer.type adafactor; this one is adamw"},
      {{"train.optimizer.clip_threshold=2"},
       "clip_threshold: has no effect: it is only for train.optimizer.type adafactor; this one is adamw"},
      {{"train.optimizer.type=muon", "train.optimizer.smallest_scale=0.01"},
       "smallest_scale: has no effect: it is only for train.optimizer.type adafactor; this one is muon"},
      {{"train.optimizer.type=lion", "train.optimizer.adamw_rate=2"},
       "adamw_rate: has no effect: it is only for train.optimizer.type muon; this one is lion"},
      {{"train.optimizer.type=lion", "train.optimizer.state=int8"},
       "train.optimizer.state: int8 is not supported yet with lion: leave it out, or take adamw"},
      {{"run.device=cuda", "train.optimizer.state=int8", "train.optimizer.offload=host"},
       "train.optimizer.offload: host is not supported yet with train.optimizer.state: int8"},
      {{"model.rope_theta=5e5"},
       "--set model.rope_theta=5e5: model.rope_theta: has no effect: it is only for model.position rope"},
      {{"model.rope_scaling.type=linear", "model.rope_scaling.factor=2"},
       "model.rope_scaling.type: linear is only for model.position rope; this one is learned"},
      {{"model.position=rope", "model.rope_scaling.factor=2"},
       "factor: has no effect: it is only for model.rope_scaling.type linear and llama3; this one is none"},
      {{"model.position=rope", "model.rope_scaling={type: linear, factor: 2, original_context: 99}"},
       "original_context: has no effect: it is only for model.rope_scaling.type llama3; this one is linear"},
      {{"model.position=rope", "model.rope_scaling={type: linear, factor: 2, low_frequency_factor: 3}"},
       "low_frequency_factor: has no effect: it is only for model.rope_scaling.type llama3"},
      {{"model.position=rope", "model.rope_scaling={type: linear, factor: 2, high_frequency_factor: 3}"},
       "high_frequency_factor: has no effect: it is only for model.rope_scaling.type llama3"},
      {{"model.position=rope", "model.rope_scaling.type=llama3"},
       "model.rope_scaling.factor: 1 changes nothing: say what frequencies are divided by"},
      {{"model.position=rope", "model.rope_scaling={type: llama3, factor: 8, low_frequency_factor: 4}"},
       "model.rope_scaling.low_frequency_factor: 4 is no less than high_frequency_factor 4"},
      {{"train.lr_schedule.type=constant", "train.lr_schedule.min_ratio=0.2"},
       "min_ratio: has no effect: it is only for a train.lr_schedule.type that falls"},
      {{"train.lr_schedule.decay_steps=5"},
       "decay_steps: has no effect: it is only for train.lr_schedule.type wsd; this one is cosine"},
      {{"train.lr_schedule.decay_share=0.5"}, "decay_share: has no effect: it is only for train.lr_schedule.type wsd"},
      {{"train.lr_schedule.decay_shape=1-sqrt"},
       "decay_shape: has no effect: it is only for train.lr_schedule.type wsd"},
      {{"train.lr_schedule={type: wsd, decay_steps: 5, decay_share: 0.5}"},
       "decay_share: has no effect: decay_steps says how long the decay is"},
      {{"train.lr_schedule={type: wsd, restart_steps: 5}"},
       "restart_steps: has no effect: it is only for train.lr_schedule.type cosine_restarts; this one is wsd"},
      {{"train.lr_schedule.restart_factor=2"},
       "restart_factor: has no effect: it is only for train.lr_schedule.type cosine_restarts"},
      {{"train.steps=100", "train.lr_schedule={type: wsd, warmup: 20, decay_steps: 81}"},
       "train.lr_schedule.decay_steps: a decay of 81 steps is longer than the 80 that the run has behind its warm-up"},
      {{"evaluate.ema=true"}, "evaluate.ema: there is no average to evaluate: add train.ema"},
      {{"train.global_batch=8", "train.batch_ramp={from: 8, by: 2, steps: 5}"},
       "train.batch_ramp.from: 8 is no smaller than train.global_batch 8"},
      {{"train.global_batch=8", "train.batch_ramp={from: 3, by: 2, steps: 5}"},
       "train.batch_ramp.by: 2 does not divide 5, which is train.global_batch 8 less `from` 3"},
      {{"train.global_batch=8", "train.batch_ramp={from: 2, by: 2, steps: 2}"},
       "train.batch_ramp.steps: 2 steps are fewer than the 3 times that the batch is to grow"},
      {{"train.global_batch=8", "train.epochs=1", "train.batch_ramp={from: 2, by: 2, steps: 9}"},
       "train.batch_ramp: the length of a run whose batch grows is not counted in epochs yet"},
      {{"train.global_batch=1", "log.gradient_noise={}"},
       "log.gradient_noise: it is measured from the two halves of a batch, and train.global_batch: 1 has none"},
      {{"train.global_batch=auto", "train.tokens=1M", "log.gradient_noise={}"},
       "train.global_batch: auto needs bounds: add train.batch_auto: {min: 64, max: 1024}"},
      {{"train.batch_auto={min: 4, max: 8}"}, "train.batch_auto: it bounds train.global_batch: auto; write that"},
      {{"train.global_batch=auto", "train.batch_auto={min: 4, max: 24}", "train.tokens=1M", "log.gradient_noise={}"},
       "train.batch_auto.max: 24 is not `min` 4 doubled some times; use 16 or 32"},
      {{"train.global_batch=auto", "train.batch_auto={min: 4, max: 2}", "train.tokens=1M", "log.gradient_noise={}"},
       "train.batch_auto.max: 2 is below `min` 4"},
      {{"train.global_batch=auto", "train.batch_auto={min: 1, max: 8}", "train.tokens=1M", "log.gradient_noise={}"},
       "train.batch_auto.min: 1 is out of range"},
      {{"train.global_batch=auto", "train.batch_auto={max: 8}", "train.tokens=1M", "log.gradient_noise={}"},
       "train.batch_auto.min: is missing"},
      {{"train.global_batch=auto", "train.batch_auto={min: 4, max: 8}", "train.tokens=1M"},
       "train.global_batch: auto follows the gradient noise scale, which is not measured: add log.gradient_noise: {}"},
      {{"train.global_batch=auto", "train.batch_auto={min: 4, max: 8}", "train.steps=9", "log.gradient_noise={}"},
       "train.steps: how many steps a run has whose batch is auto is not known before; give train.tokens"},
      {{"train.global_batch=auto", "train.batch_auto={min: 4, max: 8}", "train.epochs=1", "log.gradient_noise={}"},
       "train.epochs: how many steps a run has whose batch is auto is not known before; give train.tokens"},
      {{"train.global_batch=auto", "train.batch_auto={min: 4, max: 8}", "train.tokens=1M", "log.gradient_noise={}",
        "train.batch_ramp={from: 4, by: 4, steps: 5}"},
       "train.batch_ramp: a batch that is auto has no ramp; remove one of the keys"},
      {{"train.global_batch=auto", "train.batch_auto={min: 4, max: 8}", "train.tokens=1M", "log.gradient_noise={}",
        "train.optimizer={type: ademamix}"},
       "train.optimizer.slow_warmup: auto is the run's steps, which are not known before"},
      {{"train.global_batch=null"}, "train.global_batch: expected"},
      {{"log.gradient_noise={every: 0}"}, "log.gradient_noise.every: 0 is out of range"},
      {{"log.gradient_noise={decay: 1}"}, "log.gradient_noise.decay: 1 is out of range"},
      {{"log.noise_scale=true"}, "log.noise_scale"},
      {{"train.optimizer.scale_with_batch={rule: sqrt}"}, "train.optimizer.scale_with_batch.base: is missing"},
      {{"model.init.from=x", "model.init.type=he"}, "model.init.type: has no effect: model.init.from brings"},
      {{"model.init.from=x", "model.init.std=0.5"}, "model.init.std: has no effect"},
      {{"model.init.from=x", "model.init.scale_residual=false"}, "model.init.scale_residual: has no effect"},
      {{"model.grow.identity=false"}, "model.grow.identity: has no effect: it is only for model.grow.order stack or"},
      {{"model.grow.order=stack"}, "model.grow.order: there is nothing to grow from: name a Hugging Face folder"},
      {{"model.init.from=x", "model.grow.order=stack", "finetune.lora={targets: [q_proj]}"},
       "model.grow.order: adapters are for a model as it lies in its folder"},
      {{"model.init.from=x", "model.preset=gemma3-1b", "model.grow.order=interleave"},
       "model.grow.order: layers between others change which of them have a window"},
  };
  for (const Case& bad : cases) {
    const std::string report = override_errors(bad.settings);
    CHECK_MESSAGE(contains(report, bad.message), report);
    CHECK_MESSAGE(line_count(report) == 1, report);
  }
  CHECK(override_errors({"train.optimizer={type: sgd, betas: [0.9, 0.95], epsilon: 1e-8}"}) == "accepted");
  CHECK(override_errors({"train.optimizer={type: sgd, momentum: 0.9, nesterov: true}"}) == "accepted");
  CHECK(override_errors({"train.optimizer={type: lars, momentum: 0.9, trust_coefficient: 0.01}"}) == "accepted");
  CHECK(override_errors({"train.optimizer={type: ademamix, alpha: 2, beta3: 0.99, slow_warmup: 0}"}) == "accepted");
  CHECK(override_errors({"train.lr_schedule={type: constant, min_ratio: 0.1}"}) == "accepted");
  CHECK(override_errors({"train.lr_schedule={type: wsd, decay_steps: 5, decay_shape: 1-sqrt}"}) == "accepted");
  CHECK(override_errors({"train.lr_schedule={type: cosine_restarts, restart_steps: 5, restart_factor: 2}"}) ==
        "accepted");
  CHECK(override_errors({"train.lr_schedule={type: inverse_sqrt, min_ratio: 0}"}) == "accepted");
  CHECK(override_errors({"model.init={type: xavier, scale_residual: true}"}) == "accepted");
  CHECK(override_errors({"train.ema={decay: 0.9}", "evaluate.ema=true"}) == "accepted");
  CHECK(override_errors({"train.global_batch=8", "train.batch_ramp={from: 2, by: 2, steps: 9}"}) == "accepted");
  CHECK(override_errors({"train.global_batch=auto", "train.batch_auto={min: 4, max: 4}", "train.tokens=1M",
                         "log.gradient_noise={}"}) == "accepted");
  CHECK(override_errors({"train.lr_schedule={type: linear, min_ratio: 0.2}"}) == "accepted");
  CHECK(override_errors({"model.position=rope", "model.rope_theta=5e5"}) == "accepted");
  CHECK(override_errors({"model.preset=llama-8b", "model.position=learned"}) == "accepted");
  CHECK(override_errors({"model.preset=llama-8b", "model.position=learned", "model.rope_theta=500K"}) == "accepted");
  CHECK(override_errors({"model.position=rope", "model.rope_scaling={type: llama3, factor: 8}"}) == "accepted");
  CHECK(override_errors({"model.preset=llama-3.2-1b", "model.rope_scaling={type: none}"}) == "accepted");
  // The embeddings are normal whatever the type of the matrices.
  CHECK(override_errors({"model.init={type: xavier, std: 0.1}"}) == "accepted");
}

TEST_CASE("the vocabulary holds the bytes and is not much larger unnoticed") {
  CHECK(contains(override_errors({"model.vocab=256"}), "--set model.vocab=256: model.vocab: 256 is too small"));
  CHECK(load_text(kLeast, {"model.vocab=257"}).notices.empty());
  CHECK(load_text(kLeast).notices.empty());
  const LoadedConfig larger = load_text(kLeast, {"model.vocab=258"});
  REQUIRE(larger.notices.size() == 1);
  CHECK(larger.notices[0] ==
        "model.vocab 258 is larger than the tokenizer's 257; set model.vocab: auto unless that is meant");
  const LoadedConfig preset = load_text(kLeast, {"model.preset=gpt2-124m"});
  REQUIRE(preset.notices.size() == 1);
  CHECK(contains(preset.notices[0], "model.vocab 50257 (from the preset) is larger"));
  CHECK(load_text(kLeast, {"model.vocab=258", "data.train.0.type=tokens"}).notices.empty());
  CHECK(load_text(kLeast, {"model.vocab=100", "data.tokenizer.type=ids", "data.train.0.type=tokens"}).notices.empty());
}

TEST_CASE("a heartbeat too short for the workers' reports is refused with its remedy") {
  CHECK(contains(override_errors({"supervise.heartbeat=0.5s"}),
                 "supervise.heartbeat: 0.5 s is too short to tell a hung worker from a busy one; at least 1 s"));
  CHECK(override_errors({"supervise.heartbeat=1s"}) == "accepted");
}

TEST_CASE("ranges hold") {
  for (const char* text : {"model.layers=0",
                           "model.layers=5000",
                           "model.norm_epsilon=0",
                           "model.dropout=1",
                           "train.optimizer.betas=[1, 0]",
                           "train.optimizer.betas=[0.9]",
                           "train.optimizer.learning_rate=-1",
                           "train.lr_schedule.min_ratio=1.1",
                           "train.clip_norm=0",
                           "checkpoint.keep=1",
                           "train.spike={window: 7}",
                           "train.spike={zscore: 0}",
                           "train.spike={action: stop}",
                           "launch.ranks_per_node=0",
                           "checkpoint.keep_every=0",
                           "parallel.zero=4",
                           "launch.port=65536",
                           "log.every=0",
                           "evaluate.batches=-1",
                           "supervise.heartbeat=0s",
                           "supervise.heartbeat=0.9s",
                           "train.micro_batch=0",
                           "model.vocab=0",
                           "run.name=..",
                           "train.global_batch=9223372036854775807",
                           "model.context=0"})
    CHECK_MESSAGE(override_errors({text}) != "accepted", text);
}

TEST_CASE("an_override_beats_values_of_the_file_that_it_leaves_without_effect") {
  const std::string file =
      "data: {train: [{path: a}]}\ntrain: {steps: 200, lr_schedule: {type: cosine, min_ratio: 0.2}}\n";
  const LoadedConfig loaded = load_text(file, {"train.lr_schedule.type=constant"});
  REQUIRE(loaded.notices.size() == 1);
  CHECK(loaded.notices[0] ==
        "train.lr_schedule.min_ratio: the file's value is not used: it is only for a train.lr_schedule.type that "
        "falls; this one is constant");
  CHECK(loaded.config.train.lr_schedule.min_ratio == LrScheduleConfig().min_ratio);
  CHECK(load_text(resolved_yaml(loaded.config)).notices.empty());
  // Both in the file, or both on the command line, contradict each other.
  CHECK(contains(errors_of("data: {train: [{path: a}]}\ntrain: {steps: 9, lr_schedule: {type: constant, min_ratio: "
                           "0.2, warmup: 1}}\n"),
                 "remove the key, or change train.lr_schedule.type"));
  CHECK(contains(override_errors({"train.lr_schedule.type=constant", "train.lr_schedule.min_ratio=0.2"}),
                 "remove the key, or change train.lr_schedule.type"));
  const LoadedConfig sgd =
      load_text("data: {train: [{path: a}]}\ntrain: {steps: 200, optimizer: {betas: [0.8, 0.9]}}\n",
                {"train.optimizer.type=sgd"});
  CHECK(sgd.notices.size() == 1);
  CHECK(sgd.config.train.optimizer.beta1 == OptimizerConfig().beta1);
  CHECK(sgd.config.train.optimizer.beta2 == OptimizerConfig().beta2);
}

TEST_CASE("names_of_pipelines_in_other_trainers_lead_to_ours") {
  CHECK(contains(override_errors({"parallel.virtual_pipeline=2"}), "did you mean parallel.chunks?"));
  CHECK(contains(override_errors({"parallel.schedule=zero-bubble"}), "did you mean zb-h1?"));
  CHECK(contains(override_errors({"parallel.schedule=ZERO_BUBBLE"}), "did you mean zb-h1?"));
  CHECK(contains(override_errors({"precision.compute=bfloat16"}), "did you mean bf16?"));
  CHECK_FALSE(contains(override_errors({"model.position=zero-bubble"}), "did you mean"));  // of another key
}
