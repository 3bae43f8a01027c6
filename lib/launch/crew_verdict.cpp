#include "launch/crew_verdict.h"

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
std::vector<std::int64_t> told_alike(const CrewView& crew, const MemberState& culprit) {
  std::vector<std::int64_t> ranks;
  for (const MemberState* const member : crew.members) {
    const auto& error = member->status.error;
    if (error && error->kind == culprit.status.error->kind && error->message == culprit.status.error->message)
      ranks.push_back(member->rank.value());
  }
  return ranks;
}

// Whose error it is, and its words.
void tell_error(const CrewView& crew, const MemberState& culprit, Attempt& attempt) {
  const std::vector<std::int64_t> ranks = told_alike(crew, culprit);
  std::string who = name_of(crew, culprit);
  if (ranks.size() > 1) {
    attempt.is_alike = ranks.size() == crew.members.size();
    who = attempt.is_alike ? "" : fmt::format("ranks {}: ", fmt::join(ranks, ", "));
    attempt.description = fmt::format("{} {} workers failed alike at step {}", attempt.is_alike ? "all" : "some of the",
                                      crew.members.size(), attempt.step);
  }
  attempt.message = who + culprit.status.error->message;
}

// What may be behind a SIGKILL that nobody here sent.
std::string memory_text(const CrewView& crew) {
  if (!crew.memory_ran_out || !crew.memory_ran_out()) return {};
  return "; the kernel has ended processes for want of memory since the start, so this is the probable cause: "
         "`scaletrain check` prints what a rank needs";
}

std::string described(const CrewView& crew, const MemberState& member) {
  const std::string who = fmt::format("{}worker {}", name_of(crew, member), member.pid);
  const std::int64_t step = member.status.step >= 0 ? member.status.step : crew.start_step;
  if (member.hung) return member.hang_text;
  if (!member.end || member.killed) return fmt::format("{} was ended at step {}", who, step);
  if (!member.end->exit_code)
    return fmt::format("{} was killed by signal {} ({}) at step {}{}", who, member.end->signal,
                       ::strsignal(member.end->signal), step, member.end->signal == SIGKILL ? memory_text(crew) : "");
  return fmt::format("{} ended with exit code {} at step {}", who, *member.end->exit_code, step);
}

}  // namespace

const MemberState* cause_of(const CrewView& crew) {
  const MemberState* found = nullptr;
  for (const MemberState* const member : crew.members) {
    if (member->failure() == Failure::none) continue;
    if (found == nullptr || member->failure() > found->failure() ||
        (member->failure() == found->failure() && member->failed_at < found->failed_at))
      found = member;
  }
  return found;
}

Attempt verdict_of(const CrewView& crew, bool started) {
  Attempt attempt;
  attempt.started = started;
  attempt.failed_at = crew.failed_since;
  const MemberState* const culprit = started ? cause_of(crew) : nullptr;
  const MemberState& shown = culprit != nullptr ? *culprit : *crew.members.front();
  attempt.step = shown.status.step >= 0 ? shown.status.step : crew.start_step;
  if (shown.hung) attempt.step = shown.hang_step;
  attempt.description = described(crew, shown);
  if (!started) return attempt;
  if (culprit != nullptr) {
    attempt.rank = culprit->rank;
    attempt.lost_peer_only = culprit->failure() == Failure::lost_peer;
  }
  if (culprit == nullptr) {
    // A run that ended: if some say finished and some interrupted, there may be something left to do.
    const bool is_interrupted = std::any_of(crew.members.begin(), crew.members.end(), [](const MemberState* member) {
      return member->end && member->end->exit_code == static_cast<int>(ExitCode::interrupted);
    });
    attempt.result = is_interrupted ? ExitCode::interrupted : ExitCode::finished;
    if (crew.members.size() > 1)
      attempt.description = fmt::format("all {} workers ended at step {}", crew.members.size(), attempt.step);
    return attempt;
  }
  if (culprit->status.error) {
    tell_error(crew, *culprit, attempt);
    // It said what was wrong and was ended before it could leave.
    const ExitCode told = culprit->status.error->kind;
    if (culprit->killed && is_result(static_cast<int>(told))) attempt.result = told;
  } else {
    for (const MemberState* const member : crew.members) {
      if (!member->status.error) continue;
      attempt.message = name_of(crew, *member) + member->status.error->message;
      break;
    }
  }
  if (!culprit->hung && !culprit->killed && has_runs_result(*culprit))
    attempt.result = static_cast<ExitCode>(*culprit->end->exit_code);
  return attempt;
}

Attempt ended_as_told(const CrewView& crew, const EndOrder& order) {
  Attempt attempt;
  if (order.is_hang) attempt.message = places_text(crew);
  const MemberState& first = *crew.members.front();
  attempt.ended_for_others = true;
  attempt.step = first.status.step >= 0 ? first.status.step : crew.start_step;
  attempt.description =
      fmt::format("{} ended at step {}: {}", crew.members.size() == 1 ? "the worker was" : "the workers were",
                  attempt.step, order.reason);
  return attempt;
}

std::string name_of(const CrewView& crew, const MemberState& member) {
  return crew.world == 1 ? std::string() : fmt::format("rank {}: ", member.rank.value());
}

HangWords hang_words(const CrewView& crew, const MemberState& member, const HangJudge::Verdict& hang) {
  const WorkerStatus& status = member.status;
  HangWords words;
  std::string what = "made no progress";
  words.remedy =
      "raise supervise.heartbeat, or lower train.micro_batch or model.context, if one layer of one micro-batch takes "
      "longer";
  if (member.was_stopped) {
    what = "is stopped as a whole (SIGSTOP, or a debugger) and gave no sign of life";
    words.remedy = "something outside the run stopped it";
  } else if (hang.kind == HangKind::storage) {
    what = status.storage && !status.storage->text.empty()
               ? fmt::format("has been in {} while nobody computed, read or wrote anything", status.storage->text)
               : "computed, read and wrote nothing, and nobody else did,";
    words.remedy = "see whether the storage answers; a process in such a call may live on until it does";
  } else if (hang.kind == HangKind::mute && !status.waiting) {
    what = "gave no sign of life";
    words.remedy = "it is stopped, or its machine or the network to it does not answer";
  } else if (status.waiting) {
    what = "gave no sign of life (it was starting up or waiting for storage)";
    words.remedy = "raise supervise.heartbeat if this machine or its storage can be that slow";
  }
  words.what = fmt::format("{} for {}", what, duration_text(hang.seconds));
  int num_others = 0;
  for (const MemberState* const other : crew.members) {
    const auto in = other->collective();
    if (other == &member || !in || (!other->lives() && !other->status.dumped)) continue;
    if (++num_others == 1) words.others = fmt::format("; rank {} waits in {}", other->rank.value(), *in);
  }
  if (num_others > 1) words.others += fmt::format(", and {} more wait", num_others - 1);
  if (const auto in = member.collective()) {
    words.place = ", in " + *in;
  } else if (crew.world > 1) {
    words.place = ", in no collective";
  }
  return words;
}

std::string hang_text(const CrewView& crew, const MemberState& member, const HangJudge::Verdict& hang) {
  const HangWords words = hang_words(crew, member, hang);
  return fmt::format("{}worker {} {} at step {} (supervise.heartbeat){} and was killed{}; {}; stack traces are in {}",
                     name_of(crew, member), member.pid, words.what, member.hang_step, words.place, words.others,
                     words.remedy, rank_log_path("", member.rank.value()).string());
}

std::string places_text(const CrewView& crew) {
  constexpr std::size_t longest_list = 8;
  std::string missing;
  std::string waiting;
  std::size_t num_missing = 0;
  std::size_t num_waiting = 0;
  for (const MemberState* const member : crew.members) {
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
