#include "config/keys/suggest.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <vector>

#include "base/text.h"
#include "config/keys/keys.h"

namespace scaletrain {

namespace {

// Names from other trainers and model configs, as people's fingers know them.
struct Alias {
  std::string_view theirs;
  std::string_view ours;
};
constexpr auto kAliases = std::to_array<Alias>({
    {"lr", "train.optimizer.learning_rate"},
    {"max_lr", "train.optimizer.learning_rate"},
    {"min_lr", "train.lr_schedule.min_ratio"},
    {"wd", "train.optimizer.weight_decay"},
    {"eps", "train.optimizer.epsilon"},
    {"adam_epsilon", "train.optimizer.epsilon"},
    {"beta1", "train.optimizer.betas"},
    {"beta2", "train.optimizer.betas"},
    {"adam_beta1", "train.optimizer.betas"},
    {"adam_beta2", "train.optimizer.betas"},
    {"sgd_momentum", "train.optimizer.momentum"},
    {"use_nesterov", "train.optimizer.nesterov"},
    {"trust_coeff", "train.optimizer.trust_coefficient"},
    {"alpha_warmup", "train.optimizer.slow_warmup"},
    {"beta3_warmup", "train.optimizer.slow_warmup"},
    {"batch_size", "train.global_batch"},
    {"global_batch_size", "train.global_batch"},
    {"micro_batch_size", "train.micro_batch"},
    {"per_device_train_batch_size", "train.micro_batch"},
    {"max_steps", "train.steps"},
    {"iters", "train.steps"},
    {"train_iters", "train.steps"},
    {"num_steps", "train.steps"},
    {"step", "train.steps"},
    {"max_tokens", "train.tokens"},
    {"num_epochs", "train.epochs"},
    {"max_epochs", "train.epochs"},
    {"num_train_epochs", "train.epochs"},
    {"assistant_only_loss", "data.instructions.loss"},
    {"completion_only_loss", "data.instructions.loss"},
    {"chat_template_path", "data.instructions.chat_template"},
    {"grad_clip", "train.clip_norm"},
    {"clip_grad", "train.clip_norm"},
    {"max_grad_norm", "train.clip_norm"},
    {"gradient_clipping", "train.clip_norm"},
    {"warmup_steps", "train.lr_schedule.warmup"},
    {"lr_warmup_iters", "train.lr_schedule.warmup"},
    {"scheduler", "train.lr_schedule"},
    {"lr_scheduler_type", "train.lr_schedule.type"},
    {"lr_decay_style", "train.lr_schedule.type"},
    {"lr_wsd_decay_iters", "train.lr_schedule.decay_steps"},
    {"num_decay_steps", "train.lr_schedule.decay_steps"},
    {"label_smoothing_factor", "train.label_smoothing"},
    {"curriculum", "phases"},
    {"curriculum_learning", "phases"},
    {"training_phases", "phases"},
    {"rampup_batch_size", "train.batch_ramp"},
    {"ema_decay", "train.ema"},
    {"noise_scale", "log.gradient_noise"},
    {"gradient_noise_scale", "log.gradient_noise"},
    {"seq_len", "model.context"},
    {"seq_length", "model.context"},
    {"block_size", "model.context"},
    {"max_position_embeddings", "model.context"},
    {"n_layer", "model.layers"},
    {"num_layers", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"n_head", "model.heads"},
    {"num_heads", "model.heads"},
    {"num_attention_heads", "model.heads"},
    {"n_embd", "model.hidden"},
    {"d_model", "model.hidden"},
    {"hidden_size", "model.hidden"},
    {"num_key_value_heads", "model.kv_heads"},
    {"intermediate_size", "model.ffn_hidden"},
    {"vocab_size", "model.vocab"},
    {"dtype", "precision.compute"},
    {"tp", "parallel.tensor"},
    {"pp", "parallel.pipeline"},
    {"dp", "parallel.data"},
    {"precision", "precision.compute"},
    {"mixed_precision", "precision.compute"},
    {"bf16", "precision.compute"},
    {"fp8", "precision.compute"},
    {"fp16", "precision.compute"},
    {"amp", "precision.compute"},
    {"tensor_parallel", "parallel.tensor"},
    {"tensor_parallel_size", "parallel.tensor"},
    {"tensor_model_parallel_size", "parallel.tensor"},
    {"pipeline_parallel", "parallel.pipeline"},
    {"pipeline_parallel_size", "parallel.pipeline"},
    {"pipeline_model_parallel_size", "parallel.pipeline"},
    {"data_parallel", "parallel.data"},
    {"data_parallel_size", "parallel.data"},
    {"sequence_parallel", "parallel.sequence"},
    {"virtual_stages", "parallel.chunks"},
    {"virtual_pipeline", "parallel.chunks"},
    {"virtual_pipeline_size", "parallel.chunks"},
    {"virtual_pipeline_stages", "parallel.chunks"},
    {"virtual_pipeline_model_parallel_size", "parallel.chunks"},
    {"num_virtual_stages", "parallel.chunks"},
    {"vpp", "parallel.chunks"},
    {"num_model_chunks", "parallel.chunks"},
    {"pipeline_schedule", "parallel.schedule"},
    {"pipeline_stages", "parallel.pipeline"},
    {"model_parallel", "parallel.tensor"},
    {"model_parallel_size", "parallel.tensor"},
    {"zero_bubble", "parallel.schedule"},
    {"zero_stage", "parallel.zero"},
    {"fsdp", "parallel.zero"},
    {"reduce_dtype", "precision.reduce"},
    {"grad_reduce_dtype", "precision.reduce"},
    {"loss_scaling", "precision.loss_scale"},
    {"initial_loss_scale", "precision.loss_scale"},
    {"distributed_backend", "launch.transport"},
    {"cuda_graph", "run.cuda_graphs"},
    {"enable_cuda_graph", "run.cuda_graphs"},
    {"use_cuda_graphs", "run.cuda_graphs"},
    {"cpu_offload", "train.optimizer.offload"},
    {"offload_optimizer", "train.optimizer.offload"},
    {"optimizer_cpu_offload", "train.optimizer.offload"},
    {"optim_bits", "train.optimizer.state"},
    {"use_8bit_adam", "train.optimizer.state"},
    {"recompute_granularity", "train.recompute"},
    {"activation_checkpointing", "train.recompute"},
    {"gradient_checkpointing", "train.recompute"},
    {"gradient_accumulation_steps", "train.global_batch"},
    {"save_interval", "checkpoint.every"},
    {"save_every", "checkpoint.every"},
    {"save_steps", "checkpoint.every"},
    {"eval_interval", "evaluate.every"},
    {"eval_steps", "evaluate.every"},
    {"log_interval", "log.every"},
    {"nproc_per_node", "launch.ranks_per_node"},
});

std::string last_name(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? path : path.substr(dot + 1));
}

std::string parent_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? std::string_view() : path.substr(0, dot));
}

// A path of the table as one can write it: the item that the user's path names, else the first.
std::string written_path(std::string path, std::string_view users) {
  const std::size_t item = path.find("[]");
  if (item == std::string::npos) return path;
  std::string index = "0";
  for (const std::string& name : split_text(users, '.')) {
    if (!name.empty() && name.find_first_not_of("0123456789") == std::string::npos) index = name;
  }
  return path.replace(item, 2, "." + index);
}

// Every path a user may write: the keys and the sections above them.
std::set<std::string> known_paths() {
  std::set<std::string> paths;
  for (const KeyInfo& key : config_keys()) {
    for (std::string path = key.path; !path.empty(); path = parent_of(path)) {
      if (!path.ends_with("[]")) paths.insert(path);
    }
  }
  return paths;
}

// The known path whose last name is nearest to `word`, among those that `is_wanted` accepts.
template <class Predicate>
std::optional<std::string> nearest_path(const std::string& word, const std::set<std::string>& paths,
                                        Predicate is_wanted) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    if (is_wanted(path)) names.push_back(last_name(path));
  }
  const auto name = nearest_word(word, names);
  if (!name) return std::nullopt;
  for (const std::string& path : paths) {
    if (is_wanted(path) && last_name(path) == *name) return path;
  }
  return std::nullopt;
}

std::optional<std::string> exact_elsewhere(const std::string& word, const std::string& parent,
                                           const std::set<std::string>& paths) {
  const std::string section = parent.substr(0, parent.find('.'));
  std::optional<std::string> first;
  for (const std::string& path : paths) {
    if (last_name(path) != word) continue;
    if (!section.empty() && path.starts_with(section + ".")) return path;
    if (!first) first = path;
  }
  return first;
}

}  // namespace

std::string table_path(std::string_view path) {
  std::string out;
  for (const std::string& name : split_text(path, '.')) {
    const bool is_index = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
    if (is_index && !out.empty()) {
      out += "[]";
    } else {
      out += (out.empty() ? "" : ".") + name;
    }
  }
  return out;
}

std::string suggest_key(std::string_view path) {
  constexpr std::size_t longest = 256;
  std::string fallback = "; `scaletrain schema` lists all keys";
  if (path.size() > longest) return fallback;
  const std::string wanted = table_path(path);
  const std::string word = last_name(wanted);
  const std::string parent = parent_of(wanted);
  const auto mean = [path](std::string_view key) {
    return fmt::format("; did you mean {}?", written_path(std::string(key), path));
  };

  const std::set<std::string> paths = known_paths();
  const std::size_t colon = word.find(':');
  if (colon != std::string::npos && paths.contains((parent.empty() ? "" : parent + ".") + word.substr(0, colon)))
    return "; a colon needs a space behind it";
  for (const Alias& alias : kAliases) {
    if (word == alias.theirs) return mean(alias.ours);
  }
  if (const auto found = exact_elsewhere(word, parent, paths)) return mean(*found);
  const auto sibling = nearest_path(word, paths, [&](const std::string& known) { return parent_of(known) == parent; });
  if (sibling) return mean(*sibling);
  const auto anywhere = nearest_path(word, paths, [](const std::string&) { return true; });
  return anywhere ? mean(*anywhere) : fallback;
}

}  // namespace scaletrain
