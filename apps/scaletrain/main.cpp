// scaletrain: the command line. One file per subcommand; this one dispatches and maps errors to exit codes.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <iostream>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/process/console.h"
#include "base/process/exit_status.h"
#include "base/process/last_words.h"
#include "base/text.h"
#include "commands/commands.h"
#include "completion.h"
#include "help_format.h"
#include "host/process/signals.h"
#include "host/thread_limits.h"
#include "version.h"

namespace scaletrain {

void write_output(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw InputError(std::string("standard output cannot be written: ") + std::strerror(errno));
}

void write_message(const std::string& text) {
  // A run must not stand still because nobody reads what it says.
  constexpr double patience = 1.0;
  write_to_console(STDERR_FILENO, text + "\n", patience);
}

CommandResult run_guarded(const Command& command) {
  try {
    return {command(), ""};
  } catch (...) {
    return exit_status_of(std::current_exception());
  }
}

namespace {

// Commands that somebody who has read of the project, or knows its like, will try.
bool is_planned(std::string_view parent, std::string_view word) {
  if (parent == "checkpoint") return word == "import";
  if (parent == "data") return word == "clean";
  return word == "plan" || word == "report";
}

// What to say when no subcommand was recognised: the one that was meant, if there was a word.
std::string missing_command(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr))
    if (!command->get_group().empty()) names.push_back(command->get_name());
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  const std::string after = app.get_parent() == nullptr ? "" : " behind " + app.get_name();
  if (words.empty()) return "scaletrain: name a command" + after + ": " + list;
  if (is_planned(after.empty() ? "" : app.get_name(), words.front()))
    return fmt::format("scaletrain: {} is not supported yet; the commands{} are: {}", quoted(words.front()), after,
                       list);
  const auto nearest = nearest_word(words.front(), names);
  return "scaletrain: unknown command " + quoted(words.front()) +
         (nearest ? "; did you mean " + *nearest + "?" : "; the commands are: " + list);
}

// ", as in: scaletrain run my.yaml"
std::string example_text(const CLI::App& command) {
  constexpr std::array<std::string_view, 16> examples = {
      "run my.yaml",
      "check my.yaml",
      "plot runs/first",
      "metrics runs/first --csv",
      "evaluate runs/first",
      "generate runs/first --prompt \"Once\"",
      "completion bash",
      "data build data/web --tokenizer bytes --output corpus",
      "data merge corpus",
      "data inspect corpus.bin",
      "data verify corpus.bin",
      "data train-tokenizer data/web --vocab 32K --output tokenizer",
      "checkpoint list runs/first",
      "checkpoint inspect runs/first",
      "checkpoint verify runs/first",
      "checkpoint export runs/first --to huggingface --output exported"};
  const bool is_nested = command.get_parent() != nullptr && command.get_parent()->get_parent() != nullptr;
  const std::string name = (is_nested ? command.get_parent()->get_name() + " " : "") + command.get_name() + " ";
  for (const std::string_view example : examples)
    if (example.starts_with(name)) return fmt::format(", as in: scaletrain {}", example);
  return {};
}

// Why the program ends: nothing else waits, so that a reader that is slow gets it too.
void write_last_message(const std::string& text) {
  constexpr double patience = 10.0;
  write_to_console(STDERR_FILENO, text + "\n", patience);
}

// The process's exit code.
int finish(const Command& command) {
  const CommandResult result = run_guarded(command);
  if (!result.message.empty()) write_last_message("scaletrain: " + result.message);
  return static_cast<int>(result.code);
}

// Descriptors 0 to 2 that are closed (a daemon's child, `2>&-`) would be given to files and events of the program,
// which messages would then be written into.
void open_standard_descriptors() {
  int descriptor = 0;
  do descriptor = ::open("/dev/null", O_RDWR);
  while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor > STDERR_FILENO) ::close(descriptor);
}

// Every rank is connected with every other, and rank 0 with all of them twice more: of a thousand ranks that is beyond
// what many systems grant a process before it asks.
void raise_descriptor_limit() {
  constexpr rlim_t enough = 1 << 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= enough) return;
  limit.rlim_cur = std::min(limit.rlim_max, enough);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

}  // namespace scaletrain

// CLI11's own objects ask for memory before main begins. 101: the first that a program may have.
[[gnu::constructor(101)]] static void speak_before_main() {
  scaletrain::end_uncaught_with_last_words();
}

int main(int argc, char** argv) {
  using namespace scaletrain;  // NOLINT: main itself cannot live in the namespace
  open_standard_descriptors();
  raise_descriptor_limit();
  set_limit_finder([] { return met_limit_text(thread_limits()); });
  // Before anything else: a run that is signalled in its first moment leaves with its own exit code.
  if (argc > 1 && (std::string_view(argv[1]) == "run" || std::string_view(argv[1]) == "worker"))
    block_interrupt_signals();
  CLI::App app{"Trains large language models from one YAML file.", "scaletrain"};
  app.formatter(make_help_format());
  app.set_version_flag("--version", version_text, "Version, build, libraries, kernels and processors");
  app.require_subcommand(1);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    std::string text = "scaletrain: " + std::string(error.what());
    const CLI::App* last = failed;
    while (!last->get_subcommands().empty()) last = last->get_subcommands().back();
    const bool lacks_something = error.get_name() == "RequiredError";
    if (lacks_something && !last->get_subcommands(nullptr).empty()) {
      text = missing_command(*last, failed->remaining(true));
    } else if (lacks_something) {
      text += example_text(*last);
    }
    return text + "\nRun with --help for the usage.\n";
  });

  std::vector<std::pair<CLI::App*, Command>> commands;
  const auto add = [&commands](CLI::App& parent, std::initializer_list<Command (*)(CLI::App&)> adders) {
    for (const auto adder : adders) {
      Command command = adder(parent);
      commands.emplace_back(parent.get_subcommands(nullptr).back(), std::move(command));
    }
  };
  try {
    // In the order of --help: as somebody meets them.
    add(app, {add_run, add_check, add_schema, add_plot, add_metrics, add_evaluate, add_generate});
    CLI::App* data = app.add_subcommand("data", "Build and read token files, train tokenizers");
    data->require_subcommand(1);
    add(*data, {add_data_build, add_data_merge, add_data_inspect, add_data_verify, add_data_train_tokenizer});
    CLI::App* checkpoint = app.add_subcommand("checkpoint", "List, inspect, verify and export checkpoints");
    checkpoint->require_subcommand(1);
    add(*checkpoint, {add_checkpoint_list, add_checkpoint_inspect, add_checkpoint_verify, add_checkpoint_export});
    add(app, {add_completion, add_worker});
    // A shell asks; words that are half typed are nothing for the parser.
    if (argc > 2 && std::string_view(argv[1]) == "complete" && std::string_view(argv[2]) == "--") {
      const std::vector<std::string> words(argv + 3, argv + argc);
      return static_cast<int>(run_guarded([&] {
                                write_output(to_text(complete(app, words)));
                                return ExitCode::finished;
                              }).code);
    }
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool answered = error.get_exit_code() == 0;  // --help, --version
    std::ostringstream answer;
    app.exit(error, answer, std::cerr);
    if (!answered) return static_cast<int>(ExitCode::usage);
    return finish([&answer] {
      write_output(answer.str());
      return ExitCode::finished;
    });
  }
  for (const auto& [subcommand, command] : commands)
    if (subcommand->parsed()) return finish(command);
  return static_cast<int>(ExitCode::usage);
}
