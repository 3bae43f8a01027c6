// Schedules as the files of golden numbers describe them.
#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "config/config.h"
#include "config/keys/keys.h"

namespace scaletrain {

// The value of this name.
template <class Enum>
Enum named(std::initializer_list<Enum> all, const std::string& name) {
  for (const Enum value : all)
    if (to_text(value) == name) return value;
  FAIL("no such name: " << name);
  return *all.begin();
}

inline LrScheduleConfig schedule_of(const nlohmann::json& of) {
  LrScheduleConfig config;
  config.type = named({LrScheduleKind::cosine, LrScheduleKind::linear, LrScheduleKind::constant,
                       LrScheduleKind::inverse_sqrt, LrScheduleKind::wsd, LrScheduleKind::cosine_restarts},
                      of.at("type").get<std::string>());
  config.warmup = of.at("warmup").get<std::int64_t>();
  config.min_ratio = of.at("min_ratio").get<double>();
  if (of.contains("decay_steps")) config.decay_steps = of.at("decay_steps").get<std::int64_t>();
  config.decay_share = of.value("decay_share", config.decay_share);
  if (of.contains("decay_shape"))
    config.decay_shape = named({DecayShape::linear, DecayShape::cosine, DecayShape::one_minus_sqrt},
                               of.at("decay_shape").get<std::string>());
  config.restart_steps = of.value("restart_steps", config.restart_steps);
  config.restart_factor = of.value("restart_factor", config.restart_factor);
  return config;
}

}  // namespace scaletrain
