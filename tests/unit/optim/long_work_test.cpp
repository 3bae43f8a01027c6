// What a step does outside its layers is long where a model is large: each piece of it counts its parts as work.
#include <doctest/doctest.h>

#include "backend/backend.h"
#include "base/process/work_count.h"
#include "optim/gradient_norm.h"
#include "optim/optimizer.h"
#include "optim/step_scalars.h"
#include "support/models/gradient_share.h"

using namespace scaletrain;

TEST_CASE("zeroing, the norm and the update of one large tensor are each seen to get further, MiB by MiB") {
  constexpr std::int64_t elements = std::int64_t{4} << 20;  // 16 MiB
  constexpr std::uint64_t mebibytes = 16;
  ParamTable table;
  table.begin_unit("u");
  Parameter matrix;
  matrix.name = "u.weight";
  matrix.shape = {elements / 1024, 1024};
  table.add(matrix);
  const int units[] = {0};
  const ShardLayout layout(table, units, Mesh(1, 1, 1), {});
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    WorkCount work{0};
    const auto backend = make_cpu_backend({.threads = threads, .instruction_set = "auto", .work = &work});
    const auto stream = backend->make_stream();
    const auto optimizer = make_optimizer({.type = OptimizerKind::adamw});
    const auto names = optimizer->state_names();
    ParamStore store(*backend, table, layout, {.state_names = {names.begin(), names.end()}});
    // Threads share the pieces, of which the caller's are counted: with two of them on a busy machine it may get few.
    const std::uint64_t enough = threads == 1 ? mebibytes : 1;
    const auto counted = [&work] { return work.exchange(0); };
    counted();
    store.zero_gradients(*stream);
    CHECK(counted() >= enough);
    gradient_share(*backend, *stream, store);
    CHECK(counted() >= enough);
    const StepOutcome outcome =
        make_step_scalars({.sum_of_squares = 1, .loss_sum = 1, .num_tokens = 2, .micro_scale = 0.25},
                          {.learning_rate = 0.01, .clip_norm = {}, .beta1 = 0.9, .beta2 = 0.95, .update = 1});
    optimizer->step(*backend, *stream, store, outcome.block);
    CHECK(counted() >= enough);
  }
}
