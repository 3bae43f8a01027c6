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
  std::string_view values;          // for the schema: "bpe | sentencepiece", "above 0"
  bool (*is_asked)(const Config&);  // whether the config asks for the feature
  std::string_view instead;         // what to write instead
};

std::span<const UnsupportedValue> unsupported_table();

// The values of this key that are not supported yet, one each as in `values`; empty if all are.
std::vector<std::string> unsupported_values_of(std::string_view path);

struct Refusal {
  std::string path;
  std::string message;  // "train.recompute: full is not supported yet; use none"
};

std::vector<Refusal> refusals(const Config& config);

}  // namespace scaletrain
