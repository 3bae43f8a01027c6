// What users of other trainers expect and this one does not have yet: values of keys, and keys. One file, which shrinks
// as features come. Whatever the config accepts and is not here must work.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace scaletrain {

struct UnsupportedValue {
  std::string_view path;    // a row of the key table
  std::string_view values;  // for the schema: "bpe | sentencepiece", "above 0"
  // Whether the config asks for the feature. Null: no config can, because the values are no words of the key so far,
  // and are refused where they are read.
  bool (*is_asked)(const Config&);
  std::string_view instead;  // what to write instead
};

std::span<const UnsupportedValue> unsupported_table();

// The values of this key that are not supported yet, one each as in `values`; empty if all are.
std::vector<std::string> unsupported_values_of(std::string_view path);

// Why this word is refused as a value of the key ("lion is not supported yet; use adamw or sgd"), or empty where it is
// another word than those that the table alone knows.
std::string unsupported_word(std::string_view path, std::string_view word);

struct UnsupportedKey {
  std::string_view path;     // what the key will be; empty: the feature has none so far
  std::string_view feature;  // "context parallelism"
  std::string_view names;    // by which the feature is asked for in any section: "context_parallel | cp"
};

std::span<const UnsupportedKey> unsupported_keys();

// The feature that an unknown key asks for, if it is one that does not exist yet; else empty.
std::string_view unsupported_feature(std::string_view path);

struct Refusal {
  std::string path;
  std::string message;  // "precision.compute: tf32 is not supported yet; use fp32"
};

std::vector<Refusal> refusals(const Config& config);

}  // namespace scaletrain
