#include "train/start/initial_weights.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/catalog.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/hugging_face/adapter_import.h"
#include "checkpoint/hugging_face/hugging_face.h"
#include "config/keys/keys.h"
#include "train/start/run_folder.h"

namespace scaletrain {

namespace {

// The config's model must be the folder's, but for the layers that it may grow by.
void refuse_other_model(const HuggingFaceModel& folder, const ModelSpec& model, const GrowthConfig& growth) {
  const ModelConfig& config = folder.model_config();
  const ModelSpec theirs = make_model_spec(config, config.vocab.value_or(model.vocab));
  ModelSpec comparable = model;
  comparable.context = theirs.position == PositionKind::rope ? theirs.context : comparable.context;
  std::string differences;
  const auto compare = [&differences](std::string_view key, const auto& ours, const auto& other) {
    if (!(ours == other))
      differences += fmt::format("\n  model.{}: {} in the config, {} in the folder", key, ours, other);
  };
  if (growth.order == GrowthOrder::none || comparable.layers <= theirs.layers)
    compare("layers", comparable.layers, theirs.layers);
  compare("hidden", comparable.hidden, theirs.hidden);
  compare("heads", comparable.heads, theirs.heads);
  compare("kv_heads", comparable.kv_heads, theirs.kv_heads);
  compare("head_dim", comparable.head_size, theirs.head_size);
  compare("ffn_hidden", comparable.ffn_hidden, theirs.ffn_hidden);
  compare("context", comparable.context, theirs.context);
  compare("vocab", comparable.vocab, theirs.vocab);
  compare("norm", to_text(comparable.norm), to_text(theirs.norm));
  compare("norm_epsilon", comparable.norm_epsilon, theirs.norm_epsilon);
  compare("activation", to_text(comparable.activation), to_text(theirs.activation));
  compare("position", to_text(comparable.position), to_text(theirs.position));
  if (comparable.position == PositionKind::rope) compare("rope_theta", comparable.rope_theta, theirs.rope_theta);
  if (!(comparable.rope_scaling == theirs.rope_scaling)) {
    const auto text = [](const RopeScaling& scaling) {
      if (scaling.factor == 1.0) return std::string("none");
      if (scaling.original_context == 0.0) return fmt::format("linear by {}", scaling.factor);
      return fmt::format("llama3 by {}, {} to {} turns in {} tokens", scaling.factor, scaling.low_frequency_factor,
                         scaling.high_frequency_factor, scaling.original_context);
    };
    compare("rope_scaling", text(comparable.rope_scaling), text(theirs.rope_scaling));
  }
  compare("bias", comparable.bias, theirs.bias);
  compare("qkv_bias", comparable.qkv_bias, theirs.qkv_bias);
  compare("qk_norm", comparable.qk_norm, theirs.qk_norm);
  compare("post_norm", comparable.post_norm, theirs.post_norm);
  compare("norm_zero_centered", comparable.norm_weight_offset == 1.0, theirs.norm_weight_offset == 1.0);
  compare("scale_embeddings", comparable.scale_embeddings, theirs.scale_embeddings);
  const auto scalar = [](const ModelSpec& spec) {
    const double scale = spec.attention_scale;
    return scale > 0 ? 1.0 / (scale * scale) : static_cast<double>(spec.head_size);
  };
  compare("query_pre_attn_scalar", scalar(comparable), scalar(theirs));
  compare("attention_softcap", comparable.attention_softcap, theirs.attention_softcap);
  compare("logit_softcap", comparable.logit_softcap, theirs.logit_softcap);
  compare("window.tokens", comparable.window, theirs.window);
  if (comparable.window > 0) {
    compare("window.global_every", comparable.global_every, theirs.global_every);
    compare("window.rope_theta", comparable.window_rope_theta, theirs.window_rope_theta);
  }
  compare("tie_embeddings", comparable.tie_embeddings, theirs.tie_embeddings);
  if (const auto& window = folder.shape().window; window && model.context > *window)
    differences += fmt::format(
        "\n  model.context: {} in the config; attention reaches {} tokens back in the folder's "
        "model (sliding window), at most so many are possible",
        model.context, *window);
  if (differences.empty()) return;
  throw UserError(fmt::format("model.init.from: {} holds another model:{}\nSet these keys to the folder's values",
                              folder.path().string(), differences));
}

void check_initial_adapters(const LoraConfig& lora, const ModelSpec& model) {
  const std::string& folder = lora.from.value();
  if (!path_exists(folder))
    throw UserError(
        fmt::format("finetune.lora.from: no such folder: {}; a run that has a checkpoint no longer needs "
                    "it, this one has none",
                    folder));
  try {
    check_adapter_folder(folder, make_param_table(model, InitConfig{}), lora);
  } catch (const FileAccessError& refused) {
    throw FileAccessError(fmt::format("finetune.lora.from: {}; have the system let this user read it", refused.what()));
  } catch (const InputError& error) {
    throw InputError(fmt::format("finetune.lora.from: {}; a folder of peft's adapters is expected", error.what()));
  }
}

std::string missing_base(const std::string& folder) {
  return fmt::format(
      "model.init.from: no such folder: {}; this run's checkpoints hold adapters alone (finetune.lora), which need the "
      "model that they are for: bring it back, or say with model.init.from where it is now",
      folder);
}

}  // namespace

void refuse_other_base(const std::string& folder, const BaseModel& base, std::uint64_t content) {
  if (content == base.content) return;
  throw InputError(
      fmt::format("{}: its weights are not those that the checkpoint's adapters were trained for, which were in {} "
                  "(content {}, here {}): name the folder that has them",
                  folder, base.path, to_hex(base.content), to_hex(content)));
}

BaseModel load_base(const Config& config, const ModelSpec& model, const std::optional<BaseModel>& known,
                    ParamStore& store, int threads, WorkCount* work) {
  const std::string& folder = config.model.init.from.value();
  if (known && !path_exists(folder)) throw InputError(missing_base(folder));
  const HuggingFaceModel theirs(folder);
  refuse_other_model(theirs, model, config.model.grow);
  BaseModel base{.path = folder, .content = threads > 0 ? theirs.content(threads, work) : 0};
  if (known && threads > 0) refuse_other_base("model.init.from: " + folder, *known, base.content);
  theirs.load_masters(store);
  return base;
}

void check_initial_weights(const Config& config, const ModelSpec& model) {
  const auto& from = config.model.init.from;
  if (!from) return;
  const bool has_checkpoint = !list_checkpoints(RunPaths(config.run.directory).checkpoints()).empty();
  if (!has_checkpoint && config.finetune.lora && config.finetune.lora->from)
    check_initial_adapters(*config.finetune.lora, model);
  if (has_checkpoint && !config.finetune.lora) return;
  if (has_checkpoint && !path_exists(*from)) throw InputError(missing_base(*from));
  if (!path_exists(*from))
    throw UserError(
        fmt::format("model.init.from: no such folder: {}; a run that has a checkpoint no longer needs it, this one has "
                    "none",
                    *from));
  try {
    refuse_other_model(HuggingFaceModel(*from), model, config.model.grow);
  } catch (const FileAccessError& refused) {
    throw FileAccessError(fmt::format("model.init.from: {}; have the system let this user read it", refused.what()));
  } catch (const InputError& error) {
    throw InputError(
        fmt::format("model.init.from: {}; a Hugging Face folder of a GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma, "
                    "Gemma 2 or Gemma 3 text model is expected",
                    error.what()));
  }
}

FolderModel look_at_folder_model(const Config& config) {
  if (const auto checkpoint = checkpoint_of_run(config))
    return {.model = parse_resolved_config(read_manifest(*checkpoint).config, checkpoint->string()).model,
            .window = std::nullopt,
            .is_of_run = true};
  HuggingFaceShape shape = read_hugging_face_shape(*config.model.init.from);
  return {.model = std::move(shape.model), .window = shape.window};
}

void load_initial_adapters(const std::string& folder, ParamStore& store, Stream& stream) {
  load_adapters(folder, store);
  store.values_changed(stream);
}

std::string load_initial_weights(const ModelConfig& config, const ModelSpec& model, ParamStore& store, Stream& stream) {
  const HuggingFaceModel theirs(config.init.from.value());
  refuse_other_model(theirs, model, config.grow);
  std::vector<GrownLayer> growth;
  if (config.grow.order != GrowthOrder::none)
    growth = grow_layers(config.grow, theirs.model_config().layers, model.layers);
  theirs.load(store, stream, growth);
  if (growth.empty()) return {};
  return fmt::format("model.grow: {} layers of the {} in {} ({}{})", model.layers, theirs.model_config().layers,
                     config.init.from.value(), to_text(config.grow.order),
                     config.grow.identity ? "; copies add nothing at first" : "");
}

}  // namespace scaletrain
