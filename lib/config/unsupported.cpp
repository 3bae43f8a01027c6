#include "config/unsupported.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "config/key_table.h"
#include "config/load.h"

namespace scaletrain {

namespace {

constexpr std::array<UnsupportedValue, 11> kTable = {{
    {"run.device", [](const Config& c) { return c.run.device == DeviceKind::cuda; }, "cpu"},
    {"model.dropout", [](const Config& c) { return c.model.dropout > 0; }, "0"},
    {"data.tokenizer.type",
     [](const Config& c) {
       return c.data.tokenizer.type == TokenizerKind::bpe || c.data.tokenizer.type == TokenizerKind::sentencepiece;
     },
     "bytes for text, or ids for token files"},
    {"data.documents.attention",
     [](const Config& c) { return c.data.documents.attention == DocumentAttention::within; }, "across"},
    {"train.lr_schedule.type", [](const Config& c) { return c.train.lr_schedule.type == LrScheduleKind::wsd; },
     "cosine, linear or constant"},
    {"train.label_smoothing", [](const Config& c) { return c.train.label_smoothing > 0; }, "0"},
    {"train.recompute", [](const Config& c) { return c.train.recompute != RecomputeKind::none; }, "none"},
    {"precision.compute", [](const Config& c) { return c.precision.compute != Precision::fp32; }, "fp32"},
    {"precision.reduce", [](const Config& c) { return c.precision.reduce != Precision::fp32; }, "fp32"},
    {"precision.loss_scale", [](const Config& c) { return c.precision.loss_scale.has_value(); }, "dynamic"},
    {"log.tensorboard", [](const Config& c) { return c.log.tensorboard; }, "false"},
}};

}  // namespace

std::span<const UnsupportedValue> unsupported_table() {
  return kTable;
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
