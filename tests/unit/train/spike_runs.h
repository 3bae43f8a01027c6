// Runs whose text holds a stretch of noise, so that the loss jumps where it is read; and what is to be true of them.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "checkpoint/format/manifest.h"
#include "ranks_run.h"
#include "support/sample_places.h"

namespace scaletrain {

inline constexpr std::size_t sample_bytes = 16;
inline constexpr std::size_t step_bytes = 4 * sample_bytes;
inline constexpr std::size_t text_bytes = 62 * step_bytes;

inline std::string noise(std::size_t bytes) {
  std::string text;
  unsigned state = 99;
  while (text.size() < bytes) {
    state = state * 1664525u + 1013904223u;
    text += static_cast<char>(128 + (state >> 25));
  }
  return text;
}

// 40 steps; what is read in the steps from 25 on, as many as asked for, is noise. A checkpoint every 5 steps.
struct NoisyRun : RanksRun {
  explicit NoisyRun(std::int64_t noisy_steps = 1) {
    overrides_always = {"train.steps=40", "train.micro_batch=1", "checkpoint.keep=20", "evaluate.every=10"};
    std::string text;
    while (text.size() < text_bytes) text += "one two three four five six\n";
    text.resize(text_bytes);
    const std::string noisy = noise(sample_bytes);
    for (const std::size_t place : sample_places(folder.path(), 7, sample_bytes, text_bytes, 96, 4 * noisy_steps))
      text.replace(place, sample_bytes, noisy);
    folder.write("train.txt", text);
  }

  std::vector<std::string> abandoned() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(paths.checkpoints()))
      if (entry.path().filename().string().starts_with(".abandoned-"))
        names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  Manifest manifest(std::int64_t step) const { return Checkpoint(checkpoint(step)).manifest(); }
  std::string log(int rank = 0) const {
    return TempFolder::read(paths.logs() / ("rank-0000" + std::to_string(rank) + ".log"));
  }
};

inline std::string policy(const std::string& action) {
  return "train.spike={window: 8, zscore: 6, action: " + action + "}";
}

inline const std::vector<std::uint64_t> samples_of_step_25 = {96, 97, 98, 99};

inline ConsumptionHistory history_of(const Manifest& manifest) {
  return ConsumptionHistory::from_json(parse_json(manifest.history, "history"), "history");
}

// As if the run had never been meant to see the samples: they are left out of the checkpoint's history by hand.
inline void leave_out(const std::filesystem::path& checkpoint, std::int64_t first, std::int64_t count) {
  Manifest manifest = read_manifest(checkpoint);
  ConsumptionHistory history = history_of(manifest);
  history.skip(first, count);
  manifest.history = history.to_json().dump();
  std::ofstream(checkpoint / "manifest.json", std::ios::binary | std::ios::trunc) << manifest_text(manifest);
}

// What a checkpoint says of the policies, but for what only the spike policy counts.
inline std::map<std::string, std::string> policy_scalars(const Manifest& manifest) {
  std::map<std::string, std::string> kept = manifest.scalars;
  std::erase_if(kept, [](const auto& scalar) {
    return scalar.first.starts_with("spike.") || scalar.first.starts_with("branch_") || scalar.first == "best_save_id";
  });
  return kept;
}

// The run that went back from step 25 to 15 must be the one that never saw the samples 60 to 99.
inline void check_never_saw(const NoisyRun& went_back, const NoisyRun& never_saw) {
  check_same_numbers(went_back.metrics(), never_saw.metrics());
  for (const std::int64_t step : {15, 20, 40}) {
    CAPTURE(step);
    CHECK(tensors_of(went_back.checkpoint(step)) == tensors_of(never_saw.checkpoint(step)));
    CHECK(policy_scalars(went_back.manifest(step)) == policy_scalars(never_saw.manifest(step)));
  }
  CHECK(history_of(went_back.manifest(40)) == history_of(never_saw.manifest(40)));
}

inline void check_one_rollback(const NoisyRun& run) {
  const Metrics metrics = run.metrics();
  REQUIRE(metrics.spikes.size() == 1);
  CHECK(metrics.spikes[0].step == 25);
  CHECK(metrics.spikes[0].action == "rollback");
  CHECK(metrics.spikes[0].samples == samples_of_step_25);
  CHECK(metrics.skips.empty());
  REQUIRE(metrics.restarts.size() == 1);
  CHECK(metrics.restarts[0].step == 15);  // older than the window, 17 to 24
  CHECK(metrics.restarts[0].generation == 1);
  CHECK(contains(metrics.restarts[0].checkpoint, "step-00000015"));
  CHECK_FALSE(metrics.restarts[0].fingerprint_changed);
  CHECK(metrics.restarts[0].layout == metrics.starts.at(0).layout);
  CHECK(metrics.steps.size() == 40);
  CHECK(metrics.steps.back().tokens == 40 * step_bytes);
  // That of step 15 was replaced by one that knows what is skipped.
  CHECK(run.abandoned() == std::vector<std::string>{".abandoned-step-00000015-0", ".abandoned-step-00000020-0"});
  CHECK(run.manifest(20).generation == 1);
  const auto segments = history_of(run.manifest(40)).segments();
  REQUIRE(segments.size() == 1);
  CHECK(segments[0].skipped == std::vector<SkippedRange>{{.first = 60, .count = 40}});
  CHECK(contains(run.log(), "training went back from step 25 to step 15"));
}

}  // namespace scaletrain
