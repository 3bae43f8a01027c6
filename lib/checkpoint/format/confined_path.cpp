#include "checkpoint/format/confined_path.h"

#include <fmt/format.h>

#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace scaletrain {

std::filesystem::path confined_path(const std::filesystem::path& folder, const std::string& name,
                                    const std::string& where) {
  if (!is_plain_file_name(name)) {
    throw InputError(fmt::format("{}: the file name {} is not a plain name inside the folder", where, quoted(name)));
  }
  auto path = folder / name;
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  if (!std::filesystem::status_known(status)) throw_file_error(path, "looking for the file", error.value());
  if (!std::filesystem::exists(status))
    throw InputError(fmt::format("{}: the file {} is missing", where, quoted(name)));
  if (!std::filesystem::is_symlink(status)) return path;
  const auto target = std::filesystem::canonical(path, error);
  if (error) throw_file_error(path, "following the link", error.value());
  const auto inside = std::filesystem::canonical(folder, error);
  if (error) throw_file_error(folder, "following the links on the way to it", error.value());
  if (target.parent_path() != inside) {
    throw InputError(
        fmt::format("{}: the file {} is a link that leaves the folder; copy the folder with its links "
                    "resolved (cp -rL) and use the copy",
                    where, quoted(name)));
  }
  return path;
}

}  // namespace scaletrain
