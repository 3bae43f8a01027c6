// Whether the data of a config can be read at all, told before anything is started.
//
// Folders are listed, files opened, of token files the headers read, and of JSONL the first record of each source (4
// MiB at most), unless bad records are skipped. No more content is read, tokenised or hashed: what is wrong further
// inside a file is told by whoever reads it (dataset.h).
#pragma once

#include <functional>
#include <limits>
#include <vector>

#include "config/config.h"
#include "config/input_paths.h"
#include "data/tokens/content_record.h"

namespace scaletrain {

// When to leave off, asked before each file: there may be very many, on storage that is slow. Whoever reads the files
// that were not looked at finds what is wrong with them.
struct LookLimits {
  double seconds = std::numeric_limits<double>::infinity();  // for all sources together
  std::function<bool()> interrupted{};
  // Whether the run has a checkpoint: then what it has trained on is told where a start would be refused. Asked where
  // that is so alone; empty: it has none.
  std::function<bool()> has_begun{};
  Reporter report{};  // hears of files that are not read, and of text that may be JSONL; may be empty
};

// What is wrong with the sources of data.train and data.validation, whose paths are absolute: of each the first thing,
// and where that is a file that cannot be read, the names and number of the others; and with the folder for tokenised
// text, where there is text. Paths that lead nowhere are left out: missing_paths() names them.
std::vector<InputProblem> source_problems(const DataConfig& config, const LookLimits& limits = {});

}  // namespace scaletrain
