// scaletrain schema: every config key.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "commands.h"
#include "config/keys/keys.h"
#include "config/keys/suggest.h"
#include "config/keys/unsupported.h"

namespace scaletrain {

namespace {

std::string_view to_text(ResumeRule rule) {
  switch (rule) {
    case ResumeRule::freely:
      return "freely";
    case ResumeRule::with_notice:
      return "with a notice";
    case ResumeRule::never:
      return "never";
  }
  return "";
}

// The key of this name, or all below a section or list. "data.train.0.weight" names a key of a list's items as well.
std::vector<KeyInfo> chosen_keys(const std::string& name) {
  const std::span<const KeyInfo> all = config_keys();
  if (name.empty()) return {all.begin(), all.end()};
  std::string wanted;
  for (const std::string& part : split_text(name, '.')) {
    const bool is_index = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    wanted += is_index && !wanted.empty() ? "[]" : (wanted.empty() ? "" : ".") + part;
  }
  std::vector<KeyInfo> chosen;
  for (const KeyInfo& key : all)
    if (key.path == wanted || key.path.starts_with(wanted + ".") || key.path.starts_with(wanted + "[]"))
      chosen.push_back(key);
  if (chosen.empty()) throw UserError(fmt::format("schema: unknown key {}{}", quoted(name), suggest_key(name)));
  return chosen;
}

std::string schema_text(const std::vector<KeyInfo>& keys) {
  std::string text;
  for (const KeyInfo& key : keys) {
    text += fmt::format("{}\n    {}\n    {}{}; default {}; a resume may change it {}\n", key.path, key.meaning,
                        key.type, key.unit.empty() ? "" : ", in " + key.unit, key.fallback, to_text(key.resume));
    const std::vector<std::string> not_yet = unsupported_values_of(key.path);
    if (!not_yet.empty()) text += fmt::format("    not supported yet: {}\n", fmt::join(not_yet, ", "));
  }
  return text;
}

std::string schema_json(const std::vector<KeyInfo>& chosen) {
  nlohmann::json keys = nlohmann::json::array();
  for (const KeyInfo& key : chosen)
    keys.push_back({{"key", key.path},
                    {"type", key.type},
                    {"unit", key.unit},
                    {"default", key.fallback},
                    {"meaning", key.meaning},
                    {"resume", std::string(to_text(key.resume))},
                    {"not_supported_yet", unsupported_values_of(key.path)}});
  return keys.dump(2) + "\n";
}

}  // namespace

Command add_schema(CLI::App& app) {
  struct Arguments {
    std::string key;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("schema", "Every config key: type, unit, default, meaning");
  command->add_option("key", arguments->key, "Only this key (train.clip_norm) or section (train)")->type_name("KEY");
  command->add_flag("--json", arguments->json, "A JSON array on standard output");
  return [arguments] {
    const std::vector<KeyInfo> keys = chosen_keys(arguments->key);
    write_output(arguments->json ? schema_json(keys) : schema_text(keys));
    return ExitCode::finished;
  };
}

}  // namespace scaletrain
