#include "data/tokens/companion_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 4> companion_names = {kTokenizerConfigFile, "special_tokens_map.json",
                                                             "added_tokens.json", kChatTemplateFile};

}  // namespace

std::vector<fs::path> companion_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const std::string_view name : companion_names)
    if (path_exists(folder / name)) files.push_back(folder / name);
  return files;
}

bool is_companion_name(std::string_view name) {
  return name == kGenerationConfigFile ||
         std::find(companion_names.begin(), companion_names.end(), name) != companion_names.end();
}

void check_companion(std::string_view name, std::string_view content, const std::string& where) {
  if (!name.ends_with(".json")) {
    if (const auto at = first_invalid_utf8(content))
      throw InputError(fmt::format("{}: is no UTF-8 at byte {}; mend or remove the file", where, *at));
    return;
  }
  if (!parse_json(content, where).is_object())
    throw InputError(fmt::format("{}: is no JSON object; mend or remove the file", where));
}

}  // namespace scaletrain
