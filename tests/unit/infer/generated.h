// Texts of a Generator, for tests that want one text, or all at once.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "infer/generate.h"

namespace scaletrain {

inline std::vector<GeneratedSample> generate_all(LoadedModel& model, const std::vector<std::string>& prompts,
                                                 const GenerationOptions& options, std::int64_t batch,
                                                 bool has_cache = true) {
  std::vector<std::vector<std::int32_t>> tokens;
  tokens.reserve(prompts.size());
  for (const std::string& prompt : prompts) tokens.push_back(prompt_tokens(model, prompt, "--prompt"));
  Generator generator(model, {.context = model.transformer().spec().context, .batch = batch, .has_cache = has_cache});
  std::vector<GeneratedSample> samples;
  generator.run(tokens, options,
                {.text = {}, .done = [&samples](const GeneratedSample& sample) { samples.push_back(sample); }});
  return samples;
}

}  // namespace scaletrain
