// Small files of /proc, and its folders.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"

namespace scaletrain {

// The beginning, without the end of its last line; empty where it cannot be read. Waits for no lock.
inline std::string proc_text(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> buffer{};
  const ssize_t n = file ? ::read(file.get(), buffer.data(), buffer.size()) : 0;
  std::string text(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Without hidden ones; none where the folder cannot be read.
inline std::vector<std::string> names_in(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  std::vector<std::string> names;
  while (const dirent* const entry = open ? ::readdir(open.get()) : nullptr)
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  return names;
}

}  // namespace scaletrain
