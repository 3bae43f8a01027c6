// Processes that a launcher has started, one per rank, each an agent with one worker: here by hand, with torchrun's
// variables.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>

#include "ranks.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

const std::vector<int> both_finished = {0, 0};
const std::vector<int> both_interrupted = {75, 75};

// A rank other than 0 has come to rank 0. Nothing outside tells that it has been let in, which takes two answers more.
void wait_until_met(Program& rank) {
  REQUIRE_MESSAGE(wait_until([&] { return is_connected(rank.pid()); }, ranks_patience), rank.errors());
  sleep_for(1.0);
}

}  // namespace

TEST_CASE("the_launchers_world_is_what_data_auto_means") {
  const Settings settings = {"parallel.data=auto", "parallel.zero=1"};
  LaunchedRanks ranks(2, "launched", settings);
  CHECK_MESSAGE(ranks.wait() == both_finished, ranks.errors());
  check_same_losses("launched");
  CHECK_FALSE(fs::exists(layout_folder("launched") / "rendezvous.json"));
  CHECK_FALSE(fs::exists(layout_folder("launched") / "lock.json"));
  check_no_process_left("launched");

  LaunchedRanks again(2, "launched", settings);
  CHECK(again.wait() == both_finished);
  CHECK(again.errors().find("already complete") != std::string::npos);
}

TEST_CASE("a_launchers_world_that_the_degrees_do_not_make_is_refused_by_every_rank") {
  LaunchedRanks ranks(3, "misfit", {"parallel.data=2", "parallel.tensor=2"});
  CHECK(ranks.wait() == std::vector<int>{2, 2, 2});
  CHECK(ranks.errors().find("4 ranks") != std::string::npos);
  CHECK(ranks.errors().find("torchrun has started 3 ranks") != std::string::npos);
  CHECK_FALSE(fs::exists(layout_folder("misfit")));
  CHECK(ranks.rank(0).errors().find("--set parallel.") != std::string::npos);

  // A key that stands nowhere has no line; one that does has its own.
  LaunchedRanks unwritten(2, "misfit", {});
  CHECK(unwritten.wait() == std::vector<int>{2, 2});
  CHECK_MESSAGE(unwritten.errors().find("config.yaml: parallel: data 1 x") != std::string::npos, unwritten.errors());
  workspace().write("placed.yaml", read_file(workspace() / "config.yaml") + "parallel:\n  tensor: 3\n");
  LaunchedRanks placed(3);
  for (const int rank : {0, 1, 2}) placed.start(rank, "misfit", {}, {}, "placed.yaml");
  CHECK(placed.wait() == std::vector<int>{2, 2, 2});
  CHECK_MESSAGE(
      placed.rank(0).errors().find("placed.yaml:16:11: parallel.tensor: 3 does not divide") != std::string::npos,
      placed.errors());
}

TEST_CASE("what_rank_0_refuses_ends_every_rank_with_its_code") {
  const Settings settings = {"parallel.data=auto"};
  LaunchedRanks first(2, "refused", settings);
  REQUIRE_MESSAGE(first.wait() == both_finished, first.errors());
  LaunchedRanks second(2, "refused", {"parallel.data=auto", "model.hidden=64", "train.steps=100"});
  CHECK(second.wait() == std::vector<int>{2, 2});
  CHECK(second.rank(0).errors().find("model.hidden") != std::string::npos);
  CHECK(second.rank(1).errors().find("scaletrain: rank 1: ") == 0);
  // The reason's first line, as rank 0 gives it, and nothing else.
  const std::string brief = second.rank(1).errors();
  const std::string reason = brief.substr(20, brief.find(" ...") - 20);
  CHECK_MESSAGE(second.rank(0).errors().find(reason) != std::string::npos, brief);
  CHECK(std::count(brief.begin(), brief.end(), '\n') == 1);
  check_no_process_left("refused");
}

TEST_CASE("data_that_rank_0_alone_looks_at_and_refuses_leaves_nothing_behind") {
  workspace().write("nothing-in-it.txt", "");
  LaunchedRanks ranks(2, "refused-data", {"parallel.data=2", "data.train.0.path=nothing-in-it.txt"});
  const std::vector<int> codes = ranks.wait();
  CHECK_MESSAGE(codes == std::vector<int>(2, 3), ranks.errors());
  CHECK(ranks.rank(0).errors().find("the file is empty") != std::string::npos);
  CHECK_FALSE(fs::exists(layout_folder("refused-data")));
}

TEST_CASE("a_signal_to_one_launched_rank_makes_all_save_and_ask_to_be_run_again") {
  const Settings settings = {"parallel.data=1", "parallel.tensor=2", "train.steps=100000", "checkpoint.every=100000"};
  LaunchedRanks ranks(2, "signalled", settings);
  REQUIRE_MESSAGE(reaches_step(ranks.rank(0), "signalled", 3), ranks.errors());
  ranks.rank(1).signal(SIGTERM);
  CHECK_MESSAGE(ranks.wait() == both_interrupted, ranks.errors());
  const long reached = trajectory_of(layout_folder("signalled")).last_step();
  CHECK(fs::exists(checkpoint(layout_folder("signalled"), static_cast<int>(reached))));
}

TEST_CASE("a_killed_worker_of_a_launched_rank_is_restarted_with_all_others_and_its_launcher_sees_nothing") {
  const Settings settings = {"parallel.data=auto", "train.steps=200", "checkpoint={every: 20, keep: 100}",
                             "evaluate={every: 0}"};
  const Ended alone = run_program(
      layout_launch("mended-alone", {"parallel.data=2", settings[1], settings[2], settings[3]}), ranks_patience);
  REQUIRE_MESSAGE(alone.exit_code == 0, alone.errors);
  LaunchedRanks ranks(2, "mended", settings);
  REQUIRE_MESSAGE(reaches_step(ranks.rank(0), "mended", 25), ranks.errors());
  const std::vector<pid_t> workers = workers_by_rank(ranks.rank(1), 1);
  REQUIRE(workers.size() == 1);
  ::kill(workers.front(), SIGKILL);
  CHECK_MESSAGE(ranks.wait() == both_finished, ranks.errors());
  CHECK_MESSAGE(ranks.rank(0).errors().find("rank 1: worker") != std::string::npos, ranks.errors());
  CHECK(ranks.rank(0).errors().find("restart 1 of 3") != std::string::npos);
  // To the bit as the workers of one agent.
  CHECK(trajectory_of(layout_folder("mended")).steps == trajectory_of(layout_folder("mended-alone")).steps);
  CHECK_FALSE(fs::exists(layout_folder("mended") / "logs" / "agent-01.log"));
  check_no_process_left("mended");
}

// The heartbeat of runs that lose a place: nothing of it lives after half of it.
const std::string short_lease = "supervise.heartbeat=6s";

TEST_CASE("a_launched_rank_that_dies_ends_the_others_with_4") {
  LaunchedRanks ranks(2, "bereft", {"parallel.data=auto", "train.steps=5000", short_lease});
  REQUIRE_MESSAGE(reaches_step(ranks.rank(0), "bereft", 3), ranks.errors());
  ranks.rank(1).signal(SIGKILL);
  CHECK(ranks.wait().front() == 4);
  check_no_process_left("bereft");
}

TEST_CASE("of_launched_ranks_the_one_whose_process_is_gone_is_named_by_all_others") {
  LaunchedRanks ranks(4, "named", {"parallel.data=2", "parallel.pipeline=2", "train.steps=5000", short_lease});
  REQUIRE_MESSAGE(reaches_step(ranks.rank(0), "named", 3), ranks.errors());
  ranks.rank(2).signal(SIGKILL);
  CHECK(ranks.wait() == std::vector<int>{4, 4, -1, 4});
  for (const int rank : {0, 1, 3})
    CHECK_MESSAGE(ranks.rank(rank).errors().find("rank 2 is lost") != std::string::npos, ranks.rank(rank).errors());
}

TEST_CASE("a_stopped_worker_of_a_launched_rank_is_named_all_logs_tell_what_they_are_in_and_the_run_goes_on") {
  const std::string run = "stopped-launched";
  const auto log_of = [&run](int rank) {
    return read_file(layout_folder(run) / "logs" / ("rank-0000" + std::to_string(rank) + ".log"));
  };
  LaunchedRanks ranks(3, run,
                      {"parallel.data=3", "train.global_batch=6", "train.steps=100000", "supervise.heartbeat=4s",
                       "checkpoint.every=100000", "evaluate={every: 0}"});
  REQUIRE_MESSAGE(reaches_step(ranks.rank(0), run, 3), ranks.errors());
  // What it is at has been told by then.
  sleep_for(1.5);
  const std::vector<pid_t> workers = workers_by_rank(ranks.rank(1), 1);
  REQUIRE(workers.size() == 1);
  ::kill(workers.front(), SIGSTOP);
  const auto is_told = [&] {
    return ranks.rank(0).errors().find("restart 1 of") != std::string::npos || !ranks.rank(0).running();
  };
  CHECK(wait_until(is_told, ranks_patience));
  CHECK_MESSAGE(ranks.rank(0).errors().find("rank 1: worker") != std::string::npos, ranks.errors());
  CHECK_MESSAGE(ranks.rank(0).errors().find("is stopped as a whole") != std::string::npos, ranks.errors());
  CHECK(log_of(1).find("taken for hung by the agent: rank 1") != std::string::npos);
  CHECK(log_of(1).find("end of the report") != std::string::npos);
  ranks.rank(2).signal(SIGTERM);
  CHECK_MESSAGE(ranks.wait() == std::vector<int>(3, 75), ranks.errors());
  check_no_process_left(run);
}

TEST_CASE("a_launched_rank_that_is_stopped_with_its_agent_is_named_and_ends_the_others_with_4") {
  for (const int stopped : {0, 1}) {
    const std::string run = "stopped-place-" + std::to_string(stopped);
    LaunchedRanks ranks(
        2, run,
        {"parallel.data=2", "train.steps=100000", short_lease, "checkpoint.every=100000", "evaluate={every: 0}"});
    REQUIRE_MESSAGE(reaches_step(ranks.rank(0), run, 3), ranks.errors());
    const std::vector<pid_t> workers = workers_by_rank(ranks.rank(stopped), 1);
    REQUIRE(workers.size() == 1);
    ranks.rank(stopped).signal(SIGSTOP);
    ::kill(workers.front(), SIGSTOP);
    const Ended& end = ranks.rank(1 - stopped).wait(ranks_patience);
    CHECK_MESSAGE(end.exit_code == 4, end.errors);
    CHECK_MESSAGE(end.says(stopped == 1 ? "rank 1 is lost" : "the coordinator (the agent of rank 0) cannot be reached"),
                  end.errors);
    // When they go on they find that they have no part any more.
    ranks.rank(stopped).signal(SIGCONT);
    ::kill(workers.front(), SIGCONT);
    CHECK_MESSAGE(ranks.rank(stopped).wait(ranks_patience).exit_code == 4, ranks.errors());
    check_no_process_left(run);
  }
}

TEST_CASE("a_lost_lock_is_what_all_launched_ranks_end_for") {
  const std::string run = "lost-lock";
  LaunchedRanks ranks(2, run, {"parallel.data=2", "train.steps=100000", "checkpoint.every=100000"});
  REQUIRE_MESSAGE(reaches_step(ranks.rank(0), run, 3), ranks.errors());
  fs::remove(layout_folder(run) / "lock.json");
  CHECK(ranks.wait() == std::vector<int>{4, 4});
  for (const int rank : {0, 1})
    CHECK_MESSAGE(
        ranks.rank(rank).errors().find("the lock was taken over by another agent or removed") != std::string::npos,
        ranks.rank(rank).errors());
  check_no_process_left(run);
}

TEST_CASE("a_launched_rank_that_dies_while_others_are_awaited_ends_the_start") {
  LaunchedRanks ranks(3);
  const Settings settings = {"parallel.data=3", "train.global_batch=6", short_lease};
  ranks.start(0, "orphaned", settings);
  ranks.start(1, "orphaned", settings);
  // The config is written once rank 0 decides where to begin; then both wait for rank 2.
  REQUIRE(wait_until([] { return fs::exists(layout_folder("orphaned") / "config.yaml"); }, ranks_patience));
  wait_until_met(ranks.rank(1));
  ranks.rank(1).signal(SIGKILL);
  CHECK(ranks.wait() == std::vector<int>{4, -1});
  CHECK_MESSAGE(ranks.rank(0).errors().find("rank 1 is lost") != std::string::npos, ranks.errors());
  CHECK_FALSE(fs::exists(layout_folder("orphaned") / "lock.json"));
}

TEST_CASE("launched_ranks_that_wait_for_another_leave_with_75_when_they_are_interrupted") {
  LaunchedRanks ranks(3);
  const Settings settings = {"parallel.data=3", "train.global_batch=6"};
  ranks.start(0, "awaiting", settings);
  ranks.start(1, "awaiting", settings);
  REQUIRE(wait_until([] { return fs::exists(layout_folder("awaiting") / "config.yaml"); }, ranks_patience));
  wait_until_met(ranks.rank(1));
  ranks.rank(0).signal(SIGTERM);
  ranks.rank(1).signal(SIGTERM);
  CHECK_MESSAGE(ranks.wait() == both_interrupted, ranks.errors());
  CHECK_FALSE(fs::exists(layout_folder("awaiting") / "rendezvous.json"));
}

TEST_CASE("a_reason_that_only_one_launched_rank_has_is_told_to_the_others") {
  const Settings fine = {"parallel.data=2"};
  const Settings lost = {"parallel.data=2", "data.train.0.path=/no/such/text"};
  for (const int bad : {0, 1}) {
    const std::string run = "told-by-" + std::to_string(bad);
    LaunchedRanks ranks(2);
    ranks.start(0, run, bad == 0 ? lost : fine);
    ranks.start(1, run, bad == 1 ? lost : fine);
    CHECK(ranks.wait(60.0) == std::vector<int>{2, 2});
    for (const int rank : {0, 1})
      CHECK_MESSAGE(ranks.rank(rank).errors().find("no such file or folder: \"/no/such/text\"") != std::string::npos,
                    ranks.rank(rank).errors());
  }
  // Nothing is left of a start that no rank could make.
  LaunchedRanks none(2, "told-by-all", lost);
  CHECK(none.wait(60.0) == std::vector<int>{2, 2});
  CHECK_FALSE(fs::exists(layout_folder("told-by-all")));
}

// How often the text is there.
std::size_t count_of(const std::string& text, const std::string& words) {
  std::size_t count = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
  return count;
}

TEST_CASE("a_config_error_is_printed_once_by_rank_0_and_all_leave_with_its_code") {
  const Settings wrong = {"parallel.data=4", "model.hiden=3", "train.micro_batch=many"};
  LaunchedRanks ranks(4, "misspelt", wrong);
  CHECK(ranks.wait(60.0) == std::vector<int>{2, 2, 2, 2});
  CHECK_MESSAGE(ranks.rank(0).errors().find("--set model.hiden=3: unknown key") != std::string::npos, ranks.errors());
  CHECK(ranks.rank(0).errors().find("--set train.micro_batch=many: ") != std::string::npos);
  CHECK(count_of(ranks.errors(), "unknown key") == 1);
  for (const int rank : {1, 2, 3})
    CHECK_MESSAGE(ranks.rank(rank).errors() ==
                      "scaletrain: rank " + std::to_string(rank) + ": exit code 2 for the reason that rank 0 gives\n",
                  ranks.rank(rank).errors());
  CHECK_FALSE(fs::exists(layout_folder("misspelt")));
}

TEST_CASE("a_config_that_only_one_host_has_wrong_ends_all_ranks_soon") {
  // The first has an unknown key and the second is no YAML at all; both still say which folder is meant.
  const std::string good = read_file(workspace() / "config.yaml");
  for (const std::string& damage : {std::string("modle: {layers: 3}\n"), std::string("model: {layers: [3\n")}) {
    const bool is_yaml = damage.front() == 'm' && damage.starts_with("modle");
    const std::string run = is_yaml ? "lone-key" : "lone-text";
    workspace().write("lone.yaml", damage + good);
    LaunchedRanks ranks(3);
    const Settings settings = {"parallel.data=3", "train.global_batch=6"};
    ranks.start(0, run, settings);
    ranks.start(1, run, settings);
    ranks.start(2, run, settings, {}, "lone.yaml");
    CHECK_MESSAGE((ranks.wait(60.0) == std::vector<int>{2, 2, 2}), ranks.errors());
    CHECK_MESSAGE(ranks.rank(2).errors().find("lone.yaml:") != std::string::npos, ranks.rank(2).errors());
    CHECK(ranks.rank(0).errors().find("rank 2 could not start: ") != std::string::npos);
    CHECK(ranks.rank(0).errors().find("lone.yaml:") != std::string::npos);
  }
  // A file that is missing on one host: --set names the folder.
  LaunchedRanks ranks(2);
  ranks.start(0, "lone-file", {"parallel.data=2"});
  ranks.start(1, "lone-file", {"parallel.data=2"}, {}, "none.yaml");
  CHECK_MESSAGE((ranks.wait(60.0) == std::vector<int>{2, 2}), ranks.errors());
  CHECK(ranks.rank(0).errors().find("none.yaml: no such config file") != std::string::npos);
}

TEST_CASE("a_launcher_that_does_not_say_how_many_ranks_a_host_has_still_trains_the_same_losses") {
  LaunchedRanks ranks(2);
  for (const int rank : {0, 1})
    ranks.start(rank, "pytorchjob", {"parallel.data=2"},
                {{"LOCAL_RANK", ""}, {"LOCAL_WORLD_SIZE", ""}, {"MASTER_ADDR", "localhost"}});
  CHECK_MESSAGE(ranks.wait() == both_finished, ranks.errors());
  check_same_losses("pytorchjob");
  // Each rank has its part of the one host's processors.
  const std::string layout = "training from step 0 on 2 ranks: data 2 x tensor 1 x pipeline 1, zero 1, ";
  CHECK_MESSAGE(count_of(ranks.errors(), layout) == 1, ranks.errors());
  const std::string metrics = read_file(layout_folder("pytorchjob") / "metrics.jsonl");
  CHECK(metrics.find("\"layout\":{\"world\":2,\"data\":2,\"tensor\":1,\"pipeline\":1,") != std::string::npos);
}

TEST_CASE("launched_ranks_with_different_settings_are_refused_naming_rank_and_key") {
  LaunchedRanks ranks(2);
  ranks.start(0, "unlike", {"parallel.data=2"});
  ranks.start(1, "unlike", {"parallel.data=2", "train.optimizer.learning_rate=0.5"});
  CHECK(ranks.wait() == std::vector<int>{2, 2});
  CHECK_MESSAGE(ranks.rank(0).errors().find("rank 1 was started with another config than rank 0: "
                                            "train.optimizer.learning_rate: 0.5 here") != std::string::npos,
                ranks.errors());
}

TEST_CASE("a_secret_that_is_too_short_is_refused_and_a_long_one_is_taken") {
  LaunchedRanks shy(2);
  for (const int rank : {0, 1}) shy.start(rank, "short-secret", {"parallel.data=2"}, {{"SCALETRAIN_SECRET", "short"}});
  CHECK(shy.wait() == std::vector<int>{2, 2});
  CHECK(shy.errors().find("SCALETRAIN_SECRET has 5 bytes: at least 16") != std::string::npos);
  LaunchedRanks ranks(2);
  for (const int rank : {0, 1})
    ranks.start(rank, "own-secret", {"parallel.data=2", "launch.interface=lo"},
                {{"SCALETRAIN_SECRET", "0123456789abcdef"}});
  CHECK_MESSAGE(ranks.wait() == both_finished, ranks.errors());
}

TEST_CASE("an_interface_that_does_not_exist_is_refused_however_the_ranks_are_started") {
  LaunchedRanks ranks(2, "no-interface", {"parallel.data=2", "launch.interface=ib7"});
  CHECK(ranks.wait() == std::vector<int>{2, 2});
  CHECK(ranks.errors().find("lo (127.0.0.1)") != std::string::npos);
  const Ended agent =
      run_program(layout_launch("no-interface", {"parallel.data=2", "launch.interface=ib7"}), ranks_patience);
  CHECK(agent.exit_code == 2);
  CHECK(agent.says("launch.interface: "));
}

}  // namespace scaletrain
