// What the commands of `scaletrain data` read from the command line alike.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

// `name`: "bytes", or the path of a tokenizer. Errors name --tokenizer.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name, std::optional<std::int64_t> end_of_document);

// How sources are read: --type, --field, --separator, --on-bad-record.
class ReadingArguments {
 public:
  // reads_tokens: the command takes token files too.
  void declare(CLI::App& command, bool reads_tokens = false);

  SourceKind type() const;
  // Of text that may be JSONL, for its notes (data/tokens/text_notes.h).
  std::string jsonl_remedy() const;
  const std::string& field() const { return field_; }
  std::optional<std::string> separator() const { return separator_; }
  BadRecordPolicy on_bad_record() const;

 private:
  std::string type_ = "auto";
  std::string field_ = SourceConfig().field;
  std::optional<std::string> separator_;
  std::string on_bad_record_ = "fail";
};

}  // namespace scaletrain
