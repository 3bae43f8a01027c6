// scaletrain schema: every config key.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "config/keys.h"

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

std::string schema_text() {
  std::string text;
  for (const KeyInfo& key : config_keys()) {
    text += fmt::format("{}\n    {}\n    {}{}; default {}; a resume may change it {}\n", key.path, key.meaning,
                        key.type, key.unit.empty() ? "" : ", in " + key.unit, key.fallback, to_text(key.resume));
  }
  return text;
}

std::string schema_json() {
  nlohmann::json keys = nlohmann::json::array();
  for (const KeyInfo& key : config_keys())
    keys.push_back({{"key", key.path},
                    {"type", key.type},
                    {"unit", key.unit},
                    {"default", key.fallback},
                    {"meaning", key.meaning},
                    {"resume", std::string(to_text(key.resume))}});
  return keys.dump(2) + "\n";
}

}  // namespace

Command add_schema(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("schema", "Every config key: type, unit, default, meaning");
  command->add_flag("--json", *json, "A JSON array on standard output");
  return [json] {
    write_output(*json ? schema_json() : schema_text());
    return ExitCode::finished;
  };
}

}  // namespace scaletrain
