// Internal to lib/data: the one way from text to tokens, of `data build` and of the cache of tokenised text: the
// documents of a list of files in batches of about a megabyte, each of which can be tokenised by itself, and from the
// end of each of which reading can go on later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokens/text_notes.h"
#include "data/tokens/text_reader.h"
#include "data/tokens/token_cache.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

// By this a document falls to a part of the corpus: a hash of its first megabyte. The same for a document wherever and
// with whatever others it stands.
std::uint64_t document_hash(std::string_view text);
// Of a text of which this is the beginning: what document_hash() looks at.
inline constexpr std::size_t kHashedBytes = 1u << 20;

// Which of the parts, whose shares are not negative and of which one is positive.
std::size_t part_of_document(std::uint64_t hash, const std::vector<double>& shares);

// What is read of one file.
struct CorpusPiece {
  std::size_t file = 0;  // of TextSource::files
  TextRange range;
};

// The pieces that shard `shard` of `shards` reads, in order; those of all shards, one after the other, are those of a
// single one. JSONL that is not compressed is cut between lines, where the shards' shares of all bytes end; any other
// file is one shard's as a whole, that in whose share its first byte lies. Reads no content.
std::vector<CorpusPiece> pieces_of_shard(const TextSource& source, std::int64_t shard, std::int64_t shards);

// Where reading goes on.
struct CorpusPlace {
  std::size_t piece = 0;
  std::uint64_t offset = 0;  // in the file's text; of Parquet the row
  std::int64_t line = 0;     // its number; 0: not known
  // Of a document that has begun before: the part that it falls to; -1: a document begins here.
  std::int64_t part = -1;
  std::string scan;  // OddTextScan::state() of this file; empty: nothing was found in it

  nlohmann::json to_json() const;
  static CorpusPlace from_json(const nlohmann::json& value, const std::string& where);
};

// Text, and what becomes of it.
struct CorpusBatch {
  struct Text {
    std::size_t begin = 0;
    std::size_t size = 0;
    LinePlace place;         // of a line of JSONL
    std::int64_t part = -1;  // of the document, where it is known before it is tokenised
    bool begins_document = true;
    bool ends_document = true;
  };
  const TextFile* file = nullptr;
  std::string bytes;
  std::vector<Text> texts;
  // Behind this batch; not to be used where it ends within a document that a separator ends.
  CorpusPlace next;
  bool can_go_on = true;
  std::uint64_t bytes_read = 0;  // of all files of the shard, as they lie
  TextNotes notes;

  // What tokenise() makes of it: tokens, and to which part which run of them belongs.
  struct Run {
    std::size_t end = 0;
    std::size_t part = 0;
    bool ends_document = false;
  };
  std::vector<std::int32_t> tokens;
  std::vector<Run> runs;
  std::uint64_t characters = 0;  // of the documents' text, as UTF-8 begins them
};

// How text is tokenised.
struct CorpusRules {
  const TextSource& source;
  const Tokenizer& tokenizer;
  std::vector<double> shares{1.0};
  bool appends_end = true;            // the tokenizer's end_of_document() behind each document
  std::optional<std::size_t> only{};  // documents of the other parts are left out, and cost no tokenising
};

// Fills in the batch's tokens, runs and characters, and adds to its notes. Concurrent calls with different batches are
// fine.
void tokenise(CorpusBatch& batch, const CorpusRules& rules);

// Where reading the pieces begins.
CorpusPlace first_place(const std::vector<CorpusPiece>& pieces);

// Hears the hash of a file's bytes as soon as it has been read; whoever reads whole files from their beginnings may
// ask.
using FileRead = std::function<void(std::size_t file, std::uint64_t hash)>;

// Reads the pieces from the place on and hands on batches, none empty but maybe the last. file_read may be empty.
void read_corpus(const CorpusRules& rules, const std::vector<CorpusPiece>& pieces, const CorpusPlace& from,
                 const std::function<void(std::unique_ptr<CorpusBatch>)>& use, const FileRead& file_read = {});

struct CorpusReading {
  const CorpusRules& rules;
  const std::vector<CorpusPiece>& pieces;
  const CorpusPlace& from;
  int threads = 1;
  std::function<void(CorpusBatch&)> write{};  // each batch once it is tokenised, in order, by the thread that calls
  FileRead file_read{};                       // may be empty
};

// Reads by the thread that calls, and tokenises by so many others. Of several errors the one that stands first in the
// text is thrown.
void tokenise_corpus(const CorpusReading& reading);

}  // namespace scaletrain
