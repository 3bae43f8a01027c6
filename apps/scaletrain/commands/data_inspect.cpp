// scaletrain data inspect and verify: what data is, and whether all of it can be read.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "config/keys/keys.h"
#include "data/corpus/inspection.h"
#include "data/instructions/instruction_record.h"
#include "data_arguments.h"
#include "host/machine.h"
#include "option_checks.h"
#include "telemetry/count_progress.h"
#include "telemetry/progress.h"

namespace scaletrain {

namespace {

struct DataArguments {
  std::string path;
  std::string tokenizer;
  std::optional<std::int64_t> end_of_document;
  ReadingArguments reading;
  std::int64_t show = 0;
  bool json = false;
};

InspectionOptions options_from(const DataArguments& arguments, const Tokenizer* tokenizer) {
  InspectionOptions options;
  options.type = arguments.reading.type();
  options.field = arguments.reading.field();
  options.separator = arguments.reading.separator();
  options.on_bad_record = arguments.reading.on_bad_record();
  options.tokenizer = tokenizer;
  options.show = arguments.show;
  options.threads = available_processors();
  options.report = write_message;
  return options;
}

nlohmann::json file_json(const InspectedFile& file) {
  nlohmann::json object = {{"path", file.path.string()}, {"kind", file.kind},   {"bytes", file.bytes},
                           {"documents", nullptr},       {"tokens", nullptr},   {"dtype", nullptr},
                           {"tokenizer", nullptr},       {"shown", file.shown}, {"problem", nullptr},
                           {"learned", nullptr},         {"records", nullptr},  {"unanswered", nullptr},
                           {"characters", nullptr}};
  if (file.documents) object["documents"] = *file.documents;
  if (file.characters) object["characters"] = *file.characters;
  if (file.tokens) object["tokens"] = *file.tokens;
  if (file.learned) object["learned"] = *file.learned;
  if (file.unanswered) object["unanswered"] = *file.unanswered;
  if (file.records) object["records"] = std::string(to_text(*file.records));
  if (!file.dtype.empty()) object["dtype"] = file.dtype;
  if (!file.tokenizer.empty()) object["tokenizer"] = file.tokenizer;
  if (file.problem) object["problem"] = *file.problem;
  return object;
}

// ", 12 documents, 3,456 characters, 789 tokens", of what is known.
std::string counts_text(const std::optional<std::int64_t>& documents, const std::optional<std::int64_t>& characters,
                        const std::optional<std::int64_t>& tokens) {
  const auto part = [](const std::optional<std::int64_t>& count, std::string_view noun) {
    return count ? ", " + grouped_count(static_cast<std::uint64_t>(*count), noun) : std::string();
  };
  return part(documents, "document") + part(characters, "character") + part(tokens, "token");
}

// Of all files together; nothing where it is not known of each.
std::optional<std::int64_t> sum_of(const Inspection& inspection, std::optional<std::int64_t> InspectedFile::*count) {
  std::optional<std::int64_t> sum = 0;
  for (const InspectedFile& file : inspection.files)
    sum = sum && file.*count ? std::optional(*sum + *(file.*count)) : std::nullopt;
  return sum;
}

std::uint64_t bytes_of(const Inspection& inspection) {
  return std::accumulate(inspection.files.begin(), inspection.files.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const InspectedFile& file) { return sum + file.bytes; });
}

std::string total_text(const Inspection& inspection) {
  if (inspection.files.size() < 2) return {};
  return fmt::format(
      "all {} files: {}{}\n", grouped_digits(inspection.files.size()), bytes_text(bytes_of(inspection)),
      counts_text(sum_of(inspection, &InspectedFile::documents), sum_of(inspection, &InspectedFile::characters),
                  sum_of(inspection, &InspectedFile::tokens)));
}

nlohmann::json total_json(const Inspection& inspection) {
  nlohmann::json total = {{"files", inspection.files.size()}, {"bytes", bytes_of(inspection)}};
  const auto add = [&](const char* name, std::optional<std::int64_t> InspectedFile::*count) {
    const auto sum = sum_of(inspection, count);
    total[name] = sum ? nlohmann::json(*sum) : nlohmann::json();
  };
  add("documents", &InspectedFile::documents);
  add("characters", &InspectedFile::characters);
  add("tokens", &InspectedFile::tokens);
  return total;
}

std::string file_text(const InspectedFile& file) {
  std::string text = fmt::format("{}: {}, {}", file.path.string(), file.kind, bytes_text(file.bytes));
  text += counts_text(file.documents, file.characters, file.tokens);
  if (!file.dtype.empty()) text += " of " + file.dtype;
  if (file.learned) text += ", " + grouped_digits(static_cast<std::uint64_t>(*file.learned)) + " of them learned";
  if (file.unanswered.value_or(0) > 0)
    text += ", " + grouped_digits(static_cast<std::uint64_t>(*file.unanswered)) + " of them without an answer to learn";
  text += file.problem ? "; cannot be used\n" : "\n";
  if (file.records) text += "  " + instruction_uses(*file.records) + "\n";
  if (!file.tokenizer.empty()) text += "  tokenizer: " + file.tokenizer + "\n";
  for (std::size_t i = 0; i < file.shown.size(); ++i) text += fmt::format("  document {}: {}\n", i, file.shown[i]);
  return text;
}

// Their number.
std::size_t tell_problems(const Inspection& inspection) {
  std::size_t problems = 0;
  for (const InspectedFile& file : inspection.files) {
    if (!file.problem) continue;
    ++problems;
    write_message("scaletrain: " + *file.problem);
  }
  return problems;
}

void tell(const Inspection& inspection, const DataArguments& arguments) {
  for (const std::string& line : inspection.notes.lines("text", arguments.reading.jsonl_remedy())) write_message(line);
  nlohmann::json files = nlohmann::json::array();
  std::string text;
  for (const InspectedFile& file : inspection.files) {
    files.push_back(file_json(file));
    text += file_text(file);
  }
  text += total_text(inspection);
  const nlohmann::json answer = {
      {"files", std::move(files)}, {"total", total_json(inspection)}, {"notes", inspection.notes.to_json()}};
  write_output(arguments.json ? answer.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n" : text);
}

std::unique_ptr<Tokenizer> tokenizer_of(const DataArguments& arguments) {
  return arguments.tokenizer.empty() ? nullptr : open_tokenizer(arguments.tokenizer, arguments.end_of_document);
}

// Calls look() with what hears how far it has come.
template <class Look>
Inspection look_with_progress(const char* what, Look look) {
  CountProgress progress(stderr, {.what = what, .unit = "MB", .live = progress_options_for(stderr, 0, 1).live});
  return look([&progress](std::uint64_t done, std::uint64_t all) {
    constexpr std::uint64_t megabyte = 1'000'000;
    progress.update(static_cast<std::int64_t>(done / megabyte),
                    static_cast<std::int64_t>((all + megabyte - 1) / megabyte));
  });
}

ExitCode inspect_path(const DataArguments& arguments) {
  const auto tokenizer = tokenizer_of(arguments);
  const Inspection inspection = look_with_progress("inspecting", [&](const InspectionProgress& progress) {
    return inspect_data(arguments.path, options_from(arguments, tokenizer.get()), progress);
  });
  tell(inspection, arguments);
  // What else a folder holds is of no concern to who looks into it; where nothing can be used there is no data.
  if (tell_problems(inspection) == inspection.files.size())
    throw InputError(arguments.path + ": nothing here can be used; what is wrong stands above");
  return ExitCode::finished;
}

ExitCode verify_path(const DataArguments& arguments) {
  const auto tokenizer = tokenizer_of(arguments);
  const Inspection inspection = look_with_progress("verifying", [&](const InspectionProgress& progress) {
    return verify_data(arguments.path, options_from(arguments, tokenizer.get()), progress);
  });
  tell(inspection, arguments);
  const std::size_t problems = tell_problems(inspection);
  if (problems > 0)
    throw InputError(fmt::format("{}: of {} {} cannot be used; what is wrong with each stands above", arguments.path,
                                 counted(inspection.files.size(), "file"), problems));
  return ExitCode::finished;
}

void declare(CLI::App& command, DataArguments& arguments, bool counts_tokens) {
  command.add_option("path", arguments.path, "Text, JSONL or token files: a file, a folder, a pattern")->required();
  command.add_option("--tokenizer", arguments.tokenizer,
                     counts_tokens
                         ? "By which tokens of text are counted, and others shown: bytes, or the path of a tokenizer"
                         : "By which tokens are shown and checked: bytes, or the path of a tokenizer");
  command
      .add_option("--end-of-document", arguments.end_of_document,
                  "The id that ends a document, where the tokenizer does not say")
      ->transform(whole_number(0));
  arguments.reading.declare(command, true);
  command.add_option("--show", arguments.show, "So many documents of each file")
      ->transform(whole_number(0, 1'000'000))
      ->capture_default_str();
  command.add_flag("--json", arguments.json, "JSON on standard output");
}

}  // namespace

Command add_data_inspect(CLI::App& app) {
  auto arguments = std::make_shared<DataArguments>();
  CLI::App* command =
      app.add_subcommand("inspect", "What a file or folder of data is: its kind, size and how much it holds");
  declare(*command, *arguments, true);
  return [arguments] { return inspect_path(*arguments); };
}

Command add_data_verify(CLI::App& app) {
  auto arguments = std::make_shared<DataArguments>();
  CLI::App* command = app.add_subcommand("verify", "Read all of it, and name what is damaged");
  declare(*command, *arguments, false);
  return [arguments] { return verify_path(*arguments); };
}

}  // namespace scaletrain
