#include "config/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "config/keys/keys.h"
#include "config/keys/number_text.h"
#include "config/optimizer_rules.h"
#include "config/phases.h"
#include "config/rule_scope.h"

namespace scaletrain {

namespace {

std::optional<std::int64_t> product(std::initializer_list<std::int64_t> factors) {
  std::int64_t out = 1;
  for (const std::int64_t factor : factors) {
    if (factor != 0 && out > std::numeric_limits<std::int64_t>::max() / factor) return std::nullopt;
    out *= factor;
  }
  return out;
}

class Rules : private RuleScope {
 public:
  explicit Rules(const RuleScope& scope) : RuleScope(scope) {}

  void run() {
    check_model();
    check_tf32();
    check_offload();
    check_cuda_graphs();
    check_transport();
    if (origin_ == Origin::user) {
      check_idle_model_keys();
      check_idle_train_keys();
      check_unfreeze();
      check_lora();
      check_idle_precision_keys();
      check_bytes_vocab();
      check_heartbeat();
      check_chunks();
      check_elastic();
      check_ranks_per_node();
      check_layout();
    }
    check_lengths();
  }

 private:
  std::string from_preset(const std::string& path) const {
    return config_.model.preset && !is_given(path) ? fmt::format(" (from preset {})", *config_.model.preset) : "";
  }

  void check_model() {
    const ModelConfig& model = config_.model;
    if (!are_fine({"model", "model.preset", "model.heads", "model.head_dim"})) return;
    const std::string head = model.head_dim ? fmt::format("head_dim {}", *model.head_dim)
                                            : fmt::format("hidden / heads = {}", model.hidden / model.heads);
    if (are_fine({"model.hidden"}) && !model.head_dim && model.hidden % model.heads != 0) {
      refuse({"model.hidden", "model.heads", "model.preset"},
             fmt::format("{}{} is no multiple of heads {}{}", model.hidden, from_preset("model.hidden"), model.heads,
                         from_preset("model.heads")));
    } else if (are_fine({"model.hidden", "model.position"}) && model.position == PositionKind::rope &&
               model.head_size() % 2 != 0) {
      refuse({"model.position", "model.head_dim", "model.hidden", "model.heads", "model.preset"},
             fmt::format("rope rotates pairs, and a head of {} is odd", head));
    }
    // As long as the processor's kernels for halves take (backend/cpu/attention.h).
    constexpr std::int64_t longest_half_head = 1024;
    const bool is_half = config_.precision.compute == Precision::bf16 || config_.precision.compute == Precision::fp16;
    if (are_fine({"model.hidden", "precision.compute"}) && is_half && model.head_size() > longest_half_head)
      refuse({"model.heads", "precision.compute", "model.head_dim", "model.hidden", "model.preset"},
             fmt::format("a head of {} is longer than {}, the most that precision.compute {} takes; use more heads, or "
                         "fp32",
                         head, longest_half_head, to_text(config_.compute_precision())));
    if (are_fine({"model.kv_heads"}) && (model.kv_heads > model.heads || model.heads % model.kv_heads != 0)) {
      refuse({"model.kv_heads", "model.heads", "model.preset"},
             fmt::format("heads {}{} is no multiple of kv_heads {}{}", model.heads, from_preset("model.heads"),
                         model.kv_heads, from_preset("model.kv_heads")));
    }
  }

  void check_transport() {
    if (config_.launch.transport != RankTransport::nccl || device_ == DeviceKind::cuda) return;
    if (are_fine({"launch.transport", "run.device"}))
      refuse({"launch.transport", "run.device"},
             "nccl is between GPUs, and this would compute on processors: use auto there");
  }

  void check_tf32() {
    if (config_.precision.compute != Precision::tf32 || device_ == DeviceKind::cuda) return;
    if (are_fine({"precision.compute", "run.device"}))
      refuse({"precision.compute", "run.device"},
             "tf32 is for GPUs, and this would compute on processors: use fp32 there");
  }

  void check_offload() {
    if (config_.train.optimizer.offload == OffloadKind::none || device_ == DeviceKind::cuda) return;
    if (are_fine({"train.optimizer.offload", "run.device"}))
      refuse({"train.optimizer.offload", "run.device"},
             "host is for GPUs, and this would compute on processors, whose memory is the host's already: use none "
             "there");
  }

  void check_cuda_graphs() {
    if (!config_.run.cuda_graphs || device_ == DeviceKind::cuda) return;
    if (are_fine({"run.cuda_graphs", "run.device"}))
      refuse({"run.cuda_graphs", "run.device"},
             "graphs are for GPUs, and this would compute on processors: use false there");
  }

  void check_idle_model_keys() {
    ModelConfig& model = config_.model;
    const ModelConfig* preset = model.preset ? find_model_preset(*model.preset) : nullptr;
    if (model.position == PositionKind::learned && are_fine({"model.position", "model.preset"}))
      refuse_idle("model.rope_theta", model.rope_theta, (preset != nullptr ? *preset : ModelConfig()).rope_theta,
                  {"model.position", "model.preset"}, "it is only for model.position rope; this one is learned");
    check_emptied("model.rope_scaling", model.rope_scaling.type != RopeScalingKind::none, "type: none");
    check_rope_scaling();
    check_emptied("model.window", model.window.tokens.has_value(), "tokens: none");
    check_window();
    if (model.scale_embeddings && model.position == PositionKind::learned &&
        are_fine({"model.scale_embeddings", "model.position", "model.preset"}))
      refuse({"model.scale_embeddings", "model.position", "model.preset"},
             "it is only for model.position rope, where no positions are added to embeddings; this one is learned");
    if (model.post_norm && model.norm == NormKind::layernorm &&
        are_fine({"model.post_norm", "model.norm", "model.preset"}))
      refuse({"model.post_norm", "model.norm", "model.preset"},
             "it is only for model.norm rmsnorm; this one is layernorm");
    InitConfig& init = model.init;
    const InitConfig fallback;
    if (init.from && are_fine({"model.init.from"})) {
      const std::string reason = "model.init.from brings the initial weights";
      refuse_idle("model.init.type", init.type, fallback.type, {"model.init.from"}, reason);
      refuse_idle("model.init.std", init.std, fallback.std, {"model.init.from"}, reason);
      refuse_idle("model.init.scale_residual", init.scale_residual, fallback.scale_residual, {"model.init.from"},
                  reason);
    }
    check_growth();
  }

  void check_growth() {
    ModelConfig& model = config_.model;
    const std::string order = "model.grow.order";
    if (model.grow.order == GrowthOrder::none) {
      refuse_idle("model.grow.identity", model.grow.identity, GrowthConfig().identity, {order},
                  "it is only for model.grow.order stack or interleave");
      return;
    }
    if (!model.init.from && are_fine({order, "model.init.from"}))
      refuse({order, "model.init.from"},
             "there is nothing to grow from: name a Hugging Face folder of fewer layers with model.init.from (of a run "
             "make one by `scaletrain checkpoint export RUN --to huggingface`)");
    if (config_.finetune.lora && are_fine({order, "finetune.lora"}))
      refuse({order, "finetune.lora"},
             "adapters are for a model as it lies in its folder: grow it in a run of its own, export that and train "
             "adapters for the result");
    if (model.grow.order == GrowthOrder::interleave && model.grow.identity && model.window.tokens &&
        model.window.global_every > 0 && are_fine({order, "model.window.global_every", "model.preset"}))
      refuse({order, "model.window.global_every", "model.preset"},
             "layers between others change which of them have a window, so the model would not compute what that of "
             "model.init.from does; write stack, or identity: false");
  }

  // Null sets nothing, and so takes nothing away from what a preset or a folder has.
  void check_emptied(const std::string& section, bool has_values, std::string_view off) {
    const ModelConfig& model = config_.model;
    if (!has_values || !context_.emptied.contains(section) || !are_fine({section, "model.preset", "model.init.from"}))
      return;
    if (model.init.from)
      refuse({section},
             fmt::format("null, but the model in {} has one; leave the key out, or write what the folder has",
                         *model.init.from));
    else if (model.preset)
      refuse({section}, fmt::format("null leaves what {} has; write {{{}}} to take that away, or leave the key out",
                                    *model.preset, off));
  }

  void check_rope_scaling() {
    RopeScalingConfig& scaling = config_.model.rope_scaling;
    const std::string section = "model.rope_scaling.";
    const std::string type_key = section + "type";
    if (!are_fine({type_key, "model.position", "model.preset"})) return;
    if (scaling.type != RopeScalingKind::none && config_.model.position != PositionKind::rope) {
      refuse({type_key, "model.position", "model.preset"},
             fmt::format("{} is only for model.position rope; this one is learned", to_text(scaling.type)));
      return;
    }
    const ModelConfig* preset = config_.model.preset ? find_model_preset(*config_.model.preset) : nullptr;
    const RopeScalingConfig fallback = preset != nullptr ? preset->rope_scaling : RopeScalingConfig();
    const std::string kinds = fmt::format("; this one is {}", to_text(scaling.type));
    if (scaling.type == RopeScalingKind::none)
      refuse_idle(section + "factor", scaling.factor, fallback.factor, {type_key},
                  "it is only for model.rope_scaling.type linear and llama3" + kinds);
    else if (are_fine({section + "factor"}) && scaling.factor == 1.0)
      refuse({section + "factor", type_key}, "1 changes nothing: say what frequencies are divided by, such as 8");
    if (scaling.type != RopeScalingKind::llama3) {
      const std::string reason = "it is only for model.rope_scaling.type llama3" + kinds;
      refuse_idle(section + "low_frequency_factor", scaling.low_frequency_factor, fallback.low_frequency_factor,
                  {type_key}, reason);
      refuse_idle(section + "high_frequency_factor", scaling.high_frequency_factor, fallback.high_frequency_factor,
                  {type_key}, reason);
      refuse_idle(section + "original_context", scaling.original_context, fallback.original_context, {type_key},
                  reason);
    } else if (are_fine({section + "low_frequency_factor", section + "high_frequency_factor"}) &&
               scaling.low_frequency_factor >= scaling.high_frequency_factor) {
      refuse({section + "low_frequency_factor", section + "high_frequency_factor", type_key},
             fmt::format("{} is no less than high_frequency_factor {}", number_text(scaling.low_frequency_factor),
                         number_text(scaling.high_frequency_factor)));
    }
  }

  void check_window() {
    const ModelConfig& model = config_.model;
    WindowConfig& window = config_.model.window;
    const std::string section = "model.window.";
    if (!are_fine({section + "tokens", "model.position", "model.preset"})) return;
    const ModelConfig* preset = model.preset ? find_model_preset(*model.preset) : nullptr;
    const WindowConfig fallback = preset != nullptr ? preset->window : WindowConfig();
    if (!window.tokens) {
      const std::string reason = "it is only for layers with a window; model.window.tokens is none";
      refuse_idle(section + "global_every", window.global_every, fallback.global_every, {section + "tokens"}, reason);
      refuse_idle(section + "rope_theta", window.rope_theta, fallback.rope_theta, {section + "tokens"}, reason);
      return;
    }
    if (are_fine({section + "global_every"}) && window.global_every == 1)
      refuse({section + "global_every", section + "tokens"},
             "with 1 every layer sees all, and none has the window: leave model.window out, or write 2 or more");
    if (model.position == PositionKind::learned)
      refuse_idle(section + "rope_theta", window.rope_theta, fallback.rope_theta, {"model.position", "model.preset"},
                  "it is only for model.position rope; this one is learned");
  }

  void check_optimizer() {
    const std::string type = "train.optimizer.type";
    if (!are_fine({type})) return;
    for (const IdleOptimizerKey& key : idle_optimizer_keys(config_.train.optimizer))
      refuse_idle_key(key.path, key.is_default, key.reset, {type}, key.reason);
    for (const auto& [keys, reason] : optimizer_problems(config_.train.optimizer))
      if (are_fine({keys[0], keys[1]})) refuse({keys[0], keys[1]}, reason);
  }

  void check_idle_train_keys() { check_optimizer(); }

  void check_unfreeze() {
    const std::vector<UnfreezeConfig>& phases = config_.finetune.unfreeze;
    if (!phases.empty() && config_.finetune.freeze.empty() && !config_.finetune.lora &&
        are_fine({"finetune.unfreeze", "finetune.freeze"}))
      refuse({"finetune.unfreeze", "finetune.freeze"},
             "nothing is frozen that could join; name with finetune.freeze what is not trained from the start");
    for (std::size_t i = 0; i < phases.size(); ++i) {
      const std::string path = fmt::format("finetune.unfreeze.{}.patterns", i);
      if (phases[i].patterns.empty() && are_fine({path}))
        refuse({path}, "is empty: name the parameters that join, or remove the phase");
    }
    for (std::size_t i = 1; i < phases.size(); ++i) {
      const std::string path = fmt::format("finetune.unfreeze.{}.step", i);
      if (are_fine({path, fmt::format("finetune.unfreeze.{}.step", i - 1)}) && phases[i].step <= phases[i - 1].step)
        refuse({path}, fmt::format("{} does not come behind the {} of the phase before; write phases in their order, "
                                   "and what joins at one step in one phase",
                                   phases[i].step, phases[i - 1].step));
    }
  }

  void check_lora() {
    FinetuneConfig& finetune = config_.finetune;
    if (!finetune.lora) return;
    const std::string section = "finetune.lora";
    if (!config_.model.init.from && are_fine({section, "model.init.from"}))
      refuse({section, "model.init.from"},
             "adapters of a model of random weights would learn little: name the Hugging Face folder that they are for "
             "with model.init.from");
    refuse_idle("finetune.freeze", finetune.freeze, FinetuneConfig().freeze, {section},
                "with finetune.lora nothing but the adapters is trained");
    refuse_idle("finetune.unfreeze", finetune.unfreeze, FinetuneConfig().unfreeze, {section},
                "with finetune.lora nothing but the adapters is trained");
  }

  void check_idle_precision_keys() {
    PrecisionConfig& precision = config_.precision;
    if (precision.compute == Precision::fp16 || !are_fine({"precision.compute"})) return;
    refuse_idle(
        "precision.loss_scale", precision.loss_scale, PrecisionConfig().loss_scale, {"precision.compute"},
        fmt::format("it is only for precision.compute fp16; this one is {}", to_text(config_.compute_precision())));
  }

  void check_bytes_vocab() {
    const auto& vocab = config_.model.vocab;
    if (config_.data.tokenizer.type != TokenizerKind::bytes || !vocab || *vocab >= kBytesVocab) return;
    if (!are_fine({"data.tokenizer.type", "model.vocab", "model.preset"})) return;
    refuse({"model.vocab", "model.preset", "data.tokenizer.type"},
           fmt::format("{}{} is too small; tokenizer bytes has {} tokens (write auto)", *vocab,
                       from_preset("model.vocab"), kBytesVocab));
  }

  // An override of one of the lengths beats the file's other ones.
  template <class Length>
  void drop_overruled_length(const std::string& path, Length& length, const std::string& by) {
    if (!length || !is_given(path) || place_of(context_, path).source > 0 || place_of(context_, by).source == 0) return;
    notices_.push_back(fmt::format("{}: the file's value is not used: {} is overridden", path, by));
    length.reset();
  }

  void drop_overruled_lengths(TrainConfig& train) {
    const bool has_steps = train.steps.has_value();
    const bool has_tokens = train.tokens.has_value();
    const bool has_epochs = train.epochs.has_value();
    if (has_steps) drop_overruled_length("train.tokens", train.tokens, "train.steps");
    if (has_epochs) drop_overruled_length("train.tokens", train.tokens, "train.epochs");
    if (has_tokens) drop_overruled_length("train.steps", train.steps, "train.tokens");
    if (has_epochs) drop_overruled_length("train.steps", train.steps, "train.epochs");
    if (has_steps) drop_overruled_length("train.epochs", train.epochs, "train.steps");
    if (has_tokens) drop_overruled_length("train.epochs", train.epochs, "train.tokens");
  }

  void check_lengths() {
    TrainConfig& train = config_.train;
    if (!are_fine({"train.steps", "train.tokens", "train.epochs"})) return;
    drop_overruled_lengths(train);
    if (train.steps && train.tokens) {
      refuse({"train.tokens", "train.steps"}, "steps and tokens are both set; keep one (the other may be null)");
      return;
    }
    if (train.epochs && (train.steps || train.tokens)) {
      const std::string other = train.steps ? "steps" : "tokens";
      refuse({"train.epochs", "train." + other},
             fmt::format("{} and epochs are both set; keep one (the other may be null)", other));
      return;
    }
    if (!train.steps && !train.tokens && !train.epochs) {
      if (!train.phases.empty()) return;  // they say what is missing
      if (origin_ == Origin::user)
        refuse({"train.steps"}, "is missing; set steps, tokens such as 10B, or epochs such as 1.5");
      return;
    }
    if (!are_fine({"train.global_batch", "model.context", "model.preset"})) return;
    const auto step_tokens = product({train.global_batch, config_.model.context});
    if (!step_tokens || !product({train.steps.value_or(1), *step_tokens})) {
      refuse({"train.steps", "train.global_batch", "model.context"},
             "steps * global_batch * context is more tokens than 64 bits count");
      return;
    }
    // How many steps a run in tokens has depends on what it has trained on (check_warmup in train/run_length.h).
    const auto& warmup = train.lr_schedule.warmup;
    if (are_fine({"train.lr_schedule.warmup"}) && warmup && train.steps && *warmup > *train.steps) {
      refuse({"train.lr_schedule.warmup", "train.steps"},
             fmt::format(
                 "warm-up of {} steps exceeds the run's {} steps; lower warmup, leave it out (auto) or raise steps",
                 *warmup, *train.steps));
    }
  }

  // The other rule of chunks is one of the layout.
  void check_chunks() {
    const ParallelConfig& parallel = config_.parallel;
    if (!are_fine({"parallel.chunks", "parallel.schedule", "parallel.pipeline"})) return;
    if (parallel.chunks > 1 || parallel.schedule != ScheduleKind::interleaved || parallel.pipeline == 1) return;
    refuse({"parallel.schedule", "parallel.chunks"},
           "interleaved with one chunk per stage is 1f1b; set parallel.chunks: 2 or more, or parallel.schedule: 1f1b");
  }

  void check_layout() {
    const auto data = data_degree(config_.parallel, world_);
    for (const LayoutProblem& problem : layout_problems(config_, data, world_)) {
      if (!are_fine(problem.keys)) continue;
      const std::string* const given = problem.is_of_world ? nullptr : breaker(problem.keys);
      context_.diagnostics.add(given != nullptr ? place_of(context_, *given) : Place{0, 0, 0}, problem.text);
    }
  }

  void check_elastic() {
    const auto& least = config_.supervise.elastic_min_data;
    const auto& data = config_.parallel.data;
    if (least && config_.parallel.zero_group)
      refuse({"parallel.zero_group", "supervise.elastic"},
             fmt::format("groups of {} replicas do not divide every number that supervise.elastic may go on with; set "
                         "parallel.zero_group: auto, or supervise.elastic: null",
                         *config_.parallel.zero_group));
    if (!least || !data || !are_fine({"supervise.elastic", "supervise.elastic.min_data", "parallel.data"})) return;
    if (*least > *data)
      refuse({"supervise.elastic.min_data", "supervise.elastic", "parallel.data"},
             fmt::format("{} replicas at least, but parallel.data is {}; use at most that many", *least, *data));
  }

  void check_ranks_per_node() {
    const ParallelConfig& parallel = config_.parallel;
    const auto& per_node = config_.launch.ranks_per_node;
    const auto data = data_degree(parallel, world_);
    if (!per_node || !data) return;
    if (!are_fine({"launch.ranks_per_node", "parallel.data", "parallel.tensor", "parallel.pipeline"})) return;
    const std::int64_t world = *data * parallel.tensor * parallel.pipeline;
    if (world % *per_node == 0) return;
    refuse(
        {"launch.ranks_per_node", "parallel.data", "parallel.tensor", "parallel.pipeline"},
        fmt::format("data {} x tensor {} x pipeline {} = {} ranks do not fill hosts of {} ranks; change a degree, or "
                    "set launch.ranks_per_node: auto",
                    *data, parallel.tensor, parallel.pipeline, world, *per_node));
  }

  void check_heartbeat() {
    constexpr double least = 1.0;  // workers report eight times in a heartbeat, as threads among busy ones
    const double heartbeat = config_.supervise.heartbeat;
    if (!are_fine({"supervise.heartbeat"}) || heartbeat >= least) return;
    refuse({"supervise.heartbeat"},
           fmt::format("{:g} s is too short to tell a hung worker from a busy one; at least {:g} s", heartbeat, least));
  }
};

}  // namespace

namespace {

std::string parent_path(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

}  // namespace

bool is_broken(const ReadContext& context, std::string path) {
  for (; !path.empty(); path = parent_path(path)) {
    if (context.broken.contains(path)) return true;
  }
  return false;
}

Place place_of(const ReadContext& context, std::string path) {
  for (; !path.empty(); path = parent_path(path)) {
    const auto found = context.given.find(path);
    if (found != context.given.end()) return found->second;
  }
  return {};
}

namespace {

// A preset with as many key and value heads as heads has them so with another number of heads too; one with fewer keeps
// its own.
void follow_preset(ModelConfig& model, const ReadContext& context, std::vector<std::string>& notices) {
  const ModelConfig* const preset = model.preset ? find_model_preset(*model.preset) : nullptr;
  if (preset == nullptr || context.given.contains("model.kv_heads") || model.heads == preset->heads) return;
  if (preset->kv_heads == preset->heads) {
    model.kv_heads = model.heads;
  } else if (model.heads % model.kv_heads == 0) {
    notices.push_back(
        fmt::format("model.kv_heads: {} as in preset {}, with model.heads: {} in place of {}; set the key "
                    "if that is not meant",
                    model.kv_heads, *model.preset, model.heads, preset->heads));
  }
}

void fill_precision(Config& config, DeviceKind device, std::vector<std::string>& notices) {
  if (config.precision.compute) return;
  const Precision precision = default_precision(device);
  const Precision of_run = config.compute_precision();
  if (precision != of_run)
    notices.push_back(fmt::format(
        "precision.compute: auto is {} on {}, which this is planned for; with run.device: {} it is {}",
        to_text(precision), device == DeviceKind::cuda ? "GPUs" : "CPUs", to_text(config.run.device), to_text(of_run)));
  config.precision.compute = precision;
}

}  // namespace

void fill_defaults(Config& config, Origin origin, std::optional<DeviceKind> device, const ReadContext& context,
                   std::vector<std::string>& notices) {
  const auto is_open = [&](const char* path) { return !config.model.preset && !context.given.contains(path); };
  if (is_open("model.kv_heads")) config.model.kv_heads = config.model.heads;
  follow_preset(config.model, context, notices);
  if (is_open("model.ffn_hidden")) config.model.ffn_hidden = 4 * config.model.hidden;
  if (!context.given.contains("data.documents.attention") && reads_instructions(config.data))
    config.data.documents.attention =
        reads_text(config.data) ? DocumentAttention::instructions : DocumentAttention::within;
  OptimizerConfig& optimizer = config.train.optimizer;
  if (optimizer.type == OptimizerKind::muon) {
    constexpr double usual_momentum = 0.95;
    if (!context.given.contains("train.optimizer.momentum")) optimizer.momentum = usual_momentum;
    if (!context.given.contains("train.optimizer.nesterov")) optimizer.nesterov = true;
  }
  if (optimizer.type == OptimizerKind::adafactor) {
    // As a part of a tensor's own size: its decay is one of every step, and nothing makes up for it.
    constexpr double usual_rate = 1e-2;
    if (!context.given.contains("train.optimizer.learning_rate")) optimizer.learning_rate = usual_rate;
    if (!context.given.contains("train.optimizer.weight_decay")) optimizer.weight_decay = 0;
  }
  fill_phases(config);
  // What goes without saying is nothing: two ways to write one model are one config.
  ModelConfig& model = config.model;
  if (model.hidden % model.heads == 0 && model.head_dim == model.hidden / model.heads) model.head_dim.reset();
  if (model.qkv_bias == model.bias) model.qkv_bias.reset();
  if (model.init.scale_residual == (model.init.type == InitKind::normal)) model.init.scale_residual.reset();
  if (origin == Origin::user) fill_precision(config, device.value_or(config.run.device), notices);
  if (origin == Origin::user && config.run.directory.empty()) config.run.directory = "runs/" + config.run.name;
}

void validate_config(Config& config, Origin origin, const std::optional<WorldSize>& world,
                     std::optional<DeviceKind> device, ReadContext& context, std::vector<std::string>& notices) {
  const RuleScope scope(config, origin, world, device.value_or(config.run.device), context, notices);
  Rules(scope).run();
  check_training_rules(scope);
  check_phase_rules(scope);
  check_data_rules(scope);
}

}  // namespace scaletrain
