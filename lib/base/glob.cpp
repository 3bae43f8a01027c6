#include "base/glob.h"

#include <fnmatch.h>

namespace scaletrain {

bool has_wildcards(const std::string& path) {
  return path.find_first_of("*?[") != std::string::npos;
}

PathPattern parse_pattern(const std::string& path) {
  PathPattern pattern;
  for (const std::filesystem::path& part : std::filesystem::path(path)) {
    const std::string name = part.string();
    if (pattern.names.empty() && !has_wildcards(name)) {
      pattern.folder /= part;
    } else if (!name.empty()) {
      pattern.names.push_back(name);
    }
  }
  return pattern;
}

bool matches_name(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0;
}

}  // namespace scaletrain
