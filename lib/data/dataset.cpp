#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <list>
#include <mutex>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "data/block_reader.h"
#include "data/sources.h"

namespace scaletrain {
namespace {

// Changes when the same description would give other samples, so that a resume can say so.
constexpr std::uint64_t kSamplingRules = 1;

struct Part {
  std::unique_ptr<TokenFile> file;
  BlockTable table;
};

SampleRules sample_rules(const DataConfig& config, const Tokenizer& tokenizer, const DataOptions& options) {
  SCALETRAIN_CHECK(options.vocab > 0 && options.context > 0);
  const std::int32_t padding = tokenizer.end_of_document().value_or(0);
  return {.vocab = options.vocab,
          .loss_across = config.documents.loss_across,
          .padding = padding < options.vocab ? padding : 0};
}

// Streams of the blocks in use: per source those of the stretch that samples are drawn from and, around its end, of the
// next (sampler.h).
class StreamCache {
 public:
  explicit StreamCache(std::size_t capacity) : capacity_(capacity) {}

  template <class Make>
  std::shared_ptr<const BlockStream> get(const SampleLocation& at, Make make) {
    const Key key{at.source, at.epoch, at.part, at.block};
    {
      const std::lock_guard lock(mutex_);
      for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        if (entry->first != key) continue;
        entries_.splice(entries_.begin(), entries_, entry);
        return entries_.front().second;
      }
    }
    auto stream = std::make_shared<const BlockStream>(make());
    const std::lock_guard lock(mutex_);
    entries_.emplace_front(key, stream);
    if (entries_.size() > capacity_) entries_.pop_back();
    return stream;
  }

 private:
  using Key = std::array<std::int64_t, 4>;

  std::size_t capacity_;
  std::mutex mutex_;
  std::list<std::pair<Key, std::shared_ptr<const BlockStream>>> entries_;  // the last used first
};

class OpenTrainingData final : public TrainingData {
 public:
  OpenTrainingData(const DataConfig& config, const Tokenizer& tokenizer, const DataOptions& options)
      : context_(options.context),
        rules_(sample_rules(config, tokenizer, options)),
        end_of_document_(tokenizer.end_of_document()),
        cache_((kShuffledBlocks + 2) * config.train.size()) {
    if (config.train.empty()) throw UserError("data.train: at least one source is needed to train");
    std::vector<std::uint64_t> numbers = {kSamplingRules, tokenizer.hash()};
    std::vector<SourceShape> shapes;
    for (std::size_t i = 0; i < config.train.size(); ++i) {
      const SourceConfig& source = config.train[i];
      const std::string key = fmt::format("data.train.{}", i);
      OpenedSource opened = open_source({key, source.path, source.type, source.field, source.separator}, tokenizer,
                                        config.cache, options);
      auto files = std::move(opened.parts);
      numbers.push_back(opened.content.identity);
      if (options.opened) options.opened(std::move(opened.content));
      numbers.push_back(std::bit_cast<std::uint64_t>(source.weight));
      numbers.push_back(source.epochs ? std::bit_cast<std::uint64_t>(*source.epochs) : 0);
      report_short_source(source, key, files, options);
      SourceShape shape{.parts = {}, .weight = source.weight, .epochs = source.epochs, .name = key};
      std::vector<Part> parts;
      for (auto& file : files) {
        BlockTable table = make_block_table(*file, context_);
        shape.parts.push_back({table.full_blocks, table.last_samples});
        parts.push_back({std::move(file), std::move(table)});
      }
      sources_.push_back(std::move(parts));
      shapes.push_back(std::move(shape));
    }
    hash_ = hash_bytes(std::as_bytes(std::span(numbers)));
    mixture_ = std::make_unique<Mixture>(std::move(shapes), context_, options.seed);
  }

  std::int64_t context() const override { return context_; }
  const Mixture& mixture() const override { return *mixture_; }
  std::uint64_t hash() const override { return hash_; }

  std::vector<std::int64_t> source_tokens() const override {
    std::vector<std::int64_t> tokens;
    for (const auto& parts : sources_) {
      std::int64_t total = 0;
      for (const Part& part : parts) total = checked_add(total, part.table.num_tokens);
      tokens.push_back(total);
    }
    return tokens;
  }

  void read_sample(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                   std::vector<std::int32_t>& document_starts) const override {
    SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(inputs.size()), context_);
    const SampleLocation at = mixture_->locate(sample);
    const Part& part = sources_[static_cast<std::size_t>(at.source)][static_cast<std::size_t>(at.part)];
    const auto stream = cache_.get(at, [&] {
      return make_block_stream({.file = part.file.get(),
                                .table = &part.table,
                                .block = at.block,
                                .context = context_,
                                .vocab = rules_.vocab,
                                .end_of_document = end_of_document_,
                                .key = mixture_->order(at.source).document_key(at.epoch, at.part, at.block)});
    });
    read_window(*stream, at.window, rules_, {inputs, targets, &document_starts});
  }

 private:
  // Less than one sample is rarely meant, and trains without a word: most of each sample would be masked.
  static void report_short_source(const SourceConfig& source, const std::string& key,
                                  const std::vector<std::unique_ptr<TokenFile>>& files, const DataOptions& options) {
    std::int64_t tokens = 0;
    for (const auto& file : files) tokens = checked_add(tokens, file->num_tokens());
    if (tokens > options.context || !options.report) return;
    options.report(fmt::format(
        "{}: {} holds {} token{}; a sample of {} needs {} (its last target too), so the rest of each sample is masked",
        key, source.path, tokens, tokens == 1 ? "" : "s", options.context, options.context + 1));
  }

  std::int64_t context_;
  SampleRules rules_;
  std::optional<std::int32_t> end_of_document_;
  std::vector<std::vector<Part>> sources_;
  std::unique_ptr<Mixture> mixture_;
  std::uint64_t hash_ = 0;
  mutable StreamCache cache_;
};

class OpenValidationSet final : public ValidationSet {
 public:
  OpenValidationSet(const ValidationConfig& set, const DataConfig& config, const Tokenizer& tokenizer,
                    const DataOptions& options, const std::string& key)
      : name_(set.name),
        context_(options.context),
        rules_(sample_rules(config, tokenizer, options)),
        end_of_document_(tokenizer.end_of_document()) {
    OpenedSource opened =
        open_source({key, set.path, set.type, set.field, set.separator}, tokenizer, config.cache, options);
    parts_ = std::move(opened.parts);
    for (const auto& part : parts_) {
      first_sample_.push_back(num_samples_);
      num_tokens_ = checked_add(num_tokens_, part->num_tokens());
      num_samples_ += ceil_div(part->num_tokens() - 1, context_);
    }
    if (num_samples_ == 0) {
      throw InputError(fmt::format("{}: {}: the set holds no sample; it needs at least two tokens", key, set.path));
    }
    const std::array<std::uint64_t, 3> numbers = {kSamplingRules, tokenizer.hash(), opened.content.identity};
    hash_ = hash_bytes(std::as_bytes(std::span(numbers)));
    if (options.opened) options.opened(std::move(opened.content));
  }

  const std::string& name() const override { return name_; }
  std::int64_t context() const override { return context_; }
  std::int64_t num_samples() const override { return num_samples_; }
  std::int64_t num_tokens() const override { return num_tokens_; }
  std::uint64_t hash() const override { return hash_; }

  void read_sample(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
                   std::vector<std::int32_t>& document_starts) const override {
    SCALETRAIN_CHECK_EQ(static_cast<std::int64_t>(inputs.size()), context_);
    SCALETRAIN_CHECK(sample >= 0 && sample < num_samples_);
    const auto next = std::upper_bound(first_sample_.begin(), first_sample_.end(), sample);
    const auto index = static_cast<std::size_t>(next - first_sample_.begin()) - 1;
    const TokenFile& file = *parts_[index];
    const std::int64_t first = (sample - first_sample_[index]) * context_;
    const std::int64_t end = std::min(first + context_ + 1, file.num_tokens());
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(end - first));
    file.read(first, tokens, rules_.vocab);
    fill_sample(tokens, starts_within(file, first, tokens), rules_, {inputs, targets, &document_starts});
  }

 private:
  // Positions in `tokens`, which begin at token `first` of the file, at which a document begins, without 0.
  std::vector<std::int64_t> starts_within(const TokenFile& file, std::int64_t first,
                                          std::span<const std::int32_t> tokens) const {
    std::vector<std::int64_t> starts;
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (file.one_document()) {
      for (std::size_t i = 0; end_of_document_ && i + 1 < tokens.size(); ++i) {
        if (tokens[i] == *end_of_document_) starts.push_back(static_cast<std::int64_t>(i) + 1);
      }
      return starts;
    }
    for (std::int64_t document = document_of(file, first); document < file.num_documents(); ++document) {
      const std::int64_t start = file.document_end(document) - first;
      if (start >= count) break;
      if (starts.empty() || start > starts.back()) starts.push_back(start);
    }
    return starts;
  }

  std::string name_;
  std::int64_t context_;
  SampleRules rules_;
  std::optional<std::int32_t> end_of_document_;
  std::vector<std::unique_ptr<TokenFile>> parts_;
  std::vector<std::int64_t> first_sample_;  // of each part
  std::int64_t num_samples_ = 0;
  std::int64_t num_tokens_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace

std::unique_ptr<TrainingData> open_training_data(const DataConfig& config, const Tokenizer& tokenizer,
                                                 const DataOptions& options) {
  return std::make_unique<OpenTrainingData>(config, tokenizer, options);
}

std::unique_ptr<ValidationSet> open_validation_set(const ValidationConfig& set, const DataConfig& config,
                                                   const Tokenizer& tokenizer, const DataOptions& options,
                                                   const std::string& key) {
  return std::make_unique<OpenValidationSet>(set, config, tokenizer, options, key);
}

}  // namespace scaletrain
