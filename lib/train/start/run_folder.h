// The run folder before training: made or checked, the configs written, the checkpoint to start from chosen. Done once
// by the agent, under the run's lock, before a worker starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/load.h"

namespace scaletrain {

class Checkpoint;

// Which start of which job of a job system this is.
struct JobStart {
  std::string id{};           // empty: of none
  std::int64_t restarts = 0;  // how often the job system has started the job again
};

// --resume
struct ResumeRequest {
  enum class Mode { automatic, never, required, from_checkpoint };
  Mode mode = Mode::automatic;
  std::filesystem::path checkpoint;  // from_checkpoint; absolute
  JobStart job{};
};

// Paths inside a run folder, in one place.
struct RunPaths {
  explicit RunPaths(std::filesystem::path run_folder) : folder(std::move(run_folder)) {}
  std::filesystem::path folder;
  std::filesystem::path config() const { return folder / "config.yaml"; }
  std::filesystem::path source_config() const { return folder / "config.source.yaml"; }
  std::filesystem::path metrics() const { return folder / "metrics.jsonl"; }
  std::filesystem::path tensorboard() const { return folder / "tensorboard"; }
  std::filesystem::path logs() const { return folder / "logs"; }
  std::filesystem::path checkpoints() const { return folder / "checkpoints"; }
  std::filesystem::path lock() const { return folder / "lock.json"; }
  // Which files the folders of data.train and data.validation had when somebody started the run.
  std::filesystem::path data_files() const { return folder / "data_files.json"; }
  // Of a run that a job began with --resume never: which start of the job that was.
  std::filesystem::path begun() const { return folder / "begun.json"; }
};

// "auto", "never", "required", or a path: a checkpoint's folder, or what was one when the run of `paths` left from it.
// UserError for anything else. InputError if the file system does not let it be told.
ResumeRequest parse_resume(const std::string& text, const RunPaths& paths);

// Where a worker begins.
struct StartPoint {
  std::optional<std::filesystem::path> checkpoint;  // nothing: from initial weights
  std::int64_t step = 0;
  std::int64_t generation = 0;  // of the checkpoints that will be written
  std::string asked{};          // --resume's path, if this start is from it; see Branch in run_state.h
  std::string cause{};          // why training starts again: what ended it; empty: somebody started the run
};

using Report = std::function<void(const std::string&)>;

// Makes the folder (as the umask says) if it is not there. A folder that is there must be empty or a run's, which may
// hold anything besides; else UserError: something that is not ours stays untouched. UserError also where a file is in
// the way; FileAccessError if it cannot be made or written to, InputError if --resume required would have to make it.
// Messages begin with the key.
void open_run_folder(const RunPaths& paths, const ResumeRequest& resume = {});
// The newest checkpoint of the config's run that can be read, if it has one. Of a config that may not be complete.
std::optional<std::filesystem::path> checkpoint_of_run(const Config& config);
// Makes nothing: what open_run_folder would refuse, as far as the system tells ahead.
void check_run_folder(const RunPaths& paths);
// Where a resume goes on, by the manifest alone.
struct Resumption {
  std::int64_t step = 0;
  std::int64_t last_step = 0;
  // By place in data.train. A source goes by its path here, since nothing is read; one that is new begins at 0.
  std::vector<double> epochs_read;
  std::int64_t tokens = 0;  // that it has trained on
};
// Changes nothing: what a start with --resume auto would refuse of the run's checkpoints and say of its config, by the
// newest manifest. Damage in the files is found by the start. Nothing where the run has no usable checkpoint.
std::optional<Resumption> check_resume(const RunPaths& paths, const LoadedConfig& config, const Report& report);

// Chooses the checkpoint, checks what a resume may change, then writes config.yaml and config.source.yaml; a run that
// is already complete is left as it is, and nothing is said of how it would go on. A path that the run's newest
// checkpoint stems from means that newest one: the same command goes on when it is given again, and so does --resume
// never in a later start of the job that began the run with it. Notices go to `report`. UserError: --resume never over
// checkpoints otherwise, a key that a resume must not change. InputError: --resume required without a checkpoint, none
// that is usable, none although the metrics know of some. FileAccessError for one that cannot be read now: it may be
// whole, so the run neither quarantines it nor falls back on an older one. What earlier starts have left unfinished is
// removed, and checkpoints that a smaller checkpoint.keep lets go, or that leave no space for the next one.
StartPoint prepare_run_folder(const RunPaths& paths, const LoadedConfig& config, const ResumeRequest& resume,
                              const Report& report);

// Of a run that has ended before its time: which step its newest checkpoint has, where that is, and how to go on.
// start: where its workers began last. Never throws for what a file system refuses.
std::string saved_text(const RunPaths& paths, const StartPoint& start, const std::string& command);

// If the start point already is the end of the run under this config: the sentence to tell the user. Of a run that has
// stopped early the evaluation set is opened (stop_verdict.h).
std::optional<std::string> already_complete(const StartPoint& start, const Config& config);

// The config that a checkpoint was written under.
Config config_of(const Checkpoint& checkpoint);

// The start point after a worker died: the newest usable checkpoint that was written since `before`, else `before`
// again; one generation on. Errors as for a start: FileAccessError is what may be read a moment later
// (launch/coordination/restarts.h).
StartPoint restart_point(const RunPaths& paths, const StartPoint& before, const Report& report);

}  // namespace scaletrain
