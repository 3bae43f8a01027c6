// What the rules of validate.cpp, training_rules.cpp and data_rules.cpp, which involve more than one key each, ask of
// the config, and how they refuse. Internal to config.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "config/validate.h"

namespace scaletrain {

class RuleScope {
 public:
  RuleScope(Config& config, Origin origin, const std::optional<WorldSize>& world, DeviceKind device,
            ReadContext& context, std::vector<std::string>& notices)
      : config_(config), origin_(origin), world_(world), device_(device), context_(context), notices_(notices) {}

 protected:
  bool is_given(const std::string& path) const { return context_.given.contains(path); }

  // False if one of the keys was refused already.
  template <class Paths = std::initializer_list<std::string>>
  bool are_fine(const Paths& paths) const {
    return std::none_of(paths.begin(), paths.end(), [&](const std::string& path) { return is_broken(context_, path); });
  }

  // Which of a rule's keys broke it: the first that an override sets, since the file stood before it, else the first
  // that was given, if any.
  template <class Paths>
  const std::string* breaker(const Paths& paths) const {
    const auto overridden = std::find_if(paths.begin(), paths.end(), [&](const std::string& path) {
      return is_given(path) && place_of(context_, path).source > 0;
    });
    if (overridden != paths.end()) return &*overridden;
    const auto given =
        std::find_if(paths.begin(), paths.end(), [&](const std::string& path) { return is_given(path); });
    return given == paths.end() ? nullptr : &*given;
  }

  // At the breaker's place; the message begins with the first path.
  void refuse(std::initializer_list<std::string> paths, const std::string& message) {
    const std::string& named = *paths.begin();
    const std::string* const given = breaker(paths);
    context_.diagnostics.add(place_of(context_, given == nullptr ? named : *given),
                             fmt::format("{}: {}", named, message));
  }

  // Whether the file gives the key, and an override one of those that make it idle.
  bool is_overruled(const std::string& path, std::initializer_list<std::string> by) const {
    return place_of(context_, path).source == 0 && std::any_of(by.begin(), by.end(), [&](const std::string& ruler) {
             return is_given(ruler) && place_of(context_, ruler).source > 0;
           });
  }

  // A key that nothing reads in this config because of those in `by`. The resolved config spells out every default, so
  // only another value than that is refused. An override of one of `by` beats the file: the value there is dropped.
  template <class Value, class Fallback>
  void refuse_idle(const std::string& path, Value&& value, const Fallback& fallback,
                   std::initializer_list<std::string> by, const std::string& reason) {
    refuse_idle_key(
        path, value == fallback, [&] { value = fallback; }, by, reason);
  }
  void refuse_idle_key(const std::string& path, bool is_default, const std::function<void()>& reset,
                       std::initializer_list<std::string> by, const std::string& reason) {
    if (!is_given(path) || !are_fine({path}) || is_default) return;
    if (is_overruled(path, by)) {
      notices_.push_back(fmt::format("{}: the file's value is not used: {}", path, reason));
      reset();
    } else {
      refuse({path}, fmt::format("has no effect: {}; remove the key, or change {}", reason, *by.begin()));
    }
  }

  Config& config_;
  Origin origin_;
  const std::optional<WorldSize>& world_;
  DeviceKind device_;
  ReadContext& context_;
  std::vector<std::string>& notices_;
};

// The rules of how a run learns: its schedule, its batch, its average.
void check_training_rules(const RuleScope& scope);
// The rules of a run's phases.
void check_phase_rules(const RuleScope& scope);
// The rules of what is read, measured and watched.
void check_data_rules(const RuleScope& scope);

}  // namespace scaletrain
