// Storage that refuses one system call of a save: loud, survived, and made good by the next save.
#include <doctest/doctest.h>

#include <set>

#include "storage.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr int faulted = 3;  // the step whose save is struck, the last but one
constexpr const char* log_words = "the checkpoint was not saved";

bool ends_with(const std::string& text, std::string_view end) {
  return std::string_view(text).ends_with(end);
}

// Whether the bytes and names of a checkpoint depend on this call, so that its refusal must fail the save: everything
// up to the commit, the look whether the run's lock is still held among it, but for the closing of what only was read
// or synced (a folder).
bool is_needed(const StorageCall& call, long commit) {
  if (call.number > commit) return false;
  if (call.is_on("/lock.json")) return call.kind != "close";
  if (!call.is_on("/checkpoints")) return false;
  if (call.kind != "close") return true;
  return ends_with(call.path, ".safetensors") || ends_with(call.path, ".json");
}

// A run of step 2 goes on to the end while the save of step 3 is struck.
std::string after_fault(const std::string& name, const StorageFault& fault, bool fails, bool is_log) {
  const fs::path run = run_of_step(name, fault.save - 1);
  const Ended end = go_on(name, fault);
  if (end.exit_code != 0) return "exit code " + std::to_string(end.exit_code) + "\n" + end.errors;
  if (has_failed_save(run, faulted) != fails)
    return (fails ? "no failure in" : "a failure in") + std::string(" the metrics\n") + end.errors;
  const std::string log = read_file(run / "logs" / "rank-00000.log");
  if (!is_log && (log.find(log_words) != std::string::npos) != fails) return "the log is wrong:\n" + log;
  return problem_of(run, fails ? std::vector<int>{2, 4} : std::vector<int>{3, 4});
}

using Choose = std::function<bool(const StorageCall&)>;
using Fails = std::function<bool(const StorageCall&, long commit)>;

void check_every_call(const std::string& action, const Choose& choose, const Fails& fails) {
  static const std::vector<StorageCall> calls = calls_of_save(faulted, all_kinds);
  const long commit = commit_of(calls);
  std::vector<SweepCase> cases;
  std::size_t failing = 0;
  for (const StorageCall& call : calls) {
    if (!choose(call)) continue;
    const StorageFault fault{.action = action, .at = call.number, .save = faulted, .kinds = all_kinds};
    const bool must_fail = fails(call, commit);
    const bool is_log = call.is_on("/logs/");
    failing += must_fail ? 1 : 0;
    cases.push_back({action + " at " + std::to_string(call.number) + " " + call.kind + " " + call.path,
                     [=](const std::string& name) { return after_fault(name, fault, must_fail, is_log); }});
  }
  MESSAGE(action << ": " << cases.size() << " calls struck, " << failing << " must fail the save");
  REQUIRE(!cases.empty());
  for (const std::string& problem : sweep(cases)) FAIL_CHECK(problem);
}

bool is_any(const StorageCall&) {
  return true;
}
bool may_need_space(const StorageCall& call) {
  return !call.is_on("/lock.json") && (call.kind == "write" || call.kind == "sync" || call.kind == "mkdir" ||
                                       call.kind == "rename" || (call.kind == "open" && call.is_on("/.saving-")));
}
bool changes_something(const StorageCall& call) {
  return may_need_space(call) || call.kind == "unlink" || (call.kind == "close" && call.is_on("/.saving-"));
}
bool may_be_interrupted(const StorageCall& call) {
  // Whoever may not look at the lock takes it for lost and does not commit: safe, if not the best.
  if (call.kind == "open" && call.is_on("/lock.json")) return false;
  return call.kind == "open" || call.kind == "write" || call.kind == "sync" || call.kind == "read" ||
         call.kind == "close";
}
bool never(const StorageCall&, long) {
  return false;
}

TEST_CASE("an_input_output_error_at_any_call_of_a_save_fails_it_loudly_and_the_next_one_succeeds") {
  check_every_call("EIO", is_any, is_needed);
}

TEST_CASE("a_full_disk_at_any_call_of_a_save_fails_it_loudly_and_the_next_one_succeeds") {
  check_every_call("ENOSPC", may_need_space, is_needed);
}

TEST_CASE("an_interrupted_call_of_a_save_is_made_again") {
  check_every_call("EINTR", may_be_interrupted, never);
}

TEST_CASE("a_short_write_of_a_save_is_continued") {
  check_every_call(
      "short", [](const StorageCall& call) { return call.kind == "write"; }, never);
}

// Its first write, of whole units, would go past the page cache; the rest is no such write, whose refusal is final.
TEST_CASE("a_write_past_the_page_cache_that_the_file_system_refuses_is_made_through_it") {
  std::set<std::string> seen;
  check_every_call(
      "EINVAL", [&seen](const StorageCall& call) { return is_data_write(call) && seen.insert(call.path).second; },
      never);
  seen.clear();
  check_every_call(
      "EINVAL", [&seen](const StorageCall& call) { return is_data_write(call) && !seen.insert(call.path).second; },
      is_needed);
}

// Network storage denies a success when the answer was lost. The name decides whether a rename took place; written or
// synced data that was denied is never believed.
TEST_CASE("a_call_of_a_save_that_succeeds_and_says_it_failed_leaves_no_doubt_behind") {
  check_every_call("ESTALE-after", changes_something, [](const StorageCall& call, long commit) {
    return is_needed(call, commit) && call.kind != "rename" && call.kind != "mkdir";
  });
}

TEST_CASE("the_last_save_failing_ends_the_run_with_3_and_names_the_file_and_a_second_start_makes_it_good") {
  const std::vector<StorageCall> calls = calls_of_save(fault_steps, "");
  const long commit = commit_of(calls);
  std::vector<SweepCase> cases;
  for (const StorageCall& call : calls) {
    if (!is_needed(call, commit) || call.is_on("/lock.json")) continue;
    const StorageFault fault{.action = "EDQUOT", .at = call.number, .save = fault_steps};
    cases.push_back({"EDQUOT at " + std::to_string(call.number) + " " + call.kind + " " + call.path,
                     [=](const std::string& name) -> std::string {
                       const fs::path run = run_of_step(name, fault_steps - 1);
                       const Ended end = go_on(name, fault);
                       if (end.exit_code != 3) return "exit code " + std::to_string(end.exit_code) + "\n" + end.errors;
                       // The save's id in the path is another one each time.
                       const std::string file = fs::path(call.path).filename().string();
                       const bool is_folder = file.starts_with(".saving-");
                       if (!end.says(is_folder ? "/.saving-" : "/" + file + ":"))
                         return "does not name it\n" + end.errors;
                       if (!end.says("Disk quota exceeded")) return "does not say why\n" + end.errors;
                       if (!has_failed_save(run, fault_steps)) return "no failure in the metrics";
                       if (std::string problem = problem_of(run, {2, 3}); !problem.empty()) return problem;
                       const Ended again = go_on(name);
                       if (again.exit_code != 0) return again.errors;
                       return problem_of(run, {3, 4});
                     }});
  }
  CHECK(cases.size() > 15);
  for (const std::string& problem : sweep(cases)) FAIL_CHECK(problem);
}

// A disk that stays full fails the leftovers' removal as little as it fails anything else that frees space.
TEST_CASE("a_disk_that_stays_full_fails_every_save_and_no_step") {
  const fs::path run = run_of_step("stays-full", 2);
  constexpr long for_ever = 1'000'000;
  const Ended end =
      go_on("stays-full", {.action = "ENOSPC", .at = 1, .save = 3, .kinds = "write,mkdir,allocate", .times = for_ever});
  INFO(end.errors);
  CHECK(end.exit_code == 3);
  CHECK(end.says("No space left on device"));
  CHECK(hidden_names(run, ".").empty());
  for (const int step : {1, 2}) CHECK(verifies(checkpoint(run, step)));
  const Ended again = go_on("stays-full");
  CHECK_MESSAGE(again.exit_code == 0, again.errors);
  CHECK(again.says("resuming from " + checkpoint(run, 2).string()));
  CHECK(problem_of(run, {3, 4}).empty());
}

// The second fsync of a file whose first one failed says nothing about the pages that were lost.
TEST_CASE("a_failed_fsync_is_not_tried_again_on_the_same_file") {
  static const std::vector<StorageCall> calls = calls_of_save(faulted, "sync");
  for (const StorageCall& call : calls) {
    if (!call.is_on(".safetensors")) continue;
    const fs::path run = run_of_step("fsync", 2);
    const fs::path trace = workspace() / "fsync-trace.txt";
    fs::remove(trace);
    const Ended end = go_on("fsync", {.action = "EIO", .at = call.number, .save = faulted, .kinds = "sync"}, trace);
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    CHECK(has_failed_save(run, faulted));
    std::string struck;
    long syncs_of_it = 0;
    const std::vector<StorageCall> seen = read_trace(trace, run);
    for (const StorageCall& other : seen) {
      if (other.number == call.number) struck = other.path;
    }
    REQUIRE(!struck.empty());
    for (const StorageCall& other : seen) syncs_of_it += other.path == struck ? 1 : 0;
    CHECK(syncs_of_it == 1);
    CHECK(problem_of(run, {2, 4}).empty());
  }
}

}  // namespace
}  // namespace scaletrain
