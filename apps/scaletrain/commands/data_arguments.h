// What the commands of `scaletrain data` read from the command line alike.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

// `name`: "bytes", or the path of a tokenizer. Errors name --tokenizer.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name, std::optional<std::int64_t> end_of_document);

// Of "auto", "text", "jsonl".
SourceKind source_kind(const std::string& name);
// Of "fail", "skip".
BadRecordPolicy bad_record_policy(const std::string& name);

}  // namespace scaletrain
