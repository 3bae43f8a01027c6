// Data in a folder of its own, opened as a run opens it, and its samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/dataset.h"
#include "support/temp_folder.h"

namespace scaletrain::test {

struct Sample {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  std::vector<std::int32_t> starts;
  bool operator==(const Sample&) const = default;
};

template <class Data>
Sample read(const Data& data, std::int64_t index) {
  Sample out;
  out.inputs.resize(static_cast<std::size_t>(data.context()));
  out.targets.resize(out.inputs.size());
  data.read_sample(index, out.inputs, out.targets, out.starts);
  return out;
}

inline DataConfig config_for(const TempFolder& folder) {
  DataConfig config;
  config.cache = (folder.path() / "cache").string();
  return config;
}

inline SourceConfig source_at(const std::filesystem::path& path, double weight = 1.0) {
  SourceConfig source;
  source.path = path.string();
  source.weight = weight;
  return source;
}

inline DataOptions options(std::int64_t context, std::uint64_t seed = 1) {
  return {.vocab = 257, .context = context, .seed = seed, .report = {}};
}

}  // namespace scaletrain::test
