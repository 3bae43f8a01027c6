#include "config/keys/unsupported.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "config/keys/key_table.h"
#include "config/keys/suggest.h"
#include "config/load.h"

namespace scaletrain {

namespace {

constexpr std::array<UnsupportedValue, 2> kTable = {{
    {"precision.compute", "fp8", nullptr, "auto, fp32, tf32, bf16 or fp16"},
    {"precision.reduce", "tf32 | fp16",
     [](const Config& c) { return c.precision.reduce != Precision::fp32 && c.precision.reduce != Precision::bf16; },
     "fp32 or bf16"},
}};

constexpr std::array<UnsupportedKey, 6> kKeys = {{
    {"model.experts", "a mixture of experts",
     "expert | experts | num_experts | num_local_experts | num_experts_per_tok | moe"},
    {"parallel.expert", "expert parallelism", "expert_parallel | expert_model_parallel_size | ep"},
    {"parallel.context", "context parallelism", "context_parallel | context_parallel_size | cp"},
    {"log.report", "an HTML report of the run", "html_report"},
    {"log.wandb", "logging to Weights & Biases", "wandb"},
    {"", "Hugging Face models of other families than GPT-2, Llama, Mistral, Qwen2, Qwen3 and Gemma (1, 2, 3 text)", ""},
}};

// Calls visit(part) for each part of "a | b | c".
template <class Visit>
void for_each_part(std::string_view list, Visit visit) {
  constexpr std::string_view separator = " | ";
  for (std::size_t end = list.find(separator); end != std::string_view::npos; end = list.find(separator)) {
    visit(list.substr(0, end));
    list.remove_prefix(end + separator.size());
  }
  if (!list.empty()) visit(list);
}

bool has_part(std::string_view list, std::string_view part) {
  bool found = false;
  for_each_part(list, [&](std::string_view known) { found |= known == part; });
  return found;
}

}  // namespace

std::span<const UnsupportedValue> unsupported_table() {
  return kTable;
}

std::vector<std::string> unsupported_values_of(std::string_view path) {
  std::vector<std::string> out;
  for (const UnsupportedValue& row : unsupported_table()) {
    if (row.path == path) for_each_part(row.values, [&out](std::string_view value) { out.emplace_back(value); });
  }
  return out;
}

std::string unsupported_word(std::string_view path, std::string_view word) {
  const std::string key = table_path(path);
  std::string plain(word);
  std::transform(plain.begin(), plain.end(), plain.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const UnsupportedValue& row : unsupported_table())
    if (row.is_asked == nullptr && row.path == key && has_part(row.values, plain))
      return fmt::format("{} is not supported yet; use {}", plain, row.instead);
  return {};
}

std::span<const UnsupportedKey> unsupported_keys() {
  return kKeys;
}

std::string_view unsupported_feature(std::string_view path) {
  for (const UnsupportedKey& key : kKeys)
    if (!key.path.empty() && key.path == path) return key.feature;
  const std::string_view name = path.substr(path.rfind('.') + 1);  // all of it where there is no dot
  for (const UnsupportedKey& key : kKeys)
    if (has_part(key.names, name)) return key.feature;
  return {};
}

namespace {

template <class Record>
const Key<Record>* find_key(const KeyTable<Record>& table, std::string_view path) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.info.path == path; });
  return found == table.end() ? nullptr : &*found;
}

// A key's value as the config has it: of the whole, or of the section that may be left out.
std::string written_value(const Config& config, std::string_view path) {
  if (const auto* const key = find_key(config_table(), path)) return key->write(config);
  constexpr std::string_view section = "finetune.lora.";
  SCALETRAIN_CHECK(path.starts_with(section) && config.finetune.lora.has_value());
  const auto* const key = find_key(lora_table(), path.substr(section.size()));
  SCALETRAIN_CHECK(key != nullptr);
  return key->write(*config.finetune.lora);
}

}  // namespace

std::vector<Refusal> refusals(const Config& config) {
  std::vector<Refusal> out;
  for (const UnsupportedValue& value : unsupported_table()) {
    if (value.is_asked == nullptr || !value.is_asked(config)) continue;
    out.push_back({std::string(value.path), fmt::format("{}: {} is not supported yet; use {}", value.path,
                                                        written_value(config, value.path), value.instead)});
  }
  return out;
}

std::vector<std::string> unsupported_values(const Config& config) {
  std::vector<std::string> out;
  for (Refusal& refusal : refusals(config)) out.push_back(std::move(refusal.message));
  return out;
}

}  // namespace scaletrain
