// What the rules of validate.cpp and data_rules.cpp, which involve more than one key each, ask of the config, and how
// they refuse. Internal to config.
#pragma once

#include <fmt/core.h>

#include <algorithm>
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

  Config& config_;
  Origin origin_;
  const std::optional<WorldSize>& world_;
  DeviceKind device_;
  ReadContext& context_;
  std::vector<std::string>& notices_;
};

// The rules of what is read, measured and watched.
void check_data_rules(const RuleScope& scope);

}  // namespace scaletrain
