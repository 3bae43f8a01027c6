#include "train/start/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/catalog.h"
#include "config/keys/keys.h"
#include "data/tokens/companion_files.h"
#include "data/tokens/tokenizer.h"
#include "telemetry/metrics_reader.h"
#include "train/early_stop.h"
#include "train/evaluation.h"
#include "train/run_length.h"
#include "train/run_state.h"
#include "train/saving/checkpoint_room.h"
#include "train/saving/retention.h"
#include "train/start/stop_verdict.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

// What a run folder may hold before its first start: what a user or a scheduler puts there ahead (logs), and ours.
constexpr std::array<std::string_view, 10> own_entries = {
    "config.yaml", "config.source.yaml", "metrics.jsonl",   "logs",       "checkpoints",
    "lock.json",   "tensorboard",        "rendezvous.json", "begun.json", "data_files.json"};

bool is_own(const std::string& name) {
  return std::find(own_entries.begin(), own_entries.end(), name) != own_entries.end() ||
         name.starts_with(".lock.json") || name.starts_with(".tmp-");
}

// At a start nothing else is written: what an earlier one has left goes, and the old checkpoints that a smaller
// checkpoint.keep lets go or that stand in the way of the next save. A single one too many, as a process leaves that
// was killed while it pruned, is the next save's business, which need not read another one for it. `newest` has been
// read.
void tidy_checkpoints(const RunPaths& paths, const CheckpointConfig& config, const Checkpoint& newest,
                      const Report& report) {
  const fs::path folder = paths.checkpoints();
  remove_leftovers(folder, report);
  const Manifest& manifest = newest.manifest();
  const RetentionPolicy policy = retention_policy(
      config, read_state(manifest, (newest.path() / "manifest.json").string()).best_save_id, manifest.save_id);
  const std::size_t too_many = count_let_go(folder, policy);
  std::uint64_t bytes = 0;
  for (const ManifestFile& file : manifest.files) bytes += file.bytes;
  const auto available = available_bytes(folder);
  const bool is_short = available && *available < bytes;
  if (too_many == 0 || (too_many == 1 && !is_short)) return;
  std::set<std::string> known = {manifest.save_id};
  for (const fs::path& path : prune_checkpoints(folder, policy, known, report))
    report(fmt::format("notice: {} was removed: checkpoint.keep is {}", path.string(), config.keep));
}

std::string grouped_number(std::int64_t count) {
  return grouped_digits(static_cast<std::uint64_t>(count));
}

std::string manifest_path(const Checkpoint& checkpoint) {
  return (checkpoint.path() / "manifest.json").string();
}

// A warm-up that nobody names now.
void tell_warmup(const Checkpoint& checkpoint, const Config& before, const Config& now, const Report& report) {
  RunState state = read_state(checkpoint.manifest(), manifest_path(checkpoint));
  if (!state.warmup) state.warmup = before.train.lr_schedule.warmup;
  if (!has_last_step(now, state)) return;
  const std::int64_t warmup = warmup_steps(now, state);
  const std::int64_t fallback = default_warmup(last_step(now, state));
  if (warmup == fallback) return;
  report(
      fmt::format("notice: train.lr_schedule.warmup stays {} as this run began, though the default is {} now; set "
                  "the key to change it",
                  warmup, fallback));
}

StartPoint start_after(const Checkpoint& checkpoint) {
  return {checkpoint.path(), checkpoint.manifest().step, checkpoint.manifest().generation + 1, {}};
}

// As far as the configs say: what the evaluation sets hold now is not looked at.
bool seems_complete(const Checkpoint& checkpoint, const Config& before, const Config& now) {
  const RunState state = read_state(checkpoint.manifest(), manifest_path(checkpoint));
  if (state.is_evaluation_due && has_evaluations(now)) return false;
  return (has_last_step(now, state) && state.step >= last_step(now, state)) ||
         continue_early_stop(state.early_stop, before, now).stopped;
}

// The files may have moved, but what they hold decides the tokens.
bool has_same_tokenizer(const Checkpoint& checkpoint, const Config& now) {
  std::vector<std::string> before = checkpoint.manifest().tokenizer_files;
  std::erase_if(before, is_companion_name);
  const std::vector<fs::path> files = tokenizer_files(now.data.tokenizer);
  constexpr std::uint64_t limit = 1ull << 30;
  return std::equal(before.begin(), before.end(), files.begin(), files.end(),
                    [&](const std::string& name, const fs::path& file) {
                      return read_text_file(checkpoint.path() / name, limit) == read_text_file(file, limit);
                    });
}

// Refuses a resume that changes what must not change; reports what changes with a notice.
void check_resume_from(const Checkpoint& checkpoint, const LoadedConfig& loaded, const Report& report) {
  std::string refused;
  Config before = config_of(checkpoint);
  const Config& now = loaded.config;
  if (!now.train.lr_schedule.warmup) {
    // Where nothing is left to do there is nothing to warm up.
    if (!seems_complete(checkpoint, before, now)) tell_warmup(checkpoint, before, now, report);
    before.train.lr_schedule.warmup.reset();
  }
  // Of a program that knew no GPUs yet.
  if (before.run.device == DeviceKind::automatic && now.run.device != DeviceKind::automatic)
    before.run.device = DeviceKind::cpu;
  for (const KeyDifference& difference : compare_configs(before, now)) {
    const std::string text =
        fmt::format("{}: {} in the checkpoint, {} now", difference.path, difference.before, difference.after);
    if (difference.rule == ResumeRule::never) refused += "\n  " + loaded.located(text);
    // What another mix means is told by those who open the data (data_report.h).
    if (difference.rule != ResumeRule::with_notice || difference.path == "data.train") continue;
    const bool rounds_frozen = difference.path == "precision.compute" && !now.finetune.freeze.empty();
    report("notice: this resume changes " + text +
           (rounds_frozen ? "; frozen weights are kept in that type from here on" : ""));
  }
  if (!has_same_tokenizer(checkpoint, now))
    refused += "\n  " + loaded.located("data.tokenizer.path: its files hold another tokenizer than the checkpoint's");
  if (!refused.empty())
    throw UserError(
        fmt::format("{} cannot be resumed with another value of:{}\nRestore the values, or start a new run in "
                    "another run.directory",
                    checkpoint.path().string(), refused));
}

Resumption resumption_from(const Checkpoint& checkpoint, const Config& now) {
  const RunState state = read_state(checkpoint.manifest(), manifest_path(checkpoint));
  Resumption resumption{.step = state.step,
                        .last_step = last_step(now, state),
                        .epochs_read = {},
                        .tokens = state.history.tokens_consumed()};
  const std::vector<SourceConfig> before = config_of(checkpoint).data.train;
  // Those of the last mix stand first, in the order of its data.train; sources that were left out have no path.
  const std::vector<MixSource> known = state.history.sources_read();
  std::vector<bool> is_used(std::min(before.size(), known.size()), false);
  for (const SourceConfig& source : now.data.train) {
    double& read = resumption.epochs_read.emplace_back(0.0);
    for (std::size_t i = 0; i < is_used.size(); ++i) {
      if (is_used[i] || before[i].path != source.path) continue;
      is_used[i] = true;
      read = static_cast<double>(known[i].taken) / static_cast<double>(known[i].samples_per_epoch);
      break;
    }
  }
  return resumption;
}

InputError no_checkpoint(const RunPaths& paths) {
  return InputError(fmt::format("--resume required: {} holds no checkpoint", paths.checkpoints().string()));
}

bool inside(const fs::path& path, const fs::path& folder) {
  std::error_code ignored;
  const fs::path parent = fs::weakly_canonical(path, ignored).parent_path();
  return parent == fs::weakly_canonical(folder, ignored);
}

// The branch that the newest checkpoint belongs to, by the manifests alone.
Branch newest_branch(const fs::path& checkpoints) {
  const std::vector<CatalogEntry> entries = list_readable_checkpoints(checkpoints);
  if (entries.empty() || !entries.front().problem.empty()) return {};
  return branch_of(read_manifest(entries.front().path));
}

// Training never begins anew over a run whose checkpoints were lost.
void refuse_lost_checkpoints(const RunPaths& paths) {
  if (!path_exists(paths.metrics())) return;
  const Metrics metrics = read_metrics(paths.metrics());
  const auto last = std::find_if(metrics.checkpoints.rbegin(), metrics.checkpoints.rend(),
                                 [](const CheckpointRecord& record) { return record.failure.empty(); });
  if (last == metrics.checkpoints.rend()) return;
  throw InputError(
      fmt::format("{} holds no checkpoint, but {} says that one of step {} was saved; restore {}, or start anew in "
                  "another run.directory",
                  paths.checkpoints().string(), paths.metrics().string(), last->step, paths.checkpoints().string()));
}

// newest_usable, and an error where the run has had checkpoints and none is left.
std::optional<Checkpoint> newest_of_run(const RunPaths& paths, const Report& report) {
  std::optional<Checkpoint> newest = newest_usable(paths.checkpoints(), report);
  if (!newest) refuse_lost_checkpoints(paths);
  return newest;
}

// The newest checkpoint, if the run already left from the one that is asked for: by its save id or, once it is gone, by
// its path.
std::optional<Checkpoint> newest_since(const RunPaths& paths, const fs::path& asked, const std::string& asked_id,
                                       const Report& report) {
  const auto stems_from_it = [&](const Branch& branch) {
    if (branch.root.empty()) return false;
    return asked_id.empty() ? branch.path == asked.string() : branch.root == asked_id;
  };
  if (!stems_from_it(newest_branch(paths.checkpoints()))) return std::nullopt;
  std::optional<Checkpoint> newest = newest_usable(paths.checkpoints(), report);
  // A damaged one may have been passed over, and what lies before it may be another branch's.
  if (newest && !stems_from_it(branch_of(newest->manifest()))) newest.reset();
  return newest;
}

bool is_checkpoint(const fs::path& path) {
  return path_exists(path / "manifest.json");
}

// `going_on` hears what matters only if the run goes on, `report` the rest.
StartPoint start_from(const RunPaths& paths, const fs::path& path, const LoadedConfig& config, const Report& report,
                      const Report& going_on) {
  std::optional<Checkpoint> asked;
  if (is_checkpoint(path)) asked.emplace(path);
  if (const auto newest = newest_since(paths, path, asked ? asked->manifest().save_id : "", report)) {
    check_resume_from(*newest, config, going_on);
    going_on(
        fmt::format("notice: this run already went on from {}: continuing with its newest checkpoint", path.string()));
    return start_after(*newest);
  }
  if (!asked) throw InputError(fmt::format("--resume {}: the checkpoint does not exist", path.string()));
  asked->verify();
  check_resume_from(*asked, config, going_on);
  std::int64_t generation = asked->manifest().generation;
  for (const CatalogEntry& entry : list_readable_checkpoints(paths.checkpoints())) {
    if (!entry.problem.empty()) continue;
    if (!inside(path, paths.checkpoints()))
      throw UserError(fmt::format("--resume {}: {} already holds checkpoints of its own; choose another run.directory",
                                  path.string(), paths.checkpoints().string()));
    generation = std::max(generation, entry.generation);
  }
  return {path, asked->manifest().step, generation + 1, path.string()};
}

void note_begun(const RunPaths& paths, const JobStart& job) {
  if (!job.id.empty())
    return write_file_durably(paths.begun(), nlohmann::json{{"job", job.id}, {"restarts", job.restarts}}.dump() + "\n");
  std::error_code ignored;
  fs::remove(paths.begun(), ignored);
}

// Whether an earlier start of this job has begun the run with --resume never: then the job system gives the same
// command again, which is to go on.
bool has_begun(const RunPaths& paths, const JobStart& job) {
  constexpr std::uint64_t largest_note = 4096;
  if (job.id.empty() || !path_exists(paths.begun())) return false;
  const std::string where = paths.begun().string();
  try {
    const nlohmann::json note =
        parse_json(read_text_file(where, largest_note), where, {.depth = 2, .bytes = largest_note});
    return json_string(note, "job", where) == job.id && json_integer(note, "restarts", where) < job.restarts;
  } catch (const FileAccessError&) {
    throw;
  } catch (const InputError&) {
    return false;
  }
}

// Told as start_from does.
StartPoint choose_start(const RunPaths& paths, const LoadedConfig& config, const ResumeRequest& resume,
                        const Report& report, const Report& going_on) {
  if (resume.mode == ResumeRequest::Mode::from_checkpoint)
    return start_from(paths, resume.checkpoint, config, report, going_on);
  if (resume.mode == ResumeRequest::Mode::never) {
    const auto entries = list_checkpoints(paths.checkpoints());
    if (entries.empty()) {
      note_begun(paths, resume.job);
      return {};
    }
    if (!has_begun(paths, resume.job))
      throw UserError(
          fmt::format("--resume never: {} holds {} that a new run would lose; choose another "
                      "run.directory or remove the folder, or go on from the newest with --resume auto",
                      paths.folder.string(), counted(entries.size(), "checkpoint")));
    going_on(fmt::format("notice: --resume never: job {} began this run itself and goes on with it", resume.job.id));
  }
  const std::optional<Checkpoint> newest = newest_of_run(paths, report);
  if (!newest) {
    if (resume.mode == ResumeRequest::Mode::required) throw no_checkpoint(paths);
    return {};
  }
  check_resume_from(*newest, config, going_on);
  return start_after(*newest);
}

// Whether the run has been started here before, so that its folder is its own.
bool is_run_folder(const RunPaths& paths) {
  return path_exists(paths.source_config()) || path_exists(paths.checkpoints());
}

void refuse_foreign_entries(const RunPaths& paths) {
  std::error_code error;
  fs::directory_iterator entry(paths.folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_own(name)) continue;
    throw UserError(
        fmt::format("run.directory: {} is no run's folder yet and holds \"{}\", which no run of scaletrain writes; "
                    "choose an empty or new folder",
                    paths.folder.string(), name));
  }
  if (error)
    throw InputError(fmt::format("run.directory: {} cannot be listed: {}", paths.folder.string(), error.message()));
}

// What is there already, as open_run_folder says.
void check_present_folder(const RunPaths& paths) {
  std::error_code error;
  const fs::file_status status = fs::status(paths.folder, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status))
    throw UserError(
        fmt::format("run.directory: {} exists and is no folder; choose another one", paths.folder.string()));
  if (!is_run_folder(paths)) refuse_foreign_entries(paths);
  if (::access(paths.folder.c_str(), W_OK | X_OK) != 0)
    throw InputError(
        fmt::format("run.directory: {} cannot be written to; have the system let this user write there, "
                    "or choose another folder",
                    paths.folder.string()));
}

// Its errors with the key that names the folder, and what helps.
void for_each_folder(const RunPaths& paths, void (*make_or_check)(const fs::path&)) {
  try {
    for (const fs::path& folder : {paths.folder, paths.logs(), paths.checkpoints()}) make_or_check(folder);
  } catch (const FileAccessError& refused) {
    throw FileAccessError(fmt::format(
        "run.directory: {}; have the system let this user write there, or choose another folder", refused.what()));
  } catch (const InputError& wrong) {
    throw UserError(fmt::format("run.directory: {}; choose another folder", wrong.what()));
  }
}

// What to give in place of a folder that holds checkpoints or is a run's; empty for any other.
std::string checkpoint_hint(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return {};
  const bool is_run = path_exists(folder / "checkpoints");
  for (const CatalogEntry& entry : list_checkpoints(is_run ? folder / "checkpoints" : folder))
    if (entry.problem.empty())
      return fmt::format("this folder holds checkpoints and is none; give one of them: {} is the newest",
                         entry.path.string());
  return is_run ? "this is the folder of a run that has no usable checkpoint; give a checkpoint's folder" : "";
}

// FileAccessError: it cannot be read now, and may be whole.
bool verifies(const fs::path& path) {
  try {
    Checkpoint(path).verify();
    return true;
  } catch (const FileAccessError&) {
    throw;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace

StartPoint restart_point(const RunPaths& paths, const StartPoint& before, const Report& report) {
  StartPoint again = before;
  ++again.generation;
  if (before.checkpoint) {
    // A worker writes its start's generation. Where none is in the folder nothing was saved, and the newest by its
    // generation may be of a branch that was asked not to be gone on with.
    const std::vector<CatalogEntry> entries = list_readable_checkpoints(paths.checkpoints());
    const bool saved =
        !entries.empty() && entries.front().problem.empty() && entries.front().generation >= before.generation;
    if (!saved && verifies(*before.checkpoint)) return again;
  }
  const std::optional<Checkpoint> newest = newest_of_run(paths, report);
  if (!newest) return again;
  StartPoint next = start_after(*newest);
  next.generation = std::max(again.generation, next.generation);
  return next;
}

Config config_of(const Checkpoint& checkpoint) {
  return parse_resolved_config(checkpoint.manifest().config,
                               (checkpoint.path() / "manifest.json").string() + ": config");
}

ResumeRequest parse_resume(const std::string& text, const RunPaths& paths) {
  if (text == "auto") return {};
  if (text == "never") return {ResumeRequest::Mode::never, {}};
  if (text == "required") return {ResumeRequest::Mode::required, {}};
  // "step-00000200/" and "step-00000200" are the same folder.
  fs::path whole = text.empty() ? fs::path() : fs::absolute(text).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  const bool is_known = is_checkpoint(whole) || newest_branch(paths.checkpoints()).path == whole.string();
  if (const std::string hint = text.empty() || is_known ? "" : checkpoint_hint(whole); !hint.empty())
    throw UserError(fmt::format("--resume {}: {}", text, hint));
  if (text.empty() || !is_known)
    throw UserError(
        fmt::format("--resume {}: expected auto, never, required or a checkpoint's folder, and {} does not exist", text,
                    (fs::path(text) / "manifest.json").string()));
  return {ResumeRequest::Mode::from_checkpoint, whole};
}

std::optional<fs::path> checkpoint_of_run(const Config& config) {
  const RunPaths run(config.run.directory.empty() ? "runs/" + config.run.name : config.run.directory);
  if (!path_exists(run.checkpoints())) return std::nullopt;
  for (const CatalogEntry& entry : list_checkpoints(run.checkpoints()))
    if (entry.problem.empty()) return entry.path;
  return std::nullopt;
}

void open_run_folder(const RunPaths& paths, const ResumeRequest& resume) {
  check_present_folder(paths);
  if (resume.mode == ResumeRequest::Mode::required && !path_exists(paths.checkpoints())) throw no_checkpoint(paths);
  for_each_folder(paths, create_folders);
}

void check_run_folder(const RunPaths& paths) {
  check_present_folder(paths);
  for_each_folder(paths, check_folder_is_writable);
}

std::optional<Resumption> check_resume(const RunPaths& paths, const LoadedConfig& config, const Report& report) {
  const std::vector<CatalogEntry> entries = list_readable_checkpoints(paths.checkpoints());
  if (entries.empty()) refuse_lost_checkpoints(paths);
  const auto newest =
      std::find_if(entries.begin(), entries.end(), [](const CatalogEntry& entry) { return entry.problem.empty(); });
  if (newest == entries.end()) return std::nullopt;
  const Checkpoint checkpoint(newest->path, OpenCheck::none);
  check_resume_from(checkpoint, config, report);
  return resumption_from(checkpoint, config.config);
}

StartPoint prepare_run_folder(const RunPaths& paths, const LoadedConfig& config, const ResumeRequest& resume,
                              const Report& report) {
  std::vector<std::string> of_going_on;
  const auto tell_of_going_on = [&] {
    for (const std::string& text : of_going_on) report(text);
  };
  StartPoint start;
  try {
    start = choose_start(paths, config, resume, report,
                         [&of_going_on](const std::string& text) { of_going_on.push_back(text); });
  } catch (const std::exception&) {
    tell_of_going_on();  // beside what is refused
    throw;
  }
  if (already_complete(start, config.config)) return start;
  tell_of_going_on();
  std::optional<Checkpoint> from;
  if (start.checkpoint) from.emplace(*start.checkpoint);
  check_warmup(config.config, from ? read_state(from->manifest(), manifest_path(*from)) : RunState());
  if (!start.asked.empty() && inside(*start.checkpoint, paths.checkpoints())) {
    for (const fs::path& aside : quarantine_later(paths.checkpoints(), start.step))
      report(fmt::format("notice: a later checkpoint of the abandoned branch was quarantined as {}", aside.string()));
  }
  if (from) tidy_checkpoints(paths, config.config.checkpoint, *from, report);
  write_file_durably(paths.config(), resolved_yaml(config.config));
  write_file_durably(paths.source_config(), config.source);
  return start;
}

std::string saved_text(const RunPaths& paths, const StartPoint& start, const std::string& command) {
  try {
    for (const CatalogEntry& entry : list_readable_checkpoints(paths.checkpoints())) {
      if (!entry.problem.empty()) continue;
      // Of another branch than the one that was asked for.
      if (!start.asked.empty() && entry.generation < start.generation) break;
      return fmt::format("step {} is saved in {}; to go on: {}", entry.step, entry.path.string(), command);
    }
  } catch (const InputError&) {
    return "to go on: " + command;
  }
  if (start.asked.empty()) return "no checkpoint was written; to begin anew: " + command;
  return fmt::format("no checkpoint was written since {} (step {}); to begin there again: {}", start.asked, start.step,
                     command);
}

std::optional<std::string> already_complete(const StartPoint& start, const Config& config) {
  if (!start.checkpoint) return std::nullopt;
  const Checkpoint checkpoint(*start.checkpoint);
  const RunState state = read_state(checkpoint.manifest(), manifest_path(checkpoint));
  if (state.is_evaluation_due && has_evaluations(config)) return std::nullopt;
  if (start.step >= last_step(config, state)) {
    const bool is_past = config.train.steps && start.step > *config.train.steps;
    const std::string done =
        is_past              ? fmt::format("step {}, past the {} of train.steps", start.step, *config.train.steps)
        : config.train.steps ? fmt::format("step {} of {}", start.step, *config.train.steps)
        : config.train.epochs
            ? fmt::format("step {}, and {} samples, {} epochs of its data, are trained on", start.step,
                          grouped_number(state.history.samples_consumed()), *config.train.epochs)
            : fmt::format("step {}, and {} of {} tokens are trained on", start.step,
                          grouped_number(state.history.tokens_consumed()), grouped_number(*config.train.tokens));
    return fmt::format("already complete: {} holds {}; raise {} to go on", start.checkpoint->string(), done,
                       length_key(config));
  }
  if (const auto verdict = stop_verdict(state.early_stop, config_of(checkpoint), config))
    return fmt::format("already complete: the run stopped early at step {} ({}); change or remove early_stop to go on",
                       state.step, *verdict);
  return std::nullopt;
}

}  // namespace scaletrain
