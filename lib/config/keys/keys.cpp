// The key table: one row per key, in the order of the file (key_rows.h: how a row is written). The sections model, data
// and phases have files of their own.
#include "config/keys/keys.h"

#include <fmt/core.h>

#include <utility>

#include "config/keys/key_rows.h"
#include "config/keys/number_text.h"

namespace scaletrain {

using namespace key_rows;  // NOLINT(google-build-using-namespace)

namespace {

Key<Config> betas_row() {
  Key<Config> key;
  const auto write = [](const Config& config) {
    const OptimizerConfig& optimizer = config.train.optimizer;
    return fmt::format("[{}, {}]", number_text(optimizer.beta1), number_text(optimizer.beta2));
  };
  key.info = {"train.optimizer.betas",
              "list of two numbers",
              "",
              write(Config()),
              "Decay of the running means of the gradient and of its square (AdamW, LAMB, AdEMAMix, Muon's AdamW); of "
              "Lion, of the mean that it steps by and of the one that it keeps.",
              with_notice};
  key.read = [](const YamlNode& node, const std::string& path, Config& config, ReadContext& context) {
    if (node.kind != YamlNode::Kind::list || node.items.size() != 2)
      return context.refuse(node.place, path, "expected a list of two numbers such as [0.9, 0.95]");
    double betas[2] = {0, 0};
    for (std::size_t i = 0; i < 2; ++i) {
      const std::string problem = NumberCodec{0.0, 1.0, Bounds::open_above}.parse(node.items[i], betas[i]);
      if (!problem.empty()) return context.refuse(node.items[i].place, path, problem);
    }
    config.train.optimizer.beta1 = betas[0];
    config.train.optimizer.beta2 = betas[1];
  };
  key.write = write;
  return key;
}

// Steps, or a time: two members of which at most one is set; 0 leaves both empty.
Key<Config> checkpoint_every_row() {
  Key<Config> key;
  const auto write = [](const Config& config) {
    const CheckpointConfig& checkpoint = config.checkpoint;
    if (checkpoint.every_seconds) return DurationCodec().text(*checkpoint.every_seconds);
    return std::to_string(checkpoint.every_steps.value_or(0));
  };
  key.info = {"checkpoint.every",
              "integer or time",
              "steps",
              write(Config()),
              "Save after so many steps, or after a time such as 30m; 0: only at the end.",
              freely};
  key.read = [](const YamlNode& node, const std::string& path, Config& config, ReadContext& context) {
    std::int64_t steps = 0;
    double seconds = 0;
    CheckpointConfig& checkpoint = config.checkpoint;
    const bool is_plain = node.kind == YamlNode::Kind::scalar && !node.is_quoted;
    if (is_plain && parse_duration(node.text)) {
      const std::string problem = DurationCodec().parse(node, seconds);
      if (!problem.empty()) return context.refuse(node.place, path, problem);
      checkpoint.every_seconds = seconds;
      checkpoint.every_steps.reset();
      return;
    }
    if (!is_plain || !parse_integer(node.text))
      return context.refuse(node.place, path, "expected steps or a time such as 30m, found " + describe(node));
    const std::string problem = at_least(0).parse(node, steps);
    if (!problem.empty()) return context.refuse(node.place, path, problem);
    checkpoint.every_seconds.reset();
    checkpoint.every_steps.reset();
    if (steps > 0) checkpoint.every_steps = steps;
  };
  key.write = write;
  return key;
}

void add_run(KeyTable<Config>& table) {
  table.push_back(top({"run.name", "", "Names the run's folder where run.directory does not: runs/NAME."},
                      TextCodec{TextRule::plain_name}, FIELD(run.name)));
  Key<Config> directory =
      top({"run.directory", "", "Folder of the run, relative to the working directory.", freely, "runs/NAME"},
          path_text(), FIELD(run.directory));
  // Nothing stands for the default, so that a config made in code can be written and read too.
  directory.write = [](const Config& config) {
    return config.run.directory.empty() ? std::string("null") : path_text().text(config.run.directory);
  };
  directory.read = [read = directory.read](const YamlNode& node, const std::string& path, Config& config,
                                           ReadContext& context) {
    if (node.kind != YamlNode::Kind::null) read(node, path, config, context);
  };
  table.push_back(std::move(directory));
  table.push_back(top({"run.seed", "", "Seed of the initial weights and the order of the data.", never}, SeedCodec(),
                      FIELD(run.seed)));
  table.push_back(top({"run.device", "",
                       "Where to compute; auto: GPUs where each rank can have one, else processors; cuda: GPUs, which "
                       "ranks share where there are fewer.",
                       with_notice},
                      EnumCodec<DeviceKind>(), FIELD(run.device)));
  table.push_back(top({"run.cuda_graphs", "",
                       "Launch what the steps have in common as CUDA graphs: less work for the host, and for the GPU "
                       "the same, to the bit; GPUs only."},
                      BoolCodec(), FIELD(run.cuda_graphs)));
}

void add_train(KeyTable<Config>& table) {
  table.push_back(
      top({"train.steps", "steps", "Optimizer steps of the run; exactly one of steps, tokens and epochs.", with_notice},
          optional(at_least(1)), FIELD(train.steps)));
  table.push_back(top({"train.tokens", "tokens", "Training tokens of the run, in place of steps.", with_notice},
                      optional(at_least(1)), FIELD(train.tokens)));
  table.push_back(top({"train.epochs", "",
                       "Length of the run as so many times all samples of data.train (1.5: one and a half), in place "
                       "of steps.",
                       with_notice},
                      optional(positive(kMostEpochs)), FIELD(train.epochs)));
  table.push_back(global_batch_row());
  table.push_back(
      section_row({"train.batch_ramp", "",
                   "The batch grows to train.global_batch in the first steps; null: all steps have that.", with_notice},
                  batch_ramp_table(), FIELD(train.batch_ramp)));
  table.push_back(batch_auto_row());
  table.push_back(
      top({"train.micro_batch", "samples", "Samples of a replica that go through its stages at once, at most."},
          at_least(1, kMaxBatch), FIELD(train.micro_batch)));
  table.push_back(top({"train.optimizer.type", "", "The update rule.", never}, EnumCodec<OptimizerKind>(),
                      FIELD(train.optimizer.type)));
  table.push_back(top({"train.optimizer.learning_rate", "",
                       "The highest learning rate, after warm-up; of Adafactor as a part of each tensor's root mean "
                       "square, 0.01 unless given.",
                       with_notice},
                      NumberCodec{0.0, 1e6}, FIELD(train.optimizer.learning_rate)));
  table.push_back(betas_row());
  table.push_back(
      top({"train.optimizer.epsilon", "",
           "Added to the root of the squared gradient's mean (AdamW, LAMB, AdEMAMix, Muon's AdamW).", with_notice},
          positive(1.0), FIELD(train.optimizer.epsilon)));
  table.push_back(
      top({"train.optimizer.momentum", "",
           "Part of the last step's direction that is kept (SGD, LARS; Muon, 0.95 unless given); 0: none, and with SGD "
           "and LARS no memory for it, so that a resume changes it neither to 0 nor from it.",
           with_notice},
          NumberCodec{0.0, 1.0, Bounds::open_above}, FIELD(train.optimizer.momentum)));
  table.push_back(
      top({"train.optimizer.nesterov", "", "Nesterov's momentum (SGD; Muon, true unless given).", with_notice},
          BoolCodec(), FIELD(train.optimizer.nesterov)));
  table.push_back(top({"train.optimizer.trust_coefficient", "",
                       "Step of a tensor as a part of its norm, for each 1 of the learning rate (LARS).", with_notice},
                      positive(1e3), FIELD(train.optimizer.trust_coefficient)));
  table.push_back(top({"train.optimizer.alpha", "", "Weight of the slow mean of the gradient (AdEMAMix).", with_notice},
                      NumberCodec{0.0, 1e3}, FIELD(train.optimizer.alpha)));
  table.push_back(top({"train.optimizer.beta3", "", "Decay of the slow mean of the gradient (AdEMAMix).", with_notice},
                      NumberCodec{0.0, 1.0, Bounds::open_above}, FIELD(train.optimizer.beta3)));
  table.push_back(top({"train.optimizer.slow_warmup", "steps",
                       "Steps in which the slow mean's weight grows from 0 and its decay from the first of betas "
                       "(AdEMAMix); auto: the run's.",
                       with_notice},
                      optional(at_least(0), "auto"), FIELD(train.optimizer.slow_warmup)));
  table.push_back(top({"train.optimizer.step_scale", "",
                       "Length of Muon's step of a matrix of R outputs and C inputs: match_rms_adamw, 0.2 sqrt(max(R, "
                       "C)), for the rates and decays of AdamW; original, sqrt(max(1, R/C)).",
                       with_notice},
                      EnumCodec<StepScale>(), FIELD(train.optimizer.step_scale)));
  table.push_back(
      top({"train.optimizer.adamw_rate", "",
           "Factor on the learning rate of what Muon leaves to AdamW: embeddings, head, norms, biases.", with_notice},
          positive(1e6), FIELD(train.optimizer.adamw_rate)));
  table.push_back(top({"train.optimizer.beta2_exponent", "",
                       "c of Adafactor, whose t-th update keeps 1 - t^-c of the running mean of squares.", with_notice},
                      NumberCodec{0.0, 1.0, Bounds::open_below}, FIELD(train.optimizer.beta2_exponent)));
  table.push_back(
      top({"train.optimizer.clip_threshold", "",
           "Root mean square above which the direction of a tensor is scaled down to it (Adafactor).", with_notice},
          positive(1e6), FIELD(train.optimizer.clip_threshold)));
  table.push_back(top({"train.optimizer.smallest_scale", "",
                       "Adafactor's step of a tensor is the learning rate times the tensor's root mean square, or "
                       "times this where that is less.",
                       with_notice},
                      positive(1e3), FIELD(train.optimizer.smallest_scale)));
  table.push_back(top({"train.optimizer.weight_decay", "",
                       "Decay of matrices, not of biases and norms (but for finetune.weight_decays): decoupled, with "
                       "SGD and LARS a part of the "
                       "gradient; with Adafactor 0 unless given.",
                       with_notice},
                      NumberCodec{0.0, 1e3}, FIELD(train.optimizer.weight_decay)));
  table.push_back(
      top({"train.optimizer.offload", "",
           "Where masters and the optimizer's state lie; host: in the host's memory, for what a GPU has no room for."},
          EnumCodec<OffloadKind>(), FIELD(train.optimizer.offload)));
  table.push_back(top({"train.optimizer.state", "",
                       "How the moments of matrices are kept; int8: in 8 bits, in blocks that share a scale, for about "
                       "a quarter of the memory (AdamW).",
                       never},
                      EnumCodec<OptimizerStateType>(), FIELD(train.optimizer.state)));
  table.push_back(
      section_row({"train.optimizer.scale_with_batch", "",
                   "The learning rate is that of another batch, and is scaled to train.global_batch; null: it is not.",
                   with_notice},
                  batch_scaling_table(), FIELD(train.optimizer.scale_with_batch)));
  table.push_back(top({"train.lr_schedule.type", "", "Course of the learning rate after warm-up.", with_notice},
                      EnumCodec<LrScheduleKind>(), FIELD(train.lr_schedule.type)));
  table.push_back(top({"train.lr_schedule.warmup", "steps",
                       "Steps of linear warm-up; auto: a twentieth of the run's steps, at most 2000.", with_notice},
                      optional(at_least(0), "auto"), FIELD(train.lr_schedule.warmup)));
  table.push_back(top(
      {"train.lr_schedule.min_ratio", "", "Part of the learning rate that it falls to, and never below.", with_notice},
      NumberCodec{0.0, 1.0}, FIELD(train.lr_schedule.min_ratio)));
  table.push_back(
      top({"train.lr_schedule.decay_steps", "steps",
           "How long the learning rate falls at the end of the run (type: wsd); null: decay_share says.", with_notice},
          optional(at_least(1)), FIELD(train.lr_schedule.decay_steps)));
  table.push_back(top({"train.lr_schedule.decay_share", "",
                       "The same as a share of the run, at most what the warm-up leaves (type: wsd).", with_notice},
                      positive(1.0), FIELD(train.lr_schedule.decay_share)));
  table.push_back(
      top({"train.lr_schedule.decay_shape", "", "How it falls (type: wsd); 1-sqrt: fast, then slower.", with_notice},
          EnumCodec<DecayShape>(), FIELD(train.lr_schedule.decay_shape)));
  table.push_back(top({"train.lr_schedule.restart_steps", "steps",
                       "Length of the first cycle (type: cosine_restarts): behind it the learning rate is at its "
                       "highest again. In a run of tokens: of so many steps of global_batch.",
                       with_notice},
                      at_least(1), FIELD(train.lr_schedule.restart_steps)));
  table.push_back(top(
      {"train.lr_schedule.restart_factor", "",
       "How many times as long each cycle is as the one before it, 1 at least (type: cosine_restarts).", with_notice},
      NumberCodec{1.0, 1e6}, FIELD(train.lr_schedule.restart_factor)));
  table.push_back(
      top({"train.clip_norm", "", "Longest gradient; a longer one is scaled down. null: no clipping.", with_notice},
          optional(positive()), FIELD(train.clip_norm)));
  table.push_back(
      top({"train.label_smoothing", "",
           "Part of the target that is spread over the whole vocabulary, of what is optimised; losses are reported "
           "without it.",
           with_notice},
          NumberCodec{0.0, 1.0, Bounds::open_above}, FIELD(train.label_smoothing)));
  table.push_back(
      top({"train.z_loss", "",
           "Times the square of log(sum of exp(logits)) of a token, averaged over tokens, is added to what is "
           "optimised, such as 1e-4; losses are reported without it.",
           with_notice},
          NumberCodec{0.0, 1e3}, FIELD(train.z_loss)));
  table.push_back(section_row(
      {"train.ema", "",
       "An exponential moving average of the weights beside them, for evaluate.ema and the --ema of commands; null: "
       "none.",
       never},
      ema_table(), FIELD(train.ema)));
  table.push_back(top(
      {"train.recompute", "",
       "What the backward computes again and memory need not keep: selective, norms and activation functions; full, "
       "whole layers but their inputs. Changes no bit."},
      EnumCodec<RecomputeKind>(), FIELD(train.recompute)));
  table.push_back(top({"train.nonfinite.skip", "steps", "Non-finite steps in a row to skip before stopping."},
                      at_least(0), FIELD(train.nonfinite.skip)));
  table.push_back(section_row({"train.spike", "", "What to do when the loss jumps; null: nothing.", with_notice},
                              spike_table(), FIELD(train.spike)));
}

void add_finetune(KeyTable<Config>& table) {
  table.push_back(top({"finetune.freeze", "",
                       "Parameters that are not trained, as patterns over their names (* and ?), such as blocks.0.*; "
                       "checkpoint inspect --all lists the names.",
                       never},
                      PatternListCodec(), FIELD(finetune.freeze)));
  table.push_back(list_row({"finetune.unfreeze", "",
                            "Phases by which frozen parameters join the training; they have their optimizer memory "
                            "from the start.",
                            never, "[]"},
                           "list of phases", unfreeze_table(), FIELD(finetune.unfreeze)));
  table.push_back(top({"finetune.learning_rates", "",
                       "Factors on the learning rate, by patterns over names of parameters; of those that match the "
                       "last one counts.",
                       with_notice, "{}"},
                      FactorsCodec{1e6}, FIELD(finetune.learning_rates)));
  table.push_back(
      top({"finetune.weight_decays", "",
           "Factors on train.optimizer.weight_decay, by patterns as there; 0: no decay, and with lamb and lars no "
           "ratio of norms. Biases and norms "
           "begin to decay only by a pattern that matches nothing else, such as *.bias.",
           with_notice, "{}"},
          FactorsCodec{1e6, Bounds::closed}, FIELD(finetune.weight_decays)));
  table.push_back(top({"finetune.layer_decay", "",
                       "Factor on the learning rate of a layer for each one behind it: the head has 1, the last block "
                       "this, the one before its square.",
                       with_notice},
                      positive(1.0), FIELD(finetune.layer_decay)));
  table.push_back(section_row(
      {"finetune.lora", "",
       "Low-rank adapters are trained in place of the model that model.init.from brings, and checkpoints hold them "
       "alone; null: the model itself is.",
       never},
      lora_table(), FIELD(finetune.lora)));
}

void add_parallel(KeyTable<Config>& table) {
  table.push_back(top({"parallel.data", "ranks",
                       "Data-parallel degree; auto: what the launcher's world or else the node's GPUs leave."},
                      optional(at_least(1, kMaxDegree), "auto"), FIELD(parallel.data)));
  table.push_back(
      top({"parallel.tensor", "ranks",
           "Tensor-parallel degree: divides model.heads, and divides model.kv_heads or is a multiple of it."},
          at_least(1, kMaxDegree), FIELD(parallel.tensor)));
  table.push_back(
      top({"parallel.sequence", "", "Divide norms and residuals among a tensor group by tokens (tensor: 2 or more)."},
          BoolCodec(), FIELD(parallel.sequence)));
  table.push_back(top({"parallel.pipeline", "ranks", "Pipeline stages; times chunks, no more than model.layers."},
                      at_least(1, kMaxDegree), FIELD(parallel.pipeline)));
  table.push_back(top({"parallel.schedule", "", "Order of micro-batches on the pipeline."}, EnumCodec<ScheduleKind>(),
                      FIELD(parallel.schedule)));
  table.push_back(top({"parallel.chunks", "", "Model chunks per stage (schedule: interleaved, which needs 2 or more)."},
                      at_least(1, kMaxLayers), FIELD(parallel.chunks)));
  table.push_back(top({"parallel.stage_layers", "",
                       "Layers of each stage's chunk, in order of the model; only the first and the last may have 0."},
                      optional(IntegerListCodec{0, kMaxLayers}, "auto"), FIELD(parallel.stage_layers)));
  table.push_back(top(
      {"parallel.zero", "",
       "ZeRO stage: 1 divides optimizer state among replicas, 2 gradients too, 3 weights too; 1 sends as much as 0."},
      at_least(0, 3), FIELD(parallel.zero)));
  table.push_back(top({"parallel.zero_group", "replicas",
                       "Replicas that ZeRO divides among; auto: all. Fewer, a divisor of data: each such group of "
                       "neighbours holds all once, so that weights are gathered inside it, and only sums of shards "
                       "pass between groups (a group per host: the hybrid sharding of others)."},
                      optional(at_least(2, kMaxDegree), "auto"), FIELD(parallel.zero_group)));
  table.push_back(top({"parallel.zero_reduce", "",
                       "When zero: 3 sums gradients: at every use, as stage 2 does, or once a step, as stage 1 does: "
                       "with many micro-batches far less traffic, and gradients are held whole."},
                      EnumCodec<ZeroReduceKind>(), FIELD(parallel.zero_reduce)));
  table.push_back(
      top({"precision.compute", "",
           "Type of activations and of weights in products; auto: fp32 on CPUs, bf16 on GPUs. tf32: fp32 but for the "
           "products of linear maps and of Muon (GPUs alone).",
           with_notice},
          optional(EnumCodec<Precision>(), "auto"), FIELD(precision.compute)));
  table.push_back(top(
      {"precision.reduce", "",
       "Type in which gradients travel between replicas; they are summed and kept in fp32. Sums between the groups of "
       "zero_group travel in fp32.",
       with_notice},
      EnumCodec<Precision>(), FIELD(precision.reduce)));
  table.push_back(top({"precision.loss_scale", "",
                       "Factor on the loss, so that small gradients do not become zero (compute: fp16 alone); dynamic: "
                       "found as it goes.",
                       with_notice},
                      optional(NumberCodec{1.0, 1e12, Bounds::closed}, "dynamic"), FIELD(precision.loss_scale)));
}

void add_rest(KeyTable<Config>& table) {
  table.push_back(top({"evaluate.every", "steps", "Steps between evaluations; 0: only at the end."}, at_least(0),
                      FIELD(evaluate.every)));
  table.push_back(
      top({"evaluate.batches", "global batches", "How much of each validation set an evaluation reads; 0: all of it."},
          at_least(0), FIELD(evaluate.batches)));
  table.push_back(top({"evaluate.ema", "", "Evaluate train.ema's average of the weights in their place."}, BoolCodec(),
                      FIELD(evaluate.ema)));
  table.push_back(
      list_row({"evaluate.tasks", "",
                "Multiple-choice tasks to evaluate on, all of each; a choice stands behind its question and a space.",
                freely, "[]"},
               "list of tasks", task_table(), FIELD(evaluate.tasks)));
  table.push_back(section_row({"early_stop", "", "Stop when a metric no longer improves; null: never."},
                              early_stop_table(), FIELD(early_stop)));
  table.push_back(checkpoint_every_row());
  table.push_back(top({"checkpoint.keep", "checkpoints", "How many of the newest stay; the best and keep_every more."},
                      at_least(2), FIELD(checkpoint.keep)));
  table.push_back(
      top({"checkpoint.best", "",
           "Save whenever an evaluation improves the early-stop metric, and keep the best, of equals the first."},
          BoolCodec(), FIELD(checkpoint.best)));
  table.push_back(top({"checkpoint.background", "", "Write while training goes on; false: training waits."},
                      BoolCodec(), FIELD(checkpoint.background)));
  table.push_back(top({"checkpoint.keep_every", "steps", "Save after so many steps too, and keep those for good."},
                      optional(at_least(1)), FIELD(checkpoint.keep_every)));
  table.push_back(top(
      {"supervise.max_restarts", "",
       "Restarts after failures before giving up; a later checkpoint forgives those before it. A node that an elastic "
       "run loses is no failure."},
      at_least(0), FIELD(supervise.max_restarts)));
  table.push_back(top(
      {"supervise.heartbeat", "s",
       "Longest time one layer of one micro-batch may take (1s at least); a worker without counted progress is hung."},
      DurationCodec(), FIELD(supervise.heartbeat)));
  table.push_back(section_row({"supervise.elastic", "", "Go on with fewer replicas when ranks are lost; null: no."},
                              elastic_table(), FIELD(supervise.elastic_min_data)));
  table.push_back(
      top({"launch.interface", "",
           "Interface (or its numeric address) that this host's ranks listen on, NCCL's too; auto: loopback if all are "
           "here, else the one towards rank 0; NCCL chooses itself then."},
          optional(TextCodec{TextRule::plain_name}, "auto"), FIELD(launch.interface)));
  table.push_back(top({"launch.port", "", "Port of the rendezvous; auto: any free one."},
                      optional(at_least(1, 65535), "auto"), FIELD(launch.port)));
  table.push_back(top({"launch.ranks_per_node", "ranks", "Ranks on each host; divides their number."},
                      optional(at_least(1, kMaxDegree), "auto"), FIELD(launch.ranks_per_node)));
  table.push_back(
      top({"launch.transport", "",
           "How ranks exchange. auto: on GPUs by NCCL where each has its own and NCCL is found, else as host; host: "
           "those of one host through its memory where the system lets them, others by TCP; tcp: all by TCP; nccl: on "
           "GPUs by NCCL, or not at all."},
          EnumCodec<RankTransport>(), FIELD(launch.transport)));
  table.push_back(top({"log.every", "steps",
                       "Steps between lines for people, off a terminal; auto: some at first, then one every 30 s. "
                       "metrics.jsonl has every step."},
                      optional(at_least(1), "auto"), FIELD(log.every)));
  table.push_back(top({"log.tensorboard", "", "Write TensorBoard event files into tensorboard/ of the run folder."},
                      BoolCodec(), FIELD(log.tensorboard)));
  table.push_back(top({"log.peak_tflops", "TFLOP/s",
                       "A rank's device at its best, of which mfu is a share; auto: a GPU's data sheet, or matrix "
                       "products, which a start measures for 0.2 s."},
                      optional(positive(), "auto"), FIELD(log.peak_tflops)));
  table.push_back(section_row(
      {"log.gradient_noise", "",
       "Measure the gradient noise scale, the batch beyond which more samples help little, from the two halves of a "
       "step's batch; null: do not.",
       with_notice},
      gradient_noise_table(), FIELD(log.gradient_noise)));
}

}  // namespace

const KeyTable<UnfreezeConfig>& unfreeze_table() {
  static const KeyTable<UnfreezeConfig> table = [] {
    KeyTable<UnfreezeConfig> out;
    out.push_back(row<UnfreezeConfig>({"step", "steps",
                                       "The parameters join when so many steps have been made; skipped ones do not "
                                       "count.",
                                       never, "required"},
                                      at_least(1), FIELD(step)));
    out.push_back(row<UnfreezeConfig>(
        {"patterns", "", "Which parameters, of those that finetune.freeze names; patterns as there.", never,
         "required"},
        PatternListCodec(), FIELD(patterns)));
    return out;
  }();
  return table;
}

const KeyTable<TaskConfig>& task_table() {
  static const KeyTable<TaskConfig> table = [] {
    KeyTable<TaskConfig> out;
    out.push_back(
        row<TaskConfig>({"name", "", "Name of the task; its metric is task/NAME/accuracy.", freely, "required"},
                        TextCodec{TextRule::plain_name}, FIELD(name)));
    out.push_back(
        row<TaskConfig>({"path", "", "A JSONL file of `question`, `choices` and `answer`.", freely, "required"},
                        path_text(), FIELD(path)));
    return out;
  }();
  return table;
}

const KeyTable<EarlyStopConfig>& early_stop_table() {
  static const KeyTable<EarlyStopConfig> table = [] {
    KeyTable<EarlyStopConfig> out;
    out.push_back(row<EarlyStopConfig>(
        {"metric", "", "What to watch: validation/NAME/loss or task/NAME/accuracy.", freely, "required"}, TextCodec(),
        FIELD(metric)));
    out.push_back(row<EarlyStopConfig>({"patience", "evaluations", "Evaluations without improvement before stopping."},
                                       at_least(1), FIELD(patience)));
    out.push_back(row<EarlyStopConfig>({"min_delta", "", "Smallest change that counts as an improvement."},
                                       NumberCodec{0.0, 1e12}, FIELD(min_delta)));
    out.push_back(
        row<EarlyStopConfig>({"target", "", "Stop as soon as a loss is at or below it, an accuracy at or above it."},
                             optional(NumberCodec()), FIELD(target)));
    return out;
  }();
  return table;
}

const KeyTable<BatchScalingConfig>& batch_scaling_table() {
  static const KeyTable<BatchScalingConfig> table = [] {
    KeyTable<BatchScalingConfig> out;
    out.push_back(row<BatchScalingConfig>(
        {"rule", "", "linear: times train.global_batch / base; sqrt: times the root of that.", with_notice},
        EnumCodec<BatchScaling>(), FIELD(rule)));
    out.push_back(row<BatchScalingConfig>(
        {"base", "samples", "The batch that the learning rate is given for.", with_notice, "required"},
        at_least(1, kMaxBatch), FIELD(base)));
    return out;
  }();
  return table;
}

const KeyTable<EmaConfig>& ema_table() {
  static const KeyTable<EmaConfig> table = {row<EmaConfig>(
      {"decay", "", "What of the average stays at an update: 0.999 of it, and 0.001 of the weights.", never},
      NumberCodec{0.0, 1.0, Bounds::open_above}, FIELD(decay))};
  return table;
}

const KeyTable<BatchRampConfig>& batch_ramp_table() {
  static const KeyTable<BatchRampConfig> table = [] {
    constexpr std::int64_t most_steps = std::int64_t{1} << 32;  // times samples still counts
    KeyTable<BatchRampConfig> out;
    out.push_back(row<BatchRampConfig>({"from", "samples", "The batch of the first step.", with_notice, "required"},
                                       at_least(1, kMaxBatch), FIELD(from)));
    out.push_back(row<BatchRampConfig>(
        {"by", "samples", "How much it grows at a time; divides what global_batch is above `from`.", with_notice,
         "required"},
        at_least(1, kMaxBatch), FIELD(by)));
    out.push_back(row<BatchRampConfig>(
        {"steps", "steps", "Steps of the ramp; those behind it have global_batch.", with_notice, "required"},
        at_least(1, most_steps), FIELD(steps)));
    return out;
  }();
  return table;
}

const KeyTable<SpikeConfig>& spike_table() {
  static const KeyTable<SpikeConfig> table = [] {
    KeyTable<SpikeConfig> out;
    out.push_back(row<SpikeConfig>({"window", "steps", "Steps whose losses a jump is measured against.", with_notice},
                                   at_least(8, 1 << 20), FIELD(window)));
    out.push_back(
        row<SpikeConfig>({"zscore", "", "Standard deviations above their mean that count as a jump.", with_notice},
                         positive(), FIELD(zscore)));
    out.push_back(
        row<SpikeConfig>({"action", "", "What to do then.", with_notice}, EnumCodec<SpikeAction>(), FIELD(action)));
    return out;
  }();
  return table;
}

const KeyTable<LoraConfig>& lora_table() {
  static const KeyTable<LoraConfig> table = [] {
    KeyTable<LoraConfig> out;
    out.push_back(row<LoraConfig>({"rank", "", "Features that an adapter goes through, of the map's many.", never},
                                  at_least(1, kMaxWidth), FIELD(rank)));
    out.push_back(
        row<LoraConfig>({"alpha", "", "Adapters are added times this / rank.", never}, positive(), FIELD(alpha)));
    out.push_back(
        row<LoraConfig>({"dropout", "", "Probability of dropping an element of an adapter's input in training.", never},
                        NumberCodec{0.0, 1.0, Bounds::open_above}, FIELD(dropout)));
    out.push_back(
        row<LoraConfig>({"targets", "",
                         "Maps that get an adapter, as the model's family calls them (q_proj, mlp.c_proj), as peft's "
                         "target_modules; all-linear: all but the head.",
                         never},
                        NameListCodec(), FIELD(targets)));
    out.push_back(row<LoraConfig>({"from", "",
                                   "A folder of peft's adapters to start from, of this rank and alpha and these "
                                   "targets; read at the first start only."},
                                  optional(path_text()), FIELD(from)));
    return out;
  }();
  return table;
}

const KeyTable<std::int64_t>& elastic_table() {
  static const KeyTable<std::int64_t> table = {row<std::int64_t>(
      {"min_data", "ranks", "Smallest data-parallel degree to go on with; at most parallel.data.", freely, "required"},
      at_least(1, kMaxDegree), [](auto& value) -> auto& { return value; })};
  return table;
}

const KeyTable<Config>& config_table() {
  static const KeyTable<Config> table = [] {
    KeyTable<Config> out;
    add_run(out);
    add_model(out);
    add_data(out);
    add_train(out);
    add_phases(out);
    add_finetune(out);
    add_parallel(out);
    add_rest(out);
    return out;
  }();
  return table;
}

}  // namespace scaletrain
