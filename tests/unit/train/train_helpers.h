// A tiny run in a folder of its own: text, config, and starting it as agent and worker do, in this process.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/catalog.h"
#include "config/load.h"
#include "support/temp_folder.h"
#include "support/text.h"
#include "telemetry/metrics_reader.h"
#include "train/start/assembly.h"

namespace scaletrain {

// Text with some structure, different for each seed.
inline std::string sample_text(std::size_t bytes, unsigned seed) {
  std::string text;
  unsigned state = seed * 2654435761u + 1;
  while (text.size() < bytes) {
    state = state * 1664525u + 1013904223u;
    text += "the quick brown fox jumps over lazy dogs "[(state >> 16) % 41];
    if ((state >> 28) == 3) text += "\nand so on, ";
  }
  return text;
}

class TinyRun {
 public:
  TinyRun() : paths(folder / "run") {
    folder.write("train.txt", sample_text(4000, 1));
    folder.write("a.txt", sample_text(300, 2));
    folder.write("b.txt", sample_text(150, 3));
  }

  // 12 steps of 4 samples of 16 tokens, in micro-batches of 2; evaluation every 4 steps on two sets, a checkpoint
  // every 5.
  LoadedConfig config(const std::vector<std::string>& overrides = {}) const {
    const std::string yaml = R"(
run: {name: tiny, directory: run, seed: 7, device: cpu}
model: {layers: 1, hidden: 16, heads: 2, ffn_hidden: 24, context: 16}
data:
  cache: cache
  train: [{path: train.txt}]
  validation: [{name: a, path: a.txt}, {name: b, path: b.txt}]
train:
  steps: 12
  global_batch: 4
  micro_batch: 2
  optimizer: {learning_rate: 1e-2}
  lr_schedule: {warmup: 2}
evaluate: {every: 4, batches: 1}
checkpoint: {every: 5, keep: 3}
)";
    std::vector<std::string> all = overrides_always;
    all.insert(all.end(), overrides.begin(), overrides.end());
    return parse_config(yaml, "tiny.yaml", folder.path(), all, [](const std::string&) { return std::nullopt; });
  }

  StartPoint prepare(const LoadedConfig& loaded, const std::string& resume = "auto") {
    open_run_folder(paths);
    return prepare_run_folder(paths, loaded, parse_resume(resume, paths),
                              [this](const std::string& text) { notices.push_back(text); });
  }

  // Interrupted before the step after `stop_after` more ones, if given.
  ExitCode train(const StartPoint& start, std::int64_t stop_after = -1) {
    WorkerOptions options;
    options.paths = paths;
    options.start = start;
    options.version = "test";
    options.threads = threads;
    options.work = work;
    use_backend(options);
    options.calibration_seconds = 0.0;
    options.looked_up_samples = looked_up_samples;
    options.hooks = hooks;
    options.failed = failed;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> console(std::fopen("/dev/null", "w"), &std::fclose);
    options.console = console.get();
    std::int64_t asked = 0;
    if (stop_after >= 0) options.hooks.interrupted = [&asked, stop_after] { return asked++ == stop_after; };
    return train_run(options);
  }

  // What computes, whether run.device says that it is processors or a GPU.
  void use_backend(WorkerOptions& options) const {
    options.make_backend = make_backend;
    options.count_gpus = [] { return 1; };
    options.make_gpu_backend = [this](const CudaOptions& gpu) {
      if (made_for_gpu) made_for_gpu(gpu);
      return make_backend({.threads = 1, .work = gpu.work, .compute = gpu.compute});
    };
  }

  ExitCode run(const std::vector<std::string>& overrides = {}, std::int64_t stop_after = -1,
               const std::string& resume = "auto") {
    return train(prepare(config(overrides), resume), stop_after);
  }

  Metrics metrics() const { return read_metrics(paths.metrics()); }
  std::vector<std::int64_t> checkpoint_steps() const {
    std::vector<std::int64_t> steps;
    for (const CatalogEntry& entry : list_checkpoints(paths.checkpoints())) steps.push_back(entry.step);
    return steps;
  }
  std::filesystem::path checkpoint(std::int64_t step) const {
    for (const CatalogEntry& entry : list_checkpoints(paths.checkpoints()))
      if (entry.step == step) return entry.path;
    FAIL("no checkpoint of step " << step);
    return {};
  }
  bool noticed(const std::string& part) const {
    for (const std::string& notice : notices)
      if (contains(notice, part)) return true;
    return false;
  }

  TempFolder folder;
  RunPaths paths;
  std::vector<std::string> overrides_always;
  std::vector<std::string> notices;
  TrainerHooks hooks;
  std::int64_t looked_up_samples = most_looked_up;
  int threads = 1;  // that the rank may use
  std::function<std::unique_ptr<Backend>(const CpuOptions&)> make_backend = make_cpu_backend;
  std::function<void(const CudaOptions&)> made_for_gpu;
  std::function<void(const std::exception_ptr&)> failed;
  WorkCount* work = nullptr;
};

// Overfits: set a holds bytes that training never sees, so its loss rises after the first evaluation, and the best
// checkpoint is that of step 2.
struct RisingRun : TinyRun {
  RisingRun() {
    folder.write("train.txt", std::string(2000, 'x'));
    folder.write("a.txt", std::string(200, 'q'));
    overrides_always = {"evaluate.every=2", "checkpoint.every=3", "checkpoint.keep=2", "train.steps=14",
                        "train.optimizer.learning_rate=3e-2"};
  }
};

// What must not differ between two runs of the same fingerprint: everything but the clock.
inline void check_same_numbers(const Metrics& a, const Metrics& b) {
  REQUIRE(a.steps.size() == b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    CAPTURE(i);
    CHECK(a.steps[i].step == b.steps[i].step);
    CHECK(a.steps[i].tokens == b.steps[i].tokens);
    CHECK(a.steps[i].loss == b.steps[i].loss);
    CHECK(a.steps[i].learning_rate == b.steps[i].learning_rate);
    CHECK(a.steps[i].grad_norm == b.steps[i].grad_norm);
    CHECK(a.steps[i].loss_scale == b.steps[i].loss_scale);
    CHECK(a.steps[i].noise == b.steps[i].noise);
  }
  REQUIRE(a.evaluations.size() == b.evaluations.size());
  for (std::size_t i = 0; i < a.evaluations.size(); ++i) {
    CHECK(a.evaluations[i].step == b.evaluations[i].step);
    CHECK(a.evaluations[i].dataset == b.evaluations[i].dataset);
    CHECK(a.evaluations[i].loss == b.evaluations[i].loss);
    CHECK(a.evaluations[i].tokens == b.evaluations[i].tokens);
  }
}

// All tensors of a checkpoint, one after the other.
inline std::vector<float> tensors_of(const std::filesystem::path& path) {
  const Checkpoint checkpoint(path);
  std::vector<float> out;
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors) {
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.num_elements()));
    std::vector<std::uint8_t> codes(tensor.dtype == DType::u8 ? values.size() : 0);
    Box box;
    for (const std::int64_t extent : tensor.shape) {
      box.first.push_back(0);
      box.extent.push_back(extent);
    }
    if (codes.empty())
      checkpoint.read(tensor.name, box, View(values.data(), DType::f32, tensor.shape));
    else
      checkpoint.read(tensor.name, box, View(codes.data(), DType::u8, tensor.shape));
    std::copy(codes.begin(), codes.end(), values.begin());
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

}  // namespace scaletrain
