// How the agents of a start find each other through the run folder, and what they do not take for it.
#include "launch/meeting/meeting.h"

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
#include "launch/meeting/backoff.h"
#include "support/eventually.h"
#include "support/held_port.h"
#include "support/temp_folder.h"
#include "support/text.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Places with one worker each, of one start, all on this host.
struct Places {
  explicit Places(std::int64_t num_places) : world(num_places) {}

  Meeting::Options options(std::int64_t rank) const {
    LauncherPlace place{
        .launcher = "torchrun", .rank = rank, .world = world, .local_rank = rank, .local_world = world, .job = job};
    return {.paths = paths(), .place = place, .secret = secret, .seconds = 60.0};
  }
  RunPaths paths() const { return RunPaths(folder.path()); }
  fs::path file() const { return folder / "rendezvous.json"; }

  TempFolder folder;
  std::int64_t world;
  std::string job{};
  std::string secret{};
};

std::unique_ptr<Meeting> join(const Meeting::Options& options, const std::string& config = "") {
  std::optional<ExitStatus> noted;
  return Meeting::join(options, {.config = config}, noted);
}

// What an agent that comes hears of the first, "error: ..." where none is to be found.
std::string config_of_first(const Meeting::Options& options) {
  try {
    const auto meeting = join(options);
    return meeting ? meeting->basis().config : "interrupted";
  } catch (const std::exception& error) {
    return std::string("error: ") + error.what();
  }
}

}  // namespace

TEST_CASE("all agents find the first, and its file is private and gone at the end") {
  const Places places(4);
  std::vector<std::string> heard(4);
  std::vector<std::thread> others;
  for (std::size_t rank = 1; rank < 4; ++rank)
    others.emplace_back([&, rank] { heard[rank] = config_of_first(places.options(static_cast<std::int64_t>(rank))); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others wait for the file
  {
    const auto first = join(places.options(0), "c");
    struct stat status {};
    REQUIRE(::stat(places.file().c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    for (std::thread& other : others) other.join();
  }
  for (std::size_t rank = 1; rank < 4; ++rank) CHECK(heard[rank] == "c");
  CHECK_FALSE(fs::exists(places.file()));
}

TEST_CASE("an agent without others writes no file, and its workers meet on this host") {
  const Places places(1);
  Meeting::Options options = places.options(0);
  options.place = lone_place();
  const auto meeting = join(options);
  CHECK_FALSE(fs::exists(places.file()));
  CHECK(meeting->is_serving());
  meeting->connect()->set("key", "value");
  CHECK(meeting->connect()->find("key") == "value");
  CHECK(meeting->serve_workers(1, true).address.port == 0);
  const WorkersRendezvous rendezvous = meeting->serve_workers(2, true);
  CHECK(rendezvous.address.host == "127.0.0.1");
  CHECK(connect_store(rendezvous.address, meeting->workers_secret(rendezvous), 60.0));
}

TEST_CASE("each round's workers have a rendezvous and a secret of their own") {
  const Places places(2);
  const auto first = join(places.options(0));
  const auto other = join(places.options(1));
  const WorkersRendezvous one = first->serve_workers(2, false);
  CHECK(other->workers_secret(one) == first->workers_secret(one));
  CHECK(connect_store(one.address, other->workers_secret(one), 60.0));
  const WorkersRendezvous two = first->serve_workers(2, false);
  CHECK(other->workers_secret(two) != other->workers_secret(one));
  CHECK_THROWS_AS(connect_store(two.address, other->workers_secret(one), 60.0), PeerError);
}

TEST_CASE("a secret that all were given is not written down") {
  Places places(2);
  places.secret = make_secret();
  const auto first = join(places.options(0), "c");
  CHECK(config_of_first(places.options(1)) == "c");
  CHECK_FALSE(contains(TempFolder::read(places.file()), places.secret));
}

TEST_CASE("what another start has left behind is not taken for this one") {
  Places places(2);
  places.job = "42.0";
  std::unique_ptr<RendezvousServer> old;  // of a start that still lives
  const std::string old_secret = make_secret();
  SUBCASE("a server that is gone") {
    write_rendezvous_file(places.paths(), {.address = {"127.0.0.1", 1}, .secret = old_secret});
  }
  SUBCASE("another job's server") {
    old = std::make_unique<RendezvousServer>(RendezvousServer::Options{.secret = old_secret});
    write_rendezvous_file(places.paths(), {.address = old->address(), .secret = old_secret, .job = "41.0"});
  }
  SUBCASE("half a file") {
    places.folder.write("rendezvous.json", R"({"host": "127.)");
  }
  std::string heard;
  std::thread other([&] { heard = config_of_first(places.options(1)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(250));  // it has looked
  const auto first = join(places.options(0), "new");
  other.join();
  CHECK(heard == "new");
}

TEST_CASE("a start that the first could not lock is refused for all; an old note is not read") {
  Places places(2);
  leave_end_note(places.paths(), places.options(0).place, {.code = ExitCode::usage, .message = "old"});
  std::optional<ExitStatus> noted;
  std::atomic<int> looks{0};
  std::string result;
  std::thread other([&] {
    Meeting::Options options = places.options(1);
    options.interrupted = [&looks] {
      ++looks;
      return false;
    };
    try {
      Meeting::join(options, {}, noted);
    } catch (const PeerError& error) {
      result = error.what();
    }
  });
  CHECK(eventually([&] { return looks >= 3; }));  // it has seen the old one
  leave_end_note(places.paths(), places.options(0).place, {.code = ExitCode::usage, .message = "held by another"});
  other.join();
  CHECK(result == "rank 0 could not start: held by another");
  REQUIRE(noted);
  CHECK(noted->code == ExitCode::usage);
  // A start that succeeds takes the note away.
  {
    const auto first = join(places.options(0), "c");
    CHECK(config_of_first(places.options(1)) == "c");
  }
  CHECK(std::none_of(fs::directory_iterator(places.folder.path()), fs::directory_iterator(),
                     [](const auto& entry) { return entry.is_regular_file(); }));
}

TEST_CASE("an agent that nobody calls in names the folder and gives up, or leaves when interrupted") {
  const Places places(2);
  Meeting::Options options = places.options(1);
  options.seconds = 0.3;
  const std::string error = config_of_first(options);
  CHECK(contains(error, "rank 1 of 2"));
  CHECK(contains(error, places.file().string()));
  options.seconds = 20.0;
  options.interrupted = [] { return true; };
  CHECK(config_of_first(options) == "interrupted");
}

TEST_CASE("an interruption ends the wait for the first at once, however seldom it is looked for") {
  const Places places(2);
  std::atomic<bool> interrupted{false};
  Meeting::Options options = places.options(1);
  options.interrupted = [&] { return interrupted.load(); };
  std::thread signal([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // in the midst of the wait
    interrupted = true;
  });
  const MonotonicTime begin = monotonic_now();
  CHECK(config_of_first(options) == "interrupted");
  CHECK(seconds_since(begin) < 30.0);
  signal.join();
}

TEST_CASE("whom an agent waits for is told after a while, then seldom") {
  const Places places(4);
  std::vector<std::string> told;
  Meeting::Options options = places.options(3);
  options.seconds = 2.0;
  options.notice = WaitNotice(0.1, 60.0);
  options.waiting = [&told](const std::string& text) { told.push_back(text); };
  CHECK(contains(config_of_first(options), "error: "));
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("waiting for rank 0: no rendezvous of this start in ") == 0);
}

TEST_CASE("a wait is told at its first time and then once a period") {
  WaitNotice notice(10.0, 60.0);
  CHECK_FALSE(notice.is_due(9.9));
  CHECK(notice.is_due(10.5));
  CHECK_FALSE(notice.is_due(60.0));
  CHECK(notice.is_due(70.6));
  CHECK_FALSE(notice.is_due(71.0));
}

TEST_CASE("those who wait look less and less often, never in step, and all together a hundred times a second at most") {
  const auto looks_in = [](std::int64_t index, std::int64_t count, double seconds) {
    Backoff backoff(index, count);
    int looks = 0;
    for (double clock = 0.0; clock < seconds; clock += backoff.next()) ++looks;
    return looks;
  };
  // Someone who is waited for briefly is found soon; a wait of five minutes costs few looks.
  CHECK(looks_in(1, 2, 1.0) >= 5);
  CHECK(looks_in(1, 2, 300.0) < 300);
  CHECK(looks_in(1, 1000, 300.0) < 60);
  double looks_of_all = 0.0;
  for (std::int64_t index = 0; index < 1000; ++index)
    looks_of_all += looks_in(index, 1000, 600.0) - looks_in(index, 1000, 300.0);
  CHECK(looks_of_all / 300.0 < 110.0);
  Backoff one(1, 1000);
  Backoff another(2, 1000);
  for (int i = 0; i < 20; ++i) CHECK(one.next() != another.next());
}

TEST_CASE("an agent that comes after the first has failed reads why") {
  const Places places(3);
  leave_end_note(places.paths(), places.options(0).place, {.code = ExitCode::usage, .message = "no such interface"});
  std::optional<ExitStatus> noted;
  Meeting::Options options = places.options(2);
  options.believed_after = 0.3;
  CHECK_THROWS_AS(Meeting::join(options, {}, noted), PeerError);
  REQUIRE(noted);
  CHECK(noted->code == ExitCode::usage);
  CHECK(noted->message == "no such interface");
  // A new start of the first voids it.
  forget_end_note(places.paths());
  options.seconds = 0.5;
  noted.reset();
  CHECK_THROWS_AS(Meeting::join(options, {}, noted), PeerError);
  CHECK_FALSE(noted);
}

TEST_CASE("a note of the same job is believed at once, one of another job or of long ago never") {
  Places places(2);
  places.job = "7.1";
  LauncherPlace writer = places.options(0).place;
  std::optional<ExitStatus> noted;
  Meeting::Options options = places.options(1);
  options.seconds = 0.4;
  options.believed_after = 0.0;
  bool is_believed = false;
  SUBCASE("same job") {
    options.believed_after = 600.0;
    is_believed = true;
    leave_end_note(places.paths(), writer, {.code = ExitCode::input, .message = "x"});
  }
  SUBCASE("another job") {
    writer.job = "7.0";
    leave_end_note(places.paths(), writer, {.code = ExitCode::input, .message = "x"});
  }
  SUBCASE("of long ago, on another host") {
    options.place.job.clear();
    places.folder.write(".lock.json.refused",
                        R"({"code":3,"message":"x","id":"1","job":"","boot":"other","monotonic":1.0})");
    fs::last_write_time(places.folder / ".lock.json.refused",
                        fs::file_time_type::clock::now() - std::chrono::seconds(400));
  }
  CHECK_THROWS_AS(Meeting::join(options, {}, noted), PeerError);
  CHECK(noted.has_value() == is_believed);
}

TEST_CASE("without the secret that the others have, an agent says so at the deadline") {
  Places places(2);
  places.secret = make_secret();
  const auto first = join(places.options(0));
  const auto reason = [&](const std::string& secret) {
    Meeting::Options options = places.options(1);
    options.secret = secret;
    options.seconds = 0.5;
    return config_of_first(options);
  };
  CHECK(contains(reason(""), "rank 0 was given SCALETRAIN_SECRET and this rank was not"));
  CHECK(contains(reason("another secret, as long"), "refused this process's secret"));
}

TEST_CASE("the first serves on the interface and port that it is told") {
  const Places places(2);
  const HeldPort held;
  Meeting::Options options = places.options(0);
  options.interface = "lo";
  options.port = held.port();
  const auto first = join(options, "c");
  const auto file = read_rendezvous_file(places.paths());
  REQUIRE(file);
  CHECK(file->address == RendezvousAddress{"127.0.0.1", options.port});
  CHECK(config_of_first(places.options(1)) == "c");
}

TEST_CASE("another start's rendezvous file is not removed") {
  const Places places(2);
  RendezvousFile theirs;
  {
    const auto first = join(places.options(0));
    theirs = *read_rendezvous_file(places.paths());
    theirs.secret = "of another host";
    write_rendezvous_file(places.paths(), theirs);
  }
  CHECK(read_rendezvous_file(places.paths()) == theirs);
}

}  // namespace scaletrain
