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
#include "support/held_port.h"
#include "support/temp_folder.h"
#include "test_tools.h"
#include "train/start_up.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Threads that are the ranks of one start.
struct Ranks {
  explicit Ranks(std::int64_t num_ranks) : world(num_ranks) {}

  LaunchedWorld::Options options(std::int64_t rank) const {
    LauncherPlace place{
        .launcher = "torchrun", .rank = rank, .world = world, .local_rank = rank, .local_world = world, .job = job};
    return {.paths = RunPaths(folder.path()), .place = place, .secret = secret, .seconds = 60.0, .farewell = 60.0};
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
    std::this_thread::sleep_for(std::chrono::milliseconds(250));  // it has looked
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
    const auto cause = world->told_failure(60.0);
    return cause ? std::to_string(cause->rank) + " " + std::to_string(static_cast<int>(cause->code)) + cause->message
                 : "none";
  };
  std::string own;
  const auto results = others(3, body, [&] {
    const auto world = join(ranks.options(0));
    const auto cause = world->told_failure(60.0);
    if (cause) own = cause->message;
    // Who waits for the start hears of it instead.
  });
  CHECK(own == "corpus.bin: \"offset\" 17");
  CHECK(results[1] == "2 3corpus.bin: \"offset\" 17");
  CHECK(results[2] == "2 3corpus.bin: \"offset\" 17");
}

TEST_CASE("a failure of rank 0 before the start ends the others' waiting") {
  const Ranks ranks(2);
  std::atomic<bool> is_in{false};
  const auto body = [&](std::int64_t rank) {
    const auto world = join(ranks.options(rank));
    is_in = true;
    const auto start = world->await_start();
    const auto cause = world->told_failure(0.0);
    return start ? "started" : cause ? cause->message : "nothing";
  };
  const auto results = others(2, body, [&] {
    const auto world = join(ranks.options(0));
    eventually([&] { return is_in.load(); });
    world->tell_failure({.rank = 0, .code = ExitCode::usage, .message = "model.layers cannot change"});
  });
  CHECK(results[1] == "model.layers cannot change");
}

TEST_CASE("a start that rank 0 could not lock is refused for all; an old refusal is not read") {
  Ranks ranks(2);
  const RunPaths paths(ranks.folder.path());
  refuse_start(paths, ranks.options(0).place, {.rank = 0, .code = ExitCode::usage, .message = "old"});
  std::optional<SharedFailure> refused;
  std::atomic<int> looks{0};
  const auto body = [&](std::int64_t rank) {
    LaunchedWorld::Options options = ranks.options(rank);
    options.interrupted = [&looks] {
      ++looks;
      return false;
    };
    LaunchedWorld::join(options, refused);
    return std::string("joined");
  };
  const auto results = others(2, body, [&] {
    eventually([&] { return looks >= 3; });  // it has seen the old one
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

TEST_CASE("ranks say by themselves which of them share a host, whatever the launcher knows") {
  const Ranks ranks(4);
  const auto options = [&](std::int64_t rank) {
    LaunchedWorld::Options unknown = ranks.options(rank);
    unknown.place.local_rank = 0;
    unknown.place.local_world = 1;
    unknown.interface = "lo";
    return unknown;
  };
  const auto text = [](const std::vector<std::int64_t>& list) {
    std::string out;
    for (const std::int64_t rank : list) out += std::to_string(rank) + " ";
    return out;
  };
  std::string own;
  const auto results = others(
      4, [&](std::int64_t rank) { return text(join(options(rank))->host_ranks()); },
      [&] { own = text(join(options(0))->host_ranks()); });
  CHECK(own == "0 1 2 3 ");
  for (std::size_t rank = 1; rank < 4; ++rank) CHECK(results[rank] == "0 1 2 3 ");
}

TEST_CASE("what rank 0 refuses the start for is known before anybody can come in") {
  const Ranks ranks(2);
  LaunchedWorld::Options options = ranks.options(0);
  options.refusal = SharedFailure{.rank = 0, .code = ExitCode::usage, .message = "c.yaml:3:1: model.layers"};
  const auto world = join(options);
  const auto other = join(ranks.options(1));
  other->tell_failure({.rank = 1, .code = ExitCode::usage, .message = "later"});
  const auto cause = other->told_failure(0.0);
  REQUIRE(cause);
  CHECK(cause->rank == 0);
  CHECK(cause->message == "c.yaml:3:1: model.layers");
}

TEST_CASE("a rank that has not come is named, and so is nobody who has") {
  const Ranks ranks(4);
  LaunchedWorld::Options options = ranks.options(0);
  options.seconds = 1.0;
  const auto world = join(options);
  const auto present = join(ranks.options(2));
  try {
    world->processor_sharers();
    FAIL("expected a PeerError");
  } catch (const PeerError& error) {
    CHECK(std::string(error.what()).find("ranks 1, 3 have not come within 1 s") == 0);
  }
}

TEST_CASE("whom a rank waits for is told after a while, then seldom") {
  const Ranks ranks(4);
  std::vector<std::string> told;
  LaunchedWorld::Options options = ranks.options(3);
  options.seconds = 2.0;
  options.notice = WaitNotice(0.1, 60.0);
  options.waiting = [&told](const std::string& text) { told.push_back(text); };
  CHECK_THROWS_AS(join(options), PeerError);
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("waiting for rank 0: no rendezvous of this start in ") == 0);
  told.clear();
  options.place.rank = 0;
  const auto world = join(options);
  const auto present = join(ranks.options(2));
  CHECK_THROWS_AS(world->host_ranks(), PeerError);
  REQUIRE(told.size() == 1);
  CHECK(told[0] == "waiting for ranks 1, 3; all must come within 2 s");
}

TEST_CASE("a wait is told at its first time and then once a period") {
  WaitNotice notice(10.0, 60.0);
  CHECK_FALSE(notice.is_due(9.9));
  CHECK(notice.is_due(10.5));
  CHECK_FALSE(notice.is_due(60.0));
  CHECK(notice.is_due(70.6));
  CHECK_FALSE(notice.is_due(71.0));
}

TEST_CASE("an interruption ends the waits for other ranks and the late farewell") {
  const Ranks ranks(3);
  std::atomic<bool> interrupted{false};
  LaunchedWorld::Options options = ranks.options(0);
  options.seconds = 600.0;
  options.interrupted = [&] { return interrupted.load(); };
  const MonotonicTime begin = monotonic_now();
  {
    const auto world = join(options);
    std::thread signal([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // in the midst of the wait
      interrupted = true;
    });
    CHECK_THROWS_AS(world->processor_sharers(), PeerError);
    CHECK(world->was_interrupted());
    signal.join();
  }
  CHECK(seconds_since(begin) < 60.0);
}

TEST_CASE("a rank that is gone without a word ends the others' waits and is named as the cause") {
  const Ranks ranks(4);
  LaunchedWorld::Options options = ranks.options(0);
  options.seconds = 0.2;  // for those who come late
  const auto world = join(options);
  const auto other = join(ranks.options(1));
  world->store().set(lost_member_key, "2");  // as the server does, see rendezvous.h
  const auto ended = [](LaunchedWorld& who) {
    try {
      who.store().wait("never", 600.0);
    } catch (const PeerError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(ended(*world).find("rank 2 is gone") == 0);
  CHECK(ended(*other).find("rank 2 is gone") == 0);
  CHECK_FALSE(other->await_start());
  const auto cause = other->cause(0.0);
  REQUIRE(cause);
  CHECK(cause->rank == 2);
  CHECK(cause->code == ExitCode::peer);
  CHECK(cause->is_silent);
  // What a rank has told says more than that another is gone.
  world->tell_failure({.rank = 3, .code = ExitCode::input, .message = "the corpus is damaged"});
  CHECK(other->cause(0.0)->rank == 3);
}

TEST_CASE("a start-up that may wait a day ends when a rank is gone or this one is to leave") {
  const Ranks ranks(3);
  std::atomic<bool> interrupted{false};
  LaunchedWorld::Options options = ranks.options(0);
  options.interrupted = [&] { return interrupted.load(); };
  options.farewell = 0.2;
  options.seconds = 0.2;  // for those who come late
  const auto world = join(options);
  StartUp start_up({.rank = Rank(0), .world = 3, .local_rank = 1, .rendezvous = &world->store()}, 0);
  std::string reason;
  const auto ended = [&](const std::function<void()>& wait) {
    try {
      wait();
    } catch (const PeerError& error) {
      reason = error.what();
    }
  };
  SUBCASE("gone before the data is open") {
    world->store().set(lost_member_key, "1");
    ended([&] { start_up.first_on_host([] {}); });
    CHECK(reason.find("rank 1 is gone") == 0);
  }
  SUBCASE("gone before all have arrived") {
    world->store().set(lost_member_key, "1");
    ended([&] { start_up.wait_for_all(); });
    CHECK(reason.find("rank 1 is gone") == 0);
  }
  SUBCASE("asked to leave") {
    interrupted = true;
    ended([&] { start_up.wait_for_all(); });
    CHECK(reason.find("interrupted while waiting") == 0);
    CHECK(world->was_interrupted());
  }
}

TEST_CASE("a told failure ends the waits of the others") {
  const Ranks ranks(2);
  const auto world = join(ranks.options(0));
  const auto other = join(ranks.options(1));
  other->tell_failure({.rank = 1, .code = ExitCode::input, .message = "the corpus is damaged"});
  std::string reason;
  try {
    world->store().wait("never", 600.0);
  } catch (const PeerError& error) {
    reason = error.what();
  }
  CHECK(reason == "rank 1 failed: the corpus is damaged");
}

TEST_CASE("without rank 0's rendezvous it is rank 0 that is gone") {
  const Ranks ranks(2);
  LaunchedWorld::Options options = ranks.options(0);
  options.farewell = 0.2;
  auto world = join(options);
  const auto other = join(ranks.options(1));
  std::thread leaves([&] { world.reset(); });
  CHECK_THROWS_AS(other->store().wait("never", 600.0), PeerError);
  leaves.join();
  const auto cause = other->cause(3.0);
  REQUIRE(cause);
  CHECK(cause->rank == 0);
}

TEST_CASE("a rank that comes after rank 0 has failed reads why") {
  const Ranks ranks(3);
  {
    LaunchedWorld::Options first = ranks.options(0);
    first.seconds = 0.2;
    const auto world = join(first);
    world->tell_failure({.rank = 0, .code = ExitCode::usage, .message = "no such interface"});
  }
  std::optional<SharedFailure> refused;
  LaunchedWorld::Options options = ranks.options(2);
  options.believed_after = 0.3;
  CHECK_THROWS_AS(LaunchedWorld::join(options, refused), PeerError);
  REQUIRE(refused);
  CHECK(refused->code == ExitCode::usage);
  CHECK(refused->message == "no such interface");
  // A new start of rank 0 voids it.
  forget_refusal(RunPaths(ranks.folder.path()));
  options.seconds = 0.5;
  refused.reset();
  CHECK_THROWS_AS(LaunchedWorld::join(options, refused), PeerError);
  CHECK_FALSE(refused);
}

TEST_CASE("a note of the same job is believed at once, one of another job or of long ago never") {
  Ranks ranks(2);
  ranks.job = "7.1";
  const RunPaths paths(ranks.folder.path());
  LauncherPlace writer = ranks.options(0).place;
  std::optional<SharedFailure> refused;
  LaunchedWorld::Options options = ranks.options(1);
  options.seconds = 0.4;
  options.believed_after = 0.0;
  SUBCASE("same job") {
    options.believed_after = 600.0;
    refuse_start(paths, writer, {.rank = 0, .code = ExitCode::input, .message = "x"});
    CHECK_THROWS_AS(LaunchedWorld::join(options, refused), PeerError);
    CHECK(refused);
  }
  SUBCASE("another job") {
    writer.job = "7.0";
    refuse_start(paths, writer, {.rank = 0, .code = ExitCode::input, .message = "x"});
    CHECK_THROWS_AS(LaunchedWorld::join(options, refused), PeerError);
    CHECK_FALSE(refused);
  }
  SUBCASE("of long ago, on another host") {
    options.place.job.clear();
    ranks.folder.write(".lock.json.refused",
                       R"({"rank":0,"code":3,"message":"x","id":"1","job":"","boot":"other","monotonic":1.0})");
    fs::last_write_time(ranks.folder / ".lock.json.refused",
                        fs::file_time_type::clock::now() - std::chrono::seconds(400));
    CHECK_THROWS_AS(LaunchedWorld::join(options, refused), PeerError);
    CHECK_FALSE(refused);
  }
}

TEST_CASE("without the secret that the others have, a rank says so at the deadline") {
  Ranks ranks(2);
  ranks.secret = make_secret();
  LaunchedWorld::Options first = ranks.options(0);
  first.seconds = 0.2;  // for those who come late
  const auto world = join(first);
  const auto reason = [&](const std::string& secret) {
    LaunchedWorld::Options options = ranks.options(1);
    options.secret = secret;
    options.seconds = 0.5;
    try {
      join(options);
    } catch (const PeerError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(reason("").find("rank 0 was given SCALETRAIN_SECRET and this rank was not") != std::string::npos);
  CHECK(reason("another secret, as long").find("refused this process's secret") != std::string::npos);
}

TEST_CASE("rank 0 serves on the interface and port that it is told") {
  const Ranks ranks(2);
  const HeldPort held;
  const std::uint16_t port = held.port();
  LaunchedWorld::Options options = ranks.options(0);
  options.interface = "lo";
  options.port = port;
  const auto world = join(options);
  CHECK(world->address() == RendezvousAddress{"127.0.0.1", port});
  const auto other = join(ranks.options(1));
  CHECK(other->address() == world->address());
}

TEST_CASE("another start's rendezvous file is not removed") {
  const Ranks ranks(2);
  RendezvousFile theirs;
  {
    LaunchedWorld::Options options = ranks.options(0);
    options.seconds = 0.1;
    const auto world = join(options);
    theirs = {.address = world->address(), .secret = "of another host", .job = ""};
    write_rendezvous_file(RunPaths(ranks.folder.path()), theirs);
  }
  CHECK(read_rendezvous_file(RunPaths(ranks.folder.path())) == theirs);
}

TEST_CASE("an interface is found by name or address, and a wrong one is answered with those there are") {
  CHECK(address_of_interface("lo") == "127.0.0.1");
  CHECK(address_of_interface("127.0.0.1") == "127.0.0.1");
  try {
    address_of_interface("ib7");
    FAIL("expected a UserError");
  } catch (const UserError& error) {
    CHECK(std::string(error.what()).find("launch.interface: ") == 0);
    CHECK(std::string(error.what()).find("\"ib7\"") != std::string::npos);
    CHECK(std::string(error.what()).find("lo (127.0.0.1)") != std::string::npos);
  }
}

TEST_CASE("the address towards this host is the one it is reached by") {
  CHECK(address_towards("127.0.0.1") == "127.0.0.1");
  CHECK_FALSE(address_towards("").empty());
  CHECK_THROWS_AS(address_towards("no such host"), PeerError);
}

}  // namespace scaletrain
