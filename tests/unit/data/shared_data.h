// Real corpora and tokenizers are not in the repository: SCALETRAIN_SHARED_DATA, else shared/data beside the source
// folder.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace scaletrain {

inline std::filesystem::path shared_data(const std::string& name) {
  const char* folder = std::getenv("SCALETRAIN_SHARED_DATA");
  const auto root = folder != nullptr
                        ? std::filesystem::path(folder)
                        : std::filesystem::path(SCALETRAIN_SOURCE_FOLDER).parent_path() / "shared" / "data";
  return root / name;
}

// A test that needs it returns where it is not there; this has said so.
inline bool is_shared_data_present(const std::string& name) {
  std::error_code ignored;
  const auto path = shared_data(name);
  if (std::filesystem::exists(path, ignored)) return true;
  MESSAGE("skipped: ", path.string(), " is not there (set SCALETRAIN_SHARED_DATA)");
  return false;
}

}  // namespace scaletrain
