// The rows of the key table as code: how each key is read from a node into its record and written back. Inside config/
// only; others see KeyInfo.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config.h"
#include "config/diagnostics.h"
#include "config/keys/keys.h"
#include "config/yaml/yaml_tree.h"

namespace scaletrain {

// What reading leaves behind for the rules across keys. Paths are concrete: "data.train.0.weight".
struct ReadContext {
  explicit ReadContext(Diagnostics& errors) : diagnostics(errors) {}

  void refuse(Place place, const std::string& path, std::string_view message);

  Diagnostics& diagnostics;
  std::map<std::string, Place> given;  // keys that the file, the preset's name or an override set
  std::set<std::string> emptied;       // sections that are null: nothing below them is set
  std::set<std::string> broken;        // keys whose value was refused: rules that need them stay silent
};

template <class Record>
struct Key {
  KeyInfo info;  // the path is relative to the record
  std::function<void(const YamlNode&, const std::string& path, Record&, ReadContext&)> read;
  std::function<std::string(const Record&)> write;                     // in flow style
  std::function<void(const Record& from, Record& to)> copy;            // of plain values only
  std::function<std::vector<std::string>(const Record&)> write_items;  // lists of records only: one text per item
};

template <class Record>
using KeyTable = std::vector<Key<Record>>;

// The rows of the config, and those of the records in its lists and optional sections.
const KeyTable<Config>& config_table();
const KeyTable<SourceConfig>& source_table();
const KeyTable<HoldOutConfig>& hold_out_table();
const KeyTable<ValidationConfig>& validation_table();
const KeyTable<TaskConfig>& task_table();
const KeyTable<UnfreezeConfig>& unfreeze_table();
const KeyTable<EarlyStopConfig>& early_stop_table();
const KeyTable<SpikeConfig>& spike_table();
const KeyTable<EmaConfig>& ema_table();
const KeyTable<BatchRampConfig>& batch_ramp_table();
const KeyTable<BatchAutoConfig>& batch_auto_table();
const KeyTable<PhaseConfig>& phase_table();
const KeyTable<BatchScalingConfig>& batch_scaling_table();
const KeyTable<GradientNoiseConfig>& gradient_noise_table();
const KeyTable<LoraConfig>& lora_table();
const KeyTable<std::int64_t>& elastic_table();

// Reads a whole tree through config_table(). Whether required keys of the config itself are there is a rule across
// keys.
void read_config(const YamlNode& root, Config& config, ReadContext& context);

// Reads a mapping key by key; unknown keys are refused with a suggestion, missing required ones too.
template <class Record>
void read_record(const KeyTable<Record>& table, const YamlNode& node, const std::string& path, Record& record,
                 ReadContext& context);

// A value where a mapping of the record's keys is expected, written as one ("; write {path: a.txt}") if one of its keys
// takes it; else empty. `section`: the section inside the record's table.
template <class Record>
std::string mapping_hint(const KeyTable<Record>& table, const YamlNode& node, const std::string& section);

// The same where a list of records is expected.
template <class Record>
std::string list_hint(const KeyTable<Record>& table, const YamlNode& node, const std::string& path);

// "{path: data/web, weight: 1}".
template <class Record>
std::string write_record(const KeyTable<Record>& table, const Record& record) {
  std::string out = "{";
  for (const Key<Record>& key : table) out += (out.size() > 1 ? ", " : "") + key.info.path + ": " + key.write(record);
  return out + "}";
}

// The value's description for messages: text "abc", a list, a mapping, nothing.
std::string describe(const YamlNode& node);

}  // namespace scaletrain
