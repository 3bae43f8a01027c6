// From text and JSONL to Megatron's token files: `scaletrain data build`.
//
// The result is a pure function of the files' bytes, their order and the request without its threads: the same for any
// number of threads, whether or not a build was killed on the way, and for shards that are merged.
//
// Where things lie: an output NAME is NAME.bin, NAME.idx and NAME.build.json, which says what it was made of. While it
// is built all lies in a folder .NAME.building beside it, under a lock, with a record of how far it has come
// (state.json), which is renewed several times a second once what it speaks of is on the disk. At the end the files are
// renamed, the index last but one. Whoever starts the same build again goes on where the record says.
//
// Errors: UserError for what the request asks wrongly or finds in its way, InputError for files that cannot be read and
// such that change while they are.
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

struct CorpusRequest {
  std::vector<std::string> sources;  // as data.train[].path, one after the other
  SourceKind type = SourceKind::automatic;
  std::string field = "text";
  std::optional<std::string> separator;
  BadRecordPolicy on_bad_record = BadRecordPolicy::fail;
  const Tokenizer* tokenizer = nullptr;
  std::string tokenizer_name;  // as it was asked for: "bytes", or a path
  bool appends_end = true;     // the token that ends a document behind each
  // A folder (that is there, or ends with '/'): FOLDER/corpus, or FOLDER/train, .../validation and .../test; else
  // what the names of the files begin with: OUTPUT, or OUTPUT-train, ...
  std::string output;
  std::vector<double> split;  // shares of train, validation and test; none: all is one output
  std::int64_t shard = 0;     // whose files are named NAME-00003-of-00008
  std::int64_t shards = 1;
  int threads = 1;
  bool overwrites = false;
  Reporter report{};                                                       // may be empty
  std::function<void(std::uint64_t bytes, std::uint64_t all)> progress{};  // of the sources, as they lie; may be empty
  // Between two renewals of the record, at least; more where they take long. 0: at every batch.
  double record_seconds = 0.2;
};

struct CorpusOutput {
  std::string part;            // "train"; empty: there is one output
  std::filesystem::path stem;  // without .bin and .idx
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

struct CorpusResult {
  std::vector<CorpusOutput> outputs;
  TextNotes notes;
  bool was_there = false;  // all of it had been built before
  bool went_on = false;    // from where another build was stopped
};

CorpusResult build_corpus(const CorpusRequest& request);

// Joins the shards that builds with this output have written, all of which must be there: the result, to the byte, is
// that of the same build without shards. The shards stay.
CorpusResult merge_corpus(const std::string& output, bool overwrites);

// Of these token files (NAME.bin), those that are shards of one that is among them, as their records say.
std::vector<std::filesystem::path> shards_beside_merged(const std::vector<std::filesystem::path>& files);

// That a token file, by its record, was made with another tokenizer than this one.
struct OtherTokenizer {
  std::string text;
  bool is_certain = false;  // that ids mean other tokens; else it may be the same, written in another way
};
// Nothing where it has no record, or its ids mean the same tokens: this one may have more. A record that cannot be read
// may be another's.
std::optional<OtherTokenizer> other_tokenizer(const std::filesystem::path& token_file, const Tokenizer& tokenizer);

// What NAME.build.json says; nothing: there is none. InputError: it cannot be read.
std::optional<nlohmann::json> build_record(const std::filesystem::path& stem);

}  // namespace scaletrain
