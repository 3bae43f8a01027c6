#include "infer/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/instructions/instruction_source.h"
#include "infer/stop_strings.h"

namespace scaletrain {

std::string_view to_text(GenerationEnd end) {
  switch (end) {
    case GenerationEnd::length:
      return "length";
    case GenerationEnd::end_of_document:
      return "end_of_document";
    case GenerationEnd::context_full:
      return "context_full";
    case GenerationEnd::stop:
      return "stop";
  }
  return {};
}

void check_prompt_fits(const LoadedModel& model, std::span<const std::int32_t> tokens, const std::string& where) {
  const std::int64_t context = model.transformer().spec().context;
  if (static_cast<std::int64_t>(tokens.size()) >= context)
    throw UserError(fmt::format("{}: {} tokens leave no room in the model's context of {}; shorten it", where,
                                tokens.size(), context));
}

std::vector<std::int32_t> prompt_tokens(LoadedModel& model, std::string_view text, const std::string& where) {
  const Tokenizer& tokenizer = model.tokenizer();
  std::vector<std::int32_t> tokens(tokenizer.before_document().begin(), tokenizer.before_document().end());
  const std::vector<std::int32_t> written = tokenizer.encode(text);
  tokens.insert(tokens.end(), written.begin(), written.end());
  if (tokens.empty()) {
    if (!tokenizer.end_of_document())
      throw UserError(where + ": an empty prompt needs a tokenizer with an end-of-document token to start from");
    tokens.push_back(*tokenizer.end_of_document());
  }
  check_prompt_fits(model, tokens, where);
  return tokens;
}

std::optional<std::int32_t> end_of_completions(const DataConfig& data, const Tokenizer& tokenizer) {
  const bool completes = std::any_of(data.train.begin(), data.train.end(), [](const SourceConfig& source) {
    return source.records == RecordKind::prompt_completion;
  });
  if (!completes) return std::nullopt;
  const auto end = completion_end(data, tokenizer);
  return end ? std::optional(end->token) : std::nullopt;
}

namespace {

Decoder make_decoder(LoadedModel& model, const Generator::Extent& extent) {
  try {
    return {model.transformer(), model.backend(), model.stream(), model.store(), extent.context, extent.batch};
  } catch (const std::bad_alloc&) {
    const std::size_t bytes =
        Decoder::cache_bytes(model.transformer().spec(), model.backend().compute_type(), extent.context, extent.batch);
    throw UserError(fmt::format("not enough memory for the keys and values of {} of {} tokens, which need {}{}",
                                counted(extent.batch, "sample"), extent.context, bytes_text(bytes),
                                extent.batch > 1 ? "; compute fewer at once: --batch" : ""));
  }
}

}  // namespace

// One run's samples: those that wait for a place in the batch, those that have one, those that wait to be told.
class Generator::Run {
 public:
  Run(Generator& generator, std::span<const std::vector<std::int32_t>> prompts, const GenerationOptions& options,
      const GenerationEvents& events)
      : generator_(generator),
        model_(generator.model_),
        decoder_(generator.decoder_),
        prompts_(prompts),
        options_(options),
        events_(events),
        classes_(std::min(model_.tokenizer().vocab_size(), model_.transformer().spec().vocab)),
        ends_(options.end_tokens),
        told_(options.first_prompt, 0) {
    if (const auto end = model_.tokenizer().end_of_document()) ends_.push_back(*end);
    if (const auto end = end_of_completions(model_.config().data, model_.tokenizer())) ends_.push_back(*end);
    for (std::int64_t slot = 0; slot < generator_.extent_.batch; ++slot) free_.push_back(slot);
  }

  void run() {
    while (true) {
      while (!free_.empty() && next_prompt_ < static_cast<std::int64_t>(prompts_.size())) start_next();
      if (active_.empty()) break;
      step();
    }
  }

 private:
  struct Active {
    std::int64_t slot = 0;
    GeneratedSample sample;
    StopStrings stop;
    std::vector<std::int32_t> past{};  // prompt and new tokens
  };

  static GeneratedSample begun(std::int64_t prompt, std::int64_t sample) {
    GeneratedSample begun;
    begun.prompt = prompt;
    begun.sample = sample;
    return begun;
  }

  std::vector<std::int32_t>& held(std::int64_t slot) { return generator_.slots_[static_cast<std::size_t>(slot)]; }

  void start_next() {
    const std::int64_t prompt = options_.first_prompt + next_prompt_;
    const std::int64_t sample = next_sample_;
    if (++next_sample_ == options_.samples) {
      next_sample_ = 0;
      ++next_prompt_;
    }
    if (options_.max_tokens == 0) {
      tell(begun(prompt, sample));
      return;
    }
    const std::int64_t slot = free_.front();
    free_.pop_front();
    const std::vector<std::int32_t>& tokens = prompts_[static_cast<std::size_t>(prompt - options_.first_prompt)];
    if (sample == 0 || !begins_with_prompt(slot, tokens)) read_prompt(slot, tokens);
    held(slot) = tokens;
    active_.push_back(
        {.slot = slot, .sample = begun(prompt, sample), .stop = StopStrings(options_.stop), .past = tokens});
    if (!go_on(active_.back(), prompt_logits_)) active_.pop_back();
  }

  // The first sample's sequence still begins with the prompt, however far it has come, unless windows have let go of
  // it.
  bool begins_with_prompt(std::int64_t slot, std::span<const std::int32_t> tokens) {
    const auto length = static_cast<std::int64_t>(tokens.size());
    decoder_.copy_sequence(prompt_slot_, slot);
    if (decoder_.truncate(slot, length) == length) return true;
    held(slot).clear();
    return false;
  }

  void read_prompt(std::int64_t slot, std::span<const std::int32_t> tokens) {
    std::size_t known = 0;
    if (generator_.extent_.keeps_past) {
      const std::vector<std::int32_t>& before = held(slot);
      // The last one is read again, for the logits.
      while (known + 1 < tokens.size() && known < before.size() && tokens[known] == before[known]) ++known;
    }
    known = static_cast<std::size_t>(decoder_.truncate(slot, static_cast<std::int64_t>(known)));
    const std::span<const float> logits = decoder_.append(slot, tokens.subspan(known));
    prompt_logits_.assign(logits.begin(), logits.end());
    prompt_slot_ = slot;
    generator_.prompt_tokens_read_ += static_cast<std::int64_t>(tokens.size() - known);
  }

  void step() {
    std::span<const float> logits;
    if (generator_.extent_.has_cache) {
      std::vector<Decoder::Step> steps;
      for (const Active& active : active_) steps.push_back({active.slot, active.past.back()});
      logits = decoder_.step(steps);
    }
    const auto vocab = static_cast<std::size_t>(model_.transformer().spec().vocab);
    std::vector<Active> going;
    for (std::size_t i = 0; i < active_.size(); ++i) {
      Active& active = active_[i];
      held(active.slot).push_back(active.past.back());
      const bool goes_on =
          go_on(active, generator_.extent_.has_cache ? logits.subspan(i * vocab, vocab) : logits_of_all(active));
      if (goes_on) going.push_back(std::move(active));
    }
    active_ = std::move(going);
  }

  std::span<const float> logits_of_all(const Active& active) {
    decoder_.reset(active.slot);
    return decoder_.append(active.slot, active.past);
  }

  // Draws the next token; false once the sample has ended with it.
  bool go_on(Active& active, std::span<const float> logits) {
    GeneratedSample& sample = active.sample;
    const TokenPlace place{
        .index = static_cast<std::int64_t>(sample.tokens.size()), .prompt = sample.prompt, .sample = sample.sample};
    const std::int32_t token = sample_token(logits, classes_, options_.sampling, place, active.past);
    sample.tokens.push_back(token);
    if (options_.wants_log_probabilities) sample.log_probabilities.push_back(log_probability(logits, classes_, token));
    if (std::find(ends_.begin(), ends_.end(), token) != ends_.end())
      return finish(active, GenerationEnd::end_of_document);
    give_out(sample, active.stop.add(text_of(token)));
    if (active.stop.found()) return finish(active, GenerationEnd::stop);
    if (static_cast<std::int64_t>(sample.tokens.size()) == options_.max_tokens)
      return finish(active, GenerationEnd::length);
    if (decoder_.length(active.slot) >= generator_.extent_.context) return finish(active, GenerationEnd::context_full);
    active.past.push_back(token);
    return true;
  }

  std::string text_of(std::int32_t token) const {
    const Tokenizer& tokenizer = model_.tokenizer();
    return (tokenizer.reads_text() ? "" : " ") + tokenizer.decode(std::span(&token, 1));
  }

  void give_out(GeneratedSample& sample, const std::string& text) {
    if (text.empty()) return;
    sample.text += text;
    if (events_.text) events_.text(sample, text);
  }

  bool finish(Active& active, GenerationEnd end) {
    if (!active.stop.found()) give_out(active.sample, active.stop.finish());
    active.sample.end = end;
    active.sample.stop = active.stop.found();
    free_.push_back(active.slot);
    tell(std::move(active.sample));
    return false;
  }

  // In order: what ended before its turn waits.
  void tell(GeneratedSample sample) {
    const std::pair key(sample.prompt, sample.sample);
    ended_.emplace(key, std::move(sample));
    while (!ended_.empty() && ended_.begin()->first == told_) {
      if (events_.done) events_.done(ended_.begin()->second);
      ended_.erase(ended_.begin());
      if (++told_.second == options_.samples) told_ = {told_.first + 1, 0};
    }
  }

  Generator& generator_;
  LoadedModel& model_;
  Decoder& decoder_;
  std::span<const std::vector<std::int32_t>> prompts_;
  const GenerationOptions& options_;
  const GenerationEvents& events_;
  std::int64_t classes_;
  std::vector<std::int32_t> ends_;

  std::int64_t next_prompt_ = 0, next_sample_ = 0;
  std::int64_t prompt_slot_ = 0;      // of the first sample of the prompt that was read last
  std::vector<float> prompt_logits_;  // [V], behind that prompt
  std::deque<std::int64_t> free_;
  std::vector<Active> active_;
  std::map<std::pair<std::int64_t, std::int64_t>, GeneratedSample> ended_;
  std::pair<std::int64_t, std::int64_t> told_;  // the next to be told
};

Generator::Generator(LoadedModel& model, const Extent& extent)
    : model_(model),
      extent_(extent),
      decoder_(make_decoder(model, extent)),
      slots_(static_cast<std::size_t>(extent.batch)) {}

void Generator::run(std::span<const std::vector<std::int32_t>> prompts, const GenerationOptions& options,
                    const GenerationEvents& events) {
  for (const std::vector<std::int32_t>& prompt : prompts) {
    SCALETRAIN_CHECK(!prompt.empty());
    SCALETRAIN_CHECK_LT(static_cast<std::int64_t>(prompt.size()), model_.transformer().spec().context);
  }
  Run(*this, prompts, options, events).run();
}

}  // namespace scaletrain
