// What agents of several nodes write for each other.
#include "launch/coordination/messages.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "comm/in_process/world.h"
#include "coordinator_scene.h"

namespace scaletrain {

TEST_CASE("statuses and orders read back as they were written") {
  AgentStatus status;
  status.place = 3;
  status.incarnation = "x";
  status.beat = 1ull << 60;
  status.round = 2;
  status.report = killed(17);
  status.report->message = "rank 1: \"quoted\"\n";
  status.report->result = ExitCode::input;
  status.report->is_alike = true;
  status.workers = {.progress = 7, .working = 1, .waiting = 2, .step = 9, .still_seconds = 0.5};
  status.workers.stalled_seconds = 0.25;
  status.workers.stalled_text = "in fsync";
  status.workers.paces = {{.steps = 3, .busy_seconds = 0.125}, {.steps = 4, .busy_seconds = 1e-3}};
  status.host = "gpu-07";
  status.machine = {"kernel", "mask"};
  status.is_interrupted = true;
  status.left = ExitStatus{ExitCode::bug, "why"};
  const AgentStatus same = parse_status(to_text(status));
  CHECK(to_text(same) == to_text(status));
  CHECK(same.report->result == ExitCode::input);
  CHECK(same.report->rank == Rank(1));
  CHECK(same.report->is_alike);
  CHECK(same.beat == status.beat);
  CHECK(same.workers.still_seconds == 0.5);
  CHECK(same.left->message == "why");
  CHECK(same.host == "gpu-07");
  CHECK(same.machine.host == "kernel");
  CHECK(same.machine.processors == "mask");
  CHECK(same.workers.stalled_text == "in fsync");
  REQUIRE(same.workers.paces.size() == 2);
  CHECK(same.workers.paces[1].steps == 4);
  CHECK(same.workers.paces[1].busy_seconds == 1e-3);
  Orders orders;
  orders.command = OrderKind::leave;
  orders.round = 4;
  orders.plan = {.start = {.checkpoint = "/c", .step = 5, .generation = 6, .asked = "a", .cause = "because"},
                 .lock_id = "l",
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

TEST_CASE("an agent reads the orders with its own share of the round, and with nobody else's") {
  InProcessWorld world(1);
  const auto store = world.make_store();
  Orders orders;
  orders.command = OrderKind::run;
  orders.round = 1;
  orders.plan.shares = {{0, 0, 2, {0, 1}, {0, 1}}, {3, 2, 1, {2, 3}, {2}}};
  orders.plan.incarnations = {"first", "fourth"};
  publish_orders(*store, orders);
  const Orders mine = fetch_orders(*store, 3, 1.0);
  REQUIRE(mine.plan.shares.size() == 1);
  CHECK(mine.plan.shares[0] == PlaceShare{3, 2, 1, {2, 3}, {2}});
  CHECK(mine.plan.incarnations == std::vector<std::string>{"fourth"});
  CHECK(fetch_orders(*store, 1, 1.0).plan.shares.empty());
  // In the next round it has none; what it had before is not taken for this one's.
  orders.round = 2;
  orders.plan.shares.pop_back();
  orders.plan.incarnations.pop_back();
  publish_orders(*store, orders);
  CHECK(fetch_orders(*store, 3, 1.0).plan.shares.empty());
  // What all read does not grow with the number of places.
  const std::size_t size = store->find(orders_key)->size();
  for (std::int64_t place = 1; place < 1000; ++place) {
    orders.plan.shares.push_back({place, place, 1});
    orders.plan.incarnations.emplace_back("x");
  }
  publish_orders(*store, orders);
  CHECK(store->find(orders_key)->size() == size);
}

}  // namespace scaletrain
