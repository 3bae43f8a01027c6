// The table of all keys: the one place that knows a key's path, type, unit, default, meaning and whether a resume may
// change it. Parsing, schema, the resolved config, the diff and the nearest-key search are loops over this table.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace scaletrain {

// Whether a resumed run may have another value than its checkpoint.
enum class ResumeRule {
  freely,
  with_notice,
  never,
};

struct KeyInfo {
  std::string path;      // "train.optimizer.learning_rate"; list items: "data.train[].weight"
  std::string type;      // "integer", "number", "one of: a | b", "size", "time", "text", "list of integers" ...
  std::string unit;      // "tokens", "samples", "steps", "s", "bytes" or empty
  std::string fallback;  // the default as it would stand in the file; "required" where there is none
  std::string meaning;   // one sentence
  ResumeRule resume = ResumeRule::freely;
};

// In the order of DESIGN section 9.
std::span<const KeyInfo> config_keys();
// Whether the key's value is a mapping whose entries have an order: an override replaces it as a whole.
bool is_ordered_mapping(std::string_view path);

struct KeyDifference {
  std::string path;
  std::string before;  // as YAML
  std::string after;
  ResumeRule rule = ResumeRule::freely;
};

// Keys in which two configs differ; list items are compared as whole lists under the list's path.
std::vector<KeyDifference> compare_configs(const Config& before, const Config& after);

// The preset names of model.preset, in display order, and the model each stands for.
std::span<const std::string> model_preset_names();
const ModelConfig* find_model_preset(std::string_view name);

// Enumerators as they stand in a config.
std::string_view to_text(DeviceKind value);
std::string_view to_text(NormKind value);
std::string_view to_text(ActivationKind value);
std::string_view to_text(PositionKind value);
std::string_view to_text(RopeScalingKind value);
std::string_view to_text(GrowthOrder value);
std::string_view to_text(InitKind value);
std::string_view to_text(TokenizerKind value);
std::string_view to_text(DocumentAttention value);
std::string_view to_text(SourceKind value);
std::string_view to_text(RecordKind value);
std::string_view to_text(InstructionLoss value);
std::string_view to_text(DataCheck value);
std::string_view to_text(BadRecordPolicy value);
std::string_view to_text(OptimizerKind value);
std::string_view to_text(StepScale value);
std::string_view to_text(LrScheduleKind value);
std::string_view to_text(DecayShape value);
std::string_view to_text(BatchScaling value);
std::string_view to_text(RecomputeKind value);
std::string_view to_text(OffloadKind value);
std::string_view to_text(OptimizerStateType value);
std::string_view to_text(ZeroReduceKind value);
std::string_view to_text(SpikeAction value);
std::string_view to_text(ScheduleKind value);
std::string_view to_text(Precision value);
std::string_view to_text(RankTransport value);

}  // namespace scaletrain
