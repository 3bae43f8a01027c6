// checkpoint export --to gguf: the file, and what rounding its weights has cost.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "commands.h"
#include "evaluation_sets.h"
#include "infer/model.h"

namespace scaletrain {

struct GgufArguments {
  std::filesystem::path file;
  std::string dtype;              // fp32 | fp16 | bf16 | int8 | int4
  std::vector<std::string> data;  // what to measure on; empty: the run's validation sets
  SetRecords records;             // of data
  std::int64_t batches = 0;       // of 8 samples of each, at most; 0: as many samples as the run's evaluations
};

ExitCode export_as_gguf(const LocatedModel& located, const GgufArguments& arguments);

}  // namespace scaletrain
