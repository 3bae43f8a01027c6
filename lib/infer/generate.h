// Texts that a model writes: of many prompts, several samples of each, some of them computed at once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/model.h"
#include "infer/sampling.h"
#include "nn/decode.h"

namespace scaletrain {

// Why a sample ended.
enum class GenerationEnd { length, end_of_document, context_full, stop };
std::string_view to_text(GenerationEnd end);

struct GenerationOptions {
  std::int64_t max_tokens = 0;  // new ones, at most, of each sample
  std::int64_t samples = 1;     // of each prompt
  SamplingOptions sampling;
  std::vector<std::string> stop{};         // texts end before the first of these; none of them empty
  std::vector<std::int32_t> end_tokens{};  // that end a sample as the end-of-document token does
  bool wants_log_probabilities = false;
  std::int64_t first_prompt = 0;  // the index of the first of the run's prompts: of its random numbers, and as told
};

struct GeneratedSample {
  std::int64_t prompt = 0, sample = 0;
  // prompt + text is the whole text: bytes, which may end within a character. A list of ids begins with a space.
  std::string text;
  std::vector<std::int32_t> tokens;       // all that were drawn, with the one that ended it and those of a stop string
  std::vector<double> log_probabilities;  // of each token, by the model itself (sampling.h)
  GenerationEnd end = GenerationEnd::length;
  std::optional<std::string> stop;  // the string, where it ended so
};

// The tokens of a prompt, which begins as a document does; an empty one where a document begins with nothing starts
// behind an end-of-document token. UserError beginning with `where`: without one in the tokenizer, and for a prompt
// that leaves no room in the model's context.
std::vector<std::int32_t> prompt_tokens(LoadedModel& model, std::string_view text, const std::string& where);
// UserError beginning with `where` for a prompt that leaves no room in the model's context.
void check_prompt_fits(const LoadedModel& model, std::span<const std::int32_t> tokens, const std::string& where);

// What a run that was trained on prompts and completions ends these with; nothing of any other.
std::optional<std::int32_t> end_of_completions(const DataConfig& data, const Tokenizer& tokenizer);

// What is called of a sample, in the thread of Generator::run.
struct GenerationEvents {
  // The next part of its text. Those of several samples come as they are computed.
  std::function<void(const GeneratedSample&, const std::string& text)> text;
  // Once it has ended; in the order of prompts and, of each, of samples.
  std::function<void(const GeneratedSample&)> done;
};

// Not thread-safe. A sample is a pure function of the model, its prompt, the options and the indices of prompt and
// sample: the same whatever is computed beside it. A prompt is read once for all its samples, but for those that begin
// when the first one has left the windows of the model's layers behind.
class Generator {
 public:
  struct Extent {
    std::int64_t context = 0;  // of prompt and new tokens, at most; no more than the model's
    std::int64_t batch = 1;    // samples computed at once
    // Every token's keys and values are kept. Without, the whole text is computed again for each: the same tokens, but
    // for rounding, and a means to see that.
    bool has_cache = true;
    // A prompt that begins as the last text of the sequence ended is read from there on: for a chat, with a batch of
    // one. Rounding depends on it, and so on what came before.
    bool keeps_past = false;
  };
  // The model must outlive it. UserError if the keys and values of the batch need more memory than there is.
  Generator(LoadedModel& model, const Extent& extent);

  // Tokens of prompts as prompt_tokens() gives them. InputError for logits that no trained model gives.
  void run(std::span<const std::vector<std::int32_t>> prompts, const GenerationOptions& options,
           const GenerationEvents& events);

  // Of prompts that were read, over all runs: what sharing and keeping them has spared is not in it.
  std::int64_t prompt_tokens_read() const { return prompt_tokens_read_; }

 private:
  class Run;

  LoadedModel& model_;
  Extent extent_;
  Decoder decoder_;
  std::vector<std::vector<std::int32_t>> slots_;  // the tokens that each sequence of the decoder holds
  std::int64_t prompt_tokens_read_ = 0;
};

}  // namespace scaletrain
