// Values whose feature does not exist yet: one table, which shrinks as features come. Whatever the config accepts and
// is not in this table must work.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace scaletrain {

struct UnsupportedValue {
  std::string_view path;            // a row of the key table
  bool (*is_asked)(const Config&);  // whether the config asks for the feature
  std::string_view instead;         // what to write instead
};

std::span<const UnsupportedValue> unsupported_table();

struct Refusal {
  std::string path;
  std::string message;  // "train.recompute: full is not supported yet; use none"
};

std::vector<Refusal> refusals(const Config& config);

}  // namespace scaletrain
