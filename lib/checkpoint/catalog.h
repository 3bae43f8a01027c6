// The checkpoints of a run folder: which there are, which is the newest good one, quarantining, pruning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/load.h"

namespace scaletrain {

// One folder under checkpoints/. `problem` is empty if its manifest could be read. `unreadable`: the system would not
// let it be read (FileAccessError), so nobody knows what it is; else a problem is damage.
struct CatalogEntry {
  std::filesystem::path path;
  std::int64_t generation = 0;
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  std::uint64_t bytes = 0;
  std::string save_id;
  std::string problem;
  bool unreadable = false;
};

// Newest first by (generation, step); unreadable ones last. Temporary folders and quarantined ones are not listed.
// Numbers are compared as numbers. A folder that does not exist has none.
std::vector<CatalogEntry> list_checkpoints(const std::filesystem::path& checkpoints);

// The same for whoever decides by what there is: FileAccessError if one is unreadable, for it could be the newest.
std::vector<CatalogEntry> list_readable_checkpoints(const std::filesystem::path& checkpoints);

// What was quarantined, oldest name first.
struct QuarantinedEntry {
  CatalogEntry entry;
  std::string reason;  // "damaged", "abandoned"
};
std::vector<QuarantinedEntry> list_quarantined(const std::filesystem::path& checkpoints);

// The newest checkpoint whose every byte verifies. Damaged ones on the way are quarantined (renamed to
// ".damaged-NAME-N") and reported with the reason. One that cannot be read now may be whole: FileAccessError, and it
// stays where it is. Nothing if there is no checkpoint at all; if there were some and none is usable: InputError.
std::optional<Checkpoint> newest_usable(const std::filesystem::path& checkpoints,
                                        const std::function<void(const std::string&)>& report);

// Quarantines checkpoints later than `step` (an explicit resume of an older one abandons their branch). Returns the new
// names.
std::vector<std::filesystem::path> quarantine_later(const std::filesystem::path& checkpoints, std::int64_t step);

struct RetentionPolicy {
  std::int64_t keep = 3;                    // newest
  std::optional<std::int64_t> keep_every;   // steps that are multiples stay
  std::optional<std::string> best_save_id;  // pinned
  // Training begins from it and has no save of its own yet: it stays, an abandoned one too.
  std::optional<std::string> start_save_id{};
  std::int64_t keep_abandoned = 2;  // newest of those that were quarantined with the branch they are of
};

// How many checkpoints the policy lets go, if enough others verify. By the manifests alone, which are not read where
// there are no more than policy.keep.
std::size_t count_let_go(const std::filesystem::path& checkpoints, const RetentionPolicy& policy);

// Removes what dead saves and prunings have left: their hidden folders. `report` and `may_remove` as below.
void remove_leftovers(const std::filesystem::path& checkpoints, const std::function<void(const std::string&)>& report,
                      const std::function<bool()>& may_remove = {});

// Removes the leftovers, then what the policy lets go, oldest first, and abandoned ones, which are reported. No
// checkpoint goes, nor an abandoned one, unless two that stay are known to verify; newer ones than the policy keeps
// stay for it, and those that cannot be read now. Returns what was removed, by the names it had, without the leftovers.
// Failures to remove are reported, not thrown. Each folder is renamed to a hidden name first, so that a crash leaves no
// half checkpoint. What did not verify and was quarantined stays, always.
//
// `known`: ids of saves that this process wrote, or has read against their checksums; only the presence and sizes of
// their files are looked at. Others are read whole, and join it when they verify.
//
// may_remove: asked right before each folder goes, leftovers too, for they may be those of a process that has taken the
// run over meanwhile: where it says no, that is reported, and nothing more is removed. What it throws passes through.
// Empty: always.
std::vector<std::filesystem::path> prune_checkpoints(const std::filesystem::path& checkpoints,
                                                     const RetentionPolicy& policy, std::set<std::string>& known,
                                                     const std::function<void(const std::string&)>& report,
                                                     const std::function<bool()>& may_remove = {});

// For a save that found no space: lets go, in this order and only until something went, what the policy lets go;
// abandoned checkpoints; the oldest of the `policy.keep` newest. Never a pinned one, a multiple, or one of the two
// newest; and never one unless two that stay verify. The rest as for prune_checkpoints.
std::vector<std::filesystem::path> prune_for_space(const std::filesystem::path& checkpoints,
                                                   const RetentionPolicy& policy, std::set<std::string>& known,
                                                   const std::function<void(const std::string&)>& report,
                                                   const std::function<bool()>& may_remove = {});

}  // namespace scaletrain
