// Whole runs on a device whose memory the host cannot touch and whose streams run late: their numbers and checkpoints
// are those of the host's own backend, to the bit. What takes device memory for the host's ends such a run.
#include <array>

#include "checkpoint/hugging_face/hugging_face.h"
#include "host/thread_limits.h"
#include "infer/model.h"
#include "spike_runs.h"
#include "support/eventually.h"
#include "support/forwarding_backend.h"
#include "support/ranks/fenced_backend.h"
#include "support/ranks/late_backend.h"

using namespace scaletrain;

namespace {

std::unique_ptr<Backend> late_and_fenced_cpu(const CpuOptions& options) {
  return std::make_unique<LateBackend>(std::make_unique<FencedBackend>(make_cpu_backend(options)));
}

void check_same_checkpoints(const TinyRun& found, const TinyRun& expected) {
  REQUIRE(found.checkpoint_steps() == expected.checkpoint_steps());
  REQUIRE_FALSE(expected.checkpoint_steps().empty());
  for (const std::int64_t step : expected.checkpoint_steps()) {
    CAPTURE(step);
    CHECK(tensors_of(found.checkpoint(step)) == tensors_of(expected.checkpoint(step)));
  }
}

// Whether there have been so many threads of this process when a value of the host first came to the device: those that
// make the initial weights cannot end before, as each waits for its turn to copy.
class WatchedThreads final : public ForwardingBackend {
 public:
  WatchedThreads(const CpuOptions& options, std::int64_t expected, std::int64_t& found)
      : ForwardingBackend(std::make_unique<FencedBackend>(make_cpu_backend(options))),
        expected_(expected),
        found_(found) {}

 private:
  void transfer(Stream& stream, const ConstView& from, const View& to) override {
    if (found_ == 0) {
      eventually([this] { return running_threads() >= expected_; }, 20.0);
      found_ = running_threads();
    }
    inner().copy(stream, from, to);
  }

  std::int64_t expected_;
  std::int64_t& found_;
};

}  // namespace

TEST_CASE("the start of a GPU's rank uses the threads that the rank may use of its host") {
  std::int64_t alone = 0;
  for (const int threads : {1, 5}) {
    CAPTURE(threads);
    TinyRun run;
    run.threads = threads;
    std::int64_t found = 0;
    int told = 0;
    const std::int64_t expected = threads == 1 ? 1 : alone + threads - 1;
    run.make_backend = [&](const CpuOptions& options) {
      return std::make_unique<WatchedThreads>(options, expected, found);
    };
    run.made_for_gpu = [&](const CudaOptions& options) { told = options.threads; };
    REQUIRE(run.run({"run.device=cuda", "train.steps=3"}) == ExitCode::finished);
    CHECK(told == threads);
    if (threads == 1) alone = found;
    CHECK(found >= expected);
  }
}

TEST_CASE("a run beyond the host's reach trains, evaluates and saves what the host's own does, in either way to save") {
  TinyRun expected;
  REQUIRE(expected.run({"checkpoint.every=3"}) == ExitCode::finished);
  for (const std::string background : {"true", "false"}) {
    CAPTURE(background);
    TinyRun found;
    found.make_backend = late_and_fenced_cpu;
    REQUIRE(found.run({"checkpoint.every=3", "checkpoint.background=" + background}) == ExitCode::finished);
    check_same_numbers(found.metrics(), expected.metrics());
    check_same_checkpoints(found, expected);
  }
}

TEST_CASE("a run moves between a host's memory and a device's at a resume") {
  TinyRun expected;
  REQUIRE(expected.run() == ExitCode::finished);
  for (const bool begins_fenced : {false, true}) {
    CAPTURE(begins_fenced);
    TinyRun parts;
    for (const bool is_first : {true, false}) {
      parts.make_backend = make_cpu_backend;
      if (is_first == begins_fenced) parts.make_backend = late_and_fenced_cpu;
      CHECK(parts.run({}, is_first ? 6 : -1) == (is_first ? ExitCode::interrupted : ExitCode::finished));
    }
    check_same_numbers(parts.metrics(), expected.metrics());
    CHECK(tensors_of(parts.checkpoint(12)) == tensors_of(expected.checkpoint(12)));
  }
}

TEST_CASE("ranks beyond the host's reach train and save what ranks of the host do, on every kind of layout") {
  struct Layout {
    int world;
    std::vector<std::string> overrides;
  };
  const std::array<Layout, 4> layouts = {{
      {2, {"parallel.data=2", "parallel.zero=2"}},
      {2, {"parallel.data=2", "parallel.zero=2", "precision.compute=bf16"}},
      {4, {"parallel.data=2", "parallel.tensor=2", "parallel.zero=3"}},
      {4, {"parallel.data=2", "parallel.pipeline=2", "parallel.zero=1"}},
  }};
  for (const Layout& layout : layouts) {
    CAPTURE(layout.overrides);
    std::vector<std::string> overrides = layout.overrides;
    overrides.insert(overrides.end(), {"train.steps=6", "train.lr_schedule.warmup=2", "checkpoint.every=2",
                                       "checkpoint.background=true"});
    RanksRun expected;
    REQUIRE(all_are(expected.run_ranks(layout.world, overrides), ExitCode::finished));
    RanksRun found;
    found.make_backend = late_and_fenced_cpu;
    REQUIRE(all_are(found.run_ranks(layout.world, overrides), ExitCode::finished));
    check_same_numbers(found.metrics(), expected.metrics());
    check_same_checkpoints(found, expected);
  }
}

// Of a config for a GPU; its masters and optimizer state lie where the host reaches them.
TEST_CASE("a run that offloads trains, saves in either way and resumes to the bits of one that does not") {
  const std::vector<std::string> on_gpu = {"run.device=cuda", "checkpoint.every=3"};
  const auto with = [&on_gpu](std::vector<std::string> more) {
    more.insert(more.end(), on_gpu.begin(), on_gpu.end());
    return more;
  };
  for (const std::string precision : {"precision.compute=fp32", "precision.compute=bf16"}) {
    CAPTURE(precision);
    TinyRun expected;
    REQUIRE(expected.run({precision, "checkpoint.every=3"}) == ExitCode::finished);
    for (const std::string background : {"true", "false"}) {
      CAPTURE(background);
      TinyRun found;
      found.make_backend = late_and_fenced_cpu;
      REQUIRE(found.run(with({precision, "train.optimizer.offload=host", "checkpoint.background=" + background})) ==
              ExitCode::finished);
      check_same_numbers(found.metrics(), expected.metrics());
      check_same_checkpoints(found, expected);
    }
    for (const std::string begun : {"host", "none"}) {
      CAPTURE(begun);
      TinyRun parts;
      parts.make_backend = late_and_fenced_cpu;
      CHECK(parts.run(with({precision, "train.optimizer.offload=" + begun}), 6) == ExitCode::interrupted);
      const std::string other = begun == "host" ? "none" : "host";
      CHECK(parts.run(with({precision, "train.optimizer.offload=" + other})) == ExitCode::finished);
      CHECK_FALSE(parts.noticed("agree to rounding"));
      check_same_numbers(parts.metrics(), expected.metrics());
      CHECK(tensors_of(parts.checkpoint(12)) == tensors_of(expected.checkpoint(12)));
    }
  }
}

TEST_CASE("what the backend of a gpu does counts as the work of its rank") {
  TinyRun run;
  WorkCount work{0};
  run.work = &work;
  const WorkCount* given = nullptr;
  run.make_backend = [&given](const CpuOptions& options) {
    given = options.work;
    return late_and_fenced_cpu(options);
  };
  REQUIRE(run.run({"run.device=cuda", "train.steps=1", "train.lr_schedule.warmup=1"}) == ExitCode::finished);
  CHECK(given == &work);
}

TEST_CASE("ranks that offload save and resume what ranks that do not do, on every division of the state") {
  for (const std::string zero : {"parallel.zero=0", "parallel.zero=1", "parallel.zero=3"}) {
    CAPTURE(zero);
    const std::vector<std::string> overrides = {
        "parallel.data=2",   zero, "precision.compute=bf16", "train.steps=6", "train.lr_schedule.warmup=2",
        "checkpoint.every=2"};
    RanksRun expected;
    REQUIRE(all_are(expected.run_ranks(2, overrides), ExitCode::finished));
    std::vector<std::string> offloaded = overrides;
    offloaded.insert(offloaded.end(), {"run.device=cuda", "train.optimizer.offload=host"});
    RanksRun found;
    found.make_backend = late_and_fenced_cpu;
    CHECK(all_are(found.run_ranks(2, offloaded, 1, 3), ExitCode::interrupted));
    REQUIRE(all_are(found.run_ranks(2, offloaded), ExitCode::finished));
    check_same_numbers(found.metrics(), expected.metrics());
    CHECK(tensors_of(found.checkpoint(6)) == tensors_of(expected.checkpoint(6)));
  }
}

TEST_CASE("weights of a Hugging Face folder come to a device as they come to the host") {
  TinyRun before;
  REQUIRE(before.run({"train.steps=1", "train.lr_schedule.warmup=0", "checkpoint.every=1"}) == ExitCode::finished);
  const auto backend = make_cpu_backend({.threads = 1});
  const auto stream = backend->make_stream();
  LoadedModel model(locate_model(before.checkpoint(1)), *backend, *stream);
  ModelConfig exported = model.config().model;
  exported.vocab = model.transformer().spec().vocab;
  const std::filesystem::path weights = before.folder / "weights";
  export_hugging_face(
      model.store().table(),
      [&](const Parameter& parameter, View out) { backend->copy(*stream, model.store().master(parameter.name), out); },
      {.folder = weights, .model = exported, .dtype = DType::bf16, .tokenizer_files = {}});
  TinyRun runs[2];
  runs[1].make_backend = late_and_fenced_cpu;
  for (TinyRun& run : runs)
    REQUIRE(run.run({"model.init={from: " + weights.string() + "}", "train.steps=3", "checkpoint.every=1"}) ==
            ExitCode::finished);
  check_same_numbers(runs[1].metrics(), runs[0].metrics());
  check_same_checkpoints(runs[1], runs[0]);
}

TEST_CASE("a rollback brings older weights back to a device, and to the host what is offloaded") {
  NoisyRun runs[3];
  runs[1].make_backend = late_and_fenced_cpu;
  runs[2].make_backend = late_and_fenced_cpu;
  for (NoisyRun& run : runs) {
    std::vector<std::string> overrides = {"train.steps=28", "checkpoint.background=true", policy("rollback")};
    if (&run == &runs[2])
      overrides.insert(overrides.end(), {"run.device=cuda", "precision.compute=fp32", "train.optimizer.offload=host"});
    REQUIRE(run.run(overrides) == ExitCode::finished);
  }
  REQUIRE(runs[0].metrics().spikes.size() == 1);
  for (const NoisyRun* found : {&runs[1], &runs[2]}) {
    CHECK(found->metrics().spikes.size() == 1);
    check_same_numbers(found->metrics(), runs[0].metrics());
    CHECK(tensors_of(found->checkpoint(28)) == tensors_of(runs[0].checkpoint(28)));
  }
}
