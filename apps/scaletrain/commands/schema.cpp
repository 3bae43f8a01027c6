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
#include "help_format.h"

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

std::string resume_text(ResumeRule rule) {
  if (rule == ResumeRule::never) return "a resume may not change it";
  return rule == ResumeRule::freely ? "a resume may change it" : "a resume may change it with a notice";
}

// What is asked for: a key, or all below a section or list; everything where the name is empty.
struct Chosen {
  std::vector<KeyInfo> keys;
  std::vector<UnsupportedKey> later;
};

// "data.train.0.weight" names a key of a list's items as well.
Chosen choose(const std::string& name) {
  const std::string wanted = table_path(name);
  const auto is_chosen = [&](std::string_view path) {
    return name.empty() || path == wanted || path.starts_with(wanted + ".") || path.starts_with(wanted + "[]");
  };
  Chosen chosen;
  for (const KeyInfo& key : config_keys())
    if (is_chosen(key.path)) chosen.keys.push_back(key);
  for (const UnsupportedKey& key : unsupported_keys())
    if (is_chosen(key.path)) chosen.later.push_back(key);
  if (chosen.keys.empty() && chosen.later.empty())
    throw UserError(fmt::format("schema: unknown key {}{}", quoted(name), suggest_key(name)));
  return chosen;
}

std::string paragraph(std::string_view text) {
  constexpr std::size_t indent = 4;
  return std::string(indent, ' ') + wrapped_text(text, help_width, indent) + "\n";
}

std::string schema_text(const Chosen& chosen) {
  std::string text;
  for (const KeyInfo& key : chosen.keys) {
    text += key.path + "\n" + paragraph(key.meaning) +
            paragraph(fmt::format("{}{}; default {}; {}", key.type, key.unit.empty() ? "" : ", in " + key.unit,
                                  key.fallback, resume_text(key.resume)));
    const std::vector<std::string> not_yet = unsupported_values_of(key.path);
    if (!not_yet.empty()) text += paragraph(fmt::format("not supported yet: {}", fmt::join(not_yet, ", ")));
  }
  for (const UnsupportedKey& key : chosen.later)
    text += fmt::format("{}\n", key.path.empty() ? "(no key)" : key.path) +
            paragraph(fmt::format("not supported yet: {}", key.feature));
  return text;
}

std::string schema_json(const Chosen& chosen) {
  nlohmann::json keys = nlohmann::json::array();
  for (const KeyInfo& key : chosen.keys)
    keys.push_back({{"key", key.path},
                    {"type", key.type},
                    {"unit", key.unit},
                    {"default", key.fallback},
                    {"meaning", key.meaning},
                    {"resume", std::string(to_text(key.resume))},
                    {"not_supported_yet", unsupported_values_of(key.path)}});
  // Of the same members, so that a reader need not tell them apart.
  for (const UnsupportedKey& key : chosen.later)
    keys.push_back({{"key", key.path},
                    {"type", "none yet"},
                    {"unit", ""},
                    {"default", ""},
                    {"meaning", key.feature},
                    {"resume", ""},
                    {"not_supported_yet", {"any value"}}});
  return keys.dump(2) + "\n";
}

}  // namespace

Command add_schema(CLI::App& app) {
  struct Arguments {
    std::string key;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("schema", "Every config key, and what is not supported yet");
  command->add_option("key", arguments->key, "Only this key (train.clip_norm) or section (train)")->type_name("KEY");
  command->add_flag("--json", arguments->json, "A JSON array on standard output");
  return [arguments] {
    const Chosen chosen = choose(arguments->key);
    write_output(arguments->json ? schema_json(chosen) : schema_text(chosen));
    return ExitCode::finished;
  };
}

}  // namespace scaletrain
