#include "train/saving/checkpoint_room.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "checkpoint/catalog.h"
#include "checkpoint/quarantine.h"
#include "checkpoint/save/save.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t fewest_kept = 2;  // by any pruning
constexpr std::int64_t kManySteps = std::int64_t{1} << 40;

// Saves of the whole run: no more checkpoints than that. By time: as many as it likes.
std::int64_t most_saves(const CheckpointConfig& config, std::int64_t steps) {
  if (config.every_seconds) return steps;
  const auto times = [steps](const std::optional<std::int64_t>& every) {
    return every && *every > 0 ? (steps + *every - 1) / *every : 0;
  };
  return std::max<std::int64_t>(1, times(config.every_steps) + times(config.keep_every));
}

std::int64_t num_abandoned(const fs::path& checkpoints) {
  std::int64_t count = 0;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error); !error && it != fs::directory_iterator(); it.increment(error))
    if (it->path().filename().string().starts_with(abandoned_prefix)) ++count;
  return count;
}

}  // namespace

bool CheckpointRoom::fits() const {
  const std::uint64_t needed = static_cast<std::uint64_t>(most) * each;
  return !available || needed <= present || needed - present <= *available;
}

bool CheckpointRoom::fits_none() const {
  return available && *available < each && spare == 0;
}

std::string CheckpointRoom::shortage() const {
  if (fits()) return {};
  return fmt::format(
      "{}: the checkpoints of this run take up to {}, {} of {} each ({}); {} of that is there and the file system has "
      "{} left. Free space, lower checkpoint.keep or choose another run.directory",
      folder.string(), bytes_text(static_cast<std::uint64_t>(most) * each), most, bytes_text(each), kept,
      bytes_text(present), bytes_text(*available));
}

CheckpointRoom checkpoint_room(const Config& config, const PhasePlan& plan, const fs::path& checkpoints,
                               std::optional<std::uint64_t> available) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  CheckpointRoom room;
  room.folder = checkpoints;
  room.each = checkpoint_bytes(plan.table, plan.optimizer_states, plan.masters());
  room.available = available;
  // Of a run in epochs that begins they are not known yet: enough for all that is kept, but by keep_every.
  const bool is_known = !config.train.epochs || plan.num_steps > 0;
  const std::int64_t steps = is_known ? plan.first_step + plan.num_steps : kManySteps;
  const std::int64_t keep = std::max(checkpoint.keep, fewest_kept);
  const std::int64_t best = checkpoint.best && config.early_stop ? 1 : 0;
  const std::int64_t multiples =
      is_known && checkpoint.keep_every && *checkpoint.keep_every > 0 ? steps / *checkpoint.keep_every : 0;
  room.most = std::min(keep + 1 + multiples, most_saves(checkpoint, steps)) + best;
  room.kept = fmt::format("checkpoint.keep {}", checkpoint.keep);
  if (best > 0) room.kept += ", the best";
  if (multiples > 0) room.kept += fmt::format(", {} by checkpoint.keep_every", multiples);
  room.kept += ", and one that is being written";
  if (room.fits()) return room;
  std::int64_t newest = 0;
  for (const CatalogEntry& entry : list_checkpoints(checkpoints)) {
    room.present += entry.bytes;
    const bool is_multiple =
        checkpoint.keep_every && *checkpoint.keep_every > 0 && entry.step % *checkpoint.keep_every == 0;
    if (entry.problem.empty() && newest++ >= fewest_kept && !is_multiple) ++room.spare;
  }
  room.spare = std::max<std::int64_t>(0, room.spare - 1);  // one of them may be pinned
  if (newest >= fewest_kept) room.spare += num_abandoned(checkpoints);
  return room;
}

std::optional<std::uint64_t> available_bytes(const fs::path& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error);
  while (!error && !fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  struct statvfs info {};
  if (error || ::statvfs(folder.c_str(), &info) != 0) return std::nullopt;
  const auto unit = static_cast<std::uint64_t>(info.f_frsize != 0 ? info.f_frsize : info.f_bsize);
  // Some network and virtual file systems have no blocks to speak of.
  if (info.f_blocks == 0 || unit == 0) return std::nullopt;
  const std::uint64_t blocks = ::geteuid() == 0 ? info.f_bfree : info.f_bavail;
  return blocks > UINT64_MAX / unit ? UINT64_MAX : blocks * unit;
}

}  // namespace scaletrain
