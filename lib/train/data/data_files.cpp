#include "train/data/data_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

namespace scaletrain {

namespace fs = std::filesystem;

std::vector<SourceFiles> files_of_folders(std::span<const SourceContent> contents, const Reporter& report) {
  std::vector<SourceFiles> all;
  for (const SourceContent& content : contents) {
    const bool is_file = content.files.size() == 1 && content.files.front().path == content.path;
    if (is_file) continue;
    if (!content.has_all_files) {
      report(fmt::format(
          "{}.path: a restart after a failure will read files that come to {} until then: of its files the names of "
          "the first {} are known here, since another process of this host has read them",
          content.key, content.path, content.files.size()));
      continue;
    }
    SourceFiles files{.key = content.key, .path = hash_text(content.path), .names = {}};
    for (const FileContent& file : content.files)
      files.names.push_back(hash_text(name_in_source(content.path, file.path)));
    std::sort(files.names.begin(), files.names.end());
    all.push_back(std::move(files));
  }
  return all;
}

void write_data_files(const fs::path& file, std::span<const SourceFiles> sources) {
  nlohmann::json list = nlohmann::json::array();
  for (const SourceFiles& source : sources)
    list.push_back({{"key", source.key}, {"path", to_hex(source.path)}, {"names", to_hex(source.names)}});
  write_file_durably(file, nlohmann::json{{"sources", std::move(list)}}.dump());
}

std::vector<SourceFiles> read_data_files(const fs::path& file) {
  if (!path_exists(file)) return {};
  const std::string where = file.string();
  const nlohmann::json object = read_json_file(file, {.depth = 4});
  std::vector<SourceFiles> sources;
  for (const auto& item : json_member(object, "sources", where)) {
    SourceFiles files{.key = json_string(item, "key", where), .path = 0, .names = {}};
    if (!from_hex(json_string(item, "path", where), files.path) ||
        !from_hex(json_string(item, "names", where), files.names))
      throw InputError(where + ": numbers of 16 hexadecimal digits are expected");
    std::sort(files.names.begin(), files.names.end());
    sources.push_back(std::move(files));
  }
  return sources;
}

}  // namespace scaletrain
