// What processes that are started alike on many hosts check of themselves before they meet, and of each other when they
// have met.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "config/config.h"
#include "config/load.h"
#include "train/start/run_folder.h"

namespace scaletrain {

// SCALETRAIN_SECRET, or empty. UserError if it is too short to be one.
std::string secret_of_environment();

// As much of the config as there is, and what is wrong with it: paths that lead nowhere on this host leave all the rest
// to go by, so does a world that does not fit, and of a config that is wrong otherwise there is run.directory.
// Nothing if not even that is known.
std::optional<LoadedConfig> load_for_start(const std::string& config, const std::vector<std::string>& overrides,
                                           const LoadOptions& options, CommandResult& problem);

// What all must have been given alike: an interface may be called differently on every host.
std::string shared_config(Config config);

// Version and a hash of the program's file: what must be one on all hosts, since all must decide alike.
std::string program_identity();

// UserError where program or config are not those of the first; `kind` is "rank" or "node".
void refuse_other_start(const std::string& kind, std::int64_t self, const Config& config,
                        const std::string& first_config, const std::string& first_version);

// Prints whom this process waits for, and adds it to the log of its own, which is made then.
std::function<void(const std::string&)> waiting_teller(std::string self, std::filesystem::path log);

// A message of many lines by its first one.
std::string brief(const std::string& message);

// The run folder or the topmost of the folders above it that are not there yet; empty if it is there.
std::filesystem::path first_new_folder(const std::filesystem::path& folder);
// A folder that was made only to tell the others of a start that could not be: nothing but empty folders and the lock's
// guard are in it. With the folders above it from `first_new` on, as far as nobody else has put anything there.
void remove_unused_folder(const RunPaths& paths, const std::filesystem::path& first_new) noexcept;

}  // namespace scaletrain
