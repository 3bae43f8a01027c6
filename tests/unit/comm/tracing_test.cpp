#include "comm/collective/tracing.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support/ranks/host_stream.h"
#include "support/ranks/ranks.h"

using namespace scaletrain;

namespace {

TraceRecord call(const std::string& group, CollectiveKind kind = CollectiveKind::all_reduce,
                 std::int64_t elements = 4) {
  TraceRecord record;
  record.group = group;
  record.kind = kind;
  record.elements = elements;
  return record;
}

// messages such as ">1:8": to member 1, 8 elements.
TraceRecord exchange(const std::string& group, const std::vector<std::string>& messages) {
  TraceRecord record = call(group, CollectiveKind::exchange, 0);
  for (const std::string& text : messages) {
    const auto colon = text.find(':');
    record.messages.push_back({text[0] == '>' ? Transfer::Direction::send : Transfer::Direction::receive,
                               std::stoi(text.substr(1, colon - 1)), DType::f32, std::stol(text.substr(colon + 1))});
  }
  return record;
}

// All ranks are in the groups a and b.
std::string compare(const std::vector<std::vector<TraceRecord>>& records) {
  std::vector<Trace> traces;
  traces.reserve(records.size());
  for (const auto& own : records) traces.push_back({own});
  std::vector<RankTrace> ranks;
  ranks.reserve(records.size());
  for (const Trace& trace : traces) ranks.push_back({&trace, {{"a", "a.0"}, {"b", "b.0"}}});
  return compare_traces(ranks);
}

View whole_view(std::vector<float>& values) {
  return {values.data(), DType::f32, Shape{static_cast<std::int64_t>(values.size())}};
}

}  // namespace

TEST_CASE("equal_sequences_agree") {
  const std::vector<TraceRecord> own{call("a"), call("b", CollectiveKind::all_gather, 9), call("a")};
  CHECK(compare({own, own, own}) == "");
  CHECK(compare({{}, {}}) == "");
  CHECK(compare({}) == "");
}

TEST_CASE("a_swapped_order_within_a_group_is_found") {
  const auto scatter = call("a", CollectiveKind::reduce_scatter, 6);
  CHECK(
      compare({{call("a"), scatter}, {call("a"), scatter}, {scatter, call("a")}}) ==
      "group a.0: collective #0 is all_reduce of 4 F32 on rank 0 (call 0), reduce_scatter of 6 F32 on rank 2 (call 0)");
}

TEST_CASE("a_difference_in_size_type_or_operation_is_found") {
  auto other = call("a", CollectiveKind::all_reduce, 5);
  CHECK(compare({{call("a")}, {other}}) != "");
  other = call("a");
  other.dtype = DType::i64;
  CHECK(compare({{call("a")}, {other}}) != "");
  other = call("a");
  other.op = ReduceOp::max;
  CHECK(compare({{call("a")}, {other}}) ==
        "group a.0: collective #0 is all_reduce of 4 F32 on rank 0 (call 0), all_reduce of 4 F32 (max) on rank 1 (call "
        "0)");
  // Each rank has its own amount to send to all.
  CHECK(compare({{call("a", CollectiveKind::all_to_all, 3)}, {call("a", CollectiveKind::all_to_all, 8)}}) == "");
}

TEST_CASE("a_missing_call_is_found_even_if_a_rank_made_none") {
  CHECK(compare({{call("b"), call("a")}, {call("b")}}) ==
        "group a.0: collective #0 is all_reduce of 4 F32 on rank 0 (call 1), missing on rank 1");
  CHECK(compare({{}, {call("a")}}) ==
        "group a.0: collective #0 is all_reduce of 4 F32 on rank 1 (call 0), missing on rank 0");
}

TEST_CASE("a_cyclic_order_between_two_groups_is_found") {
  const std::string text = compare({{call("a"), call("a"), call("b")}, {call("a"), call("b"), call("a")}});
  CHECK(text.find("no total order of the collectives: ") == 0);
  CHECK(text.find("a.0 #1") != std::string::npos);
  CHECK(text.find("b.0 #0") != std::string::npos);
}

TEST_CASE("a_cycle_over_three_ranks_and_groups_is_found") {
  // No two ranks disagree by themselves.
  const std::vector<Trace> traces{{{call("x"), call("y")}}, {{call("x"), call("y")}}, {{call("x"), call("y")}}};
  const std::vector<std::pair<std::string, std::string>> names[3]{
      {{"x", "p"}, {"y", "q"}}, {{"x", "q"}, {"y", "r"}}, {{"x", "r"}, {"y", "p"}}};
  CHECK(compare_traces({{&traces[0], names[0]}, {&traces[1], names[1]}, {&traces[2], names[2]}}) ==
        "no total order of the collectives: p #0 comes before q #0 on rank 0, which comes before r #0 on rank 1, which "
        "comes before p #0 on rank 2");
}

TEST_CASE("exchanged_messages_are_matched_per_ordered_pair") {
  // Batched in another way, and in another order between pairs: agrees.
  CHECK(compare({{exchange("a", {">1:8", "<1:4", ">2:5"})},
                 {exchange("a", {"<0:8"}), exchange("a", {">0:4"})},
                 {exchange("a", {"<0:5"})}}) == "");
  CHECK(
      compare({{exchange("a", {">1:8", ">1:4"})}, {exchange("a", {"<0:4", "<0:8"})}}) ==
      "group a.0: message #0 of channel 0 from rank 0 to rank 1 is sent as 8 F32 (call 0), received as 4 F32 (call 0)");
  CHECK(compare({{exchange("a", {">1:8"})}, {}}) ==
        "group a.0: message #0 of channel 0 from rank 0 to rank 1 is sent as 8 F32 (call 0), received as missing");
  CHECK(compare({{}, {exchange("a", {"<0:8"})}}) != "");
}

TEST_CASE("a_trace_holds_what_was_asked_and_what_it_sends") {
  const Mesh mesh(4, 1, 1);
  std::vector<Trace> traces;
  run_ranks(
      mesh, {},
      [&](Rank rank, RankGroups& groups, InProcessWorld&) {
        std::vector<float> large(4000);
        std::vector<float> small(4);
        std::vector<float> own(1000);
        const std::vector<std::int64_t> counts(4, 1000);
        const int place = static_cast<int>(rank.value());
        groups.find(GroupKind::data)->all_reduce(host_stream(), whole_view(large), ReduceOp::max).wait();
        groups.find(GroupKind::data)->all_reduce(host_stream(), whole_view(small), ReduceOp::sum).wait();
        groups.find(GroupKind::data)->reduce_scatter(host_stream(), whole_view(large), counts, whole_view(own)).wait();
        groups.find(GroupKind::data)->all_gather(host_stream(), whole_view(own), counts, whole_view(large)).wait();
        const std::vector<Transfer> ring{{Transfer::Direction::send, (place + 1) % 4, whole_view(small)},
                                         {Transfer::Direction::receive, (place + 3) % 4, whole_view(own)}};
        std::vector<float> received(4);
        auto transfers = ring;
        transfers[1].data = whole_view(received);
        groups.find(GroupKind::data)->exchange(host_stream(), transfers).wait();
      },
      {.deadline = 60.0, .traces = &traces, .mode = {}});
  CHECK(compare_traces(rank_traces(mesh, {}, traces)) == "");
  const auto& records = traces.at(1).records;
  REQUIRE(records.size() == 5);
  CHECK(records[0].group == "data");
  CHECK(records[0].kind == CollectiveKind::all_reduce);
  CHECK(records[0].op == ReduceOp::max);
  CHECK(records[0].elements == 4000);
  CHECK(records[0].sent_elements == 6000);
  CHECK(records[1].sent_elements == 12);
  CHECK(records[2].sent_elements == 3000);
  CHECK(records[3].kind == CollectiveKind::all_gather);
  CHECK(records[3].elements == 4000);
  CHECK(records[3].sent_elements == 3000);
  CHECK(records[4].peers() == ">2 <0");
  CHECK(records[4].sent_elements == 4);
  // The same with one rank's last call left out.
  traces[3].records.pop_back();
  CHECK(compare_traces(rank_traces(mesh, {}, traces)).find("missing") != std::string::npos);
}
