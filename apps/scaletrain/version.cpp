#include "version.h"

#include <fmt/format.h>

#include <string_view>

#include "backend/backend.h"
#include "base/text.h"
#include "commands/commands.h"
#include "help_format.h"
#include "host/machine.h"

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
  constexpr std::size_t column = 12;
  const auto wrapped = [](std::string_view text) { return wrapped_text(text, help_width, column); };
  return fmt::format(
      "scaletrain {}{}\n"
      "built       by {}, {}\n"
      "libraries   {}\n"
      "kernels     {}\n"
      "processors  {} usable by this process",
      program_version, commit, compiler, SCALETRAIN_BUILD_TYPE, wrapped(SCALETRAIN_LIBRARIES),
      wrapped(cpu_kernels_text()), available_processors());
}

}  // namespace scaletrain
