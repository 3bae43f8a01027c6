// Which files the folders that a run reads had when somebody started it. A restart after a failure goes on with those:
// a file that is being copied there at that moment, half of it, is nobody's wish to train on.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace scaletrain {

// Of what one process has opened. A folder that another process has read, and told it the first files of, is reported
// and left out.
std::vector<SourceFiles> files_of_folders(std::span<const SourceContent> contents, const Reporter& report);

// Validation sets whose folders have other files than when the run was last started, by a sentence each: their losses
// are not over what they were over. Of sources of data.train the mix tells.
std::vector<std::string> changed_sets(std::span<const SourceFiles> before, std::span<const SourceFiles> now,
                                      std::span<const SourceContent> contents);

// Replaces the file as a whole. InputError.
void write_data_files(const std::filesystem::path& file, std::span<const SourceFiles> sources);
// Nothing: no such file, or none that can be read, which is told by an InputError.
std::vector<SourceFiles> read_data_files(const std::filesystem::path& file);

}  // namespace scaletrain
