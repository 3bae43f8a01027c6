// scaletrain metrics: the numbers of a run, one line per step, for a person, a shell or a spreadsheet.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "commands/option_checks.h"
#include "commands/run_metrics.h"
#include "telemetry/metrics_table.h"

namespace scaletrain {

namespace {

struct Options {
  std::string path;
  std::optional<std::string> keys;
  std::int64_t last = 0;  // 0: all
  bool csv = false;
  bool json = false;
};

std::vector<std::string> keys_of(const std::string& list) {
  std::vector<std::string> keys = split_text(list, ',');
  for (const std::string& key : keys)
    if (key.empty()) throw UserError(fmt::format("--keys {}: a name is empty; separate names by single commas", list));
  return keys;
}

// What a terminal's line holds; the others have to be asked for.
std::vector<std::string> keys_for_people(const Metrics& metrics) {
  std::vector<std::string> keys = {"loss", "learning_rate", "grad_norm", "step_seconds", "tokens_per_second", "mfu"};
  for (const std::string& key : table_of(metrics).keys)
    if (key.starts_with("validation/") || key == "skip" || (key.starts_with("task/") && key.ends_with("/accuracy")))
      keys.push_back(key);
  return keys;
}

ExitCode print_metrics(const Options& options) {
  const Metrics metrics = metrics_of_run(options.path);
  std::vector<std::string> keys;
  if (options.keys) {
    keys = keys_of(*options.keys);
  } else if (!options.csv && !options.json) {
    keys = keys_for_people(metrics);
  }
  MetricsTable table = table_of(metrics, keys);
  const auto last = static_cast<std::size_t>(options.last);
  if (last > 0 && table.rows.size() > last) table.rows.erase(table.rows.begin(), table.rows.end() - options.last);
  if (table.rows.empty()) write_message(fmt::format("notice: {}: no step has been done yet", options.path));
  write_output(options.csv ? to_csv(table) : options.json ? to_json_lines(table) : to_columns(table));
  return ExitCode::finished;
}

}  // namespace

Command add_metrics(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("metrics", "Print the numbers of a run, one line per step");
  command->add_option("run", options->path, "The run folder, or its metrics.jsonl")->required()->type_name("FOLDER");
  command
      ->add_option("--keys", options->keys,
                   "What to print, by names with commas between them, as in loss,grad_norm or validation/web/loss; "
                   "otherwise all there is, or for people what a line holds")
      ->type_name("NAMES");
  command->add_option("--last", options->last, "The last steps alone, so many")
      ->type_name("NUMBER")
      ->transform(whole_number(1));
  CLI::Option* csv =
      command->add_flag("--csv", options->csv, "Comma-separated values, numbers to the bit as metrics.jsonl has them");
  command->add_flag("--json", options->json, "A JSON object a line")->excludes(csv);
  return [options] { return print_metrics(*options); };
}

}  // namespace scaletrain
