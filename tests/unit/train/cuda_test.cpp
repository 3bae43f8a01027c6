// Whole runs on a GPU.
#include "support/cuda/gpu_under_test.h"
#include "support/near.h"
#include "train_helpers.h"

using namespace scaletrain;

namespace {

std::unique_ptr<Backend> gpu(const CpuOptions& options) {
  return make_gpu(options.compute);
}

}  // namespace

TEST_CASE("a run on a gpu saves in either way and resumes to the bit") {
  if (is_gpu_missing()) return;
  for (const std::string precision : {"fp32", "bf16"}) {
    const std::string compute = "precision.compute=" + precision;
    CAPTURE(precision);
    TinyRun expected;
    expected.make_backend = gpu;
    REQUIRE(expected.run({compute, "checkpoint.every=3", "checkpoint.background=true"}) == ExitCode::finished);
    TinyRun parts;
    parts.make_backend = gpu;
    CHECK(parts.run({compute, "checkpoint.background=false"}, 6) == ExitCode::interrupted);
    CHECK(parts.run({compute}) == ExitCode::finished);
    check_same_numbers(parts.metrics(), expected.metrics());
    CHECK(tensors_of(parts.checkpoint(12)) == tensors_of(expected.checkpoint(12)));
  }
}

TEST_CASE("a run that offloads on a gpu resumes to the bit with and without") {
  if (is_gpu_missing()) return;
  const auto with = [](const std::string& precision, const std::string& offload) {
    return std::vector<std::string>{"run.device=cuda", "precision.compute=" + precision,
                                    "train.optimizer.offload=" + offload, "checkpoint.every=3"};
  };
  for (const std::string precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    TinyRun expected;
    expected.make_backend = gpu;
    REQUIRE(expected.run(with(precision, "none")) == ExitCode::finished);
    for (const std::string begun : {"host", "none"}) {
      CAPTURE(begun);
      TinyRun parts;
      parts.make_backend = gpu;
      CHECK(parts.run(with(precision, begun), 7) == ExitCode::interrupted);
      CHECK(parts.run(with(precision, begun == "host" ? "none" : "host")) == ExitCode::finished);
      check_same_numbers(parts.metrics(), expected.metrics());
      CHECK(tensors_of(parts.checkpoint(12)) == tensors_of(expected.checkpoint(12)));
    }
  }
}

TEST_CASE("a run begun on processors goes on on a gpu, to the losses of processors") {
  if (is_gpu_missing()) return;
  TinyRun expected;
  REQUIRE(expected.run() == ExitCode::finished);
  TinyRun parts;
  CHECK(parts.run({}, 6) == ExitCode::interrupted);
  parts.make_backend = gpu;
  CHECK(parts.run() == ExitCode::finished);
  const auto found = parts.metrics().steps;
  const auto wanted = expected.metrics().steps;
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i].loss == Near(wanted[i].loss).epsilon(1e-4));
}
