// Where in a text file the samples of a run lie, so that a test can plant something into certain ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/tokens/tokenizer.h"

namespace scaletrain {

// The byte offsets of the samples first, first + 1, ... of a run whose only source is a text file of `text_bytes` bytes
// (one document, the byte tokenizer; a multiple of `context`, which is at least 8). Their order is a permutation that
// depends on the seed and the size, not on the text: read off a text that says of each sample where it is. Files are
// made in `folder`.
inline std::vector<std::size_t> sample_places(const std::filesystem::path& folder, std::uint64_t seed,
                                              std::size_t context, std::size_t text_bytes, std::int64_t first,
                                              std::int64_t count) {
  std::string marks;
  while (marks.size() < text_bytes) {
    std::string mark = std::to_string(marks.size());
    mark.resize(context, ' ');
    marks += mark;
  }
  const std::filesystem::path file = folder / "marks.txt";
  std::ofstream(file, std::ios::binary) << marks;
  DataConfig config;
  config.cache = (folder / "marks-cache").string();
  config.train.emplace_back();
  config.train[0].path = file.string();
  const auto tokenizer = make_tokenizer(config.tokenizer, std::nullopt);
  const auto data = open_training_data(
      config, *tokenizer,
      {.vocab = tokenizer->vocab_size(), .context = static_cast<std::int64_t>(context), .seed = seed, .report = {}});
  std::vector<std::size_t> places;
  for (std::int64_t sample = first; sample < first + count; ++sample) {
    std::vector<std::int32_t> inputs(context);
    std::vector<std::int32_t> targets(context);
    std::vector<std::int32_t> starts;
    data->read_sample(sample, inputs, targets, starts);
    places.push_back(std::stoul(std::string(inputs.begin(), inputs.end())));
  }
  return places;
}

}  // namespace scaletrain
