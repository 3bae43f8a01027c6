// What a config may say and probably does not mean.
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "config/keys/keys.h"
#include "config/keys/number_text.h"
#include "config/validate.h"

namespace scaletrain {

namespace {

class Notices {
 public:
  Notices(const Config& config, const ReadContext& context, std::vector<std::string>& notices)
      : config_(config), context_(context), notices_(notices) {}

  void add_all() {
    add_vocab();
    add_instructions();
    add_parallel();
    add_port();
    add_warmup();
    add_unfreeze();
    add_learning_rate();
    add_spike();
    add_gradient_noise();
    add_evaluation();
    add_supervision();
  }

 private:
  bool is_given(const std::string& path) const { return context_.given.contains(path); }
  // Of a batch that is auto the noise decides.
  bool knows_steps() const { return config_.train.has_one_length() && !config_.train.adapts_batch; }

  void add_vocab() {
    const auto& vocab = config_.model.vocab;
    const auto& sources = config_.data.train;
    const bool reads_text = std::any_of(sources.begin(), sources.end(),
                                        [](const SourceConfig& source) { return source.type != SourceKind::tokens; });
    if (config_.data.tokenizer.type != TokenizerKind::bytes || !reads_text || !vocab || *vocab <= kBytesVocab) return;
    notices_.push_back(
        fmt::format("model.vocab {}{} is larger than the tokenizer's {}; set model.vocab: auto unless that is meant",
                    *vocab, is_given("model.vocab") ? "" : " (from the preset)", kBytesVocab));
  }

  void add_instructions() {
    const DataConfig& data = config_.data;
    if (reads_instructions(data)) {
      if (data.documents.attention == DocumentAttention::across)
        notices_.emplace_back(
            fmt::format("data.documents.attention: across lets each conversation read those that were packed before it "
                        "into the same sample; {}, the default of such data, keeps them apart",
                        reads_text(data) ? "instructions" : "within"));
      return;
    }
    const auto add_unused = [this](const std::string& key) {
      notices_.push_back(
          fmt::format("{} has no effect, because no source names records: messages or prompt_completion", key));
    };
    if (data.instructions.loss != InstructionsConfig().loss) add_unused("data.instructions.loss");
    if (data.instructions.chat_template) add_unused("data.instructions.chat_template");
    if (data.documents.attention == DocumentAttention::instructions)
      add_unused("data.documents.attention: instructions");
  }

  void add_parallel() {
    const ParallelConfig& parallel = config_.parallel;
    if (parallel.sequence && parallel.tensor == 1)
      notices_.emplace_back("parallel.sequence: true has no effect, because parallel.tensor is 1");
    if (parallel.schedule != ParallelConfig().schedule && parallel.pipeline == 1)
      notices_.push_back(
          fmt::format("parallel.schedule: {} has no effect, because parallel.pipeline is 1: it orders the stages of a "
                      "pipeline",
                      to_text(parallel.schedule)));
    if (parallel.zero > ParallelConfig().zero && parallel.data == 1)
      notices_.push_back(fmt::format(
          "parallel.zero: {} has no effect, because parallel.data is 1: it divides among replicas", parallel.zero));
    if (parallel.zero_reduce != ParallelConfig().zero_reduce && parallel.zero == 3 && parallel.data == 1)
      notices_.emplace_back("parallel.zero_reduce: step has no effect, because parallel.data is 1");
    if (parallel.zero_group && parallel.zero_group == parallel.data)
      notices_.push_back(
          fmt::format("parallel.zero_group: {} is all of parallel.data, as auto is", *parallel.zero_group));
    if (config_.precision.reduce != PrecisionConfig().reduce && parallel.data == 1)
      notices_.push_back(fmt::format(
          "precision.reduce: {} has no effect, because parallel.data is 1: gradients travel between replicas",
          to_text(config_.precision.reduce)));
    const auto& per_node = config_.launch.ranks_per_node;
    if (per_node && *per_node % parallel.tensor != 0)
      notices_.push_back(
          fmt::format("parallel.tensor: groups of {} ranks span hosts of {} (launch.ranks_per_node), which is slow",
                      parallel.tensor, *per_node));
  }

  // Of data: auto only the start knows.
  void add_port() {
    const ParallelConfig& parallel = config_.parallel;
    const bool is_one_rank = parallel.data == 1 && parallel.tensor == 1 && parallel.pipeline == 1;
    if (config_.launch.port && is_one_rank)
      notices_.push_back(
          fmt::format("launch.port: {} has no effect, because the run is one rank: nobody meets it at a port",
                      *config_.launch.port));
  }

  void add_warmup() {
    const TrainConfig& train = config_.train;
    const auto& warmup = train.lr_schedule.warmup;
    if (!warmup || !knows_steps() || train.epochs) return;
    const std::int64_t steps = *train.num_steps(config_.model.context);
    if (*warmup > steps && train.tokens) {
      notices_.push_back(
          fmt::format("train.lr_schedule.warmup: a run that begins would be refused, because its train.tokens: {} are "
                      "{} steps and {} are warm-up (one that is resumed may have more steps); lower "
                      "train.lr_schedule.warmup, leave it out (auto) or raise train.tokens",
                      *train.tokens, steps, *warmup));
    }
    if (*warmup <= steps / 2 || *warmup > steps) return;
    notices_.push_back(fmt::format(
        "train.lr_schedule.warmup: {} of the run's {} steps are warm-up; set a smaller number, or auto ({})", *warmup,
        steps, default_warmup(steps)));
  }

  void add_unfreeze() {
    const TrainConfig& train = config_.train;
    if (!knows_steps()) return;
    const std::optional<std::int64_t> steps = train.num_steps(config_.model.context);
    for (const UnfreezeConfig& phase : config_.finetune.unfreeze)
      if (steps && phase.step >= *steps)
        notices_.push_back(
            fmt::format("finetune.unfreeze: what joins after {} steps is never trained, because the run has {}",
                        phase.step, *steps));
  }

  void add_learning_rate() {
    const TrainConfig& train = config_.train;
    if (train.batch_ramp && train.steps && train.batch_ramp->steps >= *train.steps)
      notices_.push_back(fmt::format(
          "train.batch_ramp: the batch never comes to train.global_batch {}, for which the learning rate is, "
          "because it grows for {} steps and the run has {}",
          train.global_batch, train.batch_ramp->steps, *train.steps));
    const auto& scaling = train.optimizer.scale_with_batch;
    if (!scaling) return;
    if (train.adapts_batch && train.batch_auto) {
      notices_.push_back(
          fmt::format("train.optimizer.scale_with_batch: the learning rate follows the batch, from {} with {} samples "
                      "to {} with {} "
                      "({})",
                      number_text(peak_learning_rate(train.optimizer, train.batch_auto->min)), train.batch_auto->min,
                      number_text(peak_learning_rate(train.optimizer, train.global_batch)), train.global_batch,
                      to_text(scaling->rule)));
      return;
    }
    notices_.push_back(fmt::format(
        "train.optimizer.scale_with_batch: the learning rate is {}: {} of {} samples, scaled to {} ({})",
        number_text(peak_learning_rate(train.optimizer, train.global_batch)),
        number_text(train.optimizer.learning_rate), scaling->base, train.global_batch, to_text(scaling->rule)));
  }

  void add_spike() {
    const TrainConfig& train = config_.train;
    if (!train.spike) return;
    if (knows_steps()) add_spike_window();
    add_rollback_reach();
  }

  void add_spike_window() {
    const TrainConfig& train = config_.train;
    const std::optional<std::int64_t> steps = train.num_steps(config_.model.context);
    if (steps && train.spike->window >= *steps)
      notices_.push_back(
          fmt::format("train.spike: a window of {} steps must be full before a loss is judged, and the run has {}",
                      train.spike->window, *steps));
  }

  void add_gradient_noise() {
    const auto& noise = config_.log.gradient_noise;
    const TrainConfig& train = config_.train;
    if (!noise || !knows_steps()) return;
    const std::optional<std::int64_t> steps = train.num_steps(config_.model.context);
    if (steps && noise->every > *steps)
      notices_.push_back(fmt::format("log.gradient_noise: it is measured every {} steps, and the run has {}: never",
                                     noise->every, *steps));
  }

  // The oldest of the kept checkpoints is, right after a save, as many saves back as there are others.
  void add_rollback_reach() {
    const SpikeConfig& spike = *config_.train.spike;
    const CheckpointConfig& checkpoint = config_.checkpoint;
    if (spike.action != SpikeAction::rollback || !checkpoint.every_steps || checkpoint.keep_every) return;
    const std::int64_t every = *checkpoint.every_steps;
    const std::int64_t others = std::max<std::int64_t>(2, checkpoint.keep) - 1;
    const std::int64_t needed = spike.window / every + (spike.window % every == 0 ? 0 : 1);
    if (every < 1 || others >= needed) return;
    notices_.push_back(
        fmt::format("train.spike: a rollback should go back further than the window of {} steps, and checkpoint.keep: "
                    "{} of a checkpoint every {} steps may reach back {} only; set checkpoint.keep: {}, or "
                    "checkpoint.keep_every",
                    spike.window, checkpoint.keep, every, others * every, needed + 1));
  }

  void add_evaluation() {
    const EvaluateConfig fallback;
    if (!config_.data.validation.empty()) return;
    const std::string reason = "has no effect, because data.validation names no set";
    if (config_.evaluate.tasks.empty() && config_.evaluate.every != fallback.every && config_.evaluate.every != 0)
      notices_.push_back(fmt::format("evaluate.every: {} {}", config_.evaluate.every, reason));
    if (config_.evaluate.ema && config_.evaluate.tasks.empty())
      notices_.push_back(fmt::format("evaluate.ema: true {}", reason));
    if (config_.evaluate.batches != fallback.batches)
      notices_.push_back(fmt::format("evaluate.batches: {} {}", config_.evaluate.batches, reason));
  }

  void add_supervision() {
    const auto& least = config_.supervise.elastic_min_data;
    if (least && config_.parallel.data == least)
      notices_.push_back(
          fmt::format("supervise.elastic: min_data is parallel.data: {}, so the run never goes on with fewer", *least));
  }

  const Config& config_;
  const ReadContext& context_;
  std::vector<std::string>& notices_;
};

}  // namespace

void add_notices(const Config& config, const ReadContext& context, std::vector<std::string>& notices) {
  Notices(config, context, notices).add_all();
}

}  // namespace scaletrain
