// Whether a run's checkpoints will fit where they are written, as far as the file system tells. It knows nothing of
// most quotas, nor of what others will write there: a save may still find no space.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "config/config.h"
#include "plan/run_plan.h"

namespace scaletrain {

struct CheckpointRoom {
  std::filesystem::path folder;
  std::uint64_t each = 0;  // bytes of one checkpoint
  std::int64_t most = 0;   // checkpoints that lie there at one time, the one being written included
  std::string kept;        // why so many, for people
  // Of what lies there; not looked for where all fits without it.
  std::uint64_t present = 0;  // bytes of those that lie there
  std::int64_t spare = 0;     // of these, how many a save that finds no space may let go, abandoned ones included
  std::optional<std::uint64_t> available;  // for this user; nothing if the file system does not say

  // For all of them; nothing is said of a file system that does not tell.
  bool fits() const;
  // Not even the next one fits, whatever is let go for it.
  bool fits_none() const;
  // What is missing and what helps. Empty if it fits.
  std::string shortage() const;
};

// Of a run that is to go to the end of the plan, in a folder of checkpoints that need not be there yet.
// FileAccessError, InputError if a folder is there and cannot be listed.
// available: as available_bytes() says.
CheckpointRoom checkpoint_room(const Config& config, const PhasePlan& plan, const std::filesystem::path& checkpoints,
                               std::optional<std::uint64_t> available);

// What a user of this process's rights can still write below `path`, or below the nearest folder above that exists.
std::optional<std::uint64_t> available_bytes(const std::filesystem::path& path);

}  // namespace scaletrain
