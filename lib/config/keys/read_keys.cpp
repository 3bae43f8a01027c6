// The loops over the key table: reading, listing, comparing.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/text.h"
#include "config/keys/key_table.h"
#include "config/keys/suggest.h"
#include "config/keys/unsupported.h"
#include "config/optimizer_rules.h"
#include "config/yaml/yaml_text.h"

namespace scaletrain {

namespace {

std::string join(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "." + name;
}

template <class Record>
const Key<Record>* find_key(const KeyTable<Record>& table, const std::string& path) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& key) { return key.info.path == path; });
  return found == table.end() ? nullptr : &*found;
}

template <class Record>
bool is_section(const KeyTable<Record>& table, const std::string& path) {
  return std::any_of(table.begin(), table.end(),
                     [&](const auto& key) { return key.info.path.starts_with(path + "."); });
}

// A scalar as it can stand inside { }, a number as a number.
std::string flow_text(const YamlNode& node) {
  const bool is_simple =
      std::all_of(node.text.begin(), node.text.end(), [](unsigned char c) { return c < 0x80 && std::isalnum(c) != 0; });
  return is_simple && !node.is_quoted ? node.text : yaml_scalar(node.text);
}

// "{path: a.txt}" for the text a.txt, with the other keys that the record needs, if one of its keys takes the text.
template <class Record>
std::string as_mapping(const KeyTable<Record>& table, const YamlNode& node, const std::string& section) {
  constexpr std::size_t longest = 80;
  constexpr std::array<std::string_view, 7> leading = {"metric",   "type",   "preset", "every",
                                                       "min_data", "action", "path"};
  if (node.kind != YamlNode::Kind::scalar || node.is_broken || node.text.size() > longest) return {};
  for (const std::string_view name : leading) {
    const Key<Record>* key = find_key(table, join(section, std::string(name)));
    if (key == nullptr || (section.empty() && name == "type")) continue;  // a source called text is a path
    Diagnostics problems("", {});
    ReadContext context(problems);
    Record record{};
    key->read(node, key->info.path, record, context);
    if (!problems.empty()) continue;
    std::string out;
    for (const Key<Record>& other : table) {
      if (&other != key && (other.info.fallback != "required" || !section.empty())) continue;
      out += (out.empty() ? "{" : ", ") + other.info.path.substr(section.empty() ? 0 : section.size() + 1) + ": ";
      out += &other == key ? flow_text(node) : "...";
    }
    return out + "}";
  }
  return {};
}

// `section` is the path inside the record's table, `path` the one inside the config.
template <class Record>
// NOLINTNEXTLINE(misc-no-recursion): as deep as the tree, which is bounded
void read_section(const KeyTable<Record>& table, const YamlNode& node, const std::string& section,
                  const std::string& path, Record& record, ReadContext& context) {
  if (node.kind == YamlNode::Kind::null) {  // a section with nothing below it
    context.emptied.insert(path);
    return;
  }
  if (node.kind != YamlNode::Kind::map) {
    context.refuse(
        node.place, path.empty() ? "config" : path,
        fmt::format("expected a mapping of keys, found {}{}", describe(node), mapping_hint(table, node, section)));
    return;
  }
  for (const YamlEntry& entry : node.entries) {
    const std::string full = join(path, entry.key);
    const std::string inside = join(section, entry.key);
    const bool is_one_name = !entry.key.empty() && entry.key.find('.') == std::string::npos;
    const Key<Record>* key = is_one_name ? find_key(table, inside) : nullptr;
    if (key != nullptr) {
      context.given[full] = entry.value.kind == YamlNode::Kind::null ? entry.key_place : entry.value.place;
      if (entry.value.is_broken) {
        context.broken.insert(full);
      } else {
        key->read(entry.value, full, record, context);
      }
    } else if (is_one_name && is_section(table, inside)) {
      context.given[full] = entry.key_place;
      read_section(table, entry.value, inside, full, record, context);
    } else if (const std::string_view feature = unsupported_feature(full); !feature.empty()) {
      context.diagnostics.add(entry.key_place,
                              fmt::format("{}: {} is not supported yet; remove the key", full, feature));
    } else {
      const std::string suggestion = context.diagnostics.is_crowded() ? std::string() : suggest_key(full);
      context.diagnostics.add(entry.key_place, fmt::format("unknown key {}{}", quoted(full), suggestion));
    }
  }
}

// "is missing: a file, or a folder of files, such as path: data/books".
std::string missing_text(const KeyInfo& key) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> examples = {
      {{"path", "data/books"}, {"name", "books"}, {"metric", "validation/books/loss"}, {"min_data", "1"}}};
  std::string meaning = key.meaning.substr(0, key.meaning.rfind('.'));
  if (!meaning.empty()) meaning[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(meaning[0])));
  std::string text = "is missing: " + meaning;
  for (const auto& [name, value] : examples)
    if (key.path == name) text += fmt::format(", such as {}: {}", name, value);
  return text;
}

// Appends the rows of a table under a prefix.
template <class Record>
void append(std::vector<KeyInfo>& keys, const KeyTable<Record>& table, const std::string& prefix) {
  for (const Key<Record>& key : table) {
    KeyInfo info = key.info;
    info.path = prefix + info.path;
    keys.push_back(std::move(info));
  }
}

std::vector<KeyInfo> all_keys() {
  std::vector<KeyInfo> keys;
  for (const Key<Config>& key : config_table()) {
    const std::string& path = key.info.path;
    keys.push_back(key.info);
    if (path == "data.train") {
      append(keys, source_table(), path + "[].");
      append(keys, hold_out_table(), path + "[].split.");
    }
    if (path == "data.validation") append(keys, validation_table(), path + "[].");
    if (path == "evaluate.tasks") append(keys, task_table(), path + "[].");
    if (path == "train.optimizer.scale_with_batch") append(keys, batch_scaling_table(), path + ".");
    if (path == "train.batch_ramp") append(keys, batch_ramp_table(), path + ".");
    if (path == "train.batch_auto") append(keys, batch_auto_table(), path + ".");
    if (path == "phases") append(keys, phase_table(), path + "[].");
    if (path == "train.ema") append(keys, ema_table(), path + ".");
    if (path == "train.spike") append(keys, spike_table(), path + ".");
    if (path == "finetune.unfreeze") append(keys, unfreeze_table(), path + "[].");
    if (path == "finetune.lora") append(keys, lora_table(), path + ".");
    if (path == "early_stop") append(keys, early_stop_table(), path + ".");
    if (path == "log.gradient_noise") append(keys, gradient_noise_table(), path + ".");
    if (path == "supervise.elastic") append(keys, elastic_table(), path + ".");
  }
  return keys;
}

}  // namespace

void ReadContext::refuse(Place place, const std::string& path, std::string_view message) {
  broken.insert(path);
  diagnostics.add(place, fmt::format("{}: {}", path, message));
}

template <class Record>
std::string mapping_hint(const KeyTable<Record>& table, const YamlNode& node, const std::string& section) {
  const std::string mapping = as_mapping(table, node, section);
  return mapping.empty() ? "" : "; write " + mapping;
}

template <class Record>
std::string list_hint(const KeyTable<Record>& table, const YamlNode& node, const std::string& path) {
  if (node.kind == YamlNode::Kind::map)
    return fmt::format("; put it into a list: \"{}: [{{...}}]\"", path.substr(path.rfind('.') + 1));
  const std::string mapping = as_mapping(table, node, "");
  return mapping.empty() ? "" : "; write [" + mapping + "]";
}

template std::string list_hint(const KeyTable<SourceConfig>&, const YamlNode&, const std::string&);
template std::string list_hint(const KeyTable<ValidationConfig>&, const YamlNode&, const std::string&);
template std::string list_hint(const KeyTable<PhaseConfig>&, const YamlNode&, const std::string&);

template <class Record>
void read_record(const KeyTable<Record>& table, const YamlNode& node, const std::string& path, Record& record,
                 ReadContext& context) {
  if (node.kind == YamlNode::Kind::null)
    return context.refuse(node.place, path, "expected a mapping of keys, found nothing (null)");
  read_section(table, node, "", path, record, context);
  if (node.kind != YamlNode::Kind::map) return;
  for (const Key<Record>& key : table) {
    if (key.info.fallback == "required" && !context.given.contains(join(path, key.info.path)))
      context.refuse(node.place, join(path, key.info.path), missing_text(key.info));
  }
}

template void read_record(const KeyTable<SourceConfig>&, const YamlNode&, const std::string&, SourceConfig&,
                          ReadContext&);
template void read_record(const KeyTable<HoldOutConfig>&, const YamlNode&, const std::string&, HoldOutConfig&,
                          ReadContext&);
template void read_record(const KeyTable<ValidationConfig>&, const YamlNode&, const std::string&, ValidationConfig&,
                          ReadContext&);
template void read_record(const KeyTable<PhaseConfig>&, const YamlNode&, const std::string&, PhaseConfig&,
                          ReadContext&);
template void read_record(const KeyTable<EarlyStopConfig>&, const YamlNode&, const std::string&, EarlyStopConfig&,
                          ReadContext&);
template void read_record(const KeyTable<SpikeConfig>&, const YamlNode&, const std::string&, SpikeConfig&,
                          ReadContext&);
template void read_record(const KeyTable<std::int64_t>&, const YamlNode&, const std::string&, std::int64_t&,
                          ReadContext&);

void read_config(const YamlNode& root, Config& config, ReadContext& context) {
  read_section(config_table(), root, "", "", config, context);
}

bool is_ordered_mapping(std::string_view path) {
  const std::span<const KeyInfo> keys = config_keys();
  return std::any_of(keys.begin(), keys.end(), [path](const KeyInfo& key) {
    return key.path == path && key.type.starts_with("mapping of patterns");
  });
}

std::span<const KeyInfo> config_keys() {
  static const std::vector<KeyInfo> keys = all_keys();
  return keys;
}

std::vector<KeyDifference> compare_configs(const Config& before, const Config& after) {
  std::vector<KeyDifference> out;
  for (const Key<Config>& key : config_table()) {
    std::string old_text = key.write(before);
    std::string new_text = key.write(after);
    if (old_text == new_text) continue;
    const bool is_memory = key.info.path == "train.optimizer.momentum" &&
                           keeps_momentum(before.train.optimizer) != keeps_momentum(after.train.optimizer);
    out.push_back(
        {key.info.path, std::move(old_text), std::move(new_text), is_memory ? ResumeRule::never : key.info.resume});
  }
  return out;
}

}  // namespace scaletrain
