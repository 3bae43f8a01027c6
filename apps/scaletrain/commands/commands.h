// The subcommands. Each add_ function declares one on the command line and returns what runs it once it was chosen; the
// returned function throws the errors of base/error.h and main() turns them into messages and exit codes.
#pragma once

#include <functional>
#include <string>

#include "base/process/exit_status.h"

namespace CLI {
class App;
}

namespace scaletrain {

inline constexpr const char* program_version = "0.1.0";

using Command = std::function<ExitCode()>;

// What a command came to: its exit code, and what to tell the user of an error.
using CommandResult = ExitStatus;
// Runs a command; every exception becomes a code and a message.
CommandResult run_guarded(const Command& command);

Command add_run(CLI::App& app);
Command add_worker(CLI::App& app);  // hidden: what run starts, once per rank
Command add_check(CLI::App& app);
Command add_schema(CLI::App& app);
Command add_plot(CLI::App& app);
Command add_metrics(CLI::App& app);
Command add_completion(CLI::App& app);
Command add_evaluate(CLI::App& app);
Command add_generate(CLI::App& app);
Command add_data_build(CLI::App& app);
Command add_data_merge(CLI::App& app);
Command add_data_inspect(CLI::App& app);
Command add_data_verify(CLI::App& app);
Command add_data_train_tokenizer(CLI::App& app);
Command add_checkpoint_list(CLI::App& app);
Command add_checkpoint_inspect(CLI::App& app);
Command add_checkpoint_verify(CLI::App& app);
Command add_checkpoint_export(CLI::App& app);

// Writes machine output to standard output and flushes it; an InputError if it cannot be written (a full disk behind
// it).
void write_output(const std::string& text);
// A line on standard error.
void write_message(const std::string& text);

}  // namespace scaletrain
