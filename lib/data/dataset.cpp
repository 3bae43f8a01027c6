#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/numbers/checked.h"
#include "base/text.h"
#include "data/block_reader.h"
#include "data/instructions/instruction_cache.h"
#include "data/sources.h"
#include "data/stream_cache.h"

namespace scaletrain {
namespace {

// Changes when the same description would give other samples, so that a resume can say so.
constexpr std::uint64_t kSamplingRules = 1;

// What a sum of tokens stays at that 64 bits do not hold: a cap of epochs may be any number.
constexpr std::int64_t kManyTokens = std::numeric_limits<std::int64_t>::max();

// See MixPart. Either a stream of tokens, cut into windows, or packed instructions, whose rows are the samples; without
// a token all is empty.
struct Part {
  std::unique_ptr<JoinedTokens> tokens;
  BlockTable table;  // of packed instructions the numbers of blocks and samples alone
  std::unique_ptr<PackedFile> packed;
};
using Source = std::vector<Part>;

// A set that is held out of a source is read as the source is.
SourceSpec validation_spec(const ValidationConfig& set, const DataConfig& config, const std::string& key) {
  SourceSpec spec{key, set.path, set.type, set.field, set.separator, set.records};
  if (set.held_out_of)
    spec.part = {.held_out = config.train.at(*set.held_out_of).split->validation, .is_held_out = true};
  return spec;
}

std::vector<std::unique_ptr<FoundSource>> find_sources(const DataConfig& config, const Tokenizer& tokenizer,
                                                       const DataOptions& options) {
  std::vector<std::unique_ptr<FoundSource>> found;
  for (std::size_t i = 0; i < config.train.size(); ++i) {
    const SourceConfig& source = config.train[i];
    found.push_back(find_source(training_spec(source, i), tokenizer, config, options));
  }
  return found;
}

SampleRules sample_rules(const DataConfig& config, const Tokenizer& tokenizer, const DataOptions& options) {
  SCALETRAIN_CHECK(options.vocab > 0 && options.context > 0);
  const std::int32_t padding = tokenizer.end_of_document().value_or(0);
  return {.vocab = options.vocab,
          .loss_across = config.documents.loss_across,
          .joins_documents = config.documents.attention == DocumentAttention::instructions,
          .padding = padding < options.vocab ? padding : 0};
}

class OpenTrainingData final : public TrainingData {
 public:
  OpenTrainingData(const DataConfig& config, const Tokenizer& tokenizer, const DataOptions& options)
      : window_(options.context),
        rules_(sample_rules(config, tokenizer, options)),
        end_of_document_(tokenizer.end_of_document()),
        tokenizer_hash_(tokenizer.hash()) {
    if (config.train.empty()) throw UserError("data.train: at least one source is needed to train");
    const std::vector<std::unique_ptr<FoundSource>> found = find_sources(config, tokenizer, options);
    std::vector<std::vector<std::uint64_t>> files;
    files.reserve(found.size());
    for (const auto& source : found) files.push_back(source->files());
    const auto parts = parts_of_sources(files, {options.read.begin(), options.read.end()});
    std::vector<SourceShape> shapes;
    for (std::size_t i = 0; i < config.train.size(); ++i) {
      const SourceConfig& source = config.train[i];
      OpenedSource opened = found[i]->open(parts[i]);
      const std::string key = opened.content.key;
      const std::uint64_t identity = opened.content.identity;
      report_short_source(source, key, opened.content.tokens, options);
      if (options.opened) options.opened(std::move(opened.content));
      caps_.push_back(source.epochs);
      shapes.push_back(
          {.parts = {}, .weight = source.weight, .epochs = source.epochs, .name = key, .identity = identity});
      add_parts(std::move(opened.parts), shapes.back());
    }
    mixture_ = std::make_unique<Mixture>(std::move(shapes), window_, options.seed);
    sources_of_run_ = mixture_->mix().sources;
    cache_.begin(samples_in_use());
  }

  std::int64_t context() const override { return window_ / mixture_->pieces(); }
  const Mixture& mixture() const override { return *mixture_; }
  std::uint64_t hash() const override { return hash_of(sources_of_run_, 1); }

  DataDescription description() const override { return description({.context = window_}); }

  DataDescription description(const ReadingPhase& phase) const override {
    const std::int64_t pieces = pieces_of(phase.context);
    SCALETRAIN_CHECK(phase.weights.empty() || phase.weights.size() == sources_of_run_.size());
    DataDescription out{.sources = sources_of_run_};
    for (std::size_t i = 0; i < out.sources.size(); ++i) {
      if (!phase.weights.empty()) out.sources[i].weight = phase.weights[i];
      if (pieces > 1) out.sources[i] = in_pieces(std::move(out.sources[i]), pieces, caps_[i]);
    }
    out.hash = hash_of(out.sources, pieces);
    return out;
  }

  void enter(const Mix& mix, std::int64_t context) override {
    const std::int64_t pieces = pieces_of(context);
    if (mix == mixture_->mix() && pieces == mixture_->pieces()) return;
    mixture_->enter(mix, pieces);
    cache_.begin(samples_in_use());
  }
  using TrainingData::enter;

  std::vector<std::int64_t> source_tokens() const override {
    std::vector<std::int64_t> tokens;
    for (const Source& source : sources_) {
      tokens.push_back(0);
      for (const Part& part : source) tokens.back() += part.packed ? part.packed->num_tokens() : part.table.num_tokens;
    }
    return tokens;
  }

  std::vector<std::optional<std::int64_t>> source_documents() const override {
    std::vector<std::optional<std::int64_t>> documents;
    for (const Source& source : sources_) {
      documents.emplace_back(0);
      for (const Part& part : source) {
        if (part.packed && documents.back()) *documents.back() += part.packed->num_documents();
        if (!part.tokens || !documents.back()) continue;
        const bool is_known = part.tokens->first_without_index() == nullptr;
        documents.back() = is_known ? std::optional(*documents.back() + part.tokens->num_documents()) : std::nullopt;
      }
    }
    return documents;
  }

  std::int64_t sample_tokens(std::int64_t sample) const override { return targets_at(mixture_->locate(sample)); }

  std::vector<TokenBounds> tokens_between(std::int64_t first, std::int64_t end, std::int64_t looked_up) const override {
    const std::vector<std::int64_t> from = mixture_->counts(first);
    const std::vector<std::int64_t> to = mixture_->counts(end);
    std::vector<TokenBounds> bounds;
    for (std::size_t i = 0; i < sources_.size(); ++i)
      bounds.push_back(tokens_of(static_cast<std::int64_t>(i), from[i], to[i], looked_up));
    return bounds;
  }

  void read_sample(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                   std::vector<std::int32_t>& document_starts) const override {
    SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(inputs.size()), context());
    const SampleLocation at = mixture_->locate(sample);
    const Part& part = part_of(at);
    if (part.packed) return read_row(*part.packed, row_of(at), rules_, {inputs, targets, &document_starts});
    const bool is_full = at.block < part.table.full_blocks;
    const std::int64_t samples = is_full ? samples_per_block(window_) : part.table.last_samples;
    const auto stream = cache_.get(at, samples, [&] {
      return make_block_stream({.tokens = part.tokens.get(),
                                .table = &part.table,
                                .block = at.block,
                                .context = window_,
                                .vocab = rules_.vocab,
                                .end_of_document = end_of_document_,
                                .key = mixture_->order(at.source).document_key(at.epoch, at.part, at.block)});
    });
    read_window(*stream, at.window * mixture_->pieces() + at.piece, rules_, {inputs, targets, &document_starts});
  }

 private:
  // Into how many samples a window is cut for one of so many tokens.
  std::int64_t pieces_of(std::int64_t context) const {
    const std::int64_t pieces = div_exact(window_, context);
    for (std::size_t i = 0; i < sources_.size() && pieces > 1; ++i)
      for (const Part& part : sources_[i])
        if (part.packed)
          throw UserError(fmt::format(
              "data.train.{}: records of instructions are packed into samples of model.context {}, which are not cut "
              "into samples of {} yet; leave phases[].context out",
              i, window_, context));
    return pieces;
  }

  // Of content, mix and tokenizer; and of how windows are cut, where they are.
  std::uint64_t hash_of(const std::vector<MixSource>& sources, std::int64_t pieces) const {
    std::vector<std::uint64_t> numbers = {kSamplingRules, tokenizer_hash_};
    for (std::size_t i = 0; i < sources.size(); ++i) {
      numbers.push_back(sources[i].identity);
      numbers.push_back(std::bit_cast<std::uint64_t>(sources[i].weight));
      numbers.push_back(caps_[i] ? std::bit_cast<std::uint64_t>(*caps_[i]) : 0);
    }
    if (pieces > 1) numbers.push_back(static_cast<std::uint64_t>(pieces));
    return hash_bytes(std::as_bytes(std::span(numbers)));
  }

  std::int64_t samples_in_use() const {
    std::int64_t samples = 0;
    for (std::int64_t source = 0; source < std::ssize(sources_); ++source)
      samples = checked_add(samples, mixture_->order(source).samples_in_use());
    return samples;
  }

  const Part& part_of(const SampleLocation& at) const {
    return sources_[static_cast<std::size_t>(at.source)][static_cast<std::size_t>(at.part)];
  }

  std::int64_t row_of(const SampleLocation& at) const { return at.block * samples_per_block(window_) + at.window; }

  std::int64_t targets_at(const SampleLocation& at) const {
    const Part& part = part_of(at);
    if (part.packed) return part.packed->row_tokens(row_of(at)) - 1;
    const std::int64_t targets = window_targets(*part.tokens, part.table, window_, at.block, at.window);
    return std::clamp<std::int64_t>(targets - at.piece * context(), 0, context());
  }

  std::int64_t samples_per_epoch(std::int64_t source) const {
    return mixture_->order(source).samples_per_epoch() * mixture_->pieces();
  }

  std::int64_t epoch_tokens(std::int64_t source) const {
    std::int64_t tokens = 0;
    for (const Part& part : sources_[static_cast<std::size_t>(source)]) {
      if (part.tokens) tokens = checked_add(tokens, all_targets(*part.tokens, part.table));
      if (part.packed) tokens = checked_add(tokens, part.packed->num_tokens() - part.packed->num_rows());
    }
    return tokens;
  }

  // Of the source's samples [first, end), counted over all epochs.
  TokenBounds tokens_of(std::int64_t source, std::int64_t first, std::int64_t end, std::int64_t looked_up) const {
    const std::int64_t samples = samples_per_epoch(source);
    const std::int64_t whole = epoch_tokens(source);
    TokenBounds sum;
    while (first < end) {
      const std::int64_t epochs = first % samples == 0 ? (end - first) / samples : 0;
      const std::int64_t stop = epochs > 0 ? first + epochs * samples : std::min(end, (first / samples + 1) * samples);
      const std::int64_t all = try_mul(whole, epochs).value_or(kManyTokens);
      const TokenBounds more = epochs > 0 ? TokenBounds{all, all} : tokens_in_epoch(source, first, stop, looked_up);
      sum = {try_add(sum.least, more.least).value_or(kManyTokens), try_add(sum.most, more.most).value_or(kManyTokens)};
      first = stop;
    }
    return sum;
  }

  // Of samples of one epoch, not all of it.
  TokenBounds tokens_in_epoch(std::int64_t source, std::int64_t first, std::int64_t end, std::int64_t looked_up) const {
    const std::int64_t samples = samples_per_epoch(source);
    const std::int64_t whole = epoch_tokens(source);
    const std::int64_t count = end - first;
    const auto look_up = [&](std::int64_t from, std::int64_t to) {
      std::int64_t tokens = 0;
      for (std::int64_t index = from; index < to; ++index) {
        tokens += targets_at(mixture_->locate(source, index));
      }
      return tokens;
    };
    // What lies before `first` cannot always be looked up: parts may have joined since.
    const std::int64_t rest = first % samples == 0 ? samples - count : count;
    if (rest < count && rest <= looked_up) {
      const std::int64_t tokens = whole - look_up(end, end + rest);
      return {tokens, tokens};
    }
    if (count <= looked_up) {
      const std::int64_t tokens = look_up(first, end);
      return {tokens, tokens};
    }
    const std::int64_t padding = checked_mul(samples, context()) - whole;
    const std::int64_t most = checked_mul(count, context());
    // A window has a target, a piece of one may have none.
    const std::int64_t at_least = mixture_->pieces() == 1 ? count : 0;
    return {.least = std::max(at_least, most - padding), .most = std::min(most, whole)};
  }

  void add_parts(std::vector<OpenedPart> opened, SourceShape& shape) {
    Source& source = sources_.emplace_back();
    for (OpenedPart& part : opened) {
      BlockTable table = part.tokens ? make_block_table(*part.tokens, window_) : BlockTable();
      if (part.packed) {
        table.full_blocks = part.packed->num_rows() / samples_per_block(window_);
        table.last_samples = part.packed->num_rows() % samples_per_block(window_);
      }
      shape.parts.push_back({table.full_blocks, table.last_samples, std::move(part.files)});
      source.push_back({std::move(part.tokens), std::move(table), std::move(part.packed)});
    }
  }

  // Less than one sample is rarely meant, and trains without a word: most of each sample would be masked.
  static void report_short_source(const SourceConfig& source, const std::string& key, std::int64_t tokens,
                                  const DataOptions& options) {
    if (tokens > options.context || !options.report || source.records != RecordKind::text) return;
    options.report(fmt::format(
        "{}: {} holds {}; a sample of {} needs {} (its last target too), so the rest of each sample is masked", key,
        source.path, counted(tokens, "token"), options.context, options.context + 1));
  }

  std::int64_t window_;  // tokens of a window: the longest context
  SampleRules rules_;
  std::optional<std::int32_t> end_of_document_;
  std::uint64_t tokenizer_hash_;
  std::vector<std::optional<double>> caps_;  // epochs, by source
  std::vector<Source> sources_;
  std::unique_ptr<Mixture> mixture_;
  std::vector<MixSource> sources_of_run_;  // of one that begins
  mutable StreamCache cache_;
};

class OpenValidationSet final : public ValidationSet {
 public:
  OpenValidationSet(const ValidationConfig& set, const DataConfig& config, const Tokenizer& tokenizer,
                    const DataOptions& options, const std::string& key)
      : name_(set.name),
        place_(key + ": " + set.path),
        context_(options.context),
        attention_(config.documents.attention),
        rules_(sample_rules(config, tokenizer, options)),
        end_of_document_(tokenizer.end_of_document()) {
    const auto found = find_source(validation_spec(set, config, key), tokenizer, config, options);
    std::vector<std::size_t> all(found->files().size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    OpenedSource opened = found->open({all});
    tokens_ = std::move(opened.parts.front().tokens);
    packed_ = std::move(opened.parts.front().packed);
    num_samples_ = packed_ ? packed_->num_rows() : ceil_div(tokens_->num_tokens() - 1, context_);
    if (num_samples_ == 0) {
      throw InputError(place_ + ": the set holds no sample; it needs at least two tokens");
    }
    const std::array<std::uint64_t, 3> numbers = {kSamplingRules, tokenizer.hash(), opened.content.identity};
    hash_ = hash_bytes(std::as_bytes(std::span(numbers)));
    if (options.opened) options.opened(std::move(opened.content));
  }

  const std::string& name() const override { return name_; }
  std::string place() const override { return place_; }
  std::int64_t context() const override { return context_; }
  DocumentAttention attention() const override {
    if (attention_ != DocumentAttention::instructions) return attention_;
    return packed_ ? DocumentAttention::within : DocumentAttention::across;
  }
  std::int64_t num_samples() const override { return num_samples_; }
  std::int64_t num_tokens() const override { return packed_ ? packed_->num_tokens() : tokens_->num_tokens(); }
  std::uint64_t hash() const override { return hash_; }

  void read_sample(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                   std::vector<std::int32_t>& document_starts) const override {
    SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(inputs.size()), context_);
    SCALETRAIN_CHECK(sample >= 0 && sample < num_samples_);
    if (packed_) return read_row(*packed_, sample, rules_, {inputs, targets, &document_starts});
    const std::int64_t first = sample * context_;
    const std::int64_t end = std::min(first + context_ + 1, tokens_->num_tokens());
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(end - first));
    tokens_->read(first, tokens, rules_.vocab);
    // The first piece may be the rest of a document; fill_sample() has every sample begin with one.
    std::vector<std::int64_t> starts;
    for (const JoinedTokens::Piece& piece : tokens_->pieces_between(first, end, end_of_document_, rules_.vocab))
      starts.push_back(piece.token - first);
    fill_sample(tokens, starts, rules_, {inputs, targets, &document_starts});
  }

 private:
  std::string name_;
  std::string place_;
  std::int64_t context_;
  DocumentAttention attention_;
  SampleRules rules_;
  std::optional<std::int32_t> end_of_document_;
  std::unique_ptr<JoinedTokens> tokens_;
  std::unique_ptr<PackedFile> packed_;  // of instructions, in place of tokens_
  std::int64_t num_samples_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace

std::unique_ptr<TrainingData> open_training_data(const DataConfig& config, const Tokenizer& tokenizer,
                                                 const DataOptions& options) {
  return std::make_unique<OpenTrainingData>(config, tokenizer, options);
}

void throw_no_target(const ValidationSet& set) {
  throw InputError(set.place() +
                   ": no token of what was read has a loss: data.documents.loss_across is false, so the first token of "
                   "a document has "
                   "none, and no document here holds a second one; give it longer documents");
}

std::unique_ptr<ValidationSet> open_validation_set(const ValidationConfig& set, const DataConfig& config,
                                                   const Tokenizer& tokenizer, const DataOptions& options,
                                                   const std::string& key) {
  return std::make_unique<OpenValidationSet>(set, config, tokenizer, options, key);
}

}  // namespace scaletrain
