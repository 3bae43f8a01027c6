#include "train/start/carried_files.h"

#include <string>

#include "base/file.h"
#include "data/tokens/companion_files.h"

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

TokenizerFile read_companion(const fs::path& path) {
  TokenizerFile file = read_tokenizer_file(path);
  check_companion(file.name, *file.content, path.string());
  return file;
}

std::optional<fs::path> generation_config_of(const Config& config, const std::optional<fs::path>& resumed) {
  if (resumed && path_exists(*resumed / kGenerationConfigFile)) return *resumed / kGenerationConfigFile;
  if (const auto& from = config.model.init.from; from && path_exists(fs::path(*from) / kGenerationConfigFile))
    return fs::path(*from) / kGenerationConfigFile;
  return std::nullopt;
}

}  // namespace

std::vector<TokenizerFile> carried_files(const Config& config, const Tokenizer& tokenizer,
                                         const std::optional<fs::path>& resumed) {
  std::vector<TokenizerFile> files;
  const std::vector<fs::path> own = tokenizer.files();
  files.reserve(own.size());
  for (const fs::path& path : own) files.push_back(read_tokenizer_file(path));
  if (!own.empty())
    for (const fs::path& path : companion_files(own.front().parent_path())) files.push_back(read_companion(path));
  if (const auto path = generation_config_of(config, resumed)) files.push_back(read_companion(*path));
  return files;
}

}  // namespace scaletrain
