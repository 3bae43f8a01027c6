// scaletrain data train-tokenizer: a byte-level BPE of one's own text.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "commands.h"
#include "data/tokenizer_training.h"
#include "data/tokens/bpe/bpe_tokenizer.h"
#include "data_arguments.h"
#include "host/machine.h"
#include "option_checks.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

struct TrainTokenizerArguments {
  TokenizerTrainingRequest request;
  std::vector<std::string> special;
  std::string pattern = "gpt2";
  ReadingArguments reading;
  std::string output;
  std::int64_t threads = 0;
  bool overwrites = false;
};

// An id that ends a document is what `bpe` looks for by these names.
void tell_missing_end(const TrainedBpe& trained, const std::string& text) {
  try {
    BpeTokenizer(parse_tokenizer_json(text, "tokenizer.json"), std::nullopt);
  } catch (const UnknownEndError&) {
    write_message(fmt::format(
        "notice: none of the {} special tokens is known to end a document; to train with this tokenizer give the id of "
        "the one that does as data.tokenizer.end_of_document",
        trained.num_special));
  }
}

ExitCode train(const TrainTokenizerArguments& arguments) {
  const fs::path file = fs::path(arguments.output) / "tokenizer.json";
  if (path_exists(file) && !arguments.overwrites)
    throw UserError(
        fmt::format("--output: {} is there already; name another folder, or --overwrite it", file.string()));
  check_folder_is_writable(arguments.output);
  TokenizerTrainingRequest request = arguments.request;
  request.type = arguments.reading.type();
  request.field = arguments.reading.field();
  request.separator = arguments.reading.separator();
  request.on_bad_record = arguments.reading.on_bad_record();
  request.pattern = arguments.pattern == "llama3" ? BpePattern::llama3 : BpePattern::gpt2;
  request.options.special = arguments.special.empty() ? std::vector<std::string>{"<|endoftext|>"} : arguments.special;
  request.threads = arguments.threads > 0 ? static_cast<int>(arguments.threads) : available_processors();
  request.report = write_message;
  const MonotonicTime begin = monotonic_now();
  const TokenizerTrainingResult result = train_tokenizer(request);
  const TrainedBpe& trained = result.trained;
  const std::string text = tokenizer_json(trained, request.pattern);
  create_folders(arguments.output);
  write_file_durably(file, text);
  tell_missing_end(trained, text);
  if (static_cast<std::int64_t>(trained.tokens.size()) < request.options.vocab)
    write_message(fmt::format("notice: {} tokens instead of {}: no pair of the text occurs more often than {}",
                              trained.tokens.size(), request.options.vocab, request.options.least_count - 1));
  write_output(fmt::format("{}: {}, trained on {} of text in {} ({} different pieces) in {}\n", file.string(),
                           scaletrain::grouped_count(trained.tokens.size(), "token"), bytes_text(result.bytes),
                           scaletrain::grouped_count(result.documents, "document"), grouped_digits(result.pieces),
                           duration_text(seconds_since(begin))));
  return ExitCode::finished;
}

}  // namespace

Command add_data_train_tokenizer(CLI::App& app) {
  auto arguments = std::make_shared<TrainTokenizerArguments>();
  TokenizerTrainingRequest& request = arguments->request;
  CLI::App* command =
      app.add_subcommand("train-tokenizer", "Train a byte-level BPE on text and write its tokenizer.json");
  command->add_option("sources", request.sources, "Text, JSONL and Parquet: files, folders, patterns")
      ->type_name("PATH")
      ->required();
  command->add_option("--vocab", request.options.vocab, "Tokens, with the special ones and 256 bytes (32K, 50257)")
      ->type_name("NUMBER")
      ->transform(whole_number(256, std::uint64_t{1} << 24))
      ->required();
  command->add_option("--output", arguments->output, "The folder to write tokenizer.json into")
      ->type_name("FOLDER")
      ->required();
  command->add_option("--pattern", arguments->pattern, "By which text is cut into pieces that no token reaches across")
      ->check(CLI::IsMember({"gpt2", "llama3"}))
      ->capture_default_str();
  command
      ->add_option("--special", arguments->special,
                   "A special token (repeatable), which gets the next of the first ids; the default is "
                   "<|endoftext|> alone, which ends a document")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--min-count", request.options.least_count, "How often a pair must occur to make a token")
      ->type_name("NUMBER")
      ->transform(whole_number(1))
      ->capture_default_str();
  arguments->reading.declare(*command);
  command->add_option("--threads", arguments->threads, "Threads that count pieces; 0: one for each processor")
      ->type_name("NUMBER")
      ->transform(whole_number(0, 4096))
      ->capture_default_str();
  command->add_flag("--overwrite", arguments->overwrites, "Replace a tokenizer.json that is there");
  return [arguments] { return train(*arguments); };
}

}  // namespace scaletrain
