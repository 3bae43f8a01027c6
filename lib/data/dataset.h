// Opens what the config's data section names, and reads samples.
//
// A sample is `context` inputs and as many targets: target i is the token after input i, or -1 where the loss is masked
// (padding behind the last token; with documents.loss_across: false also the first token of a document; of instructions
// all but what is learned, instructions/instruction_encoder.h). Both are int32 views of the caller's. Reading is const
// and may be done by several threads at once.
//
// Errors: UserError for a wrong config (a key is named: data.train.0.separator), InputError for wrong files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/order/sampler.h"
#include "data/tokens/token_cache.h"
#include "data/tokens/token_file.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

inline constexpr std::int32_t kMaskedTarget = -1;

// What one source or set of the config holds: by this two hosts compare theirs, and the processes of one host tell each
// other what they need not find out again.
struct SourceContent {
  std::string key;  // "data.train.0"
  std::string path;
  std::int64_t tokens = 0;
  std::uint64_t identity = 0;      // of all that is read, in its order
  std::uint64_t all_bytes = 0;     // data.verify: all: a hash of all bytes of the token files; else 0
  std::vector<FileContent> files;  // token files, then text
  bool has_all_files = true;       // false: `files` are the first of them
  std::uint64_t stamps = 0;        // stamps_hash() of the files
  // What each file gives to train on, in the order of their names (MixPart::files): token files their identity, text
  // with the tokenizer and what else cuts it. Of a validation set too.
  std::vector<std::uint64_t> holds;
  // Of each part of the source: the file of its tokenised text.
  struct Cache {
    std::string path;  // empty: there is no text, or no file that others can open
    std::uint64_t identity = 0;
  };
  std::vector<Cache> caches;
};

// Of a source that is a folder or a pattern, its files.
struct SourceFiles {
  std::string key;                   // "data.train.0"
  std::uint64_t path = 0;            // hash_text()
  std::vector<std::uint64_t> names;  // the same of each name_in_source(), ascending
};

// A file's path below the folder that is the source's, or that its pattern begins with: "a.txt", "web/b.jsonl".
std::string name_in_source(const std::string& source, const std::filesystem::path& file);

struct DataOptions {
  std::int64_t vocab = 0;    // of the model: a token at or above it is refused when it is read
  std::int64_t context = 0;  // tokens per sample
  std::uint64_t seed = 0;
  Reporter report;  // may be empty
  // Tokenised text may be kept anywhere where data.cache cannot be written to; see open_token_cache_anywhere.
  bool caches_anywhere = false;
  // That tokenise text which is not in the cache; how far that has come is told (CacheRequest::progress).
  int threads = 1;
  std::function<void(const std::string& name, std::uint64_t bytes, std::uint64_t all)> progress{};
  // What another process of this host has found in these sources, by their keys. A source whose files are the same here
  // (by their stamps) is opened without reading it.
  std::span<const SourceContent> known{};
  // What the run has read so far (ConsumptionHistory::sources_read()): a source that has files of one of these, and
  // maybe more, is read so that it goes on as that one.
  std::span<const MixSource> read{};
  // What a folder has besides these files is left alone; one that is not named is read whole.
  std::span<const SourceFiles> only{};
  // Hears what each source holds once it is open; may be empty.
  std::function<void(SourceContent)> opened{};
};

// A number of tokens that is known to lie between two.
struct TokenBounds {
  std::int64_t least = 0;
  std::int64_t most = 0;
  bool operator==(const TokenBounds&) const = default;
};

// How a part of the run reads the sources.
struct ReadingPhase {
  std::int64_t context = 0;       // tokens per sample; divides that of the options
  std::vector<double> weights{};  // of each source, 0: it is not read; empty: as the config has them
};

// The training mix.
class TrainingData {
 public:
  virtual ~TrainingData() = default;

  virtual std::int64_t context() const = 0;  // of the samples as they now are
  virtual const Mixture& mixture() const = 0;
  // Identity of the content, the mix and the tokenizer: what HistorySegment::data_hash compares.
  virtual std::uint64_t hash() const = 0;
  // What a run is to read: the hash and the sources of data.train, for ConsumptionHistory::continue_with().
  virtual DataDescription description() const = 0;
  // The same of a part of the run: another hash where it mixes or cuts otherwise. UserError where the samples are not
  // cut (records of instructions).
  virtual DataDescription description(const ReadingPhase& phase) const = 0;
  // From now on samples are those of `mix`, the history's, with so many tokens each; until then, of a run that begins.
  // Not while others read.
  virtual void enter(const Mix& mix, std::int64_t context) = 0;
  void enter(const Mix& mix) { enter(mix, context()); }
  // Tokens of each source, once through.
  virtual std::vector<std::int64_t> source_tokens() const = 0;
  // Documents of each; nothing where a file does not say how many it holds.
  virtual std::vector<std::optional<std::int64_t>> source_documents() const = 0;
  // How many tokens a sample trains on: its targets, without padding behind the last token, with those that are masked
  // as a document's first. Reads no tokens.
  virtual std::int64_t sample_tokens(std::int64_t sample) const = 0;
  // The sum of it over the samples [first, end) of each source; end: at most the mixture's. Exact for an epoch that is
  // read whole, and for a part of one where that takes no more than so many samples to be looked up.
  virtual std::vector<TokenBounds> tokens_between(std::int64_t first, std::int64_t end,
                                                  std::int64_t looked_up) const = 0;
  // inputs and targets have context() elements. `document_starts` receives, ascending, the input positions at which a
  // document begins; the first is always 0.
  virtual void read_sample(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                           std::vector<std::int32_t>& document_starts) const = 0;
};

std::unique_ptr<TrainingData> open_training_data(const DataConfig& config, const Tokenizer& tokenizer,
                                                 const DataOptions& options);

// One validation set, in the order of its files, which are laid end to end: windows of `context` tokens, each token but
// the first once as a target, the last window padded and masked; of instructions the rows that they are packed into.
class ValidationSet {
 public:
  virtual ~ValidationSet() = default;

  virtual const std::string& name() const = 0;
  // For messages: "data.validation.0: /data/held-out".
  virtual std::string place() const { return name(); }
  virtual std::int64_t context() const = 0;
  // What a token of it attends to: across or within, whichever the config asks for of such data.
  virtual DocumentAttention attention() const { return DocumentAttention::across; }
  virtual std::int64_t num_samples() const = 0;  // at least 1
  virtual std::int64_t num_tokens() const = 0;
  virtual std::uint64_t hash() const = 0;
  virtual void read_sample(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                           std::vector<std::int32_t>& document_starts) const = 0;
};

// Its samples were read, and every target is masked.
[[noreturn]] void throw_no_target(const ValidationSet& set);

// `key` stands in messages: "data.validation.0", or "--data".
std::unique_ptr<ValidationSet> open_validation_set(const ValidationConfig& set, const DataConfig& config,
                                                   const Tokenizer& tokenizer, const DataOptions& options,
                                                   const std::string& key);

}  // namespace scaletrain
