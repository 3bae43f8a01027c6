// scaletrain data build and merge: from text and JSONL to token files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "data/corpus/corpus_build.h"
#include "data_arguments.h"
#include "host/machine.h"
#include "option_checks.h"
#include "telemetry/count_progress.h"
#include "telemetry/progress.h"

namespace scaletrain {

namespace {

struct BuildArguments {
  std::vector<std::string> sources;
  std::string tokenizer;
  std::optional<std::int64_t> end_of_document;
  std::string output;
  ReadingArguments reading;
  std::string split;
  std::string shard;
  std::int64_t threads = 0;
  bool appends_end = true;
  bool overwrites = false;
  bool json = false;
};

// "3/8".
void take_shard(const std::string& text, CorpusRequest& request) {
  if (text.empty()) return;
  const char* const end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, request.shard);
  const auto [stop, second] = slash < end && *slash == '/' ? std::from_chars(slash + 1, end, request.shards)
                                                           : std::from_chars_result{slash, std::errc::invalid_argument};
  constexpr std::int64_t most = 99'999;
  if (error != std::errc() || second != std::errc() || stop != end || request.shard < 0 || request.shards < 1 ||
      request.shard >= request.shards || request.shards > most)
    throw UserError(fmt::format("--shard: {} is no shard; 0/8 to 7/8 are those of eight, and there are at most {}",
                                quoted(text), most));
}

std::vector<double> parse_shares(const std::string& text) {
  std::vector<double> shares;
  if (text.empty()) return shares;
  for (const std::string& word : split_text(text, ',')) {
    double share = 0.0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), share);
    if (error != std::errc() || stop != word.data() + word.size() || !(share >= 0.0) || share > 1e9)
      throw UserError(
          fmt::format("--split: {} is no share; 98,1,1 are those of train, validation and test", quoted(word)));
    shares.push_back(share);
  }
  if (shares.size() > 3 || std::all_of(shares.begin(), shares.end(), [](double share) { return share == 0.0; }))
    throw UserError("--split: one to three shares, not all 0: of train, validation and test");
  return shares;
}

nlohmann::json answer_of(const CorpusResult& result) {
  nlohmann::json outputs = nlohmann::json::array();
  for (const CorpusOutput& output : result.outputs)
    outputs.push_back({{"part", output.part.empty() ? nlohmann::json() : nlohmann::json(output.part)},
                       {"path", output.stem.string() + ".bin"},
                       {"documents", output.documents},
                       {"tokens", output.tokens}});
  return {{"outputs", std::move(outputs)},
          {"skipped", result.notes.num_skipped()},
          {"notes", result.notes.to_json()},
          {"was_there", result.was_there},
          {"went_on", result.went_on}};
}

void tell(const CorpusResult& result, bool is_json, const std::string& jsonl_remedy) {
  for (const std::string& line : result.notes.lines("sources", jsonl_remedy)) write_message(line);
  for (const CorpusOutput& output : result.outputs)
    if (output.documents == 0)
      write_message(fmt::format("notice: {}.bin holds no document: no program can train on it", output.stem.string()));
  std::string text;
  for (const CorpusOutput& output : result.outputs)
    text += fmt::format("{}.bin: {} in {}{}\n", output.stem.string(),
                        grouped_count(static_cast<std::uint64_t>(output.tokens), "token"),
                        grouped_count(static_cast<std::uint64_t>(output.documents), "document"),
                        result.was_there ? " (it was there)" : "");
  write_output(is_json ? answer_of(result).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n" : text);
}

ExitCode build(const BuildArguments& arguments) {
  const auto tokenizer = open_tokenizer(arguments.tokenizer, arguments.end_of_document);
  CorpusRequest request;
  request.sources = arguments.sources;
  request.type = arguments.reading.type();
  request.field = arguments.reading.field();
  request.separator = arguments.reading.separator();
  request.on_bad_record = arguments.reading.on_bad_record();
  request.tokenizer = tokenizer.get();
  request.tokenizer_name = arguments.tokenizer;
  request.appends_end = arguments.appends_end;
  request.output = arguments.output;
  request.split = parse_shares(arguments.split);
  take_shard(arguments.shard, request);
  request.threads = arguments.threads > 0 ? static_cast<int>(arguments.threads) : available_processors();
  request.overwrites = arguments.overwrites;
  request.report = write_message;
  CorpusResult result;
  {
    CountProgress progress(stderr,
                           {.what = "tokenising", .unit = "MB", .live = progress_options_for(stderr, 0, 1).live});
    constexpr std::uint64_t megabyte = 1'000'000;
    request.progress = [&progress](std::uint64_t bytes, std::uint64_t all) {
      progress.update(static_cast<std::int64_t>(bytes / megabyte),
                      static_cast<std::int64_t>((all + megabyte - 1) / megabyte));
    };
    result = build_corpus(request);
  }
  if (result.went_on) write_message("went on where an earlier build of the same was stopped");
  tell(result, arguments.json, arguments.reading.jsonl_remedy());
  return ExitCode::finished;
}

}  // namespace

Command add_data_build(CLI::App& app) {
  auto arguments = std::make_shared<BuildArguments>();
  CLI::App* command =
      app.add_subcommand("build", "Tokenise text, JSONL and Parquet into token files that Megatron reads too");
  command
      ->add_option("sources", arguments->sources,
                   "Text and JSONL, also .gz and .zst, and Parquet: files, folders, patterns (web/**/*.jsonl.zst)")
      ->type_name("PATH")
      ->required();
  command
      ->add_option(
          "--tokenizer", arguments->tokenizer,
          "bytes, or a tokenizer.json, a vocab.json with merges.txt, a tokenizer.model, or a folder with one of them")
      ->required();
  command
      ->add_option("--end-of-document", arguments->end_of_document,
                   "The id that ends a document, where the tokenizer does not say")
      ->transform(whole_number(0));
  command
      ->add_option("--output", arguments->output,
                   "A folder (FOLDER/corpus.bin), or what the files' names begin with (OUTPUT.bin)")
      ->type_name("DIR|PREFIX")
      ->required();
  arguments->reading.declare(*command);
  command->add_flag("--append-end-of-document,!--no-append-end-of-document", arguments->appends_end,
                    "End each document with the tokenizer's token for it (the default)");
  command->add_option("--split", arguments->split,
                      "Shares of train, validation and test (98,1,1), by a hash of each document");
  command
      ->add_option("--shard", arguments->shard, "The part I of N (0/8 to 7/8) alone, for jobs side by side; see merge")
      ->type_name("I/N");
  command->add_option("--threads", arguments->threads, "Threads that tokenise; 0: one for each processor")
      ->transform(whole_number(0, 4096))
      ->capture_default_str();
  command->add_flag("--overwrite", arguments->overwrites,
                    "Replace what is there, and throw away other unfinished builds");
  command->add_flag("--json", arguments->json, "JSON on standard output");
  return [arguments] { return build(*arguments); };
}

Command add_data_merge(CLI::App& app) {
  auto arguments = std::make_shared<BuildArguments>();
  CLI::App* command = app.add_subcommand("merge", "Join the shards of a build");
  command->add_option("output", arguments->output, "The --output of the builds")->type_name("DIR|PREFIX")->required();
  command->add_flag("--overwrite", arguments->overwrites, "Replace what is there");
  command->add_flag("--json", arguments->json, "JSON on standard output");
  return [arguments] {
    // What may be JSONL the builds of the shards have told.
    tell(merge_corpus(arguments->output, arguments->overwrites), arguments->json, {});
    return ExitCode::finished;
  };
}

}  // namespace scaletrain
