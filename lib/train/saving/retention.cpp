#include "train/saving/retention.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/error.h"

namespace scaletrain {

RetentionPolicy retention_policy(const CheckpointConfig& config, std::optional<std::string> best_save_id,
                                 std::optional<std::string> start_save_id) {
  return {.keep = config.keep,
          .keep_every = config.keep_every,
          .best_save_id = std::move(best_save_id),
          .start_save_id = std::move(start_save_id)};
}

void Retention::prune(const std::optional<std::string>& best_save_id) {
  try {
    prune_checkpoints(
        checkpoints_, retention_policy(config_, best_save_id, start_save_id_), known_,
        [this](const std::string& text) { log_.warn(text); }, may_commit_);
  } catch (const InputError& error) {
    log_.warn(fmt::format("old checkpoints were not removed: {}", error.what()));
  }
}

bool Retention::make_room(std::int64_t step, const std::optional<std::string>& best_save_id) {
  std::vector<std::filesystem::path> removed;
  try {
    removed = prune_for_space(
        checkpoints_, retention_policy(config_, best_save_id, start_save_id_), known_,
        [this](const std::string& text) { log_.warn(text); }, may_commit_);
  } catch (const InputError& error) {
    log_.warn(fmt::format("old checkpoints were not removed: {}", error.what()));
  }
  for (const auto& path : removed)
    log_.error(
        fmt::format("step {}: there is no space for a checkpoint, so {} was removed to make some: free space, or have "
                    "checkpoint.keep say what fits",
                    step, path.string()));
  return !removed.empty();
}

}  // namespace scaletrain
