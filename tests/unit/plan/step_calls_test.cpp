// The order of calls against lists written by hand from the published schedules, and against the volumes of plans of
// any size. tests/multirank holds the same order against what ranks issue.
#include "plan/communication/step_calls.h"

#include <map>
#include <tuple>
#include <vector>

#include "plan_helpers.h"

using namespace scaletrain;

namespace {

std::vector<std::string> order_of(const Config& config, std::int64_t rank) {
  const PhasePlan plan = make_run_plan(config, 61, std::nullopt).phases.front();
  std::vector<std::string> lines;
  for (const PlannedCall& call : collective_order(plan, Rank(rank))) lines.push_back(to_text(call));
  return lines;
}

// One line for each call, however often a list of them is to be read.
std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

Config two_layers() {
  Config config = planned_config();
  config.model.layers = 2;
  return config;
}

using Volumes = std::map<std::tuple<GroupKind, CollectiveKind, std::string>, std::vector<std::int64_t>>;

void check_volumes(const std::string& name, const PhasePlan& plan, Rank rank) {
  Volumes ordered;
  visit_calls(calls_of_step(plan, rank), [&ordered](const PlannedCall& call) {
    if (call.kind == CollectiveKind::exchange && call.direction == Transfer::Direction::receive) return;
    auto& sums = ordered[{call.group, call.kind, std::string(to_text(call.purpose))}];
    sums.resize(3);
    sums[0] += 1;
    sums[1] += call.sent;
    sums[2] += call.sent * static_cast<std::int64_t>(size_of(call.dtype));
  });
  Volumes counted;
  for (const CommunicationVolume& volume : plan.communication(rank))
    counted[{volume.kind, volume.collective, volume.purpose}] = {volume.calls, volume.elements,
                                                                 static_cast<std::int64_t>(volume.bytes)};
  CHECK_MESSAGE(ordered == counted, name << ", rank " << rank.value());
}

}  // namespace

TEST_CASE("one rank asks nobody for anything") {
  CHECK(order_of(two_layers(), 0).empty());
}

// 1F1B of two micro-batches on two stages. A gradient is received as far ahead as there are buffers: right behind the
// activation that it answers. The buckets of a stage go in the order in which its backward passes them, the tied tensor
// over the stages behind its replicas, and every decision is behind every reduction. A bundle is 3 x 7 tokens of 24
// numbers. A block's 12 matrices and vectors, each begun at a multiple of 16, take 3928 places; the token table has
// 61 x 24, the position table 7 x 24; all are rounded up to a multiple of 16 for each of two replicas.
TEST_CASE("the first stage of a pipeline with replicas sends, receives, reduces, decides and gathers in this order") {
  Config config = two_layers();
  config.parallel.data = 2;
  config.parallel.pipeline = 2;
  config.parallel.zero = 1;
  CHECK(joined(order_of(config, 0)) == joined({
                                           "pipeline send 1 504 F32 activations",
                                           "pipeline receive 1 504 F32 activation gradients",
                                           "pipeline send 1 504 F32 activations",
                                           "pipeline receive 1 504 F32 activation gradients",
                                           "data reduce_scatter 3936 F32 gradients",
                                           "data reduce_scatter 1472 F32 gradients",
                                           "data reduce_scatter 192 F32 gradients",
                                           "tied all_reduce 736 F32 gradients",
                                           "data all_reduce 5 F64 loss, norm, votes",
                                           "pipeline all_reduce 5 F64 loss, norm, votes",
                                           "data all_gather 1472 F32 weights",
                                           "data all_gather 192 F32 weights",
                                           "data all_gather 3936 F32 weights",
                                       }));
}

// As above, with matrices apart from what AdamW updates: 3648 of the block's elements, and 280 in places of 16. Norms
// of whole tensors are two numbers of each of the table's 37 parameters.
TEST_CASE(
    "behind the norms of whole tensors Muon gathers the directions of matrices, by replicas and by tensor ranks") {
  Config config = two_layers();
  config.train.optimizer.type = OptimizerKind::muon;
  config.parallel.data = 2;
  config.parallel.pipeline = 2;
  config.parallel.zero = 1;
  CHECK(joined(order_of(config, 0)) == joined({
                                           "pipeline send 1 504 F32 activations",
                                           "pipeline receive 1 504 F32 activation gradients",
                                           "pipeline send 1 504 F32 activations",
                                           "pipeline receive 1 504 F32 activation gradients",
                                           "data reduce_scatter 288 F32 gradients",
                                           "data reduce_scatter 3648 F32 gradients",
                                           "data reduce_scatter 1472 F32 gradients",
                                           "data reduce_scatter 192 F32 gradients",
                                           "tied all_reduce 736 F32 gradients",
                                           "data all_reduce 5 F64 loss, norm, votes",
                                           "pipeline all_reduce 5 F64 loss, norm, votes",
                                           "data all_reduce 74 F64 loss, norm, votes",
                                           "pipeline all_reduce 74 F64 loss, norm, votes",
                                           "data all_gather 3648 F32 update directions",
                                           "data all_gather 1472 F32 weights",
                                           "data all_gather 192 F32 weights",
                                           "data all_gather 288 F32 weights",
                                           "data all_gather 3648 F32 weights",
                                       }));
  config.parallel.data = 1;
  config.parallel.pipeline = 1;
  config.parallel.tensor = 2;
  config.parallel.zero = 0;
  config.model.layers = 1;
  std::vector<std::string> gathers;
  for (const std::string& call : order_of(config, 1))
    if (contains(call, "update directions")) gathers.push_back(call);
  std::vector<std::string> expected;
  for (const int elements : {576, 288, 288, 576, 960, 960})  // query, key, value, output, up, down
    expected.push_back("tensor all_gather " + std::to_string(elements) + " F32 update directions");
  CHECK(joined(gathers) == joined(expected));
}

// Rows and columns of the first stage: 61 + 24 of the token table, 7 + 24 of positions, and of the block's maps 24 + 24
// (query, output), 12 + 24 (key, value) and 40 + 24 (up, down).
TEST_CASE("before the norms of whole tensors Adafactor sums squares by rows and columns over the ranks of a stage") {
  Config config = two_layers();
  config.train.optimizer.type = OptimizerKind::adafactor;
  config.parallel.data = 2;
  config.parallel.pipeline = 2;
  config.parallel.zero = 1;
  CHECK(contains(joined(order_of(config, 0)), joined({
                                                  "pipeline all_reduce 5 F64 loss, norm, votes",
                                                  "data all_reduce 412 F64 squares by row and column",
                                                  "data all_reduce 74 F64 loss, norm, votes",
                                                  "pipeline all_reduce 74 F64 loss, norm, votes",
                                                  "data all_gather 1472 F32 weights",
                                              })));
}

TEST_CASE("a tensor group sums and gathers in the order of the published algorithms") {
  Config config = two_layers();
  config.model.layers = 1;
  config.parallel.tensor = 2;
  config.train.micro_batch = 12;
  config.model.bias = false;
  config.model.norm = NormKind::rmsnorm;
  const std::string sum = "tensor all_reduce 2016 F32 activations";
  const std::string statistics = "tensor all_gather 504 F32 softmax statistics";  // three numbers of 84 rows, twice
  const std::string decision = "tensor all_reduce 5 F64 loss, norm, votes";
  // Shoeybi et al. 2019: an all-reduce behind each row-parallel map, and behind each column-parallel one's gradient.
  CHECK(joined(order_of(config, 1)) == joined({sum, sum, sum, statistics, sum, sum, sum, decision}));
  // Korthikanti et al. 2022: each becomes a gather and a reduce-scatter, and the backward gathers inputs once more.
  config.parallel.sequence = true;
  const std::string scatter = "tensor reduce_scatter 2016 F32 activations";
  const std::string gather = "tensor all_gather 2016 F32 activations";
  // Norm weights saw this rank's tokens only, and the position table all of them: 3 x 24.
  const std::string norms = "tensor all_reduce 72 F32 gradients";
  CHECK(joined(order_of(config, 1)) == joined({scatter, gather, scatter, gather, scatter,         // forward
                                               gather, statistics, scatter,                       // head
                                               gather, gather, scatter, gather, gather, scatter,  // block
                                               gather, norms, decision}));
}

TEST_CASE("the calls in the executor's order sum up to the volumes, which are counted without that order") {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zb_h1}) {
    for (std::int64_t zero = 0; zero <= 3; ++zero) {
      for (const bool sequence : {false, true}) {
        Config config = planned_config();
        config.parallel.data = 2;
        config.parallel.tensor = 4;
        config.parallel.pipeline = 3;
        config.parallel.zero = zero;
        config.parallel.sequence = sequence;
        config.parallel.schedule = kind;
        config.model.tie_embeddings = zero % 2 == 0;
        if (kind == ScheduleKind::interleaved) config.parallel.chunks = 2;
        config.train.micro_batch = 1;
        config.train.global_batch = 8;
        const PhasePlan plan = make_run_plan(config, 61, std::nullopt).phases.front();
        const std::string name = "schedule " + std::to_string(static_cast<int>(kind)) + ", zero " +
                                 std::to_string(zero) + (sequence ? ", sequence" : "");
        for (std::int64_t rank = 0; rank < plan.mesh.world(); ++rank) check_volumes(name, plan, Rank(rank));
      }
    }
  }
}

TEST_CASE("the order of a large plan is walked for one rank without those of the others") {
  Config config = preset_config("llama-405b");
  config.parallel.tensor = 8;
  config.parallel.pipeline = 16;
  config.parallel.data = 128;
  config.parallel.zero = 3;
  config.parallel.sequence = true;
  config.precision.compute = Precision::bf16;
  config.train.global_batch = 2048;
  config.train.micro_batch = 1;
  const PhasePlan plan = make_run_plan(config, 257, std::nullopt).phases.front();
  for (const std::int64_t stage : {0, 7, 15}) check_volumes("405b", plan, plan.mesh.rank_of({5, 3, stage}));
}
