#include "config/keys/unsupported.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "config/keys/key_table.h"
#include "config/load.h"

namespace scaletrain {

namespace {

constexpr std::array<UnsupportedValue, 11> kTable = {{
    {"run.device", "cuda", [](const Config& c) { return c.run.device == DeviceKind::cuda; }, "cpu"},
    {"model.dropout", "above 0", [](const Config& c) { return c.model.dropout > 0; }, "0"},
    {"data.tokenizer.type", "bpe | sentencepiece",
     [](const Config& c) {
       return c.data.tokenizer.type == TokenizerKind::bpe || c.data.tokenizer.type == TokenizerKind::sentencepiece;
     },
     "bytes for text, or ids for token files"},
    {"data.documents.attention", "within",
     [](const Config& c) { return c.data.documents.attention == DocumentAttention::within; }, "across"},
    {"train.lr_schedule.type", "wsd", [](const Config& c) { return c.train.lr_schedule.type == LrScheduleKind::wsd; },
     "cosine, linear or constant"},
    {"train.label_smoothing", "above 0", [](const Config& c) { return c.train.label_smoothing > 0; }, "0"},
    {"train.recompute", "selective | full", [](const Config& c) { return c.train.recompute != RecomputeKind::none; },
     "none"},
    {"precision.compute", "tf32 | bf16 | fp16", [](const Config& c) { return c.precision.compute != Precision::fp32; },
     "fp32"},
    {"precision.reduce", "tf32 | bf16 | fp16", [](const Config& c) { return c.precision.reduce != Precision::fp32; },
     "fp32"},
    {"precision.loss_scale", "a number", [](const Config& c) { return c.precision.loss_scale.has_value(); }, "dynamic"},
    {"log.tensorboard", "true", [](const Config& c) { return c.log.tensorboard; }, "false"},
}};

}  // namespace

std::span<const UnsupportedValue> unsupported_table() {
  return kTable;
}

std::vector<std::string> unsupported_values_of(std::string_view path) {
  std::vector<std::string> out;
  for (const UnsupportedValue& row : unsupported_table()) {
    if (row.path != path) continue;
    std::string_view rest = row.values;
    constexpr std::string_view separator = " | ";
    for (std::size_t end = rest.find(separator); end != std::string_view::npos; end = rest.find(separator)) {
      out.emplace_back(rest.substr(0, end));
      rest.remove_prefix(end + separator.size());
    }
    out.emplace_back(rest);
  }
  return out;
}

std::vector<Refusal> refusals(const Config& config) {
  std::vector<Refusal> out;
  const KeyTable<Config>& keys = config_table();
  for (const UnsupportedValue& value : unsupported_table()) {
    if (!value.is_asked(config)) continue;
    const auto key =
        std::find_if(keys.begin(), keys.end(), [&](const auto& row) { return row.info.path == value.path; });
    SCALETRAIN_CHECK(key != keys.end());
    out.push_back({key->info.path,
                   fmt::format("{}: {} is not supported yet; use {}", value.path, key->write(config), value.instead)});
  }
  return out;
}

std::vector<std::string> unsupported_values(const Config& config) {
  std::vector<std::string> out;
  for (Refusal& refusal : refusals(config)) out.push_back(std::move(refusal.message));
  return out;
}

}  // namespace scaletrain
