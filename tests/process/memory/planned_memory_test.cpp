// The memory that a plan promises is what training takes: the peak of each rank's resident memory grows by what
// `scaletrain check` would say, in processes that do nothing else.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "config/keys/keys.h"
#include "support/ranks/training_ranks.h"

namespace scaletrain {
namespace {

struct Sizes {
  std::int64_t layers, hidden, context;
};

Config config_of(const Sizes& sizes, Precision precision) {
  Config config;
  config.model.layers = sizes.layers;
  config.model.hidden = sizes.hidden;
  config.model.heads = sizes.hidden / 64;
  config.model.kv_heads = config.model.heads;
  config.model.ffn_hidden = 4 * sizes.hidden;
  config.model.vocab = 8192;
  config.model.context = sizes.context;
  config.train.steps = 10;
  config.train.micro_batch = 1;
  config.train.global_batch = 1;
  config.train.lr_schedule.warmup = 2;
  config.checkpoint.background = false;  // nothing is saved
  config.precision.compute = precision;
  config.parallel.zero = 0;
  return config;
}

// Not more than planned, but for what a process takes beside it, and not much less. The plan has 8 MiB of what oneDNN
// may take for a product, where it multiplies, which it does not for every shape on every processor, and 4 MiB of what
// threads pack for each other, which few tokens do not fill: of plans of these sizes, up to 2.8 %.
void check_memory(const Config& config) {
  constexpr std::uint64_t smallest_plan = 360'000'000;  // without packed weights, as AVX2 has them, the smallest
  TrainingRanks ranks(config);
  for (int step = 0; step < 2; ++step) ranks.step();
  for (const TrainingRanks::Memory& memory : ranks.memory()) {
    CAPTURE(memory.grown);
    CAPTURE(memory.planned);
    CHECK(memory.planned >= smallest_plan);
    CHECK(memory.ratio() >= 0.97);
    CHECK(memory.ratio() <= 1.01);
  }
}

}  // namespace

// What a bench divides a step by. How long each is, is no test's business.
TEST_CASE("ranks tell of each step how long they waited for others, which one alone never does") {
  Config config = config_of({.layers = 2, .hidden = 64, .context = 32}, Precision::fp32);
  config.train.global_batch = 2;
  for (const std::int64_t data : {1, 2}) {
    CAPTURE(data);
    config.parallel.data = data;
    TrainingRanks ranks(config);
    const TrainingRanks::Step step = ranks.step();
    REQUIRE(step.waiting.size() == static_cast<std::size_t>(data));
    for (std::size_t rank = 0; rank < step.waiting.size(); ++rank) {
      CHECK((step.waiting[rank] > 0) == (data > 1));
      CHECK(step.waiting[rank] <= step.own[rank]);
      CHECK(step.own[rank] <= step.seconds);
    }
  }
}

// Narrow, so that activations are a good part of all.
TEST_CASE("a rank's memory is the planned one, with and without recomputation") {
  struct Case {
    Precision precision;
    RecomputeKind recompute;
  };
  for (const Case& one : {Case{Precision::fp32, RecomputeKind::none}, Case{Precision::fp32, RecomputeKind::selective},
                          Case{Precision::fp32, RecomputeKind::full}, Case{Precision::bf16, RecomputeKind::selective},
                          Case{Precision::bf16, RecomputeKind::full}}) {
    CAPTURE(std::string(to_text(one.precision)));
    CAPTURE(std::string(to_text(one.recompute)));
    Config config = config_of({.layers = 20, .hidden = 320, .context = 192}, one.precision);
    config.train.recompute = one.recompute;
    check_memory(config);
  }
}

// Activations of several micro-batches are held at once on a pipeline, and divided by a tensor group.
TEST_CASE("the memory of two ranks that recompute is the planned one") {
  struct Case {
    RecomputeKind recompute;
    std::int64_t tensor, pipeline;
  };
  for (const Case& one : {Case{RecomputeKind::selective, 1, 2}, Case{RecomputeKind::full, 2, 1}}) {
    CAPTURE(std::string(to_text(one.recompute)));
    Config config = config_of({.layers = 30, .hidden = 384, .context = 192}, Precision::bf16);
    config.train.recompute = one.recompute;
    config.parallel.tensor = one.tensor;
    config.parallel.pipeline = one.pipeline;
    config.train.global_batch = 4;
    check_memory(config);
  }
}

// Wide and of few tokens: what ZeRO divides is nearly all.
TEST_CASE("the memory of two replicas is the planned one, whatever ZeRO divides") {
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    CAPTURE(zero);
    Config config = config_of({.layers = 10, .hidden = 512, .context = 32}, Precision::bf16);
    config.parallel.data = 2;
    config.parallel.zero = zero;
    config.train.global_batch = 4;  // two micro-batches each
    check_memory(config);
  }
}

// In fp32 masters are the compute weights: 8Ψ + 8Ψ/N bytes and 16Ψ/N, with no copy of the weights beside them.
TEST_CASE("the memory of two replicas in fp32 is the planned one, without a copy of the masters") {
  for (const std::int64_t zero : {1, 3}) {
    CAPTURE(zero);
    Config config = config_of({.layers = 14, .hidden = 512, .context = 32}, Precision::fp32);
    config.parallel.data = 2;
    config.parallel.zero = zero;
    config.train.global_batch = 4;
    check_memory(config);
  }
}

// Four fifths of the layers, all of them before the first that trains: no masters, and nothing saved in them.
TEST_CASE("the memory of a rank whose first layers are frozen in bf16 is the planned one") {
  Config config = config_of({.layers = 20, .hidden = 512, .context = 192}, Precision::bf16);
  config.finetune.freeze = {"embedding.*", "blocks.?.*",  "blocks.10.*", "blocks.11.*",
                            "blocks.12.*", "blocks.13.*", "blocks.14.*", "blocks.15.*"};
  check_memory(config);
}

}  // namespace scaletrain
