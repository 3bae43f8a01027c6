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
  const Tokenizer* tokenizer = nullptr;  // null: ids are shown as they are, and no tokens of text counted
  std::int64_t show = 0;                 // documents of each file
  int threads = 1;                       // that parse and tokenise; what is found is the same for any number
  Reporter report{};
};

struct InspectedFile {
  std::filesystem::path path;
  std::string kind;  // "Megatron token file", "text", "JSONL in gzip", "of no known kind"
  std::uint64_t bytes = 0;
  std::optional<RecordKind> records;  // of JSONL, by its first object: instructions in place of text
  std::optional<std::int64_t> documents;
  std::optional<std::int64_t> unanswered;  // of records that were counted: those without an answer to learn
  std::optional<std::int64_t> characters;  // of text: of all its documents, as UTF-8 has them
  std::optional<std::int64_t> tokens;      // of text by the options' tokenizer, as `data build` counts them
  std::optional<std::int64_t> learned;     // of packed instructions: tokens that the loss is on
  std::string dtype;                       // of tokens
  std::string tokenizer;                   // that the tokens were made with; empty: not known
  std::vector<std::string> shown;          // the first documents
  std::optional<std::string> problem;      // what is wrong
};

struct Inspection {
  std::vector<InspectedFile> files;
  TextNotes notes;  // of text that was read
};

// How many bytes of all files have been read.
using InspectionProgress = std::function<void(std::uint64_t bytes, std::uint64_t all)>;

// Token files by their headers; text, JSONL and Parquet are read, and their documents counted. Errors as of
// find_files() and open_token_file(); text that cannot be read as such has a problem, and so has of several files any
// that cannot be looked at. progress may be empty.
Inspection inspect_data(const std::string& path, const InspectionOptions& options,
                        const InspectionProgress& progress = {});

// Reads everything: compares checksums where there are some (the cache's, and those that `data build` notes), checks
// indices, compares tokens with the vocabulary where it is known, unpacks and parses text. What is wrong with a file is
// its problem; the others are read all the same.
Inspection verify_data(const std::string& path, const InspectionOptions& options,
                       const InspectionProgress& progress = {});

}  // namespace scaletrain
