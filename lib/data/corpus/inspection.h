// What a file or a folder of data is, and whether all of it can be read: `scaletrain data inspect` and `verify`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/tokens/content_record.h"
#include "data/tokens/text_notes.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

struct InspectionOptions {
  SourceKind type = SourceKind::automatic;
  std::string field = "text";
  std::optional<std::string> separator{};
  BadRecordPolicy on_bad_record = BadRecordPolicy::fail;
  const Tokenizer* tokenizer = nullptr;  // null: ids are shown as they are
  std::int64_t show = 0;                 // documents of each file
  Reporter report{};
};

struct InspectedFile {
  std::filesystem::path path;
  std::string kind;  // "Megatron token file", "text", "JSONL in gzip", "of no known kind"
  std::uint64_t bytes = 0;
  std::optional<RecordKind> records;       // of JSONL, by its first object: instructions in place of text
  std::optional<std::int64_t> documents;   // of text: only what verify_data() reads is known
  std::optional<std::int64_t> unanswered;  // of records that were counted: those without an answer to learn
  std::optional<std::int64_t> tokens;
  std::optional<std::int64_t> learned;  // of packed instructions: tokens that the loss is on
  std::string dtype;                    // of tokens
  std::string tokenizer;                // that the tokens were made with; empty: not known
  std::vector<std::string> shown;       // the first documents
  std::optional<std::string> problem;   // what is wrong
};

struct Inspection {
  std::vector<InspectedFile> files;
  TextNotes notes;  // of text that was read
};

// By headers, and of text the documents that are shown. Errors as of find_files() and open_token_file(); of several
// files one that cannot be looked at has a problem.
Inspection inspect_data(const std::string& path, const InspectionOptions& options);

// Reads everything: compares checksums where there are some (the cache's, and those that `data build` notes), checks
// indices, compares tokens with the vocabulary where it is known, unpacks and parses text. What is wrong with a file is
// its problem; the others are read all the same.
Inspection verify_data(const std::string& path, const InspectionOptions& options,
                       const std::function<void(std::uint64_t bytes, std::uint64_t all)>& progress = {});

}  // namespace scaletrain
