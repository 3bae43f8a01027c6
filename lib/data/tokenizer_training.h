// A tokenizer for one's own text: byte-level byte-pair encoding, trained on sources as data.train has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/dataset.h"
#include "data/tokens/bpe/bpe_training.h"

namespace scaletrain {

struct TokenizerTrainingRequest {
  std::vector<std::string> sources{};  // text and JSONL: files, folders and patterns
  SourceKind type = SourceKind::automatic;
  std::string field = "text";
  std::optional<std::string> separator{};  // text: a line that ends a document
  BadRecordPolicy on_bad_record = BadRecordPolicy::fail;
  BpePattern pattern = BpePattern::gpt2;
  BpeTrainingOptions options{};
  int threads = 1;  // that count pieces; the result does not depend on it
  Reporter report{};
};

struct TokenizerTrainingResult {
  TrainedBpe trained{};
  std::uint64_t documents = 0;
  std::uint64_t bytes = 0;   // of the text
  std::uint64_t pieces = 0;  // different ones
};

// UserError for sources that are not there, token files and options that cannot be; InputError for what cannot be read,
// and for sources without text.
TokenizerTrainingResult train_tokenizer(const TokenizerTrainingRequest& request);

}  // namespace scaletrain
