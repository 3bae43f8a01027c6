// Internal to lib/data: from a path of the config to open token files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/dataset.h"
#include "data/tokens/joined_tokens.h"
#include "data/tokens/token_cache.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

struct SourceSpec {
  std::string key;  // for messages: "data.train.0", or an option: "--data"
  std::string path;
  SourceKind type = SourceKind::automatic;
  std::string field;
  std::optional<std::string> separator;
};

struct OpenedSource {
  // In order: the token files, and one cache for all text and JSONL files together.
  std::unique_ptr<JoinedTokens> tokens;
  SourceContent content;
};
// Reads of `config` the cache folder and how much is verified.
OpenedSource open_source(const SourceSpec& spec, const Tokenizer& tokenizer, const DataConfig& config,
                         const DataOptions& options);

}  // namespace scaletrain
