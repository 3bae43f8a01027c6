// Names that a manifest or an index gives may not lead out of their folder.
#pragma once

#include <filesystem>
#include <string>

namespace scaletrain {

// folder / name, for a plain name whose file exists and, if it is a symbolic link, points to a file of the same folder.
// Anything else is an InputError: "WHERE: ...", where `where` is the file that gave the name.
std::filesystem::path confined_path(const std::filesystem::path& folder, const std::string& name,
                                    const std::string& where);

}  // namespace scaletrain
