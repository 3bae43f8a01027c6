// What ends and errors of workers come to, without workers.
#include "launch/workers/group_verdict.h"

#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <vector>

namespace scaletrain {
namespace {

struct Scene {
  explicit Scene(std::size_t num_ranks) : members(num_ranks) {
    for (std::size_t i = 0; i < num_ranks; ++i) {
      members[i].rank = Rank(static_cast<std::int64_t>(i));
      members[i].pid = static_cast<pid_t>(100 + i);
      members[i].status.step = 7;
      members[i].status.waiting = false;
    }
  }
  void exit(std::size_t rank, int code) { members[rank].end = ProcessEnd{.exit_code = code}; }
  void tell(std::size_t rank, ExitCode code, const std::string& message) {
    members[rank].status.error = WorkerError{.kind = code, .message = message};
  }
  GroupView view() const {
    GroupView view{.world = static_cast<std::int64_t>(members.size()), .start_step = 3};
    for (const MemberState& member : members) view.members.push_back(&member);
    return view;
  }

  std::vector<MemberState> members;
};

}  // namespace

TEST_CASE("a worker that only lost its peer is not the cause where another failed by itself") {
  Scene scene(2);
  scene.exit(0, 4);
  scene.members[0].failed_at = 1;
  scene.members[1].end = ProcessEnd{.exit_code = std::nullopt, .signal = SIGSEGV};
  scene.members[1].failed_at = 2;
  const RoundResult round = verdict_of(scene.view(), true);
  CHECK(round.rank == Rank(1));
  CHECK_FALSE(round.result);
  CHECK_FALSE(round.lost_peer_only);
  CHECK(round.description.find("rank 1: worker 101 was killed by signal 11") == 0);
}

TEST_CASE("of workers whose errors are seen at once the one that told its own first is the cause") {
  Scene scene(3);
  for (const std::size_t rank : {0u, 1u, 2u}) {
    scene.exit(rank, 4);
    scene.members[rank].failed_at = 5;
  }
  scene.tell(0, ExitCode::peer, "the connection to rank 2 is lost: closed by the other side");
  scene.tell(1, ExitCode::peer, "the connection to rank 2 is lost: closed by the other side");
  scene.tell(2, ExitCode::peer, "the connection to rank 1 is lost: its memory cannot be read");
  scene.members[0].status.error->at = 10.002;
  scene.members[1].status.error->at = 10.001;
  scene.members[2].status.error->at = 10.0;
  const RoundResult round = verdict_of(scene.view(), true);
  CHECK(round.rank == Rank(2));
  REQUIRE(round.message);
  CHECK(round.message->find("its memory cannot be read") != std::string::npos);
}

TEST_CASE("exit codes are the run's own, but for a 1 that nobody has explained") {
  Scene explained(1);
  explained.exit(0, 1);
  explained.tell(0, ExitCode::bug, "a check failed");
  CHECK(verdict_of(explained.view(), true).result == ExitCode::bug);

  Scene unexplained(1);
  unexplained.exit(0, 1);
  const RoundResult round = verdict_of(unexplained.view(), true);
  CHECK_FALSE(round.result);
  CHECK(round.description == "worker 100 ended with exit code 1 at step 7");

  for (const ExitCode code : {ExitCode::usage, ExitCode::input, ExitCode::diverged, ExitCode::no_progress}) {
    Scene scene(1);
    scene.exit(0, static_cast<int>(code));
    CHECK(verdict_of(scene.view(), true).result == code);
  }
}

TEST_CASE("a hang is told with what the rank is in and who waits for it") {
  Scene scene(3);
  scene.members[0].status.collective = InCollective{.text = "group data (ranks 0, 1, 2): all_reduce #5"};
  scene.members[2].status.collective = InCollective{.text = "group data (ranks 0, 1, 2): all_reduce #5"};
  scene.members[1].hang_step = 7;
  const std::string text =
      hang_text(scene.view(), scene.members[1], {.index = 1, .kind = HangKind::still, .seconds = 61.0});
  CAPTURE(text);
  CHECK(text.find("rank 1: worker 101 made no progress for ") == 0);
  CHECK(text.find("in no collective and was killed; rank 0 waits in group data (ranks 0, 1, 2): all_reduce #5, and 1 "
                  "more wait") != std::string::npos);
}

TEST_CASE("a call to the storage that does not come back is named with its file") {
  Scene scene(2);
  scene.members[0].status.waiting = true;
  scene.members[0].status.storage = InStorage{.text = "fsync of /run/a/model.safetensors", .seconds = 600.0};
  const std::string text =
      hang_text(scene.view(), scene.members[0], {.index = 0, .kind = HangKind::storage, .seconds = 600.0});
  CAPTURE(text);
  CHECK(text.find("has been in fsync of /run/a/model.safetensors while nobody") != std::string::npos);
  const std::string warning = storage_warning(0, *scene.members[0].status.storage, 60.0);
  CHECK(warning.find("rank 0 has been in fsync of /run/a/model.safetensors for ") == 0);
}

}  // namespace scaletrain
