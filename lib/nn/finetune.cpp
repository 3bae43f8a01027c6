#include "nn/finetune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/glob.h"
#include "base/text.h"

namespace scaletrain {

namespace {

// What patterns are held against, in the order of the table: tied copies go with their owner.
std::vector<std::string> names_of(const ParamTable& table) {
  std::vector<std::string> names;
  for (const Parameter& parameter : table.parameters())
    if (!parameter.tied_to) names.push_back(parameter.name);
  return names;
}

std::string unmatched(const ParamTable& table, std::string_view key, const std::string& pattern) {
  const std::vector<std::string> names = names_of(table);
  const auto near = nearest_word(pattern, names);
  return fmt::format("{}: {} matches no parameter of the model{}; its parameters are named as {} and {}", key,
                     quoted(pattern), near ? fmt::format(" (did you mean {}?)", *near) : "", names[0],
                     names[names.size() / 2]);
}

}  // namespace

void freeze_parameters(ParamTable& table, std::span<const std::string> patterns) {
  if (patterns.empty()) return;
  const auto is_chosen = [&](const Parameter& parameter) {
    const std::string& name = parameter.tied_to.value_or(parameter.name);
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return matches_name(pattern, name); });
  };
  const std::vector<std::string> names = names_of(table);
  for (const std::string& pattern : patterns)
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return matches_name(pattern, name); }))
      throw UserError(unmatched(table, "finetune.freeze", pattern));
  std::map<std::pair<int, std::string>, const Parameter*> first_of_matrix;
  bool trains = false;
  for (const Parameter& parameter : table.parameters()) {
    trains = trains || !is_chosen(parameter);
    if (parameter.fused.empty()) continue;
    const Parameter* const first =
        first_of_matrix.try_emplace({parameter.unit, parameter.fused}, &parameter).first->second;
    if (is_chosen(*first) == is_chosen(parameter)) continue;
    const Parameter& frozen = is_chosen(parameter) ? parameter : *first;
    const Parameter& trained = is_chosen(parameter) ? *first : parameter;
    throw UserError(
        fmt::format("finetune.freeze: {} is frozen and {} is not, but layers read them as one matrix ({}); "
                    "freeze all of it or nothing",
                    frozen.name, trained.name, parameter.fused));
  }
  if (!trains) throw UserError("finetune.freeze: nothing is left to train; leave out a pattern");
  table.freeze(is_chosen);
}

namespace {

bool has_adapters(const ParamTable& table) {
  return std::any_of(table.parameters().begin(), table.parameters().end(),
                     [](const Parameter& parameter) { return parameter.is_adapter; });
}

}  // namespace

void scale_learning_rates(ParamTable& table, const FinetuneConfig& config) {
  constexpr std::string_view key = "finetune.learning_rates";
  for (const auto& [pattern, factor] : config.learning_rates) {
    bool matches = false;
    bool trains = false;
    for (const Parameter& parameter : table.parameters()) {
      if (parameter.tied_to || !matches_name(pattern, parameter.name)) continue;
      matches = true;
      trains = trains || parameter.role == ParamRole::trained;
    }
    if (!matches) throw UserError(unmatched(table, key, pattern));
    if (!trains)
      throw UserError(fmt::format("{}: all that {} matches is frozen ({}", key, quoted(pattern),
                                  has_adapters(table)
                                      ? "finetune.lora): adapters alone are trained, whose names end in .lora_a and "
                                        ".lora_b"
                                      : "finetune.freeze); leave one of them out"));
  }
  table.scale_learning_rates([&](const Parameter& parameter) {
    const auto units_behind = static_cast<double>(table.units().size()) - 1 - parameter.unit;
    double factor = 1;
    for (const auto& [pattern, of_pattern] : config.learning_rates)
      if (matches_name(pattern, parameter.name)) factor = of_pattern;
    return factor * std::pow(config.layer_decay, units_behind);
  });
}

}  // namespace scaletrain
