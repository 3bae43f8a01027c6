// Patterns of paths, as shells have them: `*`, `?` and `[...]` stand for characters of one name, and a name `**` for
// any number of folders, also none; at the end it stands for all that is below. None of them stands for the '.' that a
// hidden name begins with.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace scaletrain {

// Whether the text has any character that stands for others. A path that is there is no pattern, whatever its name.
bool has_wildcards(const std::string& path);

struct PathPattern {
  std::filesystem::path folder;    // the names before the first with a wildcard; empty: the current folder
  std::vector<std::string> names;  // of the others, one pattern each
};
PathPattern parse_pattern(const std::string& path);

// `pattern` is one name's, not `**`.
bool matches_name(const std::string& pattern, const std::string& name);

}  // namespace scaletrain
