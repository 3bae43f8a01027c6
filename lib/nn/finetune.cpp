#include "nn/finetune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
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

namespace {

// A tied tensor goes by the name of its owner.
bool is_matched(std::span<const std::string> patterns, const Parameter& parameter) {
  const std::string& name = parameter.tied_to.value_or(parameter.name);
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches_name(pattern, name); });
}

void check_matched(const ParamTable& table, std::string_view key, std::span<const std::string> patterns) {
  const std::vector<std::string> names = names_of(table);
  for (const std::string& pattern : patterns)
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return matches_name(pattern, name); }))
      throw UserError(unmatched(table, key, pattern));
}

// Updates before a parameter joins; never: it is not trained at all.
constexpr std::int64_t never_joins = std::numeric_limits<std::int64_t>::max();

std::int64_t joining_of(const Parameter& parameter, const FinetuneConfig& config) {
  if (!is_matched(config.freeze, parameter)) return 0;
  for (const UnfreezeConfig& phase : config.unfreeze)
    if (is_matched(phase.patterns, parameter)) return phase.step;
  return never_joins;
}

std::string joining_text(std::int64_t joins) {
  if (joins == 0) return "is trained from the start";
  return joins == never_joins ? "is frozen" : fmt::format("joins after {} steps", joins);
}

// Layers read a fused matrix as one, and accumulate its gradient as one.
void check_fused(const ParamTable& table, const FinetuneConfig& config) {
  std::map<std::pair<int, std::string>, const Parameter*> first_of_matrix;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.fused.empty()) continue;
    const Parameter* const first =
        first_of_matrix.try_emplace({parameter.unit, parameter.fused}, &parameter).first->second;
    std::int64_t joins = joining_of(parameter, config);
    std::int64_t joins_first = joining_of(*first, config);
    if (joins == joins_first) continue;
    const Parameter* late = &parameter;
    const Parameter* early = first;
    if (joins < joins_first) {
      std::swap(late, early);
      std::swap(joins, joins_first);
    }
    const bool is_frozen = joins == never_joins && joins_first == 0;
    throw UserError(is_frozen
                        ? fmt::format("finetune.freeze: {} is frozen and {} is not, but layers read them as one matrix "
                                      "({}); freeze all of it or nothing",
                                      late->name, early->name, parameter.fused)
                        : fmt::format("finetune.unfreeze: {} {} and {} {}, but layers read them as one matrix ({}); "
                                      "let all of it join at one step",
                                      early->name, joining_text(joins_first), late->name, joining_text(joins),
                                      parameter.fused));
  }
}

// Each pattern of a phase brings something that was not trained before it.
void check_phases(const ParamTable& table, const FinetuneConfig& config) {
  for (const UnfreezeConfig& phase : config.unfreeze) {
    check_matched(table, "finetune.unfreeze", phase.patterns);
    for (const std::string& pattern : phase.patterns) {
      const auto joins_now = [&](const Parameter& parameter) {
        return is_matched({&pattern, 1}, parameter) && joining_of(parameter, config) == phase.step;
      };
      if (std::none_of(table.parameters().begin(), table.parameters().end(), joins_now))
        throw UserError(fmt::format(
            "finetune.unfreeze: all that {} matches is trained before step {} already; leave it out, or name with "
            "finetune.freeze what is to wait",
            quoted(pattern), phase.step));
    }
  }
}

}  // namespace

void freeze_parameters(ParamTable& table, const FinetuneConfig& config) {
  if (config.freeze.empty()) return;
  check_matched(table, "finetune.freeze", config.freeze);
  check_fused(table, config);
  check_phases(table, config);
  const auto& parameters = table.parameters();
  if (std::none_of(parameters.begin(), parameters.end(),
                   [&](const Parameter& parameter) { return joining_of(parameter, config) == 0; }))
    throw UserError("finetune.freeze: nothing is left to train; leave out a pattern");
  table.freeze([&](const Parameter& parameter) { return joining_of(parameter, config) == never_joins; });
  table.join_after([&](const Parameter& parameter) { return joining_of(parameter, config); });
}

namespace {

bool has_adapters(const ParamTable& table) {
  return std::any_of(table.parameters().begin(), table.parameters().end(),
                     [](const Parameter& parameter) { return parameter.is_adapter; });
}

// What a pattern matches, by index. UserError: nothing, or nothing that is trained.
std::vector<std::size_t> matches_of(const ParamTable& table, std::string_view key, const std::string& pattern) {
  std::vector<std::size_t> matches;
  bool trains = false;
  for (std::size_t index = 0; index < table.parameters().size(); ++index) {
    const Parameter& parameter = table.parameters()[index];
    if (parameter.tied_to || !matches_name(pattern, parameter.name)) continue;
    matches.push_back(index);
    trains = trains || parameter.role == ParamRole::trained;
  }
  if (matches.empty()) throw UserError(unmatched(table, key, pattern));
  if (!trains)
    throw UserError(fmt::format("{}: all that {} matches is frozen ({}", key, quoted(pattern),
                                has_adapters(table)
                                    ? "finetune.lora): adapters alone are trained, whose names end in .lora_a and "
                                      ".lora_b"
                                    : "finetune.freeze); leave one of them out"));
  return matches;
}

}  // namespace

void scale_learning_rates(ParamTable& table, const FinetuneConfig& config) {
  for (const auto& [pattern, factor] : config.learning_rates) matches_of(table, "finetune.learning_rates", pattern);
  table.scale_learning_rates([&](const Parameter& parameter) {
    const auto units_behind = static_cast<double>(table.units().size()) - 1 - parameter.unit;
    double factor = 1;
    for (const auto& [pattern, of_pattern] : config.learning_rates)
      if (matches_name(pattern, parameter.name)) factor = of_pattern;
    return factor * std::pow(config.layer_decay, units_behind);
  });
}

void scale_weight_decays(ParamTable& table, const FinetuneConfig& config) {
  constexpr std::string_view key = "finetune.weight_decays";
  const auto parameters = table.parameters();
  std::vector<double> factors;
  for (const Parameter& parameter : parameters) factors.push_back(parameter.decays ? 1.0 : 0.0);
  for (const auto& [pattern, factor] : config.weight_decays) {
    const std::vector<std::size_t> matches = matches_of(table, key, pattern);
    // Whoever names the head means its matrix too, though that is the embedding's where they are tied.
    const auto is_matrix = [&name = pattern](const Parameter& parameter) {
      return parameter.decays && matches_name(name, parameter.name);
    };
    const bool has_matrices = std::any_of(parameters.begin(), parameters.end(), is_matrix);
    bool is_used = false;
    for (const std::size_t index : matches) {
      if (has_matrices && !parameters[index].decays && factors[index] == 0) continue;
      factors[index] = factor;
      is_used = is_used || parameters[index].role == ParamRole::trained;
    }
    if (!is_used)
      throw UserError(fmt::format(
          "{}: of what {} matches the matrices are frozen or another's (a tied head is the embedding), and the "
          "biases and norms do not decay; leave it out, or have these decay by a pattern that matches nothing else, "
          "such as *.bias",
          key, quoted(pattern)));
  }
  table.scale_weight_decays(
      [&](const Parameter& parameter) { return factors[static_cast<std::size_t>(table.index_of(parameter.name))]; });
}

}  // namespace scaletrain
