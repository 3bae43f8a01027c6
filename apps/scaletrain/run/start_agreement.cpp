#include "start_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "config/environment.h"
#include "config/keys/keys.h"
#include "meant_folder.h"
#include "telemetry/log.h"

namespace scaletrain {

namespace {

// Shorter secrets can be found by trying.
constexpr std::size_t shortest_secret = 16;

// "model.hidden: 64" for the given line of a resolved config.
std::string line_with_sections(const std::vector<std::string>& lines, std::size_t index) {
  if (index >= lines.size()) return "nothing";
  const auto indent_of = [&lines](std::size_t i) { return lines[i].find_first_not_of(' '); };
  std::size_t indent = indent_of(index);
  if (indent == std::string::npos) return "nothing";
  std::string text = lines[index].substr(indent);
  for (std::size_t i = index; i-- > 0 && indent > 0;) {
    if (indent_of(i) >= indent || !lines[i].ends_with(':')) continue;
    indent = indent_of(i);
    text = lines[i].substr(indent, lines[i].size() - indent - 1) + "." + text;
  }
  return text;
}

}  // namespace

std::string secret_of_environment() {
  const char* const text = std::getenv("SCALETRAIN_SECRET");
  std::string secret = text == nullptr ? "" : text;
  if (!secret.empty() && secret.size() < shortest_secret)
    throw UserError(
        fmt::format("SCALETRAIN_SECRET has {}: at least {} are needed, such as from `openssl rand -hex 32`; or "
                    "unset it for all, then the first one leaves one in the run folder",
                    counted(secret.size(), "byte"), shortest_secret));
  return secret;
}

std::optional<LoadedConfig> load_for_start(const std::string& config, const std::vector<std::string>& overrides,
                                           const LoadOptions& options, CommandResult& problem) {
  std::optional<LoadedConfig> loaded;
  problem = run_guarded([&] {
    loaded.emplace(load_config(config, overrides, process_environment, options));
    return ExitCode::finished;
  });
  if (loaded) return loaded;
  const CommandResult rest = run_guarded([&] {
    loaded.emplace(load_config(config, overrides, process_environment, {.missing_paths = MissingPaths::ignore}));
    return ExitCode::finished;
  });
  if (loaded) return loaded;
  const auto folder = meant_run_folder(config, overrides);
  if (!folder) return std::nullopt;
  loaded.emplace();
  loaded->config.run.directory = folder->string();
  return loaded;
}

std::string program_identity() {
  constexpr std::uint64_t largest_program = 1u << 30;
  try {
    return fmt::format("{} (build {})", program_version,
                       to_hex(hash_text(read_text_file("/proc/self/exe", largest_program))));
  } catch (const InputError&) {
    return program_version;  // where /proc is hidden the version alone is compared
  }
}

std::string shared_config(Config config) {
  config.launch.interface.reset();
  return resolved_yaml(config);
}

// The processes of a run are one program with one config, or their collectives do not fit together.
void refuse_other_start(const std::string& kind, std::int64_t self, const Config& config,
                        const std::string& first_config, const std::string& first_version) {
  if (const std::string own = program_identity(); first_version != own)
    throw UserError(fmt::format(
        "{0} {1} is another program than {0} 0: scaletrain {2} here, {3} there; start the same on all hosts", kind,
        self, own, first_version));
  const std::string own = shared_config(config);
  if (own == first_config) return;
  const std::vector<std::string> ours = split_text(own, '\n');
  const std::vector<std::string> theirs = split_text(first_config, '\n');
  std::size_t index = 0;
  while (index < std::min(ours.size(), theirs.size()) && ours[index] == theirs[index]) ++index;
  const std::string here = line_with_sections(ours, index);
  std::string_view why;
  if (here.starts_with("run.device: "))
    why = " (run.device: auto is what each finds: set it, or see why one finds other GPUs)";
  if (here.starts_with("launch.ranks_per_node: ") && config.run.device == DeviceKind::cuda)
    why =
        " (launch.ranks_per_node: auto is a rank on each GPU of a node: where nodes have other numbers of them, set it "
        "or parallel.data)";
  throw UserError(
      fmt::format("{0} {1} was started with another config than {0} 0: {2} here, {3} there; start all {0}s with the "
                  "same config and the same --set{4}",
                  kind, self, here, line_with_sections(theirs, index), why));
}

std::function<void(const std::string&)> waiting_teller(std::string self, std::filesystem::path log) {
  return [self = std::move(self), file = std::move(log)](const std::string& text) {
    write_message(fmt::format("scaletrain: {}: {}", self, text));
    try {
      Log({.file = file}).info(text);
    } catch (const InputError&) {
      return;  // it was printed
    }
  };
}

std::string brief(const std::string& message) {
  const std::size_t end = message.find('\n');
  return end == std::string::npos ? message : message.substr(0, end) + " ...";
}

std::filesystem::path first_new_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::path first;
  for (std::filesystem::path path = folder; !path.empty() && !std::filesystem::exists(path, ignored);
       path = path.parent_path())
    first = path;
  return first;
}

void remove_unused_folder(const RunPaths& paths, const std::filesystem::path& first_new) noexcept {
  std::error_code error;
  const std::filesystem::path guard = paths.folder / ".lock.json.guard";
  for (const auto& folder : {paths.checkpoints(), paths.logs()}) std::filesystem::remove(folder, error);
  for (const auto& entry : std::filesystem::directory_iterator(paths.folder, error))
    if (entry.path() != guard) return;
  std::filesystem::remove(guard, error);
  for (std::filesystem::path path = paths.folder; std::filesystem::remove(path, error) && path != first_new;)
    path = path.parent_path();
}

}  // namespace scaletrain
