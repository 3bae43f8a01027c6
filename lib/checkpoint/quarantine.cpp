#include "checkpoint/quarantine.h"

#include <fmt/format.h>

#include <system_error>

#include "base/error.h"
#include "base/file.h"

namespace scaletrain {

std::filesystem::path free_hidden_name(const std::filesystem::path& checkpoint, std::string_view prefix) {
  // A bound, so that a folder nobody may look into cannot make this run for ever.
  constexpr int most = 100'000;
  for (int number = 0; number < most; ++number) {
    auto name = checkpoint.parent_path() / fmt::format("{}{}-{}", prefix, checkpoint.filename().string(), number);
    std::error_code error;
    const auto status = std::filesystem::symlink_status(name, error);
    if (status.type() == std::filesystem::file_type::not_found) return name;
  }
  throw InputError(fmt::format("{}: found no free name to quarantine it under ({}...)", checkpoint.string(), prefix));
}

std::filesystem::path rename_to_hidden(const std::filesystem::path& checkpoint, std::string_view prefix) {
  auto name = free_hidden_name(checkpoint, prefix);
  rename_durably(checkpoint, name);
  return name;
}

}  // namespace scaletrain
