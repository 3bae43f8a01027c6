// Runs of a very small model whose storage fails, or that die, at a chosen system call of a chosen save.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "process/tiny_run.h"

namespace scaletrain {

// What storage_faults.cpp is told; see there. Numbers count from 1, from the first call that concerns the folder of a
// save of step `save`, or from the start if that is 0. Saves are not in the background, unless the settings say so.
struct StorageFault {
  std::string action{};
  long at = 0;
  int save = 0;
  std::string kinds{};
  long times = 1;
  std::string command = "worker";
  bool no_exchange = false;             // names cannot be exchanged
  std::string below{};                  // only calls on this folder of the run's, and what is in it
  std::vector<std::string> settings{};  // further ones of the run
  int rank = -1;                        // only this one; -1: all
  bool once = false;                    // processes that are started after the first struck call are left alone
  std::string journal{};                // a file for all changes with their bytes
  std::string release{};                // a folder: see "hold"
};

// A call that a trace has seen, its path relative to the run folder.
struct StorageCall {
  long number = 0;
  std::string kind;
  std::string path;
  bool is_on(std::string_view part) const { return path.find(part) != std::string::npos; }
};

inline constexpr int fault_steps = 4;
inline constexpr const char* all_kinds = "open,read,write,sync,rename,mkdir,unlink,close,truncate,allocate,copy";

// A finished run of four steps with a checkpoint of each, which nothing disturbed.
const std::filesystem::path& undisturbed_steps();
// A copy of it as it was when the checkpoint of `step` was the newest, with the one before it;
// an empty folder for step 0.
std::filesystem::path run_of_step(const std::string& name, int step);
// The same command that made that run, with or without a fault; throws if something was to be struck and nothing was.
// Without restarts.
Ended go_on(const std::string& name);
Ended go_on(const std::string& name, const StorageFault& fault, const std::filesystem::path& trace = {});
// The same without waiting for its end; its marks and restarts are the test's business.
Launch launch_with(const std::string& name, const StorageFault& fault);
// What a trace file says.
std::vector<StorageCall> read_trace(const std::filesystem::path& trace, const std::filesystem::path& run);

// The calls from the beginning of the save of `step` to that of the next one, made by a run that goes on from the step
// before it: the save, its line in the metrics, and the pruning.
std::vector<StorageCall> calls_of_save(int step, const std::string& kinds);
// The same of a run with the fault's settings, in the fault's folder.
std::vector<StorageCall> calls_of_save(const StorageFault& fault);
// All calls of a process that goes on from step 2, until the first new save.
std::vector<StorageCall> calls_of_resume(const std::string& command, const std::string& kinds);
bool is_data_write(const StorageCall& call);
// The number of the rename that commits.
long commit_of(const std::vector<StorageCall>& calls);

// What is wrong with a finished run; empty: its steps are the undisturbed ones, no leftovers lie there, and the
// checkpoints are those of these steps, every byte as it was written.
std::string problem_of(const std::filesystem::path& run, const std::vector<int>& steps);
// The first hidden name that does not begin with `but`.
std::string left_behind(const std::filesystem::path& run, std::string_view but);
// The same without the leftovers.
std::string problem_of_steps(const std::filesystem::path& run, const std::vector<int>& steps);
// The checkpoint's own program says that every byte is right.
bool verifies(const std::filesystem::path& checkpoint);
// Whether the metrics' last restart line says that training went on from this step's checkpoint.
bool has_restart_from(const std::filesystem::path& run, int step);
// Whether the metrics have a save of this step that failed.
bool has_failed_save(const std::filesystem::path& run, int step);

// The cases side by side, two for each processor, each in a run of its thread's name, of which nothing stays. `test`
// returns what is wrong; sweep returns all of that, each with its case in front.
struct SweepCase {
  std::string text;
  std::function<std::string(const std::string& run)> test;
};
std::vector<std::string> sweep(const std::vector<SweepCase>& cases);

}  // namespace scaletrain
