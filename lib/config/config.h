// The config as plain values: what the YAML file, the preset, the overrides and the defaults say together.
//
// One struct per section of the file, one field per key, the same names as in the file. Every default stands here and
// nowhere else. A Config that came out of load_config() is valid in itself (types, ranges, cross-key rules that need no
// file system); whether it fits a world, a device or the data is for the plan and the data layer to say. Units: tokens,
// samples, bytes and seconds, as each field says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace scaletrain {

enum class DeviceKind { automatic, cpu, cuda };
enum class NormKind { layernorm, rmsnorm };
enum class ActivationKind { gelu, gelu_tanh, swiglu, geglu };
// Whether the feed-forward block has a gate beside what it lets through.
constexpr bool has_gate(ActivationKind kind) {
  return kind == ActivationKind::swiglu || kind == ActivationKind::geglu;
}
enum class PositionKind { learned, rope };
enum class RopeScalingKind { none, linear, llama3 };
enum class InitKind { normal, xavier, he };
enum class GrowthOrder { none, stack, interleave };
enum class TokenizerKind { bytes, ids, bpe, sentencepiece };
// `instructions`: within what is packed of instructions, across text.
enum class DocumentAttention { across, within, instructions };
enum class SourceKind { automatic, text, jsonl, parquet, tokens };
// What a record (a document of text, a line of JSONL) holds: text; `messages` of a conversation; `prompt` and
// `completion`. All but text are instructions.
enum class RecordKind { text, messages, prompt_completion };
// Which tokens of instructions are predicted.
enum class InstructionLoss { answers, all };
enum class DataCheck { changed, all };
enum class BadRecordPolicy { fail, skip };
enum class OptimizerKind { adamw, sgd, lion, lamb, lars, ademamix, muon, adafactor };
// How long Muon's step of a matrix of R outputs and C inputs is: original, sqrt(max(1, R/C)) times an orthogonal matrix
// (Jordan et al. 2024); match_rms_adamw, 0.2·sqrt(max(R, C)) times it, about as long as AdamW's (Liu et al. 2025).
enum class StepScale { original, match_rms_adamw };
enum class LrScheduleKind { cosine, linear, constant, inverse_sqrt, wsd, cosine_restarts };
// How the learning rate of wsd falls in its last part.
enum class DecayShape { linear, cosine, one_minus_sqrt };
enum class BatchScaling { linear, sqrt };
enum class RecomputeKind { none, selective, full };
enum class OffloadKind { none, host };
enum class OptimizerStateType { fp32, int8 };
enum class ZeroReduceKind { use, step };
enum class SpikeAction { warn, skip, rollback };
enum class ScheduleKind { gpipe, one_f_one_b, interleaved, zb_h1 };
// How ranks exchange. automatic: those on GPUs by NCCL where each has one and it is found, else as host. host: those of
// one host through its memory, others by TCP. tcp: all by TCP. nccl: ranks on GPUs by NCCL, or not at all.
enum class RankTransport { automatic, host, tcp, nccl };
constexpr bool may_use_nccl(RankTransport transport) {
  return transport == RankTransport::automatic || transport == RankTransport::nccl;
}
// tf32: fp32, but that factors of products of matrices, attention apart, come to TF32 (10 bits behind the leading one)
// first, which GPUs alone do.
enum class Precision { fp32, tf32, bf16, fp16 };

struct RunConfig {
  std::string name = "run";
  std::string directory;  // relative to the working directory; default: runs/NAME
  std::uint64_t seed = 1234;
  DeviceKind device = DeviceKind::automatic;
  bool cuda_graphs = false;
};

struct InitConfig {
  InitKind type = InitKind::normal;
  double std = 0.02;
  // Weights of the projections back into the residual stream are divided by sqrt(2 * layers); nothing: those of type
  // normal.
  std::optional<bool> scale_residual;
  std::optional<std::string> from;  // a Hugging Face folder

  bool scales_residual() const { return scale_residual.value_or(type == InitKind::normal); }
};

// How rotation frequencies are divided, for contexts longer than those that a model was first made for.
struct RopeScalingConfig {
  RopeScalingKind type = RopeScalingKind::none;
  double factor = 1.0;
  double low_frequency_factor = 1.0;     // llama3
  double high_frequency_factor = 4.0;    // llama3
  std::int64_t original_context = 8192;  // llama3; tokens
  bool operator==(const RopeScalingConfig&) const = default;
};

// Attention that reaches no further back than a window, in all layers or in all but every so many.
struct WindowConfig {
  std::optional<std::int64_t> tokens{};  // that a query sees, itself among them; nothing: all before it
  std::int64_t global_every = 0;         // the last of so many layers each sees all; 0: none does
  std::optional<double> rope_theta{};    // of layers with a window, unscaled; nothing: as the others
  bool operator==(const WindowConfig&) const = default;
};

// How a model that is deeper than that of init.from begins from its layers (nn/layer_growth.h).
struct GrowthConfig {
  GrowthOrder order = GrowthOrder::none;
  bool identity = true;  // copies add nothing to the residual stream at first
};

struct ModelConfig {
  std::optional<std::string> preset;
  std::int64_t layers = 12;
  std::int64_t hidden = 768;
  std::int64_t heads = 12;
  std::int64_t kv_heads = 12;            // default: heads
  std::optional<std::int64_t> head_dim;  // nothing: hidden / heads
  std::int64_t ffn_hidden = 3072;        // default: 4 * hidden
  std::int64_t context = 1024;           // tokens per training sample
  std::optional<std::int64_t> vocab;     // nothing: auto, the tokenizer's size
  NormKind norm = NormKind::layernorm;
  double norm_epsilon = 1e-5;
  ActivationKind activation = ActivationKind::gelu;
  PositionKind position = PositionKind::learned;
  double rope_theta = 10000.0;
  RopeScalingConfig rope_scaling;
  bool bias = true;
  std::optional<bool> qkv_bias;  // of query, key and value; nothing: as bias
  bool qk_norm = false;
  bool post_norm = false;                       // what attention and the ffn give is normed, too, before it is added
  bool norm_zero_centered = false;              // norm weights are kept as their distance from one
  bool scale_embeddings = false;                // token embeddings are multiplied by sqrt(hidden)
  std::optional<double> query_pre_attn_scalar;  // scores are divided by its root; nothing: by that of the head size
  std::optional<double> attention_softcap;      // of scores; nothing: none
  std::optional<double> logit_softcap;
  WindowConfig window;
  bool tie_embeddings = true;
  double dropout = 0.0;                     // of all three
  std::optional<double> embedding_dropout;  // nothing, here and below: as dropout
  std::optional<double> attention_dropout;
  std::optional<double> residual_dropout;
  InitConfig init;
  GrowthConfig grow;

  // Of heads that divide the hidden size, where head_dim is not given.
  std::int64_t head_size() const { return head_dim.value_or(hidden / heads); }
  double query_scalar() const { return query_pre_attn_scalar.value_or(static_cast<double>(head_size())); }
  bool has_qkv_bias() const { return qkv_bias.value_or(bias); }
};

struct TokenizerConfig {
  TokenizerKind type = TokenizerKind::bytes;
  std::optional<std::string> path;              // bpe, sentencepiece
  std::optional<std::int64_t> end_of_document;  // ids, bpe: the token that ends a document
};

struct DocumentsConfig {
  // within: a token attends to its own document alone, and positions begin at 0 with each. Without a choice, what is
  // packed of instructions is computed within and text across (fill_defaults).
  DocumentAttention attention = DocumentAttention::across;
  bool loss_across = true;  // the first token of a document is predicted from what the document before it ends with

  bool operator==(const DocumentsConfig&) const = default;
  // Whether data that does not say where its documents end will not do.
  bool need_ends() const { return attention == DocumentAttention::within || !loss_across; }
  // Whether samples say where their documents begin: where it is `instructions` those of text are one.
  bool are_told_apart() const { return attention != DocumentAttention::across; }
};

// Documents of a source that are not trained on but evaluated on: a share of all, by a hash of each.
struct HoldOutConfig {
  double validation = 0.0;  // above 0, below 1
  std::string name;         // of the validation set
};

struct SourceConfig {
  std::string path;  // a file or a folder of files; resolved against the config file's folder
  double weight = 1.0;
  std::optional<double> epochs;  // a cap; the rest of the mix goes on without this source
  SourceKind type = SourceKind::automatic;
  RecordKind records = RecordKind::text;
  std::string field = "text";            // JSONL of text: the key that holds the document
  std::optional<std::string> separator;  // text: a line that ends a document
  std::optional<HoldOutConfig> split;
  std::optional<std::string> name{};  // by which phases call it; nothing: its place in data.train
};

struct ValidationConfig {
  std::string name;
  std::string path;
  SourceKind type = SourceKind::automatic;
  RecordKind records = RecordKind::text;
  std::string field = "text";
  std::optional<std::string> separator;
  // Of what train[held_out_of].split holds out: add_held_out_sets() has made it. It has no key of its own.
  std::optional<std::size_t> held_out_of{};
};

// How records of instructions become tokens.
struct InstructionsConfig {
  InstructionLoss loss = InstructionLoss::answers;
  std::optional<std::string> chat_template;  // of `messages`; nothing: the tokenizer's own
};

struct DataConfig {
  TokenizerConfig tokenizer;
  DocumentsConfig documents;
  InstructionsConfig instructions;
  std::vector<SourceConfig> train;
  std::vector<ValidationConfig> validation;
  std::optional<std::string> cache;       // folder for tokenised text; default: SCALETRAIN_CACHE or ~/.cache/scaletrain
  DataCheck verify = DataCheck::changed;  // what a start reads to know that the data is what it was
  BadRecordPolicy on_bad_record = BadRecordPolicy::fail;  // JSONL: of lines without a document
};

// Whether a source or a validation set is of records that are no text.
bool reads_instructions(const DataConfig& data);
// Whether one is of text.
bool reads_text(const DataConfig& data);
// Puts a set behind the others for each source of `data` that holds documents out. Once.
void add_held_out_sets(DataConfig& data);
// What names a set in messages: "data.validation.0", or "data.train.2.split".
std::string validation_key(const DataConfig& data, std::size_t set);

// The learning rate is that of another batch, from which it is scaled to the run's.
struct BatchScalingConfig {
  BatchScaling rule = BatchScaling::linear;  // times the batch over the base, or the root of that
  std::int64_t base = 256;                   // samples per optimizer step
  bool operator==(const BatchScalingConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerKind type = OptimizerKind::adamw;
  double learning_rate = 6e-4;
  double beta1 = 0.9;  // betas: [beta1, beta2]
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of what finetune.weight_decays does not name, on matrices only
  // host: masters and the optimizer's state lie in the host's memory and pass through the GPU at every update; changes
  // no bit of a run.
  OffloadKind offload = OffloadKind::none;
  // int8: of matrices the moments are kept in 8 bits, in blocks that share a scale (adamw).
  OptimizerStateType state = OptimizerStateType::fp32;
  double momentum = 0.0;                      // sgd, lars; muon, 0.95 where nobody gives one
  bool nesterov = false;                      // sgd; muon, true where nobody says it
  double trust_coefficient = 0.001;           // lars
  double alpha = 5.0;                         // ademamix: weight of the slow mean
  double beta3 = 0.9999;                      // ademamix: decay of the slow mean
  std::optional<std::int64_t> slow_warmup{};  // ademamix: updates in which both grow; nothing: auto, the run's steps
  StepScale step_scale = StepScale::match_rms_adamw;  // muon
  double adamw_rate = 1.0;                            // muon: factor on the rate of what AdamW updates
  double beta2_exponent = 0.8;   // adafactor: at its t-th update 1 - t^-beta2_exponent of the squares' mean is kept
  double clip_threshold = 1.0;   // adafactor: of a tensor's direction, root mean square
  double smallest_scale = 1e-3;  // adafactor: least root mean square of a tensor that its step is measured by
  std::optional<BatchScalingConfig> scale_with_batch{};
};

struct LrScheduleConfig {
  LrScheduleKind type = LrScheduleKind::cosine;
  std::optional<std::int64_t> warmup;  // steps; nothing: auto, default_warmup()
  double min_ratio = 0.1;              // of learning_rate: it never falls below, and what it falls to
  // wsd: how long its last part is, in steps, or else as a share of the run, warm-up included.
  std::optional<std::int64_t> decay_steps{};
  double decay_share = 0.2;
  DecayShape decay_shape = DecayShape::linear;
  // cosine_restarts: steps of the first cycle, and how many times as long each is as the one before it.
  std::int64_t restart_steps = 1000;
  double restart_factor = 1.0;
};

// The warm-up of a run of so many steps whose config names none: a twentieth of them, at least 1 and at most 2000.
std::int64_t default_warmup(std::int64_t steps);

// The learning rate that schedules begin from: learning_rate, scaled with the batch where that is asked for.
double peak_learning_rate(const OptimizerConfig& config, std::int64_t global_batch);

struct NonfiniteConfig {
  std::int64_t skip = 10;  // consecutive non-finite steps to skip before stopping with code 5
};

struct SpikeConfig {
  std::int64_t window = 128;
  double zscore = 6.0;
  SpikeAction action = SpikeAction::warn;
};

// An exponential moving average of the weights that are trained, beside them.
struct EmaConfig {
  double decay = 0.999;  // average = decay * average + (1 - decay) * weights, after each update
  bool operator==(const EmaConfig&) const = default;
};

// The batch grows with the steps: from `from` samples by `by` at a time, at even distances, to train.global_batch,
// which it has from step `steps` + 1 on.
struct BatchRampConfig {
  std::int64_t from = 0;
  std::int64_t by = 0;
  std::int64_t steps = 0;
  bool operator==(const BatchRampConfig&) const = default;
};

// The batch follows the gradient noise scale (optim/adaptive_batch.h) between these.
struct BatchAutoConfig {
  std::int64_t min = 0;      // samples
  std::int64_t max = 0;      // min doubled some times
  std::int64_t every = 100;  // steps between decisions
  bool operator==(const BatchAutoConfig&) const = default;
};

// A part of the run with settings of its own (config/phases.h). Its key stands beside train, not in it.
struct PhaseConfig {
  std::optional<std::int64_t> steps{};  // exactly one of steps, tokens
  std::optional<std::int64_t> tokens{};
  std::optional<std::int64_t> context{};                  // nothing: model.context, which fill_defaults() puts there
  std::optional<std::int64_t> global_batch{};             // nothing: train.global_batch, likewise
  std::vector<std::pair<std::string, double>> weights{};  // of the sources that it reads; empty: as data.train has them
  double learning_rate_factor = 1.0;                      // on what the schedule says
  bool operator==(const PhaseConfig&) const = default;
};

struct TrainConfig {
  std::optional<std::int64_t> steps;  // exactly one of steps, tokens, epochs
  std::optional<std::int64_t> tokens;
  std::optional<double> epochs;    // times all samples of data.train together; any part of an epoch
  std::int64_t global_batch = 32;  // samples per optimizer step, at most
  // global_batch: auto. Then that is the most of batch_auto, which there is exactly then.
  bool adapts_batch = false;
  std::int64_t micro_batch = 4;  // samples of a replica that go through its stages at once
  OptimizerConfig optimizer;
  LrScheduleConfig lr_schedule;
  std::optional<double> clip_norm = 1.0;  // nothing: no clipping
  double label_smoothing = 0.0;
  double z_loss = 0.0;  // times the square of log(sum of exp(logits)), of each token, is added to what is optimised
  std::optional<EmaConfig> ema{};
  std::optional<BatchRampConfig> batch_ramp{};
  std::optional<BatchAutoConfig> batch_auto{};
  RecomputeKind recompute = RecomputeKind::none;  // changes no bit of a run
  NonfiniteConfig nonfinite;
  std::optional<SpikeConfig> spike;
  std::vector<PhaseConfig> phases{};  // the key `phases`: together they are as long as the run; empty: it has none

  // Optimizer steps of a run that has this batch from its beginning: steps, or tokens / (global_batch * context)
  // rounded up; nothing for epochs, which the data decides. Of one that changed its batch, or whose samples are padded,
  // train/run_length.h knows.
  std::optional<std::int64_t> num_steps(std::int64_t context) const;
  // Exactly one of the lengths is given, as validation sees to in a user's config.
  bool has_one_length() const {
    return int{steps.has_value()} + int{tokens.has_value()} + int{epochs.has_value()} == 1;
  }
  // "train.steps", "train.tokens" or "train.epochs": the key that gives the run its length.
  const char* length_key() const;
};

// Low-rank adapters (Hu et al. 2021; nn/lora.h).
struct LoraConfig {
  std::int64_t rank = 16;
  double alpha = 32.0;  // adapters are added times alpha / rank
  double dropout = 0.0;
  // The maps that have one, as the model's family calls them (q_proj), or all-linear.
  std::vector<std::string> targets{"all-linear"};
  std::optional<std::string> from{};  // a folder of peft's, whose adapters these begin as; nothing: as nothing
};

// Frozen parameters that join the training when so many updates have been made (gradual unfreezing, Howard and Ruder
// 2018).
struct UnfreezeConfig {
  std::int64_t step = 0;
  std::vector<std::string> patterns{};
  bool operator==(const UnfreezeConfig&) const = default;
};

struct FinetuneConfig {
  // Of parameters that are not trained, patterns over their names (nn/finetune.h).
  std::vector<std::string> freeze{};
  // Which of those are trained later after all; steps ascend.
  std::vector<UnfreezeConfig> unfreeze{};
  // Factors on the learning rate, by the same patterns; of those that match a name the last one counts.
  std::vector<std::pair<std::string, double>> learning_rates{};
  // Factors on the weight decay, by the same patterns; which parameters one is of: nn/finetune.h.
  std::vector<std::pair<std::string, double>> weight_decays{};
  // A further factor for each layer between a parameter and the head: this to the power of their number.
  double layer_decay = 1.0;
  // Adapters are trained, and nothing else is.
  std::optional<LoraConfig> lora{};
};

struct ParallelConfig {
  std::optional<std::int64_t> data = 1;  // nothing: auto, what the world leaves
  std::int64_t tensor = 1;
  bool sequence = false;
  std::int64_t pipeline = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int64_t chunks = 1;
  std::optional<std::vector<std::int64_t>> stage_layers;  // nothing: auto
  std::int64_t zero = 1;                                  // as much traffic as 0, with less memory and a shorter update
  std::optional<std::int64_t> zero_group;                 // nothing: all replicas
  ZeroReduceKind zero_reduce = ZeroReduceKind::use;       // of stage 3
};

struct PrecisionConfig {
  std::optional<Precision> compute;  // nothing: auto, default_precision(); loading a user's file puts that in its place
  Precision reduce = Precision::fp32;
  std::optional<double> loss_scale;  // nothing: dynamic
};

// What precision.compute: auto is on a device: fp32 on CPUs, where bf16 is faster on some processors and slower on
// others, bf16 on GPUs.
Precision default_precision(DeviceKind device);

// Multiple choice by log-likelihood (data/tasks/choice_task.h).
struct TaskConfig {
  std::string name;
  std::string path;
};

struct EvaluateConfig {
  std::int64_t every = 100;   // steps; 0: only at the end
  std::int64_t batches = 20;  // global batches per validation set; 0: all of it
  bool ema = false;           // of train.ema's average in place of the weights
  std::vector<TaskConfig> tasks;
};

struct EarlyStopConfig {
  std::string metric;         // validation/NAME/loss, or task/NAME/accuracy, of which more is better
  std::int64_t patience = 5;  // evaluations without improvement
  double min_delta = 0.0;
  std::optional<double> target;  // stop as soon as the metric is there or better
};

struct CheckpointConfig {
  std::optional<std::int64_t> every_steps = 200;  // one of the two, or neither (every: 0): only at the end
  std::optional<double> every_seconds;
  std::int64_t keep = 3;                   // newest; never fewer than two verified
  bool best = true;                        // pin the best by the early-stop metric
  bool background = true;                  // written while training goes on
  std::optional<std::int64_t> keep_every;  // steps
};

struct SuperviseConfig {
  std::int64_t max_restarts = 3;
  double heartbeat = 60.0;  // seconds
  std::optional<std::int64_t> elastic_min_data;
};

struct LaunchConfig {
  std::optional<std::string> interface;        // nothing: auto
  std::optional<std::int64_t> port;            // nothing: auto
  std::optional<std::int64_t> ranks_per_node;  // nothing: auto
  RankTransport transport = RankTransport::automatic;
};

// The gradient noise scale, measured every so many steps (optim/gradient_noise.h).
struct GradientNoiseConfig {
  std::int64_t every = 10;  // steps
  double decay = 0.95;      // of what was measured before, at each measurement
  bool operator==(const GradientNoiseConfig&) const = default;
};

struct LogConfig {
  // Steps between lines for people where they are no terminal (metrics.jsonl has every step). Nothing: auto, some in
  // the beginning and then about one every half minute.
  std::optional<std::int64_t> every;
  bool tensorboard = false;
  // Of a rank's device, in TFLOP/s. Nothing: auto, what its data sheet says or what is measured at start.
  std::optional<double> peak_tflops;
  std::optional<GradientNoiseConfig> gradient_noise{};

  std::optional<double> peak_flops() const { return peak_tflops ? std::optional(*peak_tflops * 1e12) : std::nullopt; }
};

struct Config {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  FinetuneConfig finetune;
  ParallelConfig parallel;
  PrecisionConfig precision;
  EvaluateConfig evaluate;
  std::optional<EarlyStopConfig> early_stop;
  CheckpointConfig checkpoint;
  SuperviseConfig supervise;
  LaunchConfig launch;
  LogConfig log;

  // precision.compute, with auto resolved.
  Precision compute_precision() const;
};

}  // namespace scaletrain
