// Ranks of one host whose memory the others may not read, from the start or from a moment on, and ranks that die while
// the others find out whose memory they can read.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "process/ranks.h"
#include "support/own_mounts.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// See peer_memory_faults.cpp.
struct ReadFault {
  int rank = -1;  // -1: all
  int from = 1;
  int error = 0;  // 0: it is killed
  bool once = false;
};

// In the middle of a run: finding links takes each rank fewer reads than this, and a step more.
constexpr int in_mid_run = 200;

Settings four_ranks(const Settings& more = {}) {
  Settings settings = {"parallel.data=2", "parallel.tensor=2"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

fs::path mark_of(const std::string& run) {
  return workspace() / (run + ".mark");
}

std::vector<std::pair<std::string, std::string>> environment_of(const std::string& run, const ReadFault& fault) {
  std::vector<std::pair<std::string, std::string>> variables = {{"LD_PRELOAD", PEER_MEMORY_FAULTS},
                                                                {"READS_FROM", std::to_string(fault.from)},
                                                                {"READS_ERROR", std::to_string(fault.error)},
                                                                {"READS_MARK", mark_of(run).string()}};
  if (fault.rank >= 0) variables.emplace_back("READS_PROCESS", "scaletrain r" + std::to_string(fault.rank));
  if (fault.once) variables.emplace_back("READS_ONCE", "1");
  return variables;
}

Ended run_with(const std::string& run, const Settings& settings, const ReadFault& fault) {
  Launch launch = layout_launch(run, settings);
  for (auto& variable : environment_of(run, fault)) launch.environment.push_back(std::move(variable));
  Ended end = run_program(launch, ranks_patience);
  CHECK_MESSAGE(fs::exists(mark_of(run)), "nothing was struck: ", end.errors);
  return end;
}

// Of the same layout, which nothing disturbed.
const Trajectory& undisturbed() {
  static const Trajectory trajectory = [] {
    const Ended end = run_program(layout_launch("reads-undisturbed", four_ranks()), ranks_patience);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    CHECK_FALSE(end.says("exchange by TCP"));
    return trajectory_of(layout_folder("reads-undisturbed"));
  }();
  return trajectory;
}

void check_as_undisturbed(const std::string& run, const Ended& end) {
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const Trajectory found = trajectory_of(layout_folder(run));
  CHECK(found.steps == undisturbed().steps);
  CHECK(found.evaluations == undisturbed().evaluations);
  check_no_process_left(run);
}

std::vector<std::string> lines_with(const std::string& text, const std::string& words) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (line.find(words) != std::string::npos) lines.push_back(std::move(line));
    at = end + 1;
  }
  return lines;
}

constexpr const char* notice =
    "ranks of this host exchange by TCP, which is slower: the system does not let one read another's memory "
    "(process_vm_readv: Operation not permitted); allow it (in a container CAP_SYS_PTRACE; kernel.yama.ptrace_scope 0 "
    "where every rank has an agent of its own), or set launch.transport: tcp to hear no more of it";

// Sorted, with a blank between two.
std::string names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

}  // namespace

TEST_CASE("ranks_that_the_system_does_not_let_read_each_other_exchange_by_tcp_to_the_same_losses_and_say_so_once") {
  const Ended end = run_with("reads-refused", four_ranks(), {.error = EPERM});
  check_as_undisturbed("reads-refused", end);
  CHECK_MESSAGE(lines_with(end.errors, "TCP") == std::vector{std::string("warning: ") + notice}, end.errors);

  const Ended told = run_program(layout_launch("reads-unwanted", four_ranks({"launch.transport=tcp"})), ranks_patience);
  check_as_undisturbed("reads-unwanted", told);
  CHECK_FALSE(told.says("TCP"));
}

TEST_CASE("a_refusal_that_rank_0_meets_nowhere_is_told_by_it_all_the_same") {
  // Rank 3 is another tensor rank of another replica.
  const Ended end = run_with("reads-refused-3", four_ranks(), {.rank = 3, .error = EPERM});
  check_as_undisturbed("reads-refused-3", end);
  const std::vector<std::string> lines = lines_with(end.errors, "TCP");
  REQUIRE_MESSAGE(lines.size() == 1, end.errors);
  CHECK_MESSAGE(lines.front().starts_with("warning: rank "), end.errors);
  CHECK_MESSAGE(lines.front().ends_with(std::string(": ") + notice), end.errors);
}

TEST_CASE("a_rank_that_cannot_read_its_peers_memory_any_more_is_a_failed_peer_and_named_with_the_cause") {
  for (const int error : {EPERM, ESRCH}) {
    for (const int rank : {0, 3}) {
      const std::string why = error == EPERM ? "Operation not permitted" : "No such process";
      const std::string run = "reads-fail-" + std::to_string(error) + "-" + std::to_string(rank);
      const ReadFault fault{.rank = rank, .from = in_mid_run, .error = error, .once = true};
      const Ended last = run_with(run + "-last", four_ranks({"supervise.max_restarts=0"}), fault);
      CHECK_MESSAGE(last.exit_code == 4, last.errors);
      // Either of the two may be the first to say it; each of both shares groups with ranks 1 and 2.
      const auto says_lost = [&](int peer, const std::string& how) {
        return last.says("the connection to rank " + std::to_string(peer) + " is lost: " + how + why);
      };
      CHECK_MESSAGE((says_lost(1, "its memory cannot be read: ") || says_lost(2, "its memory cannot be read: ") ||
                     says_lost(rank, "it cannot read this process's memory: ")),
                    last.errors);
      CHECK_MESSAGE(last.seconds < 30.0, last.errors);
      check_no_process_left(run + "-last");

      const Ended end = run_with(run, four_ranks(), fault);
      check_as_undisturbed(run, end);
      CHECK_MESSAGE(end.says("restart 1 of"), end.errors);
      CHECK_FALSE(end.says("exchange by TCP"));
    }
  }
}

TEST_CASE("ranks_that_may_not_read_each_other_from_a_moment_on_are_restarted_and_go_on_by_tcp") {
  const Ended end = run_with("reads-forbidden", four_ranks(), {.from = in_mid_run, .error = EPERM});
  check_as_undisturbed("reads-forbidden", end);
  CHECK_MESSAGE(end.says("restart 1 of"), end.errors);
  CHECK_FALSE(end.says("restart 2 of"));
  CHECK_MESSAGE(lines_with(end.errors, notice).size() == 1, end.errors);
}

TEST_CASE("a_rank_that_is_killed_while_ranks_find_whose_memory_they_read_ends_the_start_by_name_or_is_started_again") {
  for (int rank = 0; rank < 4; ++rank) {
    const std::string run = "reads-killed-" + std::to_string(rank);
    const ReadFault fault{.rank = rank, .once = true};
    const Ended last = run_with(run + "-last", four_ranks({"supervise.max_restarts=0"}), fault);
    CHECK_MESSAGE(last.exit_code == 4, last.errors);
    CHECK_MESSAGE(last.says("rank " + std::to_string(rank) + ": worker "), last.errors);
    CHECK_MESSAGE(last.says("was killed by signal 9"), last.errors);
    CHECK_MESSAGE(last.seconds < 30.0, last.errors);
    check_no_process_left(run + "-last");

    const Ended end = run_with(run, four_ranks(), fault);
    check_as_undisturbed(run, end);
    CHECK_MESSAGE(end.says("restart 1 of"), end.errors);
  }
}

TEST_CASE("launched_ranks_of_which_one_is_killed_while_they_find_whose_memory_they_read_end_soon_and_by_name") {
  const std::string run = "reads-killed-launched";
  const double begin = test_clock();
  LaunchedRanks ranks(2);
  for (int rank = 0; rank < 2; ++rank)
    ranks.start(rank, run, {"parallel.data=2", "supervise.max_restarts=0"}, environment_of(run, {.rank = 1}));
  CHECK(ranks.wait() == std::vector{4, 4});
  CHECK(test_clock() - begin < 30.0);
  const std::string errors = ranks.errors();
  CHECK_MESSAGE(errors.find("rank 1: worker ") != std::string::npos, errors);
  CHECK_MESSAGE(errors.find("was killed by signal 9") != std::string::npos, errors);
  check_no_process_left(run);
}

TEST_CASE("links_of_ranks_that_were_killed_leave_no_file_in_memory_and_none_in_the_run_folder") {
  if (!mount_memory("/dev/shm", 0, "size=64m")) {
    MESSAGE("skipped: this process may not mount anything");
    return;
  }
  const TempFolder temporary;
  for (const int from : {1, in_mid_run}) {
    const std::string run = "reads-left-" + std::to_string(from);
    Launch launch = layout_launch(run, four_ranks({"supervise.max_restarts=0", "checkpoint.every=1000"}));
    for (auto& variable : environment_of(run, {.rank = 1, .from = from})) launch.environment.push_back(variable);
    launch.environment.emplace_back("TMPDIR", temporary.path().string());
    const Ended end = run_program(launch, ranks_patience);
    CHECK_MESSAGE(end.exit_code == 4, end.errors);
    CHECK(fs::exists(mark_of(run)));
    check_no_process_left(run);
    CHECK(names_in("/dev/shm").empty());
    CHECK(names_in(temporary.path()).empty());
    CHECK(names_in(layout_folder(run)) ==
          ".lock.json.guard checkpoints config.source.yaml config.yaml logs metrics.jsonl");
    CHECK(names_in(layout_folder(run) / "checkpoints") == "");
  }
}

}  // namespace scaletrain
