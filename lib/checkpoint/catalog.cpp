#include "checkpoint/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/process/memory_limit.h"
#include "checkpoint/format/confined_path.h"
#include "checkpoint/quarantine.h"
#include "checkpoint/save/save.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t least_verified = 2;  // survive any pruning

// Names in the folder, in a fixed order; none if it does not exist.
std::vector<fs::path> sub_folders(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  if (error == std::errc::no_such_file_or_directory) return out;
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    if (is_folder(it->path())) out.push_back(it->path());
  }
  if (error) throw_file_error(folder, "listing the folder", error.value());
  std::sort(out.begin(), out.end());
  return out;
}

bool begins_with(const fs::path& path, std::string_view prefix) {
  return path.filename().string().starts_with(prefix);
}

// Other folders may lie beside checkpoints; what has our name or a manifest is one, whole or damaged.
bool looks_like_checkpoint(const fs::path& path) {
  return !begins_with(path, ".") && (begins_with(path, "step-") || path_exists(path / "manifest.json"));
}

// What is wrong with a checkpoint; no problem: nothing. `unreadable` as in CatalogEntry.
struct Verdict {
  std::string problem;
  bool unreadable = false;
};

template <class Look>
Verdict judge(const fs::path& path, Look look) {
  try {
    look();
    return {};
  } catch (const FileAccessError& error) {
    return {error.what(), true};
  } catch (const InputError& error) {
    return {error.what(), false};
  } catch (const std::bad_alloc&) {
    return {fmt::format("{}: not enough memory to read it{}", path.string(), MemoryLimitText().view()), true};
  }
}

CatalogEntry entry_of(const fs::path& path) {
  CatalogEntry entry;
  entry.path = path;
  const Verdict verdict = judge(path, [&] {
    const Manifest manifest = read_manifest(path);
    entry.generation = manifest.generation;
    entry.step = manifest.step;
    entry.tokens = manifest.tokens;
    entry.save_id = manifest.save_id;
    for (const ManifestFile& file : manifest.files) entry.bytes += file.bytes;
    entry.bytes += manifest.list_bytes();
  });
  entry.problem = verdict.problem;
  entry.unreadable = verdict.unreadable;
  return entry;
}

Verdict verify(const fs::path& path) {
  return judge(path, [&] { Checkpoint(path).verify(); });
}

// Of a save whose bytes were right once: they must still be there, all of them.
Verdict verify_sizes(const fs::path& path) {
  return judge(path, [&] {
    const Manifest manifest = read_manifest(path);
    const auto check = [&](const std::string& name, std::uint64_t bytes) {
      const FileReader reader(confined_path(path, name, (path / "manifest.json").string()));
      if (reader.size() == bytes) return;
      throw InputError(fmt::format("{}: {} bytes, the manifest says {}", reader.path().string(), reader.size(), bytes));
    };
    for (const ManifestFile& file : manifest.files) check(file.name, file.bytes);
    if (manifest.list_bytes() > 0) check(piece_list_name, manifest.list_bytes());
  });
}

[[noreturn]] void refuse_unreadable(const fs::path& path, const std::string& problem) {
  throw FileAccessError(fmt::format(
      "{}: cannot be read now, and may be whole, so it was left as it is: {}. Mend what keeps it from being "
      "read and start again; to go on without it, move it out of the folder",
      path.string(), problem));
}

// Removes folders while this process may.
class Removal {
 public:
  Removal(const fs::path& checkpoints, const std::function<void(const std::string&)>& report,
          const std::function<bool()>& may_remove)
      : checkpoints_(checkpoints), report_(report), may_remove_(may_remove) {}

  // False: no more may be removed. A failure is reported and not the end.
  bool leftovers() {
    for (const fs::path& path : sub_folders(checkpoints_)) {
      if (!begins_with(path, saving_prefix) && !begins_with(path, removing_prefix)) continue;
      if (is_refused()) return false;
      delete_folder(path);
    }
    return true;
  }
  bool remove(const fs::path& path) {
    if (is_refused()) return false;
    try {
      delete_folder(rename_to_hidden(path, removing_prefix));
      removed_.push_back(path);
    } catch (const InputError& error) {
      report_(error.what());
    }
    return true;
  }
  const std::vector<fs::path>& removed() const { return removed_; }

 private:
  bool is_refused() const {
    if (!may_remove_ || may_remove_()) return false;
    report_(fmt::format("{}: nothing more is removed: this process no longer owns the run", checkpoints_.string()));
    return true;
  }
  void delete_folder(const fs::path& folder) const {
    std::error_code error;
    fs::remove_all(folder, error);
    if (error) report_(fmt::format("{}: could not be removed: {}", folder.string(), error.message()));
  }

  const fs::path& checkpoints_;
  const std::function<void(const std::string&)>& report_;
  const std::function<bool()>& may_remove_;
  std::vector<fs::path> removed_;
};

bool is_newer(const CatalogEntry& a, const CatalogEntry& b) {
  return std::tuple(a.problem.empty(), a.generation, a.step) > std::tuple(b.problem.empty(), b.generation, b.step);
}

// Newest first.
std::vector<CatalogEntry> usable_entries(const fs::path& checkpoints) {
  std::vector<CatalogEntry> entries = list_checkpoints(checkpoints);
  std::erase_if(entries, [](const CatalogEntry& entry) { return !entry.problem.empty(); });
  return entries;
}

// Oldest first, damaged ones before. What cannot be read now stays.
std::vector<CatalogEntry> excess_abandoned(const fs::path& checkpoints, const RetentionPolicy& policy) {
  std::vector<CatalogEntry> entries;
  for (const fs::path& path : sub_folders(checkpoints)) {
    if (!begins_with(path, abandoned_prefix)) continue;
    CatalogEntry entry = entry_of(path);
    if (!entry.unreadable && policy.start_save_id != entry.save_id) entries.push_back(std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(), is_newer);
  entries.erase(entries.begin(),
                entries.begin() + std::min(std::ssize(entries), static_cast<std::ptrdiff_t>(policy.keep_abandoned)));
  std::reverse(entries.begin(), entries.end());
  return entries;
}

std::set<std::string> kept_paths(const std::vector<CatalogEntry>& entries, const RetentionPolicy& policy) {
  std::set<std::string> kept;
  std::int64_t newest = 0;
  for (const CatalogEntry& entry : entries) {
    const bool is_multiple = policy.keep_every && *policy.keep_every > 0 && entry.step % *policy.keep_every == 0;
    const bool is_best = policy.best_save_id && *policy.best_save_id == entry.save_id;
    const bool is_start = policy.start_save_id == entry.save_id;
    if (newest++ < policy.keep || is_multiple || is_best || is_start) kept.insert(entry.path.string());
  }
  return kept;
}

// Adds newer checkpoints to `kept` until two of it verify, and what cannot be read on the way; false if there are not
// two. The newest are tried first: this process is the likeliest to know them.
bool keep_two_verified(const std::vector<CatalogEntry>& entries, std::set<std::string>& kept,
                       std::set<std::string>& known, const std::function<void(const std::string&)>& report) {
  std::size_t verified = 0;
  for (const bool only_kept : {true, false}) {
    for (const CatalogEntry& entry : entries) {
      // What the second pass adds to `kept` is of no concern to it again: each entry is looked at once.
      if (kept.contains(entry.path.string()) != only_kept) continue;
      const Verdict verdict = known.contains(entry.save_id) ? verify_sizes(entry.path) : verify(entry.path);
      if (verdict.unreadable) kept.insert(entry.path.string());
      if (!verdict.problem.empty()) {
        report(fmt::format("{}: {} and does not count as kept: {}", entry.path.string(),
                           verdict.unreadable ? "cannot be read now" : "does not verify", verdict.problem));
        continue;
      }
      known.insert(entry.save_id);
      kept.insert(entry.path.string());
      if (++verified >= least_verified) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<CatalogEntry> list_checkpoints(const fs::path& checkpoints) {
  std::vector<CatalogEntry> entries;
  for (const fs::path& path : sub_folders(checkpoints)) {
    if (looks_like_checkpoint(path)) entries.push_back(entry_of(path));
  }
  std::stable_sort(entries.begin(), entries.end(), is_newer);
  return entries;
}

std::vector<CatalogEntry> list_readable_checkpoints(const fs::path& checkpoints) {
  std::vector<CatalogEntry> entries = list_checkpoints(checkpoints);
  for (const CatalogEntry& entry : entries) {
    if (entry.unreadable) refuse_unreadable(entry.path, entry.problem);
  }
  return entries;
}

std::vector<QuarantinedEntry> list_quarantined(const fs::path& checkpoints) {
  std::vector<QuarantinedEntry> entries;
  for (const fs::path& path : sub_folders(checkpoints)) {
    if (begins_with(path, damaged_prefix)) entries.push_back({entry_of(path), "damaged"});
    if (begins_with(path, abandoned_prefix)) entries.push_back({entry_of(path), "abandoned"});
  }
  return entries;
}

std::optional<Checkpoint> newest_usable(const fs::path& checkpoints,
                                        const std::function<void(const std::string&)>& report) {
  const std::vector<CatalogEntry> entries = list_readable_checkpoints(checkpoints);
  std::string told;
  std::optional<Checkpoint> found;
  for (const CatalogEntry& entry : entries) {
    // Unreadable ones come last; they are named even when a good one was found before.
    if (found && entry.problem.empty()) continue;
    const Verdict verdict = entry.problem.empty() ? verify(entry.path) : Verdict{entry.problem};
    const std::string& problem = verdict.problem;
    if (verdict.unreadable) refuse_unreadable(entry.path, problem);
    if (problem.empty()) {
      found.emplace(entry.path);
      continue;
    }
    const auto aside = rename_to_hidden(entry.path, damaged_prefix);
    report(
        fmt::format("{}: not usable, quarantined as {}: {}", entry.path.string(), aside.filename().string(), problem));
    told = " for the reasons above";
  }
  if (found) return found;
  // Those that an earlier start quarantined count too: training never begins anew by itself.
  std::string names;
  for (const fs::path& path : sub_folders(checkpoints)) {
    if (begins_with(path, damaged_prefix) || begins_with(path, abandoned_prefix)) {
      names += fmt::format("\n  {}: quarantined", path.string());
    }
  }
  if (names.empty()) return std::nullopt;
  throw InputError(
      fmt::format("{}: there were checkpoints, and none is usable{}; restore one, or start anew in another "
                  "run.directory:{}",
                  checkpoints.string(), told, names));
}

std::vector<fs::path> quarantine_later(const fs::path& checkpoints, std::int64_t step) {
  const std::vector<CatalogEntry> entries = list_readable_checkpoints(checkpoints);
  std::vector<fs::path> names;
  for (const CatalogEntry& entry : entries) {
    if (entry.problem.empty() && entry.step > step) names.push_back(rename_to_hidden(entry.path, abandoned_prefix));
  }
  return names;
}

std::size_t count_let_go(const fs::path& checkpoints, const RetentionPolicy& policy) {
  const std::vector<fs::path> folders = sub_folders(checkpoints);
  if (std::count_if(folders.begin(), folders.end(), looks_like_checkpoint) <= policy.keep) return 0;
  const std::vector<CatalogEntry> entries = usable_entries(checkpoints);
  const std::size_t kept = std::max(kept_paths(entries, policy).size(), std::min(entries.size(), least_verified));
  return entries.size() - kept;
}

void remove_leftovers(const fs::path& checkpoints, const std::function<void(const std::string&)>& report,
                      const std::function<bool()>& may_remove) {
  Removal(checkpoints, report, may_remove).leftovers();
}

std::vector<fs::path> prune_checkpoints(const fs::path& checkpoints, const RetentionPolicy& policy,
                                        std::set<std::string>& known,
                                        const std::function<void(const std::string&)>& report,
                                        const std::function<bool()>& may_remove) {
  Removal removal(checkpoints, report, may_remove);
  if (!removal.leftovers()) return {};
  const std::vector<CatalogEntry> entries = usable_entries(checkpoints);
  const std::vector<CatalogEntry> abandoned = excess_abandoned(checkpoints, policy);
  std::set<std::string> kept = kept_paths(entries, policy);
  const bool has_excess = kept.size() < entries.size();
  if (!has_excess && abandoned.empty()) return {};
  if (!keep_two_verified(entries, kept, known, report)) {
    if (has_excess)
      report(
          fmt::format("{}: fewer than two checkpoints are known to be whole: none was removed", checkpoints.string()));
    return {};
  }
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (!kept.contains(entry->path.string()) && !removal.remove(entry->path)) return removal.removed();
  }
  for (const CatalogEntry& entry : abandoned) {
    const std::size_t before = removal.removed().size();
    if (!removal.remove(entry.path)) break;
    if (removal.removed().size() > before)
      report(fmt::format("{}: removed: of checkpoints of abandoned branches {} stay", entry.path.string(),
                         policy.keep_abandoned == 0 ? "none" : fmt::format("the {} newest", policy.keep_abandoned)));
  }
  return removal.removed();
}

std::vector<fs::path> prune_for_space(const fs::path& checkpoints, const RetentionPolicy& policy,
                                      std::set<std::string>& known,
                                      const std::function<void(const std::string&)>& report,
                                      const std::function<bool()>& may_remove) {
  RetentionPolicy tighter = policy;
  std::vector<fs::path> removed = prune_checkpoints(checkpoints, tighter, known, report, may_remove);
  if (!removed.empty()) return removed;
  tighter.keep_abandoned = 0;
  removed = prune_checkpoints(checkpoints, tighter, known, report, may_remove);
  constexpr auto fewest = static_cast<std::int64_t>(least_verified);
  tighter.keep = std::min(policy.keep, static_cast<std::int64_t>(usable_entries(checkpoints).size()));
  while (removed.empty() && --tighter.keep >= fewest)
    removed = prune_checkpoints(checkpoints, tighter, known, report, may_remove);
  return removed;
}

}  // namespace scaletrain
