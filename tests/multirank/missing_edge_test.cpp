// What late streams are for: a transfer that lacks its edge to the stream before it, or to the stream behind it, does
// not go unnoticed (support/ranks/missing_edge.h). Such a run is a race on purpose and not for the thread sanitizer.
#include "support/ranks/missing_edge.h"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save/staging.h"
#include "support/forwarding_backend.h"
#include "support/models/small_model.h"
#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"

using namespace scaletrain;

namespace {

// What a rank tells of its steps and of an evaluation behind them.
std::vector<double> numbers_with(const Config& config, TestBackend backend, const MissingEdge* missing) {
  const PhasePlan plan = make_test_plan(config, backend);
  const auto world = static_cast<std::size_t>(plan.mesh.world());
  std::vector<std::unique_ptr<MissingEdges>> edges(world);
  std::vector<std::vector<double>> numbers(world);
  // Transfers beside the stream in every group, as devices make them.
  RanksOptions options{.mode = DirectOptions::Mode::queue};
  if (missing != nullptr) {
    for (auto& of_rank : edges) of_rank = std::make_unique<MissingEdges>(*missing);
    options.decorate = [&](Rank rank, GroupKind kind, std::unique_ptr<Communicator> group) {
      MissingEdges& own = *edges[static_cast<std::size_t>(rank.value())];
      return std::make_unique<MissingEdgeCommunicator>(std::move(group), kind, own);
    };
  }
  run_ranks(
      plan.mesh, plan.group_facts(),
      [&](Rank rank, RankGroups& groups, InProcessWorld&) {
        const auto index = static_cast<std::size_t>(rank.value());
        RankTrainer trainer(config, plan, rank, groups, backend);
        for (int step = 0; step < 3; ++step) {
          const StepOutcome outcome = trainer.step().outcome;
          numbers[index].insert(numbers[index].end(), {outcome.loss, outcome.grad_norm});
        }
        numbers[index].push_back(trainer.evaluate(13).loss_sum);
        if (!edges[index]) return;
        edges[index]->finish();
        trainer.settled_store();
      },
      options);
  if (missing != nullptr) CHECK(edges.front()->count() > 0);
  return numbers.front();
}

struct TransferCase {
  std::string name;
  TestLayout layout;
  TransferKind of;
};

const std::vector<TransferCase>& transfer_cases() {
  using Kind = CollectiveKind;
  using Channel = Transfer::Channel;
  // All forward passes first: the host can wait for each send.
  const TestLayout stages{"", 1, 1, 2, 0, ScheduleKind::gpipe};
  const TestLayout sequence{"", 1, 2, 1, 0, ScheduleKind::one_f_one_b, 1, true};
  static const std::vector<TransferCase> all = {
      {"activations", stages, {GroupKind::pipeline, Kind::exchange, Channel::activations}},
      {"gradients of activations", stages, {GroupKind::pipeline, Kind::exchange, Channel::gradients}},
      {"tensor-parallel sums", {"", 1, 2, 1, 0}, {GroupKind::tensor, Kind::all_reduce}},
      {"tensor-parallel sums to sequence shards", sequence, {GroupKind::tensor, Kind::reduce_scatter}},
      {"sequence shards gathered", sequence, {GroupKind::tensor, Kind::all_gather}},
      {"partial gradients of sequence shards", sequence, {GroupKind::tensor, Kind::all_reduce}},
      {"gradients of key/value heads that ranks share", {"", 1, 4, 1, 0}, {GroupKind::replication, Kind::all_reduce}},
      {"buckets", {"", 2, 1, 1, 0}, {GroupKind::data, Kind::all_reduce}},
      {"buckets, sharded", {"", 2, 1, 1, 2}, {GroupKind::data, Kind::reduce_scatter}},
      {"weights gathered after the update", {"", 2, 1, 1, 1}, {GroupKind::data, Kind::all_gather}},
      {"weights gathered before their use", {"", 2, 1, 1, 3}, {GroupKind::data, Kind::all_gather}},
      {"shards summed over groups of replicas",
       {.data = 4, .tensor = 1, .pipeline = 1, .zero = 2, .zero_group = 2},
       {GroupKind::copies, Kind::all_reduce}},
      {"tied gradients", stages, {GroupKind::tied, Kind::all_reduce}},
  };
  return all;
}

// From some moment on its streams say of what they were given that it is done.
class ForgetfulBackend final : public ForwardingBackend {
 public:
  explicit ForgetfulBackend(std::unique_ptr<Backend> inner) : ForwardingBackend(std::move(inner)) {}
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<ForgetfulStream>(ForwardingBackend::make_stream(), forgets_);
  }
  void forget() { forgets_ = true; }

 private:
  class ForgetfulStream final : public Stream {
   public:
    ForgetfulStream(std::unique_ptr<Stream> inner, const bool& forgets) : inner_(std::move(inner)), forgets_(forgets) {}
    void synchronize() override { inner_->synchronize(); }
    void call(std::function<void()> function) override { inner_->call(std::move(function)); }
    Event record() override { return forgets_ ? Event() : inner_->record(); }

   private:
    std::unique_ptr<Stream> inner_;
    const bool& forgets_;
  };

  bool forgets_ = false;
};

// The edges of a save's copy: to what was issued before it, to who reads the copy, and to what changes the state next.
enum class StagingEdge { start, end, next };

// What a save's copy of a device's masters holds. They are 1, and so is an earlier copy; the stream has still to make
// them 2 when the save begins, and is then given to make them 3.
std::vector<float> staged_without(std::optional<StagingEdge> missing) {
  auto device = std::make_unique<ForgetfulBackend>(std::make_unique<LateBackend>(
      std::make_unique<FencedBackend>(make_reference_backend(DType::f32)), Lateness::on_demand));
  ForgetfulBackend& forgetful = *device;
  ModelStore model(small_model::table(false), std::move(device), {});
  LateStream work(0, Lateness::on_demand);
  StateStaging staging(model.store);
  const auto pieces =
      make_save_plan(model.table, model.layout, model.store.options().state_names, model.store.options().dtype);
  const auto set_to = [&](double value) {
    for (const SavePiece& piece : pieces)
      model.backend->run(work, Fill{.output = stored_values(model.store, piece), .value = value});
  };
  set_to(1.0);
  staging.begin(work);
  staging.copy();
  set_to(2.0);
  if (missing == StagingEdge::end) forgetful.forget();
  staging.begin(missing == StagingEdge::start ? static_cast<Stream&>(host_stream()) : work);
  if (missing == StagingEdge::next) {
    set_to(3.0);
    work.synchronize();
  } else if (!missing) {
    CHECK(staging.hold_back(work));
    set_to(3.0);
    work.synchronize();
  }
  staging.copy();
  std::vector<float> values;
  for (const SavePiece& piece : pieces) {
    const ConstView copy = staging.values(piece);
    values.insert(values.end(), copy.as<float>(), copy.as<float>() + copy.num_elements());
  }
  return values;
}

}  // namespace

TEST_CASE("a_transfer_that_lacks_its_edge_to_what_comes_before_or_after_changes_the_numbers_of_late_streams") {
  for (const TransferCase& transfer : transfer_cases()) {
    CAPTURE(transfer.name);
    Config config = tiny_config();
    config.train.global_batch = 8;
    config.train.optimizer.learning_rate = 1e-3;
    lay_out(config, transfer.layout);
    for (const TestBackend on_demand : {TestBackend::on_demand_cpu, TestBackend::on_demand_cpu_bf16}) {
      const bool is_bf16 = on_demand == TestBackend::on_demand_cpu_bf16;
      CAPTURE(is_bf16);
      const std::vector<double> expected =
          numbers_with(config, is_bf16 ? TestBackend::cpu_bf16 : TestBackend::cpu, nullptr);
      for (const Edge edge : {Edge::start, Edge::end}) {
        CAPTURE(static_cast<int>(edge));
        const auto numbers = [&](bool is_missing) {
          const MissingEdge missing{.of = transfer.of, .edge = edge, .is_missing = is_missing};
          return numbers_with(config, on_demand, &missing);
        };
        CHECK(numbers(false) == expected);
        CHECK(numbers(true) != expected);
      }
    }
  }
}

TEST_CASE("a_copy_for_a_save_that_lacks_its_edge_to_what_comes_before_or_after_holds_older_or_newer_values") {
  const std::vector<float> values = staged_without(std::nullopt);
  REQUIRE_FALSE(values.empty());
  CHECK(values == std::vector<float>(values.size(), 2.0f));
  for (const StagingEdge edge : {StagingEdge::start, StagingEdge::end})
    CHECK(staged_without(edge) == std::vector<float>(values.size(), 1.0f));
  CHECK(staged_without(StagingEdge::next) == std::vector<float>(values.size(), 3.0f));
}
