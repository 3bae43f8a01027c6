// What the ends, errors and hangs of a worker group's workers come to, and the words for it. Pure: from what is known
// of each to a RoundResult. Internal to worker_group.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "launch/watch/hang_judge.h"
#include "launch/workers/group_member.h"
#include "launch/workers/worker_group.h"

namespace scaletrain {

// All workers of one start, by rank.
struct GroupView {
  std::vector<const MemberState*> members{};
  std::int64_t world = 1;
  std::int64_t start_step = 0;
  std::function<bool()> memory_ran_out{};  // whether the kernel has ended processes for want of memory since the start
};

// Whether the run itself ends with this code when a worker does.
bool is_result(int code);
// Whether the worker has ended with such a code. Exit code 1 is believed of one that has said what was wrong: libraries
// that find no thread or no memory leave with it too, and a restart may mend that.
bool has_runs_result(const MemberState& member);

// The worst failure; of equals the one seen first, then the lowest rank. Null: none.
const MemberState* cause_of(const GroupView& group);

// started: the workers were not ended before all had come to their first step.
RoundResult verdict_of(const GroupView& group, bool started);
// They were ended for this reason, though nothing was wrong here.
RoundResult ended_as_told(const GroupView& group, const EndOrder& order);

// "rank 3: ", or nothing in a world of one.
std::string name_of(const GroupView& group, const MemberState& member);
// How a rank was when it was taken for hung, what it is in, who waits for it, and what to do about it: a sentence about
// a worker that was killed for it.
std::string hang_text(const GroupView& group, const MemberState& member, const HangJudge::Verdict& hang);
// What each is in while all of the world stand: first those in no collective, for whom the others may wait.
std::string places_text(const GroupView& group);
// "rank 3 has been in fsync of runs/a/checkpoints/x for 61 s".
std::string storage_text(std::int64_t rank, const InStorage& storage);
// The same with what follows from it.
std::string storage_warning(std::int64_t rank, const InStorage& storage, double heartbeat);

}  // namespace scaletrain
