// Which checkpoints of its run rank 0 lets go: after each save, and where the disk is full.
//
// Used by whichever thread performs a save, one at a time. Nothing here throws because of what a file system refuses: a
// checkpoint too many is no reason to end a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "checkpoint/catalog.h"
#include "config/config.h"
#include "telemetry/log.h"

namespace scaletrain {

// What the config keeps, and the pinned one and the one that training begins from. A best checkpoint stays pinned under
// a config that asks for none, until there is a better one.
RetentionPolicy retention_policy(const CheckpointConfig& config, std::optional<std::string> best_save_id,
                                 std::optional<std::string> start_save_id = {});

class Retention {
 public:
  // may_commit: as of Checkpointer::Parts. config and log outlive this.
  Retention(std::filesystem::path checkpoints, const CheckpointConfig& config, Log& log,
            std::function<bool()> may_commit)
      : checkpoints_(std::move(checkpoints)), config_(config), log_(log), may_commit_(std::move(may_commit)) {}

  // Training goes on from this save, which was read against its checksums; empty: from none. It is not read again, and
  // stays, wherever it lies, until this process has saved.
  void begin_from(const std::string& save_id) {
    if (save_id.empty()) return;
    known_.insert(save_id);
    start_save_id_ = save_id;
  }
  // By this process.
  void saved(const std::string& save_id) {
    known_.insert(save_id);
    start_save_id_.reset();
  }
  void prune(const std::optional<std::string>& best_save_id);
  // The save of `step` found no space: lets go what prune_for_space says, loudly. False if that was nothing.
  bool make_room(std::int64_t step, const std::optional<std::string>& best_save_id);

 private:
  std::filesystem::path checkpoints_;
  const CheckpointConfig& config_;
  Log& log_;
  std::function<bool()> may_commit_;
  std::set<std::string> known_;
  std::optional<std::string> start_save_id_;
};

}  // namespace scaletrain
