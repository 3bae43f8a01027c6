// The lock of a run folder: one holder at a time, also across hosts that share the file system.
//
// lock.json names the holder (host, boot id, pid, job, restart count, a random lock id) and carries a counter that the
// holder's thread rewrites every period. Who finds it held takes it over
//   - at once, if it is the same job with a higher restart count, or a process of this boot of this host that has
//   ended;
//   - otherwise only after `silent_periods` periods in which the counter did not move, by its own monotonic clock.
// A holder that is seen alive is never disturbed. Judging and replacing are one step under flock(2) of
// `.lock.json.guard` beside it, where the file system supports it; elsewhere the winner is who still finds itself in
// the file after a pause. The holder rewrites its counter in place, through the file it opened: after a takeover that
// is no longer the file that others see.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace scaletrain {

struct RunLockOptions {
  double period = 5.0;  // seconds between rewrites of the counter
  int silent_periods = 3;
  std::string job_id{};            // empty: no job system
  std::int64_t restart_count = 0;  // how often the job system restarted this job
};

// With SLURM_JOB_ID and SLURM_RESTART_COUNT, where they are set. No other launcher's restarts count: torchrun's run id
// is what somebody has called it, and two jobs of one name must not take each other's lock. They wait out a silent
// holder of another host; on this one a holder that has ended is known by its process.
RunLockOptions run_lock_options_from_environment();

class RunLock {
 public:
  // Takes the lock or leaves within (silent_periods + 1) periods with a UserError that names the holder; nothing in the
  // folder is changed then. InputError if the folder cannot be written to. The folder must exist.
  static RunLock acquire(const std::filesystem::path& path, const RunLockOptions& options);

  // Stops the thread and removes the file if it is still this lock's.
  ~RunLock();
  RunLock(RunLock&&) noexcept;
  RunLock& operator=(RunLock&&) noexcept;

  const std::string& lock_id() const;
  // Reads the file again; see lock_is_held.
  bool still_held() const;
  // True once the thread has found another holder in the file. Lock-free.
  bool lost() const;

 private:
  struct State;
  explicit RunLock(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Reads the file: whether it names lock_id. False if it is missing or damaged. FileAccessError if the system does not
// let it be read (EIO, ESTALE, EACCES): who cannot tell must not commit, and says why.
bool lock_is_held(const std::filesystem::path& path, const std::string& lock_id);

// Who holds a lock, as the file says.
struct LockHolder {
  std::string lock_id;
  std::string host;
  std::string boot_id;
  std::string pid_namespace;
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;  // of the process (machine.h)
  std::string job_id;
  std::int64_t restart_count = 0;
  std::string since;  // UTC, for people
  std::uint64_t counter = 0;
};
// Nothing if the file is missing; InputError if it cannot be read or is damaged.
std::optional<LockHolder> read_lock(const std::filesystem::path& path);
std::string lock_text(const LockHolder& holder);

}  // namespace scaletrain
