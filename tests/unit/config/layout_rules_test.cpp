// Rules between the degrees of parallelism, the model, the batch and the number of ranks.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "config_helpers.h"

using namespace scaletrain;

TEST_CASE("batches need not divide, but every replica has a sample") {
  CHECK(override_errors({"train.micro_batch=5"}) == "accepted");
  CHECK(override_errors({"train.micro_batch=64"}) == "accepted");
  CHECK(override_errors({"parallel.data=3"}) == "accepted");
  CHECK(override_errors({"parallel.data=32"}) == "accepted");
  CHECK(override_errors({"parallel.data=auto", "train.global_batch=1"}) == "accepted");
  CHECK(override_errors({"parallel.data=33"}) ==
        "--set parallel.data=33: parallel.data: 33 replicas share the 32 samples of a step (train.global_batch), and "
        "some would never have one; use at most 32, or raise train.global_batch");
}

TEST_CASE("every tensor rank has a row of the shortest micro-batch, where they share its rows") {
  const auto with = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"parallel.tensor=4", "parallel.sequence=true"});
    return override_errors(settings);
  };
  CHECK(with({"model.context=1", "train.micro_batch=4"}) == "accepted");
  CHECK(with({"model.context=4", "train.micro_batch=1"}) == "accepted");
  CHECK(with({"model.context=3", "train.micro_batch=1"}) ==
        "--set parallel.sequence=true: parallel.sequence: 4 tensor ranks (parallel.tensor) share the 3 tokens of a "
        "micro-batch (1 sample of 3 tokens), and some would never have one; leave parallel.sequence out, lower "
        "parallel.tensor, or raise train.micro_batch");
  CHECK(override_errors({"model.context=3", "train.micro_batch=1", "parallel.tensor=4"}) == "accepted");
  CHECK(override_errors({"model.context=1", "train.micro_batch=1", "parallel.sequence=true"}) == "accepted");
  // A replica's share of the batch is what a micro-batch has at most: here 3 of 9, or 4 of 5 in two of 3 each.
  CHECK(contains(with({"model.context=1", "train.micro_batch=8", "train.global_batch=9", "parallel.data=3"}),
                 "share the 3 tokens of a micro-batch (3 samples of 1 token), and some would never have one; leave "
                 "parallel.sequence out, lower parallel.tensor, or raise train.global_batch"));
  CHECK(
      contains(with({"model.context=1", "train.micro_batch=4", "train.global_batch=5"}), "or raise train.micro_batch"));
  // A batch that grows has micro-batches of the same shape in all steps, and evaluations have them too.
  CHECK(with({"model.context=2", "train.micro_batch=2", "train.batch_ramp={from: 1, by: 1, steps: 50}"}) == "accepted");
  // The samples of a phase may be shorter.
  CHECK(contains(errors_of("data: {train: [{path: corpus.txt}]}\nmodel: {context: 8}\n"
                           "phases: [{steps: 3}, {steps: 4, context: 2}]\n",
                           {"parallel.tensor=4", "parallel.sequence=true", "train.micro_batch=1"}),
                 "share the 2 tokens of a micro-batch (1 sample of 2 tokens)"));
}

TEST_CASE("options of a pipeline that contradict each other are refused") {
  CHECK(override_errors({"parallel.chunks=2"}) ==
        "--set parallel.chunks=2: parallel.chunks: 2 chunks per stage, but parallel.schedule is 1f1b, which has one; "
        "set parallel.schedule: interleaved or parallel.chunks: 1");
  CHECK(contains(override_errors({"parallel.chunks=2", "parallel.schedule=gpipe", "parallel.pipeline=2"}),
                 "but parallel.schedule is gpipe"));
  CHECK(override_errors({"parallel.schedule=interleaved", "parallel.pipeline=2"}) ==
        "--set parallel.schedule=interleaved: parallel.schedule: interleaved with one chunk per stage is 1f1b; set "
        "parallel.chunks: 2 or more, or parallel.schedule: 1f1b");
  CHECK(override_errors({"parallel.schedule=interleaved", "parallel.pipeline=2", "parallel.chunks=2"}) == "accepted");
  // One rank instead of many is a matter of overrides, and no mistake.
  CHECK(override_errors({"parallel.schedule=interleaved", "parallel.pipeline=1", "parallel.chunks=2"}) == "accepted");
}

TEST_CASE("hosts are filled with ranks") {
  CHECK(override_errors({"launch.ranks_per_node=8", "parallel.data=4", "parallel.tensor=2", "parallel.pipeline=2"}) ==
        "accepted");
  CHECK(override_errors({"launch.ranks_per_node=8", "parallel.data=auto"}) == "accepted");
  CHECK(override_errors({"launch.ranks_per_node=8", "parallel.data=3", "parallel.tensor=2"}) ==
        "--set launch.ranks_per_node=8: launch.ranks_per_node: data 3 x tensor 2 x pipeline 1 = 6 ranks do not fill "
        "hosts of 8 ranks; change a degree, or set launch.ranks_per_node: auto");
}

TEST_CASE("stage_layers covers the model") {
  CHECK(override_errors({"parallel.stage_layers=[12]"}) == "accepted");
  CHECK(override_errors({"parallel.stage_layers=[5, 7]", "parallel.pipeline=2"}) == "accepted");
  CHECK(override_errors({"parallel.stage_layers=[0, 12, 0]", "parallel.pipeline=3"}) == "accepted");
  CHECK(contains(override_errors({"parallel.stage_layers=[6, 6]"}),
                 "2 numbers, but parallel.pipeline 1 x parallel.chunks 1 = 1; write one for each, or auto"));
  CHECK(contains(override_errors({"parallel.stage_layers=[11]"}),
                 "parallel.stage_layers: the numbers sum to 11, but model.layers is 12; they must be equal"));
  CHECK(contains(override_errors({"parallel.stage_layers=[13]"}), "number 1 is 13, expected 0 to 12 (model.layers)"));
  CHECK(
      contains(override_errors({"parallel.stage_layers=[5, 0, 7]", "parallel.pipeline=3"}),
               "parallel.stage_layers: number 2 is 0, and that part of the pipeline has neither the embedding nor the "
               "head: it would hold nothing; give it a layer"));
  CHECK(contains(override_errors({"parallel.stage_layers=[a]"}), "item 0: expected an integer"));
}

TEST_CASE("groups that ZeRO divides among are of equal size, and there is something to divide") {
  CHECK(override_errors({"parallel.data=4", "parallel.zero_group=2"}) == "accepted");
  CHECK(override_errors({"parallel.data=4", "parallel.zero_group=4", "parallel.zero=3"}) == "accepted");
  CHECK(override_errors({"parallel.data=auto", "parallel.zero_group=4"}) == "accepted");
  CHECK(contains(override_errors({"parallel.data=4", "parallel.zero_group=3"}),
                 "parallel.zero_group: groups of 3 replicas do not divide the 4 of parallel.data; use a divisor from 2 "
                 "on, or auto"));
  CHECK(contains(override_errors({"parallel.data=4", "parallel.zero_group=8"}), "do not divide the 4"));
  CHECK(contains(override_errors({"parallel.data=4", "parallel.zero_group=1"}), "parallel.zero_group"));
  CHECK(contains(override_errors({"parallel.data=4", "parallel.zero_group=2", "parallel.zero=0"}),
                 "parallel.zero_group: 2 replicas divide nothing at parallel.zero: 0; set parallel.zero: 1 to 3, or "
                 "parallel.zero_group: auto"));
  CHECK(contains(override_errors({"parallel.data=4", "parallel.zero_group=2", "supervise.elastic={min_data: 2}"}),
                 "groups of 2 replicas do not divide every number that supervise.elastic may go on with"));
}

TEST_CASE("gradients by the step are for ZeRO stage 3 alone") {
  CHECK(override_errors({"parallel.data=2", "parallel.zero=3", "parallel.zero_reduce=step"}) == "accepted");
  CHECK(override_errors({"parallel.data=2", "parallel.zero=2", "parallel.zero_reduce=use"}) == "accepted");
  for (const char* zero : {"parallel.zero=0", "parallel.zero=1"})
    CHECK(contains(override_errors({"parallel.data=2", zero, "parallel.zero_reduce=step"}),
                   "stages 0 and 1 sum gradients once a step anyway, and 2 would be 1; set parallel.zero: 3"));
  CHECK(contains(override_errors({"parallel.data=2", "parallel.zero=2", "parallel.zero_reduce=step"}),
                 "set parallel.zero: 1 or 3"));
}

TEST_CASE("errors_of_the_layout_come_together_and_with_those_of_the_rest") {
  const std::vector<std::string> settings = {"parallel.tensor=5", "parallel.pipeline=13", "parallel.data=40",
                                             "train.lr_schedule.warmup=300", "train.clip_norm=0"};
  const std::string report = override_errors(settings);
  CAPTURE(report);
  CHECK(line_count(report) == 5);
  CHECK(contains(
      report, "--set parallel.tensor=5: parallel.tensor: 5 does not divide model.heads: 12; use 1, 2, 3, 4, 6 or 12"));
  CHECK(contains(report, "--set parallel.pipeline=13: parallel.pipeline: 13 stages need as many layers, but "));
  CHECK(contains(report, "--set parallel.data=40: parallel.data: 40 replicas share the 32 samples"));
  CHECK(contains(report, "warm-up of 300 steps exceeds the run's 200"));
  CHECK(contains(report, "train.clip_norm"));
  const std::string stages = override_errors({"parallel.stage_layers=[1, 2, 3]", "parallel.tensor=5"});
  CHECK_MESSAGE(line_count(stages) == 2, stages);
}

TEST_CASE("a_rule_of_the_layout_is_silent_where_one_of_its_keys_is_refused_already") {
  CHECK(line_count(override_errors({"parallel.tensor=a", "model.heads=7", "model.hidden=7"})) == 1);
  CHECK(line_count(override_errors({"parallel.pipeline=0", "parallel.stage_layers=[1, 2]"})) == 1);
}

TEST_CASE("a_world_that_is_known_before_the_config_is_judged_with_the_other_errors") {
  const auto errors = [](const std::vector<std::string>& settings, const WorldSize& world) {
    return message_of<UserError>([&] { load_text(kLeast, settings, {}, {.world = world}); });
  };
  CHECK(errors({"parallel.data=auto", "parallel.tensor=2", "parallel.pipeline=2"}, {8, "--world asks for"}) == "");
  // No key is at fault: the file as a whole is the place.
  CHECK(errors({"parallel.data=auto", "parallel.tensor=2", "parallel.pipeline=2"}, {7, "torchrun has started"}) ==
        "c.yaml: torchrun has started 7 ranks, and parallel.data: auto needs a multiple of tensor 2 x pipeline 2 = 4; "
        "take 4 or 8 ranks, or change a degree");
  CHECK(contains(errors({"parallel.data=auto", "parallel.tensor=4"}, {3, "SLURM has started"}),
                 "SLURM has started 3 ranks, and parallel.data: auto needs a multiple of tensor 4 x pipeline 1 = 4; "
                 "take 4 ranks, or"));
  const std::string both = errors({"parallel.data=2", "parallel.tensor=5"}, {16, "torchrun has started"});
  CAPTURE(both);
  CHECK(line_count(both) == 2);
  CHECK(contains(both,
                 "--set parallel.data=2: parallel: data 2 x tensor 5 x pipeline 1 = 10 ranks, but torchrun has "
                 "started 16 ranks"));
  CHECK(contains(both, "parallel.tensor: 5 does not divide"));
  CHECK(
      contains(errors({}, {2, "torchrun has started"}), "c.yaml: parallel: data 1 x tensor 1 x pipeline 1 = 1 rank,"));
  // What auto becomes is judged too.
  CHECK(contains(errors({"parallel.data=auto"}, {33, "torchrun has started"}), "parallel.data: 33 replicas share"));
  CHECK(contains(errors({"parallel.data=auto", "launch.ranks_per_node=8"}, {12, "--world asks for"}),
                 "= 12 ranks do not fill hosts of 8"));
}
