// The key table: one row per key, in the order of the file. A row's helper names the kind of value; FIELD names the
// member.
#include "config/keys/keys.h"

#include <fmt/core.h>

#include <utility>

#include "config/keys/key_codecs.h"
#include "config/keys/key_table.h"
#include "config/keys/number_text.h"
#include "config/keys/unsupported.h"

namespace scaletrain {

namespace {

constexpr auto freely = ResumeRule::freely;
constexpr auto with_notice = ResumeRule::with_notice;
constexpr auto never = ResumeRule::never;

// Large enough for any model or cluster, small enough that products of two or three of them stay below 2^63.
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxFfn = std::int64_t{1} << 22;
constexpr std::int64_t kMaxContext = std::int64_t{1} << 28;
constexpr std::int64_t kMaxVocab = (std::int64_t{1} << 31) - 1;  // token ids are 32-bit integers
constexpr std::int64_t kMaxBatch = std::int64_t{1} << 30;
constexpr double kMostEpochs = 1e6;  // leaves room for what they are multiplied with
constexpr std::int64_t kMaxDegree = std::int64_t{1} << 20;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 62;

struct Words {
  std::string path;
  std::string unit;
  std::string meaning;
  ResumeRule resume = freely;
  std::string fallback = {};  // where the default is no constant
};

// A generic member accessor: const in, const out.
#define FIELD(member) ([](auto& record) -> auto& { return record.member; })

template <class Record, class Codec, class Field>
Key<Record> row(Words words, Codec codec, Field field) {
  Key<Record> key;
  if (words.fallback.empty()) {
    const Record fresh{};
    words.fallback = codec.text(field(fresh));
  }
  key.info = {words.path, codec.type(), words.unit, words.fallback, words.meaning, words.resume};
  if constexpr (requires { codec.not_yet; }) codec.not_yet = unsupported_values_of(words.path);
  if constexpr (requires { codec.codec.not_yet; }) codec.codec.not_yet = unsupported_values_of(words.path);
  key.read = [codec, field](const YamlNode& node, const std::string& path, Record& record, ReadContext& context) {
    const std::string problem = codec.parse(node, field(record));
    if (problem.empty()) return;
    const std::string later = node.kind == YamlNode::Kind::scalar ? unsupported_word(path, node.text) : std::string();
    context.refuse(node.place, path, later.empty() ? problem : later);
  };
  key.write = [codec, field](const Record& record) { return codec.text(field(record)); };
  key.copy = [field](const Record& from, Record& to) { field(to) = field(from); };
  return key;
}

// Rows of the whole config.
template <class Codec, class Field>
Key<Config> top(Words words, Codec codec, Field field) {
  return row<Config>(std::move(words), std::move(codec), std::move(field));
}

template <class Codec>
OptionalCodec<Codec> optional(Codec codec, std::string_view word = {}) {
  if constexpr (requires { codec.besides; }) codec.besides = word;
  return {std::move(codec), word};
}

IntegerCodec at_least(std::int64_t least, std::int64_t most = kMaxCount) {
  return {least, most};
}
NumberCodec positive(double most = 1e12) {
  return {0.0, most, Bounds::open_below};
}
TextCodec path_text() {
  return {TextRule::path};
}

// Whether an item of a list stands in the config: of validation sets those that a source holds out do not.
template <class Item>
bool is_written(const Item&) {
  return true;
}
template <>
bool is_written(const ValidationConfig& set) {
  return !set.held_out_of;
}

// A list of records that have a table of their own.
template <class Item, class Field>
Key<Config> list_row(const Words& words, const std::string& type, const KeyTable<Item>& table, Field field) {
  Key<Config> key;
  key.info = {words.path, type, words.unit, words.fallback, words.meaning, words.resume};
  key.read = [&table, field](const YamlNode& node, const std::string& path, Config& config, ReadContext& context) {
    if (node.kind == YamlNode::Kind::null) return;
    if (node.kind != YamlNode::Kind::list)
      return context.refuse(node.place, path,
                            "expected a list, found " + describe(node) + list_hint(table, node, path));
    auto& items = field(config);
    items.clear();
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const std::string item_path = fmt::format("{}.{}", path, i);
      context.given[item_path] = node.items[i].place;
      read_record(table, node.items[i], item_path, items.emplace_back(), context);
    }
  };
  key.write_items = [&table, field](const Config& config) {
    std::vector<std::string> out;
    for (const Item& item : field(config))
      if (is_written(item)) out.push_back(write_record(table, item));
    return out;
  };
  key.write = [write_items = key.write_items](const Config& config) {
    std::string out = "[";
    for (const std::string& item : write_items(config)) out += (out.size() > 1 ? ", " : "") + item;
    return out + "]";
  };
  return key;
}

// An optional section: null, or a mapping with a table of its own.
template <class Item, class Record = Config, class Field>
Key<Record> section_row(const Words& words, const KeyTable<Item>& table, Field field) {
  Key<Record> key;
  key.info = {words.path, "mapping or null", words.unit, "null", words.meaning, words.resume};
  key.read = [&table, field](const YamlNode& node, const std::string& path, Record& config, ReadContext& context) {
    field(config).reset();
    if (node.kind == YamlNode::Kind::null) return;
    Item item{};
    read_record(table, node, path, item, context);
    field(config) = std::move(item);
  };
  key.write = [&table, field](const Record& config) {
    const auto& item = field(config);
    return item ? write_record(table, *item) : std::string("null");
  };
  return key;
}

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
              "Decay of the running means of the gradient and of its square (AdamW).",
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

// A key that may be left out for what others say: the resolved config has its value all the same.
Key<Config> spelled_out(Key<Config> key, std::string (*text)(const ModelConfig& model)) {
  key.write = [text](const Config& config) { return text(config.model); };
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

void add_model(KeyTable<Config>& table) {
  table.push_back(top({"model.preset", "", "A known model; any other key of this section overrides it."},
                      optional(PresetCodec()), FIELD(model.preset)));
  table.push_back(
      top({"model.layers", "", "Transformer layers.", never}, at_least(1, kMaxLayers), FIELD(model.layers)));
  table.push_back(
      top({"model.hidden", "", "Width of the residual stream; a multiple of heads unless head_dim is set.", never},
          at_least(1, kMaxWidth), FIELD(model.hidden)));
  table.push_back(top({"model.heads", "", "Attention heads.", never}, at_least(1, kMaxWidth), FIELD(model.heads)));
  table.push_back(
      top({"model.kv_heads", "", "Key and value heads; fewer than heads: grouped-query attention.", never, "heads"},
          at_least(1, kMaxWidth), FIELD(model.kv_heads)));
  table.push_back(spelled_out(top({"model.head_dim", "", "Size of a head; auto: hidden / heads.", never},
                                  optional(at_least(1, kMaxWidth), "auto"), FIELD(model.head_dim)),
                              [](const ModelConfig& model) { return std::to_string(model.head_size()); }));
  table.push_back(top({"model.ffn_hidden", "", "Width inside the feed-forward block.", never, "4 * hidden"},
                      at_least(1, kMaxFfn), FIELD(model.ffn_hidden)));
  table.push_back(top({"model.context", "tokens", "Tokens per training sample.", never}, at_least(1, kMaxContext),
                      FIELD(model.context)));
  table.push_back(
      top({"model.vocab", "tokens", "Vocabulary; auto: the tokenizer's size with its special tokens.", never},
          optional(at_least(1, kMaxVocab), "auto"), FIELD(model.vocab)));
  table.push_back(top({"model.norm", "", "Kind of normalisation.", never}, EnumCodec<NormKind>(), FIELD(model.norm)));
  table.push_back(top({"model.norm_epsilon", "", "Added to the variance inside the normalisation.", never},
                      positive(1.0), FIELD(model.norm_epsilon)));
  table.push_back(top({"model.activation", "", "Activation of the feed-forward block.", never},
                      EnumCodec<ActivationKind>(), FIELD(model.activation)));
  table.push_back(
      top({"model.position", "", "How positions enter: a learned table, or rotation of queries and keys.", never},
          EnumCodec<PositionKind>(), FIELD(model.position)));
  table.push_back(top({"model.rope_theta", "", "Base of the rotation frequencies (position: rope).", never}, positive(),
                      FIELD(model.rope_theta)));
  table.push_back(
      top({"model.rope_scaling.type", "",
           "How rotation frequencies are divided for longer contexts: linear: all by the factor; llama3: as "
           "Llama 3.1, those of few turns.",
           never},
          EnumCodec<RopeScalingKind>(), FIELD(model.rope_scaling.type)));
  table.push_back(
      top({"model.rope_scaling.factor", "", "What frequencies are divided by (type: linear, llama3).", never},
          positive(), FIELD(model.rope_scaling.factor)));
  table.push_back(top({"model.rope_scaling.low_frequency_factor", "",
                       "Frequencies that turn less often within original_context are divided (type: llama3).", never},
                      positive(), FIELD(model.rope_scaling.low_frequency_factor)));
  table.push_back(top({"model.rope_scaling.high_frequency_factor", "",
                       "Frequencies that turn more often within original_context stay; in between a share is divided "
                       "(type: llama3).",
                       never},
                      positive(), FIELD(model.rope_scaling.high_frequency_factor)));
  table.push_back(top({"model.rope_scaling.original_context", "tokens",
                       "The context that the model was first made for (type: llama3).", never},
                      at_least(1, kMaxContext), FIELD(model.rope_scaling.original_context)));
  table.push_back(top({"model.bias", "", "Whether linear layers and layernorms have biases.", never}, BoolCodec(),
                      FIELD(model.bias)));
  table.push_back(spelled_out(
      top({"model.qkv_bias", "", "Whether the maps to query, key and value have biases; auto: as bias says.", never},
          optional(BoolCodec(), "auto"), FIELD(model.qkv_bias)),
      [](const ModelConfig& model) { return BoolCodec().text(model.has_qkv_bias()); }));
  table.push_back(
      top({"model.qk_norm", "", "Whether each head's query and key pass an RMS norm before their rotation.", never},
          BoolCodec(), FIELD(model.qk_norm)));
  table.push_back(top({"model.post_norm", "",
                       "Whether what attention and the feed-forward block give passes a norm of its own before it is "
                       "added to the residual stream.",
                       never},
                      BoolCodec(), FIELD(model.post_norm)));
  table.push_back(
      top({"model.norm_zero_centered", "",
           "Whether norms multiply by 1 + weight: weights start at 0 and are kept as their distance from one.", never},
          BoolCodec(), FIELD(model.norm_zero_centered)));
  table.push_back(top({"model.scale_embeddings", "",
                       "Whether token embeddings are multiplied by sqrt(hidden) (position: rope).", never},
                      BoolCodec(), FIELD(model.scale_embeddings)));
  table.push_back(spelled_out(
      top({"model.query_pre_attn_scalar", "",
           "Attention scores are query times key, divided by the square root of this; auto: head_dim.", never},
          optional(positive(), "auto"), FIELD(model.query_pre_attn_scalar)),
      [](const ModelConfig& model) { return number_text(model.query_scalar()); }));
  table.push_back(
      top({"model.attention_softcap", "", "Attention scores become cap * tanh(score / cap); none: they stay.", never},
          optional(positive(), "none"), FIELD(model.attention_softcap)));
  table.push_back(top({"model.logit_softcap", "", "Logits become cap * tanh(logit / cap); none: they stay.", never},
                      optional(positive(), "none"), FIELD(model.logit_softcap)));
  table.push_back(top({"model.window.tokens", "tokens",
                       "How many tokens attention sees, the query's own among them (sliding window); none: all "
                       "before it.",
                       never},
                      optional(at_least(1, kMaxContext), "none"), FIELD(model.window.tokens)));
  table.push_back(
      top({"model.window.global_every", "",
           "The last of so many layers each sees all before it, and has no window; 0: all have windows.", never},
          at_least(0, kMaxLayers), FIELD(model.window.global_every)));
  table.push_back(
      top({"model.window.rope_theta", "",
           "Base of the rotation frequencies of layers with a window, without rope_scaling (position: rope); auto: "
           "rope_theta and rope_scaling.",
           never},
          optional(positive(), "auto"), FIELD(model.window.rope_theta)));
  table.push_back(top({"model.tie_embeddings", "", "Whether the output head is the token embedding.", never},
                      BoolCodec(), FIELD(model.tie_embeddings)));
  table.push_back(top({"model.dropout", "", "Probability of dropping an activation in training.", never},
                      NumberCodec{0.0, 1.0, Bounds::open_above}, FIELD(model.dropout)));
  table.push_back(top({"model.init.type", "", "Distribution of the initial weights.", never}, EnumCodec<InitKind>(),
                      FIELD(model.init.type)));
  table.push_back(
      top({"model.init.std", "",
           "Standard deviation of initial weights (type: normal) and, whatever the type, of embeddings.", never},
          positive(1e3), FIELD(model.init.std)));
  table.push_back(top(
      {"model.init.scale_residual", "",
       "Whether projections back into the residual stream start smaller by sqrt(2 * layers) (type: normal).", never},
      BoolCodec(), FIELD(model.init.scale_residual)));
  table.push_back(top({"model.init.from", "", "A Hugging Face folder to start from; read at the first start only."},
                      optional(path_text()), FIELD(model.init.from)));
}

void add_data(KeyTable<Config>& table) {
  table.push_back(top({"data.tokenizer.type", "", "How text becomes tokens; ids: token files bring their own.", never},
                      EnumCodec<TokenizerKind>(), FIELD(data.tokenizer.type)));
  table.push_back(top({"data.tokenizer.path", "",
                       "The tokenizer's file or folder: tokenizer.json, or vocab.json with merges.txt (bpe); "
                       "tokenizer.model (sentencepiece)."},
                      optional(path_text()), FIELD(data.tokenizer.path)));
  table.push_back(
      top({"data.tokenizer.end_of_document", "",
           "The token that ends a document (ids; bpe, sentencepiece: where the tokenizer does not say).", never},
          optional(at_least(0, kMaxVocab)), FIELD(data.tokenizer.end_of_document)));
  table.push_back(
      top({"data.documents.attention", "",
           "What a token attends to: all of the sample before it (across), or of its document, whose positions then "
           "begin at 0 (within, the default where records are no text).",
           with_notice},
          EnumCodec<DocumentAttention>(), FIELD(data.documents.attention)));
  table.push_back(top({"data.documents.loss_across", "",
                       "Whether a document's first token is predicted from the document before it.", with_notice},
                      BoolCodec(), FIELD(data.documents.loss_across)));
  table.push_back(
      top({"data.instructions.loss", "",
           "Which tokens of messages, prompts and completions are predicted: the answers' or all.", with_notice},
          EnumCodec<InstructionLoss>(), FIELD(data.instructions.loss)));
  table.push_back(
      top({"data.instructions.chat_template", "",
           "How messages are written: llama3, llama3-first, qwen3 or chatml; null: by the tokenizer's own template.",
           with_notice},
          optional(TextCodec()), FIELD(data.instructions.chat_template)));
  table.push_back(list_row({"data.train", "", "The mix: text, JSONL, Parquet or token files.", with_notice, "required"},
                           "list of sources", source_table(), FIELD(data.train)));
  table.push_back(list_row({"data.validation", "", "Data sets to evaluate on.", freely, "[]"},
                           "list of validation sets", validation_table(), FIELD(data.validation)));
  table.push_back(top({"data.cache", "", "Folder for tokenised text; null: SCALETRAIN_CACHE or ~/.cache/scaletrain."},
                      optional(path_text()), FIELD(data.cache)));
  table.push_back(top({"data.verify", "", "What a start reads in full to verify it: files that have changed, or all."},
                      EnumCodec<DataCheck>(), FIELD(data.verify)));
  table.push_back(top({"data.on_bad_record", "",
                       "What a line of JSONL or row of Parquet without a document does: fail stops the start, skip "
                       "counts and tells it.",
                       with_notice},
                      EnumCodec<BadRecordPolicy>(), FIELD(data.on_bad_record)));
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
  table.push_back(top({"train.global_batch", "samples",
                       "Samples per optimizer step; sizes that do not divide are padded.", with_notice},
                      at_least(1, kMaxBatch), FIELD(train.global_batch)));
  table.push_back(
      top({"train.micro_batch", "samples", "Samples of a replica that go through its stages at once, at most."},
          at_least(1, kMaxBatch), FIELD(train.micro_batch)));
  table.push_back(top({"train.optimizer.type", "", "The update rule.", never}, EnumCodec<OptimizerKind>(),
                      FIELD(train.optimizer.type)));
  table.push_back(top({"train.optimizer.learning_rate", "", "The highest learning rate, after warm-up.", with_notice},
                      NumberCodec{0.0, 1e6}, FIELD(train.optimizer.learning_rate)));
  table.push_back(betas_row());
  table.push_back(
      top({"train.optimizer.epsilon", "", "Added to the root of the squared gradient's mean (AdamW).", with_notice},
          positive(1.0), FIELD(train.optimizer.epsilon)));
  table.push_back(
      top({"train.optimizer.weight_decay", "", "Decoupled decay of matrices; not of biases and norms.", with_notice},
          NumberCodec{0.0, 1e3}, FIELD(train.optimizer.weight_decay)));
  table.push_back(
      top({"train.optimizer.offload", "",
           "Where masters and the optimizer's state lie; host: in the host's memory, for what a GPU has no room for."},
          EnumCodec<OffloadKind>(), FIELD(train.optimizer.offload)));
  table.push_back(top({"train.lr_schedule.type", "", "Course of the learning rate after warm-up.", with_notice},
                      EnumCodec<LrScheduleKind>(), FIELD(train.lr_schedule.type)));
  table.push_back(top({"train.lr_schedule.warmup", "steps",
                       "Steps of linear warm-up; auto: a twentieth of the run's steps, at most 2000.", with_notice},
                      optional(at_least(0), "auto"), FIELD(train.lr_schedule.warmup)));
  table.push_back(
      top({"train.lr_schedule.min_ratio", "", "Part of the learning rate that is left at the last step.", with_notice},
          NumberCodec{0.0, 1.0}, FIELD(train.lr_schedule.min_ratio)));
  table.push_back(
      top({"train.clip_norm", "", "Longest gradient; a longer one is scaled down. null: no clipping.", with_notice},
          optional(positive()), FIELD(train.clip_norm)));
  table.push_back(
      top({"train.label_smoothing", "", "Part of the target spread over the whole vocabulary.", with_notice},
          NumberCodec{0.0, 1.0, Bounds::open_above}, FIELD(train.label_smoothing)));
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
  table.push_back(top({"finetune.learning_rates", "",
                       "Factors on the learning rate, by patterns over names of parameters; of those that match the "
                       "last one counts.",
                       with_notice, "{}"},
                      FactorsCodec{1e6}, FIELD(finetune.learning_rates)));
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
  table.push_back(
      top({"precision.compute", "",
           "Type of activations and of weights in products; auto: fp32 on CPUs, bf16 on GPUs. tf32: fp32 but for the "
           "products of linear maps (GPUs alone).",
           with_notice},
          optional(EnumCodec<Precision>(), "auto"), FIELD(precision.compute)));
  table.push_back(
      top({"precision.reduce", "", "Type in which gradients travel between replicas; they are summed and kept in fp32.",
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
  table.push_back(list_row({"evaluate.tasks", "", "Multiple-choice tasks to evaluate on, all of each.", freely, "[]"},
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
}

// What a source and a validation set have in common.
template <class Record>
void add_source_rows(KeyTable<Record>& table, ResumeRule rule) {
  table.push_back(row<Record>({"type", "", "Kind of the files; auto: by their names and contents.", rule},
                              EnumCodec<SourceKind>(), FIELD(type)));
  table.push_back(row<Record>(
      {"records", "", "What a line of JSONL holds: text, messages of a conversation, or a prompt and its completion.",
       rule},
      EnumCodec<RecordKind>(), FIELD(records)));
  table.push_back(row<Record>({"field", "", "The key (jsonl) or column (parquet) that holds the document.", rule},
                              TextCodec(), FIELD(field)));
  table.push_back(
      row<Record>({"separator", "", "A line that ends a document (text); null: a file is one document.", rule},
                  optional(TextCodec{TextRule::may_be_empty}), FIELD(separator)));
}

}  // namespace

const KeyTable<SourceConfig>& source_table() {
  static const KeyTable<SourceConfig> table = [] {
    KeyTable<SourceConfig> out;
    out.push_back(
        row<SourceConfig>({"path", "", "A file, a folder, or a pattern (web/**/*.jsonl.zst).", with_notice, "required"},
                          path_text(), FIELD(path)));
    out.push_back(row<SourceConfig>({"weight", "", "Share of the mix; weights need not sum to 1.", with_notice},
                                    positive(), FIELD(weight)));
    out.push_back(
        row<SourceConfig>({"epochs", "", "Most passes over this source; the mix goes on without it.", with_notice},
                          optional(positive()), FIELD(epochs)));
    add_source_rows(out, with_notice);
    out.push_back(section_row<HoldOutConfig, SourceConfig>(
        {"split", "", "Holds documents out of text as a validation set, the same ones always; null: none.",
         with_notice},
        hold_out_table(), FIELD(split)));
    return out;
  }();
  return table;
}

const KeyTable<HoldOutConfig>& hold_out_table() {
  static const KeyTable<HoldOutConfig> table = [] {
    KeyTable<HoldOutConfig> out;
    out.push_back(row<HoldOutConfig>(
        {"validation", "", "Share of the documents that is held out, such as 1%.", with_notice, "required"},
        ShareCodec(), FIELD(validation)));
    out.push_back(row<HoldOutConfig>(
        {"name", "", "Name of the validation set; its metric is validation/NAME/loss.", with_notice, "required"},
        TextCodec{TextRule::plain_name}, FIELD(name)));
    return out;
  }();
  return table;
}

const KeyTable<ValidationConfig>& validation_table() {
  static const KeyTable<ValidationConfig> table = [] {
    KeyTable<ValidationConfig> out;
    out.push_back(
        row<ValidationConfig>({"name", "", "Name of the set; its metric is validation/NAME/loss.", freely, "required"},
                              TextCodec{TextRule::plain_name}, FIELD(name)));
    out.push_back(
        row<ValidationConfig>({"path", "", "A file, a folder, or a pattern (web/**/*.jsonl.zst).", freely, "required"},
                              path_text(), FIELD(path)));
    add_source_rows(out, freely);
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
    out.push_back(row<LoraConfig>({"dropout", "", "Probability of dropping a feature of an adapter's input.", never},
                                  NumberCodec{0.0, 1.0, Bounds::open_above}, FIELD(dropout)));
    out.push_back(
        row<LoraConfig>({"targets", "",
                         "Maps that get an adapter, as the model's family calls them (q_proj, mlp.c_proj), as peft's "
                         "target_modules; all-linear: all but the head.",
                         never},
                        NameListCodec(), FIELD(targets)));
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
    add_finetune(out);
    add_parallel(out);
    add_rest(out);
    return out;
  }();
  return table;
}

#undef FIELD

}  // namespace scaletrain
