// scaletrain: the command line. One file per subcommand; this one dispatches and maps errors to exit codes.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "base/last_words.h"
#include "base/text.h"
#include "commands.h"
#include "completion.h"
#include "host/signals.h"
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

// What to say when no subcommand was recognised: the one that was meant, if there was a word.
std::string missing_command(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr))
    if (!command->get_group().empty()) names.push_back(command->get_name());
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  const std::string after = app.get_parent() == nullptr ? "" : " behind " + app.get_name();
  if (words.empty()) return "scaletrain: name a command" + after + ": " + list;
  const auto nearest = nearest_word(words.front(), names);
  return "scaletrain: unknown command " + quoted(words.front()) +
         (nearest ? "; did you mean " + *nearest + "?" : "; the commands are: " + list);
}

// Why the program ends: nothing else waits, so that a reader that is slow gets it too.
void write_last_message(const std::string& text) {
  constexpr double patience = 10.0;
  write_to_console(STDERR_FILENO, text + "\n", patience);
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

int main(int argc, char** argv) {
  using namespace scaletrain;  // NOLINT: main itself cannot live in the namespace
  open_standard_descriptors();
  end_uncaught_with_last_words();
  raise_descriptor_limit();
  // Before anything else: a run that is signalled in its first moment leaves with its own exit code.
  if (argc > 1 && (std::string_view(argv[1]) == "run" || std::string_view(argv[1]) == "worker"))
    block_interrupt_signals();
  CLI::App app{"Trains large language models from one YAML file.", "scaletrain"};
  app.set_version_flag("--version", version_text, "Version, build, libraries and kernels");
  app.require_subcommand(1);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    std::string text = "scaletrain: " + std::string(error.what());
    const CLI::App* last = failed;
    while (!last->get_subcommands().empty()) last = last->get_subcommands().back();
    if (error.get_name() == "RequiredError" && !last->get_subcommands(nullptr).empty())
      text = missing_command(*last, failed->remaining(true));
    return text + "\nRun with --help for the usage.\n";
  });

  struct Entry {
    CLI::App* parent;
    Command (*add)(CLI::App&);
  };
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "List, inspect, verify and export checkpoints");
  checkpoint->require_subcommand(1);
  const std::vector<Entry> entries = {
      {&app, add_run},
      {&app, add_check},
      {&app, add_evaluate},
      {&app, add_generate},
      {&app, add_schema},
      {&app, add_plot},
      {&app, add_completion},
      {checkpoint, add_checkpoint_list},
      {checkpoint, add_checkpoint_inspect},
      {checkpoint, add_checkpoint_verify},
      {checkpoint, add_checkpoint_export},
      {&app, add_worker},
  };
  std::vector<std::pair<CLI::App*, Command>> commands;
  try {
    for (const Entry& entry : entries) {
      Command command = entry.add(*entry.parent);
      commands.emplace_back(entry.parent->get_subcommands(nullptr).back(), std::move(command));
    }
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
    app.exit(error);
    return static_cast<int>(answered ? ExitCode::finished : ExitCode::usage);
  }
  for (const auto& [subcommand, command] : commands)
    if (subcommand->parsed()) {
      const CommandResult result = run_guarded(command);
      if (!result.message.empty()) write_last_message("scaletrain: " + result.message);
      return static_cast<int>(result.code);
    }
  return static_cast<int>(ExitCode::usage);
}
