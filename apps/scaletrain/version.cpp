#include "version.h"

#include <fmt/format.h>

#include "backend/backend.h"
#include "commands.h"

namespace scaletrain {

namespace {

#if defined(__clang__)
constexpr const char* compiler = "Clang " __clang_version__;
#else
constexpr const char* compiler = "GCC " __VERSION__;
#endif

}  // namespace

std::string version_text() {
  const std::string commit = *built_commit == '\0' ? "" : fmt::format(" (commit {})", built_commit);
  return fmt::format(
      "scaletrain {}{}\n"
      "built      by {}, {}\n"
      "libraries  {}\n"
      "kernels    {}",
      program_version, commit, compiler, SCALETRAIN_BUILD_TYPE, SCALETRAIN_LIBRARIES,
      make_cpu_backend({.threads = 1})->description());
}

}  // namespace scaletrain
