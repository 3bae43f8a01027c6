#include "config/input_paths.h"

#include <fmt/core.h>

#include <optional>
#include <system_error>

#include "base/glob.h"
#include "base/text.h"
#include "config/validate.h"

namespace scaletrain {

namespace {

namespace fs = std::filesystem;

void make_absolute(std::string& path, const fs::path& folder) {
  if (!path.empty() && !folder.empty()) path = (folder / path).string();
}

void make_absolute(std::optional<std::string>& path, const fs::path& folder) {
  if (path) make_absolute(*path, folder);
}

struct Absence {
  std::string text;
  bool is_certain = true;
};

// What is wrong with a path; nothing if something is there. A pair of token files may be named without its endings.
std::optional<Absence> absence_of(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return std::nullopt;
  // One that the system would not let be looked at may well be there.
  if (error) return Absence{fmt::format("cannot be looked at ({})", error.message()), false};
  if (fs::exists(path + ".idx", error)) return std::nullopt;
  if (!has_wildcards(path)) return Absence{"no such file or folder"};
  // Whoever lists the folder tells whether any file matches.
  const fs::path folder = parse_pattern(path).folder;
  if (fs::is_directory(folder, error)) return std::nullopt;
  return Absence{fmt::format("there is no folder {} to look into", quoted(folder.string(), 400))};
}

// What a shell would have replaced, had it seen the text.
std::string shell_hint(const std::string& path) {
  const bool is_shell_text = path.starts_with('~') || path.find('$') != std::string::npos;
  return is_shell_text ? "; ~ and $NAME are not expanded, ${NAME} is" : "";
}

}  // namespace

void resolve_paths(Config& config, const fs::path& folder) {
  make_absolute(config.model.init.from, folder);
  if (config.finetune.lora) make_absolute(config.finetune.lora->from, folder);
  make_absolute(config.data.tokenizer.path, folder);
  make_absolute(config.data.cache, folder);
  for (SourceConfig& source : config.data.train) make_absolute(source.path, folder);
  for (ValidationConfig& source : config.data.validation) make_absolute(source.path, folder);
  for (TaskConfig& task : config.evaluate.tasks) make_absolute(task.path, folder);
}

std::vector<InputProblem> missing_paths(const Config& config, const fs::path& folder, const ReadContext& context) {
  std::vector<InputProblem> out;
  const auto look = [&](const std::string& key, const std::string& written) {
    if (written.empty() || is_broken(context, key)) return;
    std::string path = written;
    make_absolute(path, folder);
    const auto absence = absence_of(path);
    if (!absence) return;
    const bool is_relative = path != written;
    out.push_back({.key = key,
                   .message = fmt::format("{}: {}{}{}", absence->text, quoted(path, 400),
                                          is_relative ? " (relative paths start at the config file's folder)" : "",
                                          shell_hint(written)),
                   .is_config = absence->is_certain});
  };
  for (std::size_t i = 0; i < config.data.train.size(); ++i)
    look(fmt::format("data.train.{}.path", i), config.data.train[i].path);
  for (std::size_t i = 0; i < config.data.validation.size(); ++i)
    if (!config.data.validation[i].held_out_of)
      look(fmt::format("data.validation.{}.path", i), config.data.validation[i].path);
  for (std::size_t i = 0; i < config.evaluate.tasks.size(); ++i)
    look(fmt::format("evaluate.tasks.{}.path", i), config.evaluate.tasks[i].path);
  const TokenizerConfig& tokenizer = config.data.tokenizer;
  const bool has_files = tokenizer.type == TokenizerKind::bpe || tokenizer.type == TokenizerKind::sentencepiece;
  if (tokenizer.path && has_files) look("data.tokenizer.path", *tokenizer.path);
  return out;
}

}  // namespace scaletrain
