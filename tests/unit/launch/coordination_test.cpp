// What agents of several nodes write for each other.
#include "launch/coordination.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "coordinator_scene.h"

namespace scaletrain {

TEST_CASE("statuses and orders read back as they were written") {
  NodeStatus status;
  status.node = 3;
  status.incarnation = "x";
  status.beat = 1ull << 60;
  status.attempt = 2;
  status.report = killed(17);
  status.report->message = "rank 1: \"quoted\"\n";
  status.report->result = ExitCode::input;
  status.report->is_alike = true;
  status.pulse = {.progress = 7, .working = 1, .waiting = 2, .step = 9, .still_seconds = 0.5};
  status.pulse.stalled_seconds = 0.25;
  status.pulse.stalled_text = "in fsync";
  status.pulse.paces = {{.steps = 3, .busy_seconds = 0.125}, {.steps = 4, .busy_seconds = 1e-3}};
  status.host = "gpu-07";
  status.is_interrupted = true;
  status.left = Departure{ExitCode::bug, "why"};
  const NodeStatus same = parse_status(to_text(status));
  CHECK(to_text(same) == to_text(status));
  CHECK(same.report->result == ExitCode::input);
  CHECK(same.report->rank == Rank(1));
  CHECK(same.report->is_alike);
  CHECK(same.beat == status.beat);
  CHECK(same.pulse.still_seconds == 0.5);
  CHECK(same.left->message == "why");
  CHECK(same.host == "gpu-07");
  CHECK(same.pulse.stalled_text == "in fsync");
  REQUIRE(same.pulse.paces.size() == 2);
  CHECK(same.pulse.paces[1].steps == 4);
  CHECK(same.pulse.paces[1].busy_seconds == 1e-3);
  Orders orders;
  orders.command = NodeCommand::leave;
  orders.attempt = 4;
  orders.plan = {.start = {.checkpoint = "/c", .step = 5, .generation = 6, .asked = "a", .cause = "because"},
                 .lock_id = "l",
                 .shares = {{1, 2, 3}},
                 .incarnations = {"i"},
                 .world = 7,
                 .data = 8,
                 .rendezvous = {{"h", 9}, "s"}};
  orders.reason = "r";
  orders.is_hang = true;
  orders.code = ExitCode::interrupted;
  const Orders read = parse_orders(to_text(orders));
  CHECK(to_text(read) == to_text(orders));
  CHECK(read.plan.start.checkpoint == "/c");
  CHECK(read.plan.rendezvous.address.port == 9);
  CHECK(read.code == ExitCode::interrupted);
  CHECK_THROWS_AS(parse_orders("{}"), InputError);
  CHECK_THROWS_AS(parse_status("nonsense"), InputError);
}

}  // namespace scaletrain
