// Any layout, the same gradients and losses: a dozen layouts in double precision against one rank.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda_module.h"
#include "checkpoint/save/staging.h"
#include "comm/collective/direct_engine.h"
#include "store/staged_communicator.h"
#include "support/models/optimizer_kinds.h"
#include "support/models/tiny_model.h"
#include "support/ranks/host_waits.h"
#include "support/ranks/rank_trainer.h"
#include "support/ranks/test_layout.h"

using namespace scaletrain;

namespace {

// Sizes that nothing divides: vocabulary 61, ffn 36 on few ranks, two key/value heads, 7 tokens.
Config small_config() {
  Config config = tiny_config({.layers = 6});
  config.run.seed = 5;
  config.train.steps = 50;
  config.train.global_batch = 8;
  config.train.lr_schedule.warmup = 10;
  config.train.optimizer.learning_rate = 1e-3;
  config.parallel.zero = 0;
  return config;
}

const std::vector<TestLayout>& dozen_layouts() {
  static const std::vector<TestLayout> all = {
      {"one rank, two chunks", 1, 1, 1, 0, ScheduleKind::interleaved, 2},
      {"data 2, zero 0", 2, 1, 1, 0},
      {"data 2, zero 1", 2, 1, 1, 1},
      {"data 2, zero 2", 2, 1, 1, 2},
      {"data 2, zero 3", 2, 1, 1, 3},
      {"tensor 2", 1, 2, 1, 0},
      {"tensor 4, fewer key/value heads than ranks", 1, 4, 1, 0},
      {"tensor 2, sequence shards", 1, 2, 1, 0, ScheduleKind::one_f_one_b, 1, true},
      {"pipeline 2, gpipe", 1, 1, 2, 0, ScheduleKind::gpipe},
      {"pipeline 2, 1f1b", 1, 1, 2, 0},
      {"pipeline 2, zb-h1", 1, 1, 2, 0, ScheduleKind::zb_h1},
      {"pipeline 2, two chunks", 1, 1, 2, 0, ScheduleKind::interleaved, 2},
      {"pipeline 4, 1f1b, fewer micro-batches than stages", 1, 1, 4, 0, ScheduleKind::one_f_one_b, 1, false, 4},
      {"data 2, tensor 2, pipeline 2, zero 1", 2, 2, 2, 1},
      {"data 2, tensor 2 with sequence shards, pipeline 2 zb-h1, zero 3", 2, 2, 2, 3, ScheduleKind::zb_h1, 1, true},
      {"data 2, pipeline 2 with three chunks, zero 2", 2, 1, 2, 2, ScheduleKind::interleaved, 3},
      {.name = "data 4 in pairs, pipeline 2, zero 2",
       .data = 4,
       .tensor = 1,
       .pipeline = 2,
       .zero = 2,
       .zero_group = 2},
      {.name = "data 2, zero 3, gradients by the step",
       .data = 2,
       .tensor = 1,
       .pipeline = 1,
       .zero = 3,
       .zero_reduce = ZeroReduceKind::step},
  };
  return all;
}

void make_untied_llama(Config& config) {
  make_llama(config.model);
  config.model.tie_embeddings = false;
}

LayoutOutcome run_config(const Config& config, std::int64_t steps, std::int64_t evaluation_samples = 0) {
  LayoutRun run{.config = config};
  run.steps = steps;
  run.evaluation_samples = evaluation_samples;
  return run_layout(run);
}

// A key's bias moves all scores of a query alike: its gradient is nothing but rounding, which Adam makes as large as
// any.
GlobalTensors without_key_biases(GlobalTensors tensors) {
  std::erase_if(tensors, [](const auto& entry) { return entry.first.find("key.bias") != std::string::npos; });
  return tensors;
}

}  // namespace

TEST_CASE("first_step_gradients_of_every_layout_are_those_of_one_rank") {
  for (const bool llama : {false, true}) {
    Config base = small_config();
    use_sgd(base);
    if (llama) make_untied_llama(base);
    const LayoutOutcome one = run_config(base, 1);
    REQUIRE(one.problem == "");
    for (const TestLayout& layout : dozen_layouts()) {
      CAPTURE(llama);
      CAPTURE(layout.name);
      Config config = base;
      lay_out(config, layout);
      check_like_one_rank(run_config(config, 1), one);
    }
  }
}

TEST_CASE("five_adamw_steps_and_an_evaluation_of_every_layout_are_those_of_one_rank") {
  const Config base = small_config();
  // A number of samples that fills no layout's micro-batches.
  const LayoutOutcome one = run_config(base, 5, 13);
  REQUIRE(one.problem == "");
  for (const TestLayout& layout : dozen_layouts()) {
    CAPTURE(layout.name);
    Config config = base;
    lay_out(config, layout);
    const LayoutOutcome many = run_config(config, 5, 13);
    CHECK(many.problem == "");
    CHECK(largest_relative(many.losses, one.losses) <= 1e-10);
    CHECK(largest_relative(many.grad_norms, one.grad_norms) <= 1e-9);
    CHECK(many.evaluation.target_tokens == one.evaluation.target_tokens);
    CHECK(largest_relative({many.evaluation.loss_sum}, {one.evaluation.loss_sum}) <= 1e-10);
    const TensorDifference difference = largest_difference(many.parameters, without_key_biases(one.parameters));
    CAPTURE(difference.tensor);
    CHECK(difference.error <= 1e-9);
  }
}

TEST_CASE("the_vectorised_backend_on_eight_ranks_stays_within_single_precision") {
  Config base = small_config();
  use_sgd(base);
  LayoutRun run{.config = base};
  run.backend = TestBackend::cpu;
  const LayoutOutcome one = run_layout(run);
  REQUIRE(one.problem == "");
  lay_out(run.config, {"eight ranks", 2, 2, 2, 1});
  const LayoutOutcome many = run_layout(run);
  CHECK(many.problem == "");
  CHECK(largest_relative(many.losses, one.losses) <= 1e-5);
  const TensorDifference difference = largest_difference(many.gradients, without_key_biases(one.gradients));
  CAPTURE(difference.tensor);
  CHECK(difference.error <= 1e-5);
}

// What is left out of an edge between a stream and a transfer shows here (support/ranks/late_backend.h), and what the
// host reads or writes of a device's memory (support/ranks/fenced_backend.h).
TEST_CASE("streams_that_run_late_and_memory_beyond_the_hosts_reach_change_no_bit_of_any_layout") {
  const Config base = small_config();
  for (const TestLayout& layout : dozen_layouts()) {
    CAPTURE(layout.name);
    LayoutRun run{.config = base, .backend = TestBackend::cpu, .steps = 3, .evaluation_samples = 13};
    lay_out(run.config, layout);
    const LayoutOutcome at_once = run_layout(run);
    for (const TestBackend backend : {TestBackend::late_cpu, TestBackend::fenced_cpu}) {
      run.backend = backend;
      const LayoutOutcome late = run_layout(run);
      CHECK(late.problem == "");
      CHECK(late.losses == at_once.losses);
      CHECK(late.grad_norms == at_once.grad_norms);
      CHECK(late.evaluation.loss_sum == at_once.evaluation.loss_sum);
      CHECK(late.gradients == at_once.gradients);
      CHECK(late.parameters == at_once.parameters);
    }
  }
}

namespace {

// By rank: how often the host waits in a training step that runs beside a save, the second of a run.
std::vector<std::uint64_t> waits_of_a_step(const Config& config, const PhasePlan& plan, TestBackend backend) {
  std::vector<std::uint64_t> waits(static_cast<std::size_t>(plan.mesh.world()));
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    RankTrainer trainer(config, plan, rank, groups, backend);
    trainer.step();
    // A save of a device's state is copied beside the step, and only the update runs behind it.
    StateStaging staging(trainer.settled_store());
    staging.begin(trainer.stream());
    const std::uint64_t before = host_waits();
    trainer.step([&] { CHECK(staging.hold_back(trainer.stream()) == is_fenced(backend)); });
    waits[static_cast<std::size_t>(rank.value())] = host_waits() - before;
    trainer.stream().synchronize();  // it waits for the copy, which ends here
  });
  return waits;
}

std::uint64_t shared_groups(const PhasePlan& plan, std::initializer_list<Axis> axes) {
  std::uint64_t count = 0;
  for (const Axis axis : axes) count += plan.mesh.degree(axis) > 1 ? 1 : 0;
  return count;
}

// Sums over the world wait in each group that this rank shares with others.
std::uint64_t waits_of_world_sum(const PhasePlan& plan) {
  return shared_groups(plan, {Axis::tensor, Axis::data, Axis::pipeline});
}

void check_waits(const Config& config, TestBackend backend, std::uint64_t expected, const PhasePlan& plan) {
  const std::vector<std::uint64_t> waits = waits_of_a_step(config, plan, backend);
  CHECK(waits == std::vector<std::uint64_t>(waits.size(), expected));
}

constexpr std::array<TestBackend, 6> late_backends = {TestBackend::late_cpu,      TestBackend::fenced_cpu,
                                                      TestBackend::late_cpu_bf16, TestBackend::fenced_cpu_bf16,
                                                      TestBackend::late_cpu_f16,  TestBackend::fenced_cpu_f16};

}  // namespace

// For its stream once, and then for the other ranks: the numbers of the step are summed in each group that this rank
// shares with others. A step in halves is no exception.
TEST_CASE("the_host_waits_once_for_its_stream_and_once_in_each_sum_over_ranks_in_a_step_even_beside_a_save") {
  for (const TestLayout& layout : dozen_layouts()) {
    for (const TestBackend backend : late_backends) {
      for (const bool in_halves : {false, true}) {
        CAPTURE(layout.name);
        CAPTURE(backend);
        CAPTURE(in_halves);
        Config config = small_config();
        if (in_halves) config.log.gradient_noise = GradientNoiseConfig{.every = 1};
        if (compute_type_of(backend) == DType::f16) config.precision.loss_scale = 1024.0;
        lay_out(config, layout);
        const PhasePlan plan = make_test_plan(config, backend);
        check_waits(config, backend, 1 + waits_of_world_sum(plan), plan);
      }
    }
  }
}

// What an optimizer measures of whole tensors is summed over the ranks by the host, which steps by what it finds
// (optim/README.md has these numbers). Norms of directions, which the step's numbers decide, take one more wait for the
// stream; those of gradients, and the squares of Adafactor's factors, come with the step's own.
TEST_CASE("the_host_waits_once_more_for_norms_of_directions_and_in_each_further_sum_over_ranks") {
  std::vector<NamedOptimizer> all = optimizers_beside_adamw();
  all.push_back({"adamw in 8 bits", {.weight_decay = 0.1, .state = OptimizerStateType::int8}});
  for (const NamedOptimizer& named : all) {
    for (const TestLayout& layout : std::initializer_list<TestLayout>{
             {"one rank", 1, 1, 1, 0},
             {"data 2, zero 1", 2, 1, 1, 1},
             {"data 2, tensor 2, pipeline 2, zero 2", 2, 2, 2, 2},
             {"data 2, tensor 2 with sequence shards, zero 3", 2, 2, 1, 3, ScheduleKind::one_f_one_b, 1, true}}) {
      for (const TestBackend backend : {TestBackend::late_cpu, TestBackend::fenced_cpu, TestBackend::fenced_cpu_bf16}) {
        CAPTURE(named.name);
        CAPTURE(layout.name);
        CAPTURE(backend);
        Config config = small_config();
        config.train.optimizer = named.config;
        lay_out(config, layout);
        const PhasePlan plan = make_test_plan(config, backend);
        const std::uint64_t world = waits_of_world_sum(plan);
        std::uint64_t expected = 1 + world;
        switch (named.config.type) {
          case OptimizerKind::adafactor:
            expected += 1 + world + shared_groups(plan, {Axis::tensor, Axis::data});
            break;
          case OptimizerKind::lamb:
          case OptimizerKind::muon:
            expected += 1 + world;
            break;
          case OptimizerKind::lars:
            expected += world;
            break;
          default:
            break;
        }
        check_waits(config, backend, expected, plan);
      }
    }
  }
}

TEST_CASE("transfers_through_the_hosts_memory_change_no_bit_and_keep_to_the_plan_of_pinned_memory") {
  for (const TestLayout& layout : dozen_layouts()) {
    CAPTURE(layout.name);
    Config config = small_config();
    lay_out(config, layout);
    const PhasePlan plan = make_test_plan(config, TestBackend::fenced_cpu);
    // What copies for each group of each rank.
    std::vector<std::vector<std::unique_ptr<LateBackend>>> copying(static_cast<std::size_t>(plan.mesh.world()));
    const auto train = [&](bool is_staged) {
      RanksOptions options;
      if (is_staged) {
        options.mode = DirectOptions::Mode::caller;
        options.decorate = [&](Rank rank, GroupKind kind, std::unique_ptr<Communicator> group) {
          if (is_control(kind)) return group;
          auto& own = copying[static_cast<std::size_t>(rank.value())];
          own.push_back(
              std::make_unique<LateBackend>(std::make_unique<FencedBackend>(make_reference_backend(DType::f32))));
          return make_staged_communicator(std::move(group), *own.back());
        };
      }
      std::vector<double> losses;
      const auto steps = [&](Rank rank, RankGroups& groups, InProcessWorld&) {
        RankTrainer trainer(config, plan, rank, groups, TestBackend::fenced_cpu);
        for (int step = 0; step < 2; ++step) {
          const double loss = trainer.step().outcome.loss;
          if (rank == Rank(0)) losses.push_back(loss);
        }
        const double loss_sum = trainer.evaluate(9).loss_sum;
        if (rank == Rank(0)) losses.push_back(loss_sum);
      };
      run_ranks(plan.mesh, plan.group_facts(), steps, options);
      return losses;
    };
    CHECK(train(true) == train(false));
    for (std::size_t index = 0; index < copying.size(); ++index) {
      const Rank rank(static_cast<std::int64_t>(index));
      std::size_t pinned = 0;
      for (const auto& backend : copying[index]) pinned += dynamic_cast<FencedBackend&>(backend->inner()).most_pinned();
      CHECK(pinned <= plan.transfer_staging(plan.activations(rank), rank));
      CHECK((pinned > 0) == (plan.mesh.world() > 1));
    }
  }
}

TEST_CASE("pinned_memory_is_what_the_plan_says_and_none_where_the_devices_memory_is_the_hosts") {
  for (const TestLayout& layout : dozen_layouts()) {
    CAPTURE(layout.name);
    Config config = small_config();
    lay_out(config, layout);
    PhasePlan plan = make_test_plan(config, TestBackend::fenced_cpu);
    plan.space = Space::host;
    CHECK(plan.pinned_staging() == 0);
    const std::size_t on_host = plan.memory(Rank(0), 0).total();
    plan.space = Space::device;
    const std::size_t staged = plan.pinned_staging() + plan.device_staging(Rank(0)) + plan.device_connections(Rank(0)) +
                               cuda_process_bytes(plan.is_direct()) +
                               plan.transfer_staging(plan.activations(Rank(0)), Rank(0));
    const std::size_t on_device = plan.memory(Rank(0), 0).total() - staged;
    // Control groups receive a step's few numbers of their peers.
    CHECK(on_device >= on_host);
    CHECK(on_device <= on_host + numbers_per_step * sizeof(double) * 3 * static_cast<std::size_t>(plan.mesh.world()));
    std::vector<std::size_t> most(static_cast<std::size_t>(plan.mesh.world()));
    run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
      RankTrainer trainer(config, plan, rank, groups, TestBackend::fenced_cpu);
      trainer.step();
      trainer.evaluate(40);
      const auto& fenced = dynamic_cast<FencedBackend&>(dynamic_cast<LateBackend&>(trainer.backend()).inner());
      most[static_cast<std::size_t>(rank.value())] = fenced.most_pinned();
    });
    // Beside it the few numbers that a step tells the host.
    for (const std::size_t bytes : most) {
      CHECK(bytes > 0);
      CHECK(bytes <= plan.pinned_staging() + 4096);
    }
  }
}

// What sees that a schedule needs more than that, which the next test therefore says of none.
TEST_CASE("ordered_queues_stand_still_where_two_messages_of_a_channel_are_received_in_another_order_than_sent") {
  struct Order {
    bool queues_only;
    int second_channel;
    bool is_turned;
    bool comes;
  };
  for (const Order& order : std::initializer_list<Order>{
           {true, 0, true, false}, {true, 0, false, true}, {true, 1, true, true}, {false, 0, true, true}}) {
    CAPTURE(order.queues_only);
    CAPTURE(order.second_channel);
    CAPTURE(order.is_turned);
    InProcessWorld world(2);
    std::array<std::unique_ptr<Transport>, 2> ranks;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      ranks[rank] = world.make_transport("pipeline", {Rank(0), Rank(1)}, Rank(static_cast<std::int64_t>(rank)));
      if (order.queues_only) ranks[rank] = std::make_unique<QueueTransport>(std::move(ranks[rank]));
    }
    const std::array<std::uint64_t, 2> tags = {
        direct::exchange_tag(0, 0), direct::exchange_tag(order.second_channel, order.second_channel == 0 ? 1 : 0)};
    const std::array<float, 2> sent = {1.0F, 2.0F};
    std::array<float, 2> received = {0.0F, 0.0F};
    std::array<std::unique_ptr<Transport::Pending>, 2> receives;
    std::array<std::unique_ptr<Transport::Pending>, 2> sends;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      sends[i] = ranks[0]->send(1, tags[i], std::as_bytes(std::span(&sent[i], 1)));
      const std::size_t at = order.is_turned ? 1 - i : i;
      receives[at] = ranks[1]->receive(0, tags[at], std::as_writable_bytes(std::span(&received[at], 1)));
    }
    const MonotonicTime deadline = monotonic_now() + std::chrono::milliseconds(order.comes ? 60000 : 200);
    for (const auto& receive : receives) CHECK(receive->wait_until(deadline) == order.comes);
    CHECK(received == (order.comes ? sent : std::array<float, 2>{}));
  }
}

// What a network needs to offer is no more than that (support/ranks/queue_transport.h), also to streams that run late.
TEST_CASE("every_schedule_trains_and_evaluates_where_stages_have_nothing_but_ordered_queues_between_them") {
  Config base = small_config();
  base.model.layers = 16;
  base.train.global_batch = 16;
  base.train.micro_batch = 1;
  for (const std::int64_t stages : {2, 4, 8}) {
    for (const TestLayout& layout : std::initializer_list<TestLayout>{
             {"gpipe", 1, 1, stages, 0, ScheduleKind::gpipe},
             {"1f1b", 1, 1, stages, 0},
             {"1f1b, fewer micro-batches than stages", 1, 1, stages, 0, ScheduleKind::one_f_one_b, 1, false, 16},
             {"interleaved", 1, 1, stages, 0, ScheduleKind::interleaved, 2},
             {"zb-h1", 1, 1, stages, 0, ScheduleKind::zb_h1}}) {
      CAPTURE(stages);
      CAPTURE(layout.name);
      LayoutRun run{.config = base, .backend = TestBackend::cpu, .steps = 2, .evaluation_samples = 13};
      lay_out(run.config, layout);
      const LayoutOutcome free = run_layout(run);
      run.queues_only = true;
      for (const TestBackend backend : {TestBackend::cpu, TestBackend::late_cpu}) {
        run.backend = backend;
        const LayoutOutcome queued = run_layout(run);
        CHECK(queued.problem == "");
        CHECK(queued.losses == free.losses);
        CHECK(queued.evaluation.loss_sum == free.evaluation.loss_sum);
        CHECK(queued.parameters == free.parameters);
      }
    }
  }
}
