#include "plan/size_limits.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace scaletrain {

std::string size_refusal(const Config& config) {
  const ModelConfig& model = config.model;
  std::vector<std::pair<std::int64_t, std::string>> keys = {{model.layers, "model.layers"},
                                                            {model.hidden, "model.hidden"},
                                                            {model.heads, "model.heads"},
                                                            {model.head_dim.value_or(0), "model.head_dim"},
                                                            {model.ffn_hidden, "model.ffn_hidden"},
                                                            {model.context, "model.context"},
                                                            {model.vocab.value_or(0), "model.vocab"},
                                                            {config.train.micro_batch, "train.micro_batch"},
                                                            {config.train.global_batch, "train.global_batch"},
                                                            {config.parallel.data.value_or(0), "parallel.data"},
                                                            {config.parallel.tensor, "parallel.tensor"},
                                                            {config.parallel.pipeline, "parallel.pipeline"}};
  std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  constexpr std::size_t named = 6;  // the largest
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < named; ++i) texts.push_back(fmt::format("{} {}", keys[i].second, keys[i].first));
  return fmt::format(
      "{}: together these make a plan whose sizes do not fit 64 bits, more than any machine has; reduce "
      "the ones that are not meant",
      fmt::join(texts, ", "));
}

}  // namespace scaletrain
