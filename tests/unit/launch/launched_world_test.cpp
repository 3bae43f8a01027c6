#include "launch/launched_world.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "launch/machine.h"
#include "support/temp_folder.h"
#include "test_tools.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Threads that are the ranks of one start.
struct Ranks {
  explicit Ranks(std::int64_t num_ranks) : world(num_ranks) {}

  LaunchedWorld::Options options(std::int64_t rank) const {
    LauncherPlace place{
        .launcher = "torchrun", .rank = rank, .world = world, .local_rank = rank, .local_world = world, .job = job};
    return {.paths = RunPaths(folder.path()), .place = place, .secret = secret, .seconds = 20.0, .farewell = 5.0};
  }
  fs::path file() const { return folder / "rendezvous.json"; }

  TempFolder folder;
  std::int64_t world;
  std::string job{};
  std::string secret{};
};

std::unique_ptr<LaunchedWorld> join(const LaunchedWorld::Options& options) {
  std::optional<SharedFailure> refused;
  return LaunchedWorld::join(options, refused);
}

// Runs body(rank) for the ranks beyond 0 in threads; what they return, "error: ..." for what they throw.
std::vector<std::string> others(std::int64_t world, const std::function<std::string(std::int64_t)>& body,
                                const std::function<void()>& rank_0) {
  std::vector<std::string> results(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (std::int64_t rank = 1; rank < world; ++rank) {
    threads.emplace_back([&results, &body, rank] {
      std::string& result = results[static_cast<std::size_t>(rank)];
      try {
        result = body(rank);
      } catch (const std::exception& error) {
        result = std::string("error: ") + error.what();
      }
    });
  }
  rank_0();
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::string text_of(const SharedStart& shared) {
  return (shared.start.checkpoint ? shared.start.checkpoint->string() : "none") + " " +
         std::to_string(shared.start.step) + " " + std::to_string(shared.start.generation) + " " + shared.start.asked +
         " " + shared.lock_id + (shared.is_complete ? " complete" : "");
}

}  // namespace

TEST_CASE("all ranks hear where rank 0 begins, and the file is private and gone at the end") {
  const Ranks ranks(4);
  mode_t mode = 0;
  const auto body = [&](std::int64_t rank) {
    const auto world = join(ranks.options(rank));
    const auto start = world->await_start();
    return start ? text_of(*start) : "nothing";
  };
  const auto results = others(4, body, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others wait for the file
    const auto world = join(ranks.options(0));
    struct stat status {};
    if (::stat(ranks.file().c_str(), &status) == 0) mode = status.st_mode & 0777;
    world->announce({.start = {"c/step-5", 5, 3, "/asked"}, .lock_id = "abc"});
  });
  for (std::size_t rank = 1; rank < 4; ++rank) CHECK(results[rank] == "c/step-5 5 3 /asked abc");
  CHECK(mode == 0600);
  CHECK_FALSE(fs::exists(ranks.file()));
}

TEST_CASE("a start from initial weights and a complete run are told too") {
  const Ranks ranks(2);
  for (const bool is_complete : {false, true}) {
    const auto body = [&](std::int64_t rank) { return text_of(*join(ranks.options(rank))->await_start()); };
    const auto results = others(2, body, [&] {
      join(ranks.options(0))->announce({.start = {}, .lock_id = "abc", .is_complete = is_complete});
    });
    CHECK(results[1] == std::string("none 0 0  abc") + (is_complete ? " complete" : ""));
  }
}

TEST_CASE("a secret that all were given is not written down") {
  Ranks ranks(2);
  ranks.secret = make_secret();
  std::string text;
  const auto body = [&](std::int64_t rank) { return text_of(*join(ranks.options(rank))->await_start()); };
  const auto results = others(2, body, [&] {
    const auto world = join(ranks.options(0));
    text = TempFolder::read(ranks.file());
    world->announce({.start = {}, .lock_id = "abc"});
  });
  CHECK(results[1] == "none 0 0  abc");
  CHECK(text.find(ranks.secret) == std::string::npos);
}

TEST_CASE("what another start has left behind is not taken for this one") {
  Ranks ranks(2);
  ranks.job = "42.0";
  std::unique_ptr<RendezvousServer> old;  // of a start that still lives
  const std::string old_secret = make_secret();
  SUBCASE("a server that is gone") {
    write_rendezvous_file(RunPaths(ranks.folder.path()), {.address = {"127.0.0.1", 1}, .secret = old_secret});
  }
  SUBCASE("another job's server") {
    old = std::make_unique<RendezvousServer>(RendezvousServer::Options{.secret = old_secret});
    write_rendezvous_file(RunPaths(ranks.folder.path()),
                          {.address = old->address(), .secret = old_secret, .job = "41.0"});
  }
  SUBCASE("a server in which this rank has come in before") {
    old = std::make_unique<RendezvousServer>(RendezvousServer::Options{.secret = old_secret});
    old->local_store()->add("launch/joined/1", 1);
    write_rendezvous_file(RunPaths(ranks.folder.path()), {.address = old->address(), .secret = old_secret});
  }
  SUBCASE("half a file") {
    ranks.folder.write("rendezvous.json", R"({"host": "127.)");
  }
  const auto body = [&](std::int64_t rank) { return text_of(*join(ranks.options(rank))->await_start()); };
  const auto results = others(2, body, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    join(ranks.options(0))->announce({.start = {}, .lock_id = "new"});
  });
  CHECK(results[1] == "none 0 0  new");
}

TEST_CASE("the first failure that is told is the cause for everyone") {
  const Ranks ranks(3);
  std::atomic<bool> is_told{false};
  const auto body = [&](std::int64_t rank) {
    const auto world = join(ranks.options(rank));
    if (rank == 2) {
      world->tell_failure({.rank = 2, .code = ExitCode::input, .message = "corpus.bin: \"offset\" 17"});
      is_told = true;
    } else {
      eventually([&] { return is_told.load(); });
      world->tell_failure({.rank = 1, .code = ExitCode::bug, .message = "later"});
    }
    const auto cause = world->told_failure(5.0);
    return cause ? std::to_string(cause->rank) + " " + std::to_string(static_cast<int>(cause->code)) + cause->message
                 : "none";
  };
  std::string own;
  const auto results = others(3, body, [&] {
    const auto world = join(ranks.options(0));
    const auto cause = world->told_failure(10.0);
    if (cause) own = cause->message;
    // Who waits for the start hears of it instead.
  });
  CHECK(own == "corpus.bin: \"offset\" 17");
  CHECK(results[1] == "2 3corpus.bin: \"offset\" 17");
  CHECK(results[2] == "2 3corpus.bin: \"offset\" 17");
}

TEST_CASE("a failure of rank 0 before the start ends the others' waiting") {
  const Ranks ranks(2);
  const auto body = [&](std::int64_t rank) {
    const auto world = join(ranks.options(rank));
    const auto start = world->await_start();
    const auto cause = world->told_failure(0.0);
    return start ? "started" : cause ? cause->message : "nothing";
  };
  const auto results = others(2, body, [&] {
    const auto world = join(ranks.options(0));
    world->tell_failure({.rank = 0, .code = ExitCode::usage, .message = "model.layers cannot change"});
  });
  CHECK(results[1] == "model.layers cannot change");
}

TEST_CASE("a start that rank 0 could not lock is refused for all; an old refusal is not read") {
  Ranks ranks(2);
  const RunPaths paths(ranks.folder.path());
  refuse_start(paths, ranks.options(0).place, {.rank = 0, .code = ExitCode::usage, .message = "old"});
  std::optional<SharedFailure> refused;
  const auto body = [&](std::int64_t rank) {
    LaunchedWorld::join(ranks.options(rank), refused);
    return std::string("joined");
  };
  const auto results = others(2, body, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    refuse_start(paths, ranks.options(0).place, {.rank = 0, .code = ExitCode::usage, .message = "held by another"});
  });
  CHECK(results[1] == "error: rank 0 could not start: held by another");
  REQUIRE(refused);
  CHECK(refused->code == ExitCode::usage);
  // A start that succeeds takes the note away.
  const auto later = others(
      2, [&](std::int64_t rank) { return text_of(*join(ranks.options(rank))->await_start()); },
      [&] { join(ranks.options(0))->announce({.start = {}, .lock_id = "x"}); });
  CHECK(later[1] == "none 0 0  x");
  CHECK(std::none_of(fs::directory_iterator(ranks.folder.path()), fs::directory_iterator(),
                     [](const auto& entry) { return entry.is_regular_file(); }));
}

TEST_CASE("a rank that nobody calls in names the folder and gives up, or leaves when interrupted") {
  const Ranks ranks(2);
  LaunchedWorld::Options options = ranks.options(1);
  options.seconds = 0.3;
  try {
    join(options);
    FAIL("expected a PeerError");
  } catch (const PeerError& error) {
    CHECK(std::string(error.what()).find("rank 1 of 2") != std::string::npos);
    CHECK(std::string(error.what()).find(ranks.file().string()) != std::string::npos);
  }
  options.seconds = 20.0;
  options.interrupted = [] { return true; };
  CHECK(join(options) == nullptr);
}

TEST_CASE("ranks on the same processors know how many share them") {
  const Ranks ranks(3);
  const auto body = [&](std::int64_t rank) { return std::to_string(join(ranks.options(rank))->processor_sharers()); };
  std::string own;
  const auto results = others(3, body, [&] { own = std::to_string(join(ranks.options(0))->processor_sharers()); });
  CHECK(own == "3");
  CHECK(results[1] == "3");
  CHECK(results[2] == "3");
}

TEST_CASE("the address towards this host is the one it is reached by") {
  CHECK(address_towards("127.0.0.1") == "127.0.0.1");
  CHECK_FALSE(address_towards("").empty());
  CHECK_THROWS_AS(address_towards("no such host"), PeerError);
}

}  // namespace scaletrain
