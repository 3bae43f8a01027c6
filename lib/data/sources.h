// Internal to lib/data: from a path of the config to open token files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/dataset.h"
#include "data/token_cache.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace scaletrain {

struct SourceSpec {
  std::string key;  // for messages: "data.train.0", or an option: "--data"
  std::string path;
  SourceKind type = SourceKind::automatic;
  std::string field;
  std::optional<std::string> separator;
};

struct OpenedSource {
  // In order: a token file each, and one cache for all text and JSONL files together. None is empty, and there is at
  // least one.
  std::vector<std::unique_ptr<TokenFile>> parts;
  SourceContent content;
};
OpenedSource open_source(const SourceSpec& spec, const Tokenizer& tokenizer, const std::optional<std::string>& cache,
                         const DataOptions& options);

}  // namespace scaletrain
