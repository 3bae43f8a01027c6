// Two small files of a run folder by which the agents of a run hear of each other before they can talk: where the first
// one serves the rendezvous, and a note of how a start has ended that not all had come to.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "base/process/exit_status.h"
#include "comm/rendezvous/rendezvous.h"
#include "host/launcher.h"
#include "train/start/run_folder.h"

namespace scaletrain {

// What RUN/rendezvous.json holds; mode 0600.
struct RendezvousFile {
  RendezvousAddress address{};
  std::string secret{};  // empty: everyone was given it
  std::string job{};
  bool operator==(const RendezvousFile&) const = default;
};

// InputError if the file system refuses.
void write_rendezvous_file(const RunPaths& paths, const RendezvousFile& file);
// Nothing if it is missing, or cannot be read yet.
std::optional<RendezvousFile> read_rendezvous_file(const RunPaths& paths);
// Removes the file, unless another start has put its own there.
void remove_rendezvous_file(const RunPaths& paths, const RendezvousFile& file) noexcept;

// The first place's word to those who have not come in, beside the lock: it cannot take the run's lock (and so must not
// touch rendezvous.json), or the run has ended without them. The next start removes it. Never throws.
void leave_end_note(const RunPaths& paths, const LauncherPlace& place, const ExitStatus& end) noexcept;
// A start begins: a note of an earlier one is void.
void forget_end_note(const RunPaths& paths) noexcept;
// What the note says, if it is of this job; where there is no job id, if it is of this boot and younger than `seconds`.
std::optional<ExitStatus> noted_end(const RunPaths& paths, const LauncherPlace& place, double seconds);

// Whether a note is of the start that a process waits for. A note of the same job is believed; where the launcher has
// no job id, it counts for processes that were there before it, and for 300 s for later ones of the same boot of the
// same host: no other clock is believed. The job of agents that were started by hand (SCALETRAIN_JOB) may be the same
// at the next start: those that come after the note give the first place the time to remove it.
class EndNoteWatch {
 public:
  // believed_after: seconds after which a note is believed that was there before.
  EndNoteWatch(const RunPaths& paths, const LauncherPlace& place, double believed_after);
  // What the note says now, if it is of this start.
  std::optional<ExitStatus> look() const;
  // What an earlier start of this job has noted: for who finds none of his own.
  std::optional<ExitStatus> earlier() const;

 private:
  RunPaths paths_;
  LauncherPlace place_;
  double believed_after_;
  std::string id_before_{};  // of the note that was there at the beginning; empty: none
  std::optional<ExitStatus> earlier_{};
  MonotonicTime begin_ = monotonic_now();
};

// Whether two job ids are known and differ.
bool is_another_job(const std::string& theirs, const std::string& ours);

}  // namespace scaletrain
