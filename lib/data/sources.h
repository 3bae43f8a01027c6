// Internal to lib/data: from a path of the config to open token files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/dataset.h"
#include "data/source_files.h"
#include "data/tokens/joined_tokens.h"
#include "data/tokens/packed_file.h"
#include "data/tokens/token_cache.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

// Tokens laid end to end: of a source all of its files, or those that became part of it together.
struct OpenedPart {
  std::vector<std::uint64_t> files;      // see SourceContent::holds
  std::unique_ptr<JoinedTokens> tokens;  // nothing: the files hold no token, or instructions
  std::unique_ptr<PackedFile> packed{};  // of instructions
};

struct OpenedSource {
  std::vector<OpenedPart> parts;
  SourceContent content;
};

// A source whose files have been looked at, and read if they had to be; text is not tokenised yet.
class FoundSource {
 public:
  virtual ~FoundSource() = default;

  // What each file holds, in the order of their names.
  virtual const std::vector<std::uint64_t>& files() const = 0;
  // parts: places in files(), each once. In each part: the token files in order, and one cache for all text and JSONL
  // files together where the first of them stands. Once.
  virtual OpenedSource open(const std::vector<std::vector<std::size_t>>& parts) = 0;
};

// Reads of `config` the cache folder and how much is verified. All arguments outlive what is returned.
std::unique_ptr<FoundSource> find_source(const SourceSpec& spec, const Tokenizer& tokenizer, const DataConfig& config,
                                         const DataOptions& options);

}  // namespace scaletrain
