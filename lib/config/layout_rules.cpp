#include "config/layout_rules.h"

#include <fmt/core.h>

#include <numeric>
#include <utility>

#include "base/numbers/checked.h"
#include "base/text.h"
#include "config/keys/keys.h"
#include "config/phases.h"

namespace scaletrain {

namespace {

// A schedule is a list of instructions: far more micro-batches than any run has would be a mistake in the config, and a
// list that fills the memory.
constexpr std::int64_t max_micro_batches = 1 << 16;

bool fits_kv_heads(const ModelConfig& model, std::int64_t tensor) {
  return model.kv_heads % tensor == 0 || tensor % model.kv_heads == 0;
}

// The tensor degrees that a model can have: "1, 2, 3, 4, 6 or 12" of 12 heads.
std::string tensor_degrees_text(const ModelConfig& model) {
  constexpr std::size_t most = 16;
  std::vector<std::int64_t> degrees;
  for (std::int64_t i = 1; i <= model.heads; ++i)
    if (model.heads % i == 0 && fits_kv_heads(model, i)) degrees.push_back(i);
  if (degrees.size() > most) return fmt::format("a divisor of {}", model.kv_heads);
  std::string text;
  for (std::size_t i = 0; i < degrees.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == degrees.size() ? " or " : ", ", degrees[i]);
  return text;
}

class LayoutRules {
 public:
  LayoutRules(const Config& config, std::optional<std::int64_t> data, const std::optional<WorldSize>& world)
      : config_(config), parallel_(config.parallel), data_(data), world_(world) {}

  std::vector<LayoutProblem> run() {
    check_world();
    check_tensor();
    check_chunks();
    if (parallel_.stage_layers) {
      check_stage_layers(*parallel_.stage_layers);
    } else {
      check_stages();
    }
    if (data_) check_batch(*data_);
    if (data_) check_sequence(*data_);
    check_zero();
    return std::move(problems_);
  }

 private:
  void refuse(std::vector<std::string> keys, std::string text) {
    problems_.push_back({.keys = std::move(keys), .text = std::move(text)});
  }

  void check_world() {
    if (!world_) return;
    const std::int64_t others = parallel_.tensor * parallel_.pipeline;
    const std::int64_t ranks = world_->ranks;
    const std::string there = fmt::format("{} {}", world_->told, counted(ranks, "rank"));
    if (parallel_.data) {
      const std::int64_t product = others * *parallel_.data;
      if (ranks != product)
        refuse({"parallel.data", "parallel.tensor", "parallel.pipeline", "parallel"},
               fmt::format("parallel: data {} x tensor {} x pipeline {} = {}, but {}; change a degree, the number of "
                           "ranks, or set parallel.data: auto",
                           *parallel_.data, parallel_.tensor, parallel_.pipeline, counted(product, "rank"), there));
    } else if (ranks < 1 || ranks % others != 0) {
      const std::int64_t fewer = ranks < others ? 0 : ranks / others * others;
      const std::string fitting =
          fewer == 0 ? counted(others, "rank") : fmt::format("{} or {} ranks", fewer, fewer + others);
      problems_.push_back({.keys = {"parallel.data", "parallel.tensor", "parallel.pipeline"},
                           .text = fmt::format("{}, and parallel.data: auto needs a multiple of tensor {} x pipeline "
                                               "{} = {}; take {}, or change a degree",
                                               there, parallel_.tensor, parallel_.pipeline, others, fitting),
                           .is_of_world = true});
    }
  }

  void check_tensor() {
    const ModelConfig& model = config_.model;
    const std::vector<std::string> keys = {"parallel.tensor", "model.heads", "model.kv_heads", "model.preset"};
    if (model.heads % parallel_.tensor != 0)
      refuse(keys, fmt::format("parallel.tensor: {} does not divide model.heads: {}; use {}", parallel_.tensor,
                               model.heads, tensor_degrees_text(model)));
    else if (!fits_kv_heads(model, parallel_.tensor))
      refuse(keys, fmt::format("parallel.tensor: {} neither divides model.kv_heads: {} nor is a multiple of it; use {}",
                               parallel_.tensor, model.kv_heads, tensor_degrees_text(model)));
  }

  void check_chunks() {
    if (parallel_.chunks == 1 || parallel_.schedule == ScheduleKind::interleaved) return;
    refuse({"parallel.chunks", "parallel.schedule"},
           fmt::format("parallel.chunks: {} chunks per stage, but parallel.schedule is {}, which has one; set "
                       "parallel.schedule: interleaved or parallel.chunks: 1",
                       parallel_.chunks, to_text(parallel_.schedule)));
  }

  void check_stages() {
    const std::int64_t layers = config_.model.layers;
    if (parallel_.pipeline * parallel_.chunks <= layers) return;
    const std::string stages = counted(parallel_.pipeline, "stage") +
                               (parallel_.chunks == 1 ? "" : fmt::format(" x {} chunks", parallel_.chunks));
    refuse({"parallel.pipeline", "parallel.chunks", "model.layers", "model.preset"},
           fmt::format("parallel.pipeline: {} need as many layers, but model.layers is {}; use fewer, or say in "
                       "parallel.stage_layers which stage has none (embedding or head alone)",
                       stages, layers));
  }

  void check_stage_layers(const std::vector<std::int64_t>& counts) {
    const std::int64_t layers = config_.model.layers;
    const std::int64_t wanted = parallel_.pipeline * parallel_.chunks;
    const std::string problem = [&]() -> std::string {
      if (static_cast<std::int64_t>(counts.size()) != wanted)
        return fmt::format("{}, but parallel.pipeline {} x parallel.chunks {} = {}; write one for each, or auto",
                           counted(counts.size(), "number"), parallel_.pipeline, parallel_.chunks, wanted);
      for (std::size_t i = 0; i < counts.size(); ++i)
        if (counts[i] < 0 || counts[i] > layers)
          return fmt::format("number {} is {}, expected 0 to {} (model.layers)", i + 1, counts[i], layers);
      for (std::size_t i = 1; i + 1 < counts.size(); ++i)
        if (counts[i] == 0)
          return fmt::format(
              "number {} is 0, and that part of the pipeline has neither the embedding nor the head: it "
              "would hold nothing; give it a layer",
              i + 1);
      const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      if (sum != layers)
        return fmt::format("the numbers sum to {}, but model.layers is {}; they must be equal", sum, layers);
      return {};
    }();
    if (problem.empty()) return;
    refuse({"parallel.stage_layers", "parallel.pipeline", "parallel.chunks", "model.layers", "model.preset"},
           "parallel.stage_layers: " + problem);
  }

  void check_zero() {
    const auto& group = parallel_.zero_group;
    if (group && parallel_.zero == 0)
      refuse({"parallel.zero_group", "parallel.zero"},
             fmt::format("parallel.zero_group: {} replicas divide nothing at parallel.zero: 0; set parallel.zero: 1 to "
                         "3, or parallel.zero_group: auto",
                         *group));
    else if (group && data_ && *data_ % *group != 0)
      refuse({"parallel.zero_group", "parallel.data"},
             fmt::format("parallel.zero_group: groups of {} replicas do not divide the {} of parallel.data; use {}auto",
                         *group, *data_, *data_ > 1 ? "a divisor from 2 on, or " : ""));
    if (parallel_.zero_reduce == ZeroReduceKind::step && parallel_.zero < 3)
      refuse({"parallel.zero_reduce", "parallel.zero"},
             fmt::format("parallel.zero_reduce: step at parallel.zero: {}: stages 0 and 1 sum gradients once a step "
                         "anyway, and 2 would be 1; set parallel.zero: {}, or leave it out",
                         parallel_.zero, parallel_.zero == 2 ? "1 or 3" : "3"));
  }

  // Sizes that do not divide are padded; a replica that never has a sample is a mistake.
  void check_batch(std::int64_t data) {
    const std::int64_t batch = config_.train.global_batch;
    if (data > batch) {
      refuse({"parallel.data", "train.global_batch"},
             fmt::format("parallel.data: {} replicas share the {} of a step (train.global_batch), and some "
                         "would never have one; use at most {}, or raise train.global_batch",
                         data, counted(batch, "sample"), batch));
    } else if (const std::int64_t count = micro_batches_of_replica(config_.train, data); count > max_micro_batches) {
      refuse({"train.global_batch", "train.micro_batch", "parallel.data"},
             fmt::format("train.global_batch: {} is {} micro-batches per replica and step, and at most {} are "
                         "supported; raise train.micro_batch or parallel.data",
                         batch, count, max_micro_batches));
    }
  }

  // A step of any size, and an evaluation, has micro-batches of one shape; in phases of shorter samples with fewer
  // tokens.
  void check_sequence(std::int64_t data) {
    if (!parallel_.sequence || parallel_.tensor == 1) return;
    const std::vector<std::int64_t> shorter = shorter_contexts(config_);
    const std::int64_t context = shorter.empty() ? config_.model.context : shorter.front();
    const std::int64_t samples = samples_of_micro_batch(config_.train, data);
    if (context < 1 || samples >= ceil_div(parallel_.tensor, context)) return;
    const bool is_cut = samples < ceil_div(config_.train.global_batch, data);
    refuse({"parallel.sequence", "parallel.tensor", "train.micro_batch", "train.global_batch", "model.context",
            "phases", "model.preset", "parallel.data"},
           fmt::format("parallel.sequence: {} tensor ranks (parallel.tensor) share the {} of a micro-batch ({} of {}), "
                       "and some would never have one; leave parallel.sequence out, lower parallel.tensor, or raise {}",
                       parallel_.tensor, counted(samples * context, "token"), counted(samples, "sample"),
                       counted(context, "token"), is_cut ? "train.micro_batch" : "train.global_batch"));
  }

  const Config& config_;
  const ParallelConfig& parallel_;
  std::optional<std::int64_t> data_;
  const std::optional<WorldSize>& world_;
  std::vector<LayoutProblem> problems_;
};

}  // namespace

std::optional<std::int64_t> data_degree(const ParallelConfig& parallel, const std::optional<WorldSize>& world) {
  if (parallel.data || !world) return parallel.data;
  const std::int64_t others = parallel.tensor * parallel.pipeline;
  return world->ranks >= 1 && world->ranks % others == 0 ? std::optional(world->ranks / others) : std::nullopt;
}

std::vector<LayoutProblem> layout_problems(const Config& config, std::optional<std::int64_t> data,
                                           const std::optional<WorldSize>& world) {
  return LayoutRules(config, data, world).run();
}

std::int64_t micro_batches_of_replica(const TrainConfig& train, std::int64_t replicas) {
  return ceil_div(ceil_div(train.global_batch, replicas), train.micro_batch);
}

std::int64_t samples_of_micro_batch(const TrainConfig& train, std::int64_t replicas) {
  return ceil_div(ceil_div(train.global_batch, replicas), micro_batches_of_replica(train, replicas));
}

}  // namespace scaletrain
