// Measures what parallelism costs on this machine, with ranks as processes, each pinned to one processor:
//   data      two data-parallel ranks of one thread against one rank of one thread (GPT-2 124M, micro-batch 4), and
//             against two that train by themselves at the same time: what the machine has for two
//   tensor    two tensor-parallel ranks against one, the same batch
//   pipeline  two stages against one rank, 8 micro-batches of one sample
//   bubble    the pipeline bubble of two stages against its formula, for 2, 4 and 8 micro-batches
//   memory    what each rank's peak memory grows by under ZeRO 0 to 3 and with recomputation, against the plan
// The first three say of each rank of the last step how long it waited for others and worked, which is the step.
// A tool, not a test: it asserts nothing. Layouts that are compared are alive at the same time and step by turns.
//
// Usage: bench_parallel [data|tensor|pipeline|bubble|memory]... [--rounds N] [--precision fp32|bf16]
//                       [--transport auto|tcp] [--schedule 1f1b|zb-h1]
// Without a name: all five; without a precision: in both, the bubble in fp32; the schedule is of `pipeline`.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.h"
#include "bench_tools.h"
#include "config/keys/keys.h"
#include "support/ranks/training_ranks.h"

namespace scaletrain {
namespace {

// What the ranks of one layout run.
struct Layout {
  std::string model = "gpt2-124m";  // or "balanced": two stages of equal cost
  Precision precision = Precision::fp32;
  std::int64_t data = 1;
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t zero = 0;
  std::int64_t micro_batch = 4;
  std::int64_t num_micro_batches = 1;
  std::int64_t context = 1024;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  RecomputeKind recompute = RecomputeKind::none;
  RankTransport transport = RankTransport::automatic;
};

Precision parse_precision(const std::string& text) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    if (to_text(precision) == text) return precision;
  throw std::runtime_error("no precision to measure: " + text);
}

ScheduleKind parse_schedule(const std::string& text) {
  for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
    if (to_text(schedule) == text) return schedule;
  throw std::runtime_error("no schedule to measure: " + text);
}

RankTransport parse_transport(const std::string& text) {
  for (const RankTransport transport : {RankTransport::automatic, RankTransport::tcp})
    if (to_text(transport) == text) return transport;
  throw std::runtime_error("no transport to measure: " + text);
}

Config config_of(const Layout& layout) {
  Config config;
  if (layout.model == "balanced") {
    // A vocabulary that is small against the blocks: both stages cost nearly the same.
    config.model.layers = 8;
    config.model.hidden = 512;
    config.model.heads = 8;
    config.model.kv_heads = 8;
    config.model.ffn_hidden = 2048;
    config.model.vocab = 64;
  } else {
    config.model = *find_model_preset(layout.model);
  }
  config.model.context = layout.context;
  config.train.steps = 1000;
  config.train.micro_batch = layout.micro_batch;
  config.train.global_batch = layout.micro_batch * layout.num_micro_batches * layout.data;
  config.train.lr_schedule.warmup = 10;
  config.checkpoint.background = false;  // nothing is saved
  config.precision.compute = layout.precision;
  config.parallel.data = layout.data;
  config.parallel.tensor = layout.tensor;
  config.parallel.pipeline = layout.pipeline;
  config.parallel.zero = layout.zero;
  config.parallel.schedule = layout.schedule;
  config.train.recompute = layout.recompute;
  config.launch.transport = layout.transport;
  if (layout.model == "balanced" && layout.pipeline == 2)
    config.parallel.stage_layers = std::vector<std::int64_t>{4, 4};
  return config;
}

// The steps of one layout.
struct Measured {
  std::vector<double> seconds;
  TrainingRanks::Step last;
};

// Each one's steps, by turns; the first round touches memory and is not counted.
std::vector<Measured> alternate(const std::vector<std::unique_ptr<TrainingRanks>>& all, int rounds) {
  std::vector<Measured> measured(all.size());
  for (int round = 0; round <= rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      measured[i].last = all[i]->step();
      if (round > 0) measured[i].seconds.push_back(measured[i].last.seconds);
    }
  }
  return measured;
}

std::vector<Measured> alternate(const Layout& one, const Layout& two, int rounds) {
  std::vector<std::unique_ptr<TrainingRanks>> all;
  for (const Layout& layout : {one, two}) all.push_back(std::make_unique<TrainingRanks>(config_of(layout)));
  return alternate(all, rounds);
}

double tokens(const Layout& layout) {
  return static_cast<double>(layout.micro_batch * layout.num_micro_batches * layout.data * layout.context);
}

// What two ranks do against what one does, both in tokens per second.
void compare(const std::string& name, const Layout& one, const Layout& two, const std::vector<Measured>& measured) {
  const double alone = tokens(one) / median(measured[0].seconds);
  const double together = tokens(two) / median(measured[1].seconds);
  fmt::print("  {}, {}: one rank {:.1f} tokens/s, two ranks {:.1f} tokens/s: {:.2f} x\n", name, to_text(one.precision),
             alone, together, together / alone);
  fmt::print(
      "    steps of {:.2f} and {:.2f} s; in the last ones the processor computed for {:.2f} and {:.2f} s, {:.2f} s of "
      "other threads\n",
      fmt::join(measured[0].seconds, " "), fmt::join(measured[1].seconds, " "),
      fmt::join(measured[0].last.computing, " "), fmt::join(measured[1].last.computing, " "),
      fmt::join(measured[1].last.others, " "));
  const TrainingRanks::Step& last = measured[1].last;
  for (std::size_t rank = 0; rank < last.own.size(); ++rank)
    fmt::print("    rank {}: {:.2f} s working + {:.2f} s waiting for others = {:.2f} s, its last step\n", rank,
               last.own[rank] - last.waiting[rank], last.waiting[rank], last.own[rank]);
  std::fflush(stdout);
}

void measure_data(Precision precision, RankTransport transport, int rounds) {
  fmt::print("data: GPT-2 124M, T=1024, micro-batch 4, one thread a rank, {} rounds by turns\n", rounds);
  const Layout one{.precision = precision};
  // Two runs beside each other, without a word between them, are what the machine can do: processors share memory,
  // caches and power.
  for (const std::int64_t zero : {0, 1}) {
    const Layout two{.precision = precision, .data = 2, .zero = zero, .transport = transport};
    std::vector<std::unique_ptr<TrainingRanks>> all;
    all.push_back(std::make_unique<TrainingRanks>(config_of(one)));
    all.push_back(std::make_unique<TrainingRanks>(config_of(two)));
    all.push_back(std::make_unique<TrainingRanks>(config_of(one), 2));
    const std::vector<Measured> measured = alternate(all, rounds);
    compare(fmt::format("zero {}", zero), one, two, measured);
    const double apart = 2 * tokens(one) / median(measured[2].seconds);
    fmt::print("    two runs of one rank at once: {:.1f} tokens/s: {:.2f} x; steps of {:.2f} s\n", apart,
               apart * median(measured[0].seconds) / tokens(one), fmt::join(measured[2].seconds, " "));
    std::fflush(stdout);
  }
}

void measure_tensor(Precision precision, RankTransport transport, int rounds) {
  fmt::print("tensor: GPT-2 124M, T=1024, micro-batch 4, one thread a rank, {} rounds by turns\n", rounds);
  const Layout one{.precision = precision};
  const Layout two{.precision = precision, .tensor = 2, .transport = transport};
  compare("tensor 2", one, two, alternate(one, two, rounds));
}

void measure_pipeline(Precision precision, RankTransport transport, ScheduleKind schedule, int rounds) {
  fmt::print("pipeline: GPT-2 124M, T=1024, 8 micro-batches of 1, {}, one thread a stage, {} rounds by turns\n",
             to_text(schedule), rounds);
  const Layout one{.precision = precision, .micro_batch = 1, .num_micro_batches = 8};
  Layout two = one;
  two.pipeline = 2;
  two.schedule = schedule;
  two.transport = transport;
  compare("pipeline 2", one, two, alternate(one, two, rounds));
}

// With t1 one rank's time for a step and t2 that of two stages: the share of the two processors' time that no work of
// the step fills, 1 - t1 / (2 t2). It holds the transfers and the stages' imbalance besides the bubble.
void measure_bubble(int rounds) {
  fmt::print("bubble: 1F1B, two stages of four equal blocks (hidden 512, T=512), one thread a stage, {} rounds\n",
             rounds);
  for (const std::int64_t m : {2, 4, 8}) {
    const Layout one{.model = "balanced", .micro_batch = 2, .num_micro_batches = m, .context = 512};
    Layout two = one;
    two.pipeline = 2;
    const auto measured = alternate(one, two, rounds);
    const double alone = median(measured[0].seconds);
    const double together = median(measured[1].seconds);
    fmt::print("  M={}: one rank {:.3f} s, two stages {:.3f} s: bubble {:.1f} %, formula (P-1)/(M+P-1) {:.1f} %\n", m,
               alone, together, 100 * (1 - alone / (2 * together)), 100.0 / (static_cast<double>(m) + 1));
    std::fflush(stdout);
  }
}

void measure_memory(const std::string& name, const Layout& layout) {
  TrainingRanks ranks(config_of(layout));
  for (int step = 0; step < 3; ++step) ranks.step();
  for (const TrainingRanks::Memory& memory : ranks.memory())
    fmt::print("  {}: {} of {} planned: {:.3f}\n", name, bytes_text(memory.grown), bytes_text(memory.planned),
               memory.ratio());
  std::fflush(stdout);
}

void measure_memory(Precision precision) {
  fmt::print(
      "memory: {}, GPT-2 124M, T=256, micro-batch 1, two replicas, two micro-batches: growth of VmHWM against the "
      "plan\n",
      to_text(precision));
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    measure_memory(
        fmt::format("zero {}", zero),
        {.precision = precision, .data = 2, .zero = zero, .micro_batch = 1, .num_micro_batches = 2, .context = 256});
  }
  fmt::print("memory of recomputation: a small vocabulary, T=512, four micro-batches of 8 on two stages\n");
  for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
    for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full})
      measure_memory(fmt::format("{}, recompute {}", to_text(schedule), to_text(recompute)), {.model = "balanced",
                                                                                              .precision = precision,
                                                                                              .pipeline = 2,
                                                                                              .micro_batch = 8,
                                                                                              .num_micro_batches = 4,
                                                                                              .context = 512,
                                                                                              .schedule = schedule,
                                                                                              .recompute = recompute});
}

int run(const std::vector<std::string>& arguments) {
  const std::vector<std::string> all = {"data", "tensor", "pipeline", "bubble", "memory"};
  std::vector<std::string> names;
  std::vector<Precision> precisions = {Precision::fp32, Precision::bf16};
  RankTransport transport = RankTransport::automatic;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int rounds = 5;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--rounds" && i + 1 < arguments.size()) {
      rounds = std::max(1, std::stoi(arguments[++i]));
    } else if (arguments[i] == "--precision" && i + 1 < arguments.size()) {
      precisions = {parse_precision(arguments[++i])};
    } else if (arguments[i] == "--transport" && i + 1 < arguments.size()) {
      transport = parse_transport(arguments[++i]);
    } else if (arguments[i] == "--schedule" && i + 1 < arguments.size()) {
      schedule = parse_schedule(arguments[++i]);
    } else if (std::find(all.begin(), all.end(), arguments[i]) != all.end()) {
      names.push_back(arguments[i]);
    } else {
      fmt::print(stderr,
                 "usage: bench_parallel [{}]... [--rounds N] [--precision fp32|bf16] [--transport auto|tcp] "
                 "[--schedule 1f1b|zb-h1]\n",
                 fmt::join(all, "|"));
      return 2;
    }
  }
  if (names.empty()) names = all;
  for (const std::string& name : names) {
    for (const Precision precision : precisions) {
      if (name == "data") measure_data(precision, transport, rounds);
      if (name == "tensor") measure_tensor(precision, transport, rounds);
      if (name == "pipeline") measure_pipeline(precision, transport, schedule, rounds);
      if (name == "memory") measure_memory(precision);
    }
    if (name == "bubble") measure_bubble(rounds);
  }
  return 0;
}

}  // namespace
}  // namespace scaletrain

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    return scaletrain::run(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_parallel: {}\n", error.what());
    return 1;
  }
}
