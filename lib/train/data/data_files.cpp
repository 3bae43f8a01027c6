#include "train/data/data_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"

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

std::vector<std::string> changed_sets(std::span<const SourceFiles> before, std::span<const SourceFiles> now,
                                      std::span<const SourceContent> contents) {
  std::vector<std::string> lines;
  for (const SourceContent& content : contents) {
    const bool is_set = content.key.starts_with("data.validation.") || content.key.ends_with(".split");
    const auto of = [&content](const SourceFiles& files) {
      return files.key == content.key && files.path == hash_text(content.path);
    };
    const auto was = std::find_if(before.begin(), before.end(), of);
    const auto is = std::find_if(now.begin(), now.end(), of);
    if (!is_set || was == before.end() || is == now.end() || was->names == is->names) continue;
    std::vector<std::uint64_t> both;
    std::set_intersection(was->names.begin(), was->names.end(), is->names.begin(), is->names.end(),
                          std::back_inserter(both));
    const std::size_t joined = is->names.size() - both.size();
    const std::size_t left = was->names.size() - both.size();
    lines.push_back(fmt::format(
        "{}: {}: since the run was last started {}{}{}: the set is another one, and its losses are not over what they "
        "were over before",
        content.key, content.path, joined > 0 ? counted(joined, "file") + " joined" : "",
        joined > 0 && left > 0 ? " and " : "", left > 0 ? counted(left, "file") + " left" : ""));
  }
  return lines;
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
