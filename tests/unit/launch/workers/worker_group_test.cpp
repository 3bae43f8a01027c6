// The agent with several workers: they stand and fall together.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "host/machine.h"
#include "host/process/child_process.h"
#include "launch/agent/agent.h"
#include "launch/workers/worker_channel.h"
#include "support/eventually.h"
#include "unit/launch/agent_scene.h"

namespace scaletrain {
namespace {

using Scene = AgentScene;

const Words works = {"work", "60"};
const Words ends = {"exit", "0"};

// Each plays his script once all have come.
Scripts together(const Scene& scene, Scripts scripts) {
  const Words meets = {"meet", scene.file("meeting"), std::to_string(scripts.size())};
  for (Words& words : scripts) words.insert(words.begin(), meets.begin(), meets.end());
  return scripts;
}

}  // namespace

TEST_CASE("workers that agree give the run's result") {
  for (const char* code : {"0", "75"}) {
    CAPTURE(code);
    Scene scene({Scripts{{"exit", code}, {"exit", code}, {"exit", code}}});
    CHECK(static_cast<int>(scene.run()) == std::stoi(code));
    CHECK(scene.starts.size() == 1);
    CHECK(has_no_children());
  }
  Scene mixed({Scripts{{"exit", "0"}, {"exit", "75"}}});
  CHECK(mixed.run() == ExitCode::interrupted);
}

TEST_CASE("every worker is told its rank, the world and one rendezvous; a restart has another") {
  Scene scene({Scripts{{"die", "5", "9"}, works, works}, Scripts{ends, ends, ends}});
  CHECK(scene.run() == ExitCode::finished);
  REQUIRE(scene.slots.size() == 6);
  std::set<std::uint16_t> ports;
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(scene.slots[i].rank == Rank(static_cast<std::int64_t>(i % 3)));
    CHECK(scene.slots[i].world == 3);
    REQUIRE(scene.slots[i].rendezvous);
    CHECK(scene.slots[i].rendezvous->host == "127.0.0.1");
    CHECK(scene.slots[i].rendezvous->port == scene.slots[i / 3 * 3].rendezvous->port);
    CHECK(scene.slots[i].sharers == (available_processors() >= 3 ? 1 : 3));
    CHECK(scene.slots[i].local_rank == scene.slots[i].rank.value());
  }
}

TEST_CASE("one worker that dies ends the others, and all start anew one generation on") {
  Scene scene({Scripts{works, works, {"die", "7", "9"}, works}, Scripts{ends, ends, ends, ends}});
  const MonotonicTime begin = monotonic_now();
  CHECK(scene.run() == ExitCode::finished);
  CHECK(seconds_since(begin) < 50.0);
  REQUIRE(scene.starts.size() == 2);
  CHECK(scene.starts[1].generation == 1);
  CHECK(scene.logged("rank 2: worker"));
  CHECK(scene.logged("was killed by signal 9 (Killed) at step 7"));
  CHECK(has_no_children());
}

TEST_CASE("three deaths of different ranks at one step end the run with 6") {
  const Words dies = {"die", "7", "11"};
  Scene scene({Scripts{dies, works}, Scripts{works, dies}, Scripts{dies, works}, Scripts{ends, ends}});
  scene.lead.max_restarts = 10;
  CHECK(scene.run() == ExitCode::no_progress);
  CHECK(scene.starts.size() == 3);
}

TEST_CASE("workers hear from their agent again and again that they are looked after") {
  const Words listens = {"looked-after", "60"};
  Scene scene({Scripts{listens, listens}});
  scene.lead.max_restarts = 0;
  CHECK(scene.run() == ExitCode::finished);
  CAPTURE(scene.log_text());
  CHECK(scene.starts.size() == 1);
}

TEST_CASE("the hung one of several workers is named by its rank") {
  // Rank 1 is stopped as a whole; rank 0 says that it lives but stands, as one that waits for rank 1.
  Scene scene({Scripts{{"hang", "4"}, {"die", "4", std::to_string(SIGSTOP)}}, Scripts{ends, ends}});
  scene.lead.heartbeat = 3.0;
  CHECK(scene.run() == ExitCode::finished);
  CAPTURE(scene.log_text());
  CHECK(scene.starts.size() == 2);
  CHECK(scene.logged("rank 1: worker"));
  CHECK(scene.logged("supervise.heartbeat"));
  CHECK_FALSE(scene.logged("rank 0: worker"));
  CHECK(has_no_children());
}

TEST_CASE("a worker that stands while another is at its storage is not called hung") {
  // Rank 0 stands in a collective for longer than the heartbeat: rank 1 is saving all the while.
  Scene scene({Scripts{{"later", "4.2", "0", ""}, {"wait", "4.1"}}});
  scene.lead.heartbeat = 3.0;
  CHECK(scene.run() == ExitCode::finished);
  CAPTURE(scene.log_text());
  CHECK(scene.starts.size() == 1);
}

TEST_CASE("a worker that stands while another moves is not called hung") {
  // Rank 0 waits in a collective for longer than the heartbeat: rank 1 computes all the while.
  Scene scene({Scripts{{"later", "4.2", "0", ""}, {"work", "4.1"}}});
  scene.lead.heartbeat = 3.0;
  CHECK(scene.run() == ExitCode::finished);
  CAPTURE(scene.log_text());
  CHECK(scene.starts.size() == 1);
}

TEST_CASE("a worker that ended early does not hide that the others hang") {
  Scene scene({Scripts{ends, {"hang", "4"}}, Scripts{ends, ends}});
  scene.lead.heartbeat = 3.0;
  CHECK(scene.run() == ExitCode::finished);
  CHECK(scene.starts.size() == 2);
  CHECK(scene.logged("rank 1: worker"));
}

TEST_CASE("the error that others only suffer from is the run's, whoever ends first") {
  // Ranks 0 and 2 lose their peer at once; rank 1, the reason, takes longer to leave, but not as long as it is given.
  Scene scene({Scripts{{"fail", "4", "data: nothing from rank 1"},
                       {"later", "0.4", "3", "corpus.bin: offset 17"},
                       {"fail", "4", "pipeline: nothing from rank 1"}}});
  scene.options.settle_seconds = 30.0;
  CHECK(scene.run() == ExitCode::input);
  CHECK(scene.starts.size() == 1);
  CHECK(scene.logged("rank 1: corpus.bin: offset 17"));
  CHECK_FALSE(scene.logged("pipeline: nothing from rank 1"));
  CHECK(has_no_children());
}

TEST_CASE("a worker that has said why it fails but does not leave is believed") {
  Scene scene({Scripts{{"fail", "4", "nothing from rank 1"}, {"explain", "5", "the loss is not finite", "60"}}});
  scene.scripts[0] = together(scene, scene.scripts[0]);
  scene.options.settle_seconds = 1.0;
  CHECK(scene.run() == ExitCode::diverged);
  CHECK(scene.logged("rank 1: the loss is not finite"));
  CHECK(has_no_children());
}

TEST_CASE("an error that all ranks tell alike is told once, as nobody's in particular") {
  const Words diverges = {"fail", "5", "step 5: the loss is not finite"};
  Scene scene({Scripts{diverges, diverges, {"later", "0.1", "5", "step 5: the loss is not finite"}}});
  scene.scripts[0] = together(scene, scene.scripts[0]);
  CHECK(scene.run() == ExitCode::diverged);
  CHECK(scene.starts.size() == 1);
  const std::string text = scene.log_text();
  CAPTURE(text);
  CHECK(text.find("all ranks: step 5: the loss is not finite") != std::string::npos);
  CHECK(text.find("all 3 workers failed alike at step") != std::string::npos);
  CHECK(text.find("rank 0: ") == std::string::npos);
  CHECK(text.find("not finite") == text.rfind("not finite"));
}

TEST_CASE("an error that some ranks tell alike names them") {
  const Words diverges = {"fail", "5", "step 5: the loss is not finite"};
  Scene scene({Scripts{diverges, {"fail", "4", "data: nothing from rank 0"}, diverges}});
  scene.scripts[0] = together(scene, scene.scripts[0]);
  CHECK(scene.run() == ExitCode::diverged);
  CHECK(scene.logged("ranks 0, 2: step 5: the loss is not finite"));
  CHECK(scene.logged("some of the 3 workers failed alike"));
}

TEST_CASE("a death by a signal explains the others' lost peers") {
  Scene scene({Scripts{{"fail", "4", "data: nothing from rank 1"}, {"die", "6", "11"}}});
  scene.lead.max_restarts = 0;
  scene.options.settle_seconds = 30.0;
  CHECK(scene.run() == ExitCode::peer);
  CHECK(scene.logged("rank 1: worker"));
  CHECK(scene.logged("killed by signal 11"));
  CHECK(scene.logged("at step 6"));
}

TEST_CASE("lost peers alone are a failure that a restart may mend") {
  Scene scene({Scripts{{"fail", "4", "data: nothing from rank 1"}, {"hang", "4"}}, Scripts{ends, ends}});
  scene.options.settle_seconds = 0.5;
  CHECK(scene.run() == ExitCode::finished);
  CHECK(scene.starts.size() == 2);
  CHECK(scene.logged("rank 0: data: nothing from rank 1"));
}

TEST_CASE("a signal reaches every worker exactly once") {
  Scene scene({Scripts{{"count", ""}, {"count", ""}, {"count", ""}}});
  for (int rank = 0; rank < 3; ++rank)
    scene.scripts[0][static_cast<std::size_t>(rank)][1] = scene.file("state" + std::to_string(rank));
  const auto content = [&](int rank) { return TempFolder::read(scene.file("state" + std::to_string(rank))); };
  std::thread sender([&] {
    // What the agent must hear first, that all have started, they say before they write their files.
    eventually([&] { return content(0) == "ready" && content(1) == "ready" && content(2) == "ready"; }, 60.0);
    ::kill(::getpid(), SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::kill(::getpid(), SIGTERM);
  });
  CHECK(scene.run() == ExitCode::interrupted);
  sender.join();
  for (int rank = 0; rank < 3; ++rank) CHECK(content(rank) == "1");
  CHECK(scene.starts.size() == 1);
}

TEST_CASE("an interruption while one of the workers is starting up ends all at once") {
  Scene scene({Scripts{{"hang", "0"}, {"slow-start", "60"}}});
  std::thread sender([&] {
    eventually([&] { return scene.logged("workers started"); }, 60.0);
    ::kill(::getpid(), SIGTERM);
  });
  const MonotonicTime begin = monotonic_now();
  CHECK(scene.run() == ExitCode::interrupted);
  sender.join();
  CHECK(seconds_since(begin) < 50.0);
  CHECK(has_no_children());
}

TEST_CASE("a worker that cannot be started takes those before it along") {
  Scene scene({Scripts{works, works, works}});
  const auto arguments = scene.options.arguments;
  scene.options.arguments = [&](const StartPoint& start, const WorkerSlot& slot) {
    if (slot.rank == Rank(2)) throw PeerError("no more processes");
    return arguments(start, slot);
  };
  CHECK_THROWS_AS(scene.run(), PeerError);
  CHECK(has_no_children());
}

TEST_CASE("a restart for which there is no process tries again before it gives up") {
  Scene scene({Scripts{{"die", "5", "9"}, works}, Scripts{ends, ends}});
  const auto arguments = scene.options.arguments;
  int num_refused = 0;
  scene.options.arguments = [&](const StartPoint& start, const WorkerSlot& slot) {
    if (start.generation == 1 && slot.rank == Rank(1) && ++num_refused <= 2) throw PeerError("no more processes");
    auto words = arguments(start, slot);
    // The scene counts the starts of rank 0, and knows two.
    return start.generation == 1 ? ends : words;
  };
  CHECK(scene.run() == ExitCode::finished);
  CHECK(num_refused == 3);
  CHECK(scene.logged("no more processes; tried again in 1 s"));
  CHECK(scene.logged("restart 1 of"));
  CHECK_FALSE(scene.logged("restart 2 of"));
  CHECK(has_no_children());
}

TEST_CASE("a worker that leaves with 1 without a word is started again") {
  Scene scene({Scripts{{"exit", "1"}, works}, Scripts{ends, ends}});
  CHECK(scene.run() == ExitCode::finished);
  CHECK(scene.starts.size() == 2);
  CHECK(scene.logged("rank 0: worker"));
}

TEST_CASE("a lost lock ends all workers") {
  Scene scene({Scripts{works, works}});
  scene.lead.heartbeat = 4.0;
  int questions = 0;
  scene.options.holds_lock = [&questions] { return ++questions < 3; };
  CHECK_THROWS_AS(scene.run(), PeerError);
  CHECK(has_no_children());
}

TEST_CASE("all workers die with a killed agent") {
  block_interrupt_signals();
  const TempFolder folder;
  const ChannelPair pair = make_channel();
  ChildProcess agent({.executable = LAUNCH_TEST_HELPER, .arguments = {"agent", folder.path().string(), "4"}},
                     pair.worker);
  std::vector<std::int64_t> pids;
  for (int rank = 0; rank < 4; ++rank) {
    const auto file = folder / ("worker.pid." + std::to_string(rank));
    REQUIRE(eventually([&] { return std::filesystem::exists(file); }, 60.0));
    pids.push_back(std::stoll(TempFolder::read(file)));
    REQUIRE(process_start_ticks(pids.back()));
  }
  agent.kill();
  for (const std::int64_t pid : pids) CHECK(eventually([&] { return !process_start_ticks(pid); }, 60.0));
}

TEST_CASE("workers get the secret, no launcher's variables, and their share of the processors") {
  ::setenv("RANK", "17", 1);
  ::setenv("LAUNCH_TEST_KEPT", "kept", 1);
  ::setenv("SCALETRAIN_SECRET", "the user's", 1);
  Scene scene({Scripts{{"place", ""}, {"place", ""}}});
  for (std::size_t rank = 0; rank < 2; ++rank) scene.scripts[0][rank][1] = scene.file("place" + std::to_string(rank));
  CHECK(scene.run() == ExitCode::finished);
  ::unsetenv("RANK");
  ::unsetenv("LAUNCH_TEST_KEPT");
  ::unsetenv("SCALETRAIN_SECRET");
  std::vector<std::vector<std::string>> places;
  for (std::size_t rank = 0; rank < 2; ++rank)
    places.push_back(split_text(TempFolder::read(scene.scripts[0][rank][1]), ' '));
  CHECK(places[0][0].size() >= 32);
  CHECK(places[0][0] == places[1][0]);
  CHECK(places[0][1] == "-");
  CHECK(places[0][2] == "kept");
  const std::vector<int> all = affinity_processors();
  if (available_processors() < 2) return;
  std::vector<std::string> both(places[0].begin() + 3, places[0].end());
  both.insert(both.end(), places[1].begin() + 3, places[1].end());
  std::vector<std::string> expected;
  expected.reserve(all.size());
  for (const int processor : all) expected.push_back(std::to_string(processor));
  CHECK(both == expected);
}

TEST_CASE("workers_on_gpus_with_nearer_processors_run_on_all_of_those_and_the_others_on_their_share") {
  const std::vector<int> all = affinity_processors();
  if (all.size() < 2 || available_processors() < 2) return;
  // The other way around than shares would be.
  const std::vector<int> upper(all.begin() + std::ssize(all) / 2, all.end());
  const std::vector<int> lower(all.begin(), all.begin() + std::ssize(all) / 2);
  using Places = std::vector<std::vector<int>>;
  const auto places_of = [](std::size_t ranks, std::vector<std::optional<NearProcessors>> near, std::string& log) {
    Scene scene({Scripts(ranks, {"place", ""})});
    for (std::size_t rank = 0; rank < ranks; ++rank)
      scene.scripts[0][rank][1] = scene.file("place" + std::to_string(rank));
    scene.options.num_gpus = std::ssize(near);
    scene.options.near_gpus = std::move(near);
    CHECK(scene.run() == ExitCode::finished);
    Places places;
    std::vector<std::int64_t> sharers;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::vector<std::string> words = split_text(TempFolder::read(scene.scripts[0][rank][1]), ' ');
      std::vector<int>& place = places.emplace_back();
      for (auto word = words.begin() + 3; word != words.end(); ++word) place.push_back(std::stoi(*word));
      sharers.push_back(scene.slots[rank].sharers);
    }
    log = scene.log_text();
    return std::pair(places, sharers);
  };
  std::string log;
  const auto one_each = places_of(2, {NearProcessors{1, upper}, NearProcessors{0, lower}}, log);
  CHECK(one_each.first == Places{upper, lower});
  CHECK(one_each.second == std::vector<std::int64_t>{1, 1});
  CHECK(log.find("host threads run near their GPU: rank 1 on processors " + processors_text(lower) +
                 " (node 0); rank 0 on processors " + processors_text(upper) + " (node 1)\n") != std::string::npos);
  // Two on one node, in one GPU and in another; and who shares a GPU.
  const auto together = places_of(2, {NearProcessors{1, upper}, NearProcessors{1, upper}}, log);
  CHECK(together.first == Places{upper, upper});
  CHECK(together.second == std::vector<std::int64_t>{2, 2});
  CHECK(log.find("ranks 0, 1 on processors ") != std::string::npos);
  CHECK(places_of(2, {NearProcessors{1, upper}}, log) == together);
  // Of a GPU that is nearer to none.
  const auto mixed = places_of(2, {NearProcessors{1, upper}, std::nullopt}, log);
  CHECK(mixed.first == Places{upper, share_of_processors(all, 1, 2)});
  CHECK(mixed.second == std::vector<std::int64_t>{1, 1});
  CHECK(places_of(2, {std::nullopt, std::nullopt}, log).first ==
        Places{share_of_processors(all, 0, 2), share_of_processors(all, 1, 2)});
  CHECK(log.find("near their GPU") == std::string::npos);
  CHECK(places_of(1, {NearProcessors{1, upper}}, log).first == Places{upper});
}

TEST_CASE("shares of processors are disjoint, complete and as even as they divide") {
  const std::vector<int> processors = {0, 1, 2, 3, 8, 9, 10};
  CHECK(share_of_processors(processors, 0, 3) == std::vector<int>{0, 1});
  CHECK(share_of_processors(processors, 1, 3) == std::vector<int>{2, 3});
  CHECK(share_of_processors(processors, 2, 3) == std::vector<int>{8, 9, 10});
  CHECK(share_of_processors(processors, 0, 8).empty());
  CHECK(share_of_processors({}, 0, 1).empty());
}

}  // namespace scaletrain
