#include "launch/workers/group_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <limits>

#include "base/text.h"

namespace scaletrain {

bool is_result(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::finished:
    case ExitCode::bug:
    case ExitCode::usage:
    case ExitCode::input:
    case ExitCode::diverged:
    case ExitCode::no_progress:
    case ExitCode::interrupted:
      return true;
    case ExitCode::peer:
      break;
  }
  return false;
}

bool has_runs_result(const MemberState& member) {
  if (!member.end || !member.end->exit_code || !is_result(*member.end->exit_code)) return false;
  return *member.end->exit_code != static_cast<int>(ExitCode::bug) || member.status.error.has_value();
}

namespace {

// The ranks whose error is this one's, word for word.
std::vector<std::int64_t> told_alike(const GroupView& group, const MemberState& culprit) {
  std::vector<std::int64_t> ranks;
  for (const MemberState* const member : group.members) {
    const auto& error = member->status.error;
    if (error && error->kind == culprit.status.error->kind && error->message == culprit.status.error->message)
      ranks.push_back(member->rank.value());
  }
  return ranks;
}

// Words about memory begin with the rank's name already: they may be all that a process leaves.
std::string told_by(const std::string& who, const std::string& words) {
  return words.starts_with(who) ? words : who + words;
}

// Whose error it is, and its words.
void tell_error(const GroupView& group, const MemberState& culprit, RoundResult& round) {
  const std::vector<std::int64_t> ranks = told_alike(group, culprit);
  std::string who = name_of(group, culprit);
  if (ranks.size() > 1) {
    round.is_alike = ranks.size() == group.members.size();
    who = round.is_alike ? "" : fmt::format("ranks {}: ", fmt::join(ranks, ", "));
    round.description = fmt::format("{} {} workers failed alike at step {}", round.is_alike ? "all" : "some of the",
                                    group.members.size(), round.step);
  }
  round.message = told_by(who, culprit.status.error->message);
}

// What may be behind a SIGKILL that nobody here sent.
std::string memory_text(const GroupView& group) {
  if (!group.memory_ran_out || !group.memory_ran_out()) return {};
  return "; the kernel has ended processes for want of memory since the start, so this is the probable cause: "
         "`scaletrain check` prints what a rank needs";
}

std::string described(const GroupView& group, const MemberState& member) {
  const std::string who = fmt::format("{}worker {}", name_of(group, member), member.pid);
  const std::int64_t step = member.status.step >= 0 ? member.status.step : group.start_step;
  if (member.hung) return member.hang_text;
  if (!member.end || member.killed) return fmt::format("{} was ended at step {}", who, step);
  if (!member.end->exit_code)
    return fmt::format("{} was killed by signal {} ({}) at step {}{}", who, member.end->signal,
                       ::strsignal(member.end->signal), step, member.end->signal == SIGKILL ? memory_text(group) : "");
  return fmt::format("{} ended with exit code {} at step {}", who, *member.end->exit_code, step);
}

// Of two of one kind: whose failure was seen first, or told first where one look has seen both. Peers of a rank that
// ends with an error say within the same moment that they have lost it.
bool was_earlier(const MemberState& one, const MemberState& other) {
  if (one.failed_at != other.failed_at) return one.failed_at < other.failed_at;
  return one.status.error && other.status.error && one.status.error->at < other.status.error->at;
}

}  // namespace

const MemberState* cause_of(const GroupView& group) {
  const MemberState* found = nullptr;
  for (const MemberState* const member : group.members) {
    if (member->failure() == Failure::none) continue;
    if (found == nullptr || member->failure() > found->failure() ||
        (member->failure() == found->failure() && was_earlier(*member, *found)))
      found = member;
  }
  return found;
}

RoundResult verdict_of(const GroupView& group, bool started) {
  RoundResult round;
  round.started = started;
  const MemberState* const culprit = started ? cause_of(group) : nullptr;
  const MemberState& shown = culprit != nullptr ? *culprit : *group.members.front();
  round.step = shown.status.step >= 0 ? shown.status.step : group.start_step;
  if (shown.hung) round.step = shown.hang_step;
  round.description = described(group, shown);
  if (!started) return round;
  if (culprit != nullptr) {
    round.rank = culprit->rank;
    round.lost_peer_only = culprit->failure() == Failure::lost_peer;
  }
  if (culprit == nullptr) {
    // A run that ended: if some say finished and some interrupted, there may be something left to do.
    const bool is_interrupted = std::any_of(group.members.begin(), group.members.end(), [](const MemberState* member) {
      return member->end && member->end->exit_code == static_cast<int>(ExitCode::interrupted);
    });
    round.result = is_interrupted ? ExitCode::interrupted : ExitCode::finished;
    if (group.members.size() > 1)
      round.description = fmt::format("all {} workers ended at step {}", group.members.size(), round.step);
    return round;
  }
  if (culprit->status.error) {
    tell_error(group, *culprit, round);
    // It said what was wrong and was ended before it could leave.
    const ExitCode told = culprit->status.error->kind;
    if (culprit->killed && is_result(static_cast<int>(told))) round.result = told;
  } else {
    for (const MemberState* const member : group.members) {
      if (!member->status.error) continue;
      round.message = told_by(name_of(group, *member), member->status.error->message);
      break;
    }
  }
  if (!culprit->hung && !culprit->killed && has_runs_result(*culprit))
    round.result = static_cast<ExitCode>(*culprit->end->exit_code);
  return round;
}

RoundResult ended_as_told(const GroupView& group, const EndOrder& order) {
  RoundResult round;
  if (order.is_hang) round.message = places_text(group);
  const MemberState& first = *group.members.front();
  round.ended_for_others = true;
  round.step = first.status.step >= 0 ? first.status.step : group.start_step;
  round.description =
      fmt::format("{} ended at step {}: {}", group.members.size() == 1 ? "the worker was" : "the workers were",
                  round.step, order.reason);
  return round;
}

std::string name_of(const GroupView& group, const MemberState& member) {
  return group.world == 1 ? std::string() : fmt::format("rank {}: ", member.rank.value());
}

namespace {

// How a rank was, and what to do about it.
struct HangWords {
  std::string what{};  // "made no progress"
  std::string remedy{};
};

HangWords hang_words(const MemberState& member, const HangJudge::Verdict& hang) {
  const WorkerStatus& status = member.status;
  if (member.was_stopped)
    return {"is stopped as a whole (SIGSTOP, or a debugger) and gave no sign of life",
            "something outside the run stopped it"};
  if (hang.kind == HangKind::storage)
    return {status.storage && !status.storage->text.empty()
                ? fmt::format("has been in {} while nobody computed, read or wrote anything", status.storage->text)
                : "computed, read and wrote nothing, and nobody else did,",
            "see whether the storage answers; a process in such a call may live on until it does"};
  if (hang.kind == HangKind::mute && !status.waiting)
    return {"gave no sign of life", "it is stopped, or its machine does not answer"};
  if (status.waiting)
    return {"gave no sign of life (it was starting up or waiting for storage)",
            "raise supervise.heartbeat if this machine or its storage can be that slow"};
  return {"made no progress", "raise supervise.heartbeat if one part of a layer's work takes longer on this machine"};
}

}  // namespace

std::string hang_text(const GroupView& group, const MemberState& member, const HangJudge::Verdict& hang) {
  const HangWords words = hang_words(member, hang);
  std::string others;
  int num_others = 0;
  for (const MemberState* const other : group.members) {
    const auto in = other->collective();
    if (other == &member || !in || (!other->lives() && !other->status.dumped)) continue;
    if (++num_others == 1) others = fmt::format("; rank {} waits in {}", other->rank.value(), *in);
  }
  if (num_others > 1) others += fmt::format(", and {} more wait", num_others - 1);
  std::string place = group.world > 1 ? ", in no collective" : "";
  if (const auto in = member.collective()) place = ", in " + *in;
  return fmt::format(
      "{}worker {} {} for {} at step {} (supervise.heartbeat){} and was killed{}; {}; stack traces are in {}",
      name_of(group, member), member.pid, words.what, duration_text(hang.seconds), member.hang_step, place, others,
      words.remedy, rank_log_path("", member.rank.value()).string());
}

std::string places_text(const GroupView& group) {
  constexpr std::size_t longest_list = 8;
  std::string missing;
  std::string waiting;
  std::size_t num_missing = 0;
  std::size_t num_waiting = 0;
  for (const MemberState* const member : group.members) {
    if (const auto in = member->collective()) {
      if (++num_waiting == 1) waiting = fmt::format("rank {} waits in {}", member->rank.value(), *in);
    } else if (++num_missing <= longest_list) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", member->rank.value());
    }
  }
  if (num_missing > longest_list) missing += fmt::format(" and {} more", num_missing - longest_list);
  if (num_waiting > 1) waiting += fmt::format(", and {} more wait", num_waiting - 1);
  if (missing.empty()) return waiting;
  return fmt::format("rank{} {} in no collective{}{}", num_missing == 1 ? "" : "s", missing,
                     waiting.empty() ? "" : "; ", waiting);
}

std::string storage_text(std::int64_t rank, const InStorage& storage) {
  return fmt::format("rank {} has been in {} for {}", rank, storage.text, duration_text(storage.seconds));
}

std::string storage_warning(std::int64_t rank, const InStorage& storage, double heartbeat) {
  return fmt::format("{}: the storage does not answer; if nobody gets any further for {}, all ranks are ended",
                     storage_text(rank, storage), duration_text(storage_patience(heartbeat)));
}

}  // namespace scaletrain
