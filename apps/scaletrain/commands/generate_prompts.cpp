#include "generate_prompts.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "infer/generate.h"

namespace scaletrain {

namespace {

constexpr const char* standard_input = "-";
constexpr std::uint64_t max_prompt_file_bytes = std::uint64_t{1} << 30;

std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

// JSONL: an object with `prompt` on every line that is not empty.
std::vector<Prompt> prompts_of_lines(std::string_view text, const std::string& name) {
  std::vector<Prompt> prompts;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", name, number);
    const nlohmann::json object = parse_json(line, where);
    if (!object.is_object()) throw InputError(where + ": must be a JSON object such as {\"prompt\": \"Once\"}");
    prompts.push_back({.text = json_string(object, "prompt", where), .where = where + ": prompt", .tokens = {}});
  }
  if (prompts.empty())
    throw InputError(name + ": no prompt; each line is a JSON object such as {\"prompt\": \"Once\"}");
  return prompts;
}

}  // namespace

void PromptArguments::declare(CLI::App& command) {
  CLI::Option* text = command.add_option_function<std::string>(
      "--prompt",
      [this](const std::string& given) {
        prompt = given;
        has_prompt = true;
      },
      "Text to continue; -: all of standard input");
  command.add_option("--prompt-file", file, "JSONL: a line an object with `prompt`; -: standard input")
      ->type_name("FILE")
      ->excludes(text);
}

std::vector<Prompt> read_prompts(const PromptArguments& arguments, LoadedModel& model) {
  std::vector<Prompt> prompts;
  if (!arguments.file.empty()) {
    prompts = arguments.file == standard_input
                  ? prompts_of_lines(read_standard_input(), "standard input")
                  : prompts_of_lines(read_text_file(arguments.file, max_prompt_file_bytes), arguments.file);
  } else if (arguments.has_prompt) {
    prompts.push_back({.text = arguments.prompt == standard_input ? read_standard_input() : arguments.prompt,
                       .where = "--prompt",
                       .tokens = {}});
  } else {
    throw UserError("what to continue is missing: give --prompt TEXT or --prompt-file FILE");
  }
  for (Prompt& prompt : prompts) prompt.tokens = prompt_tokens(model, prompt.text, prompt.where);
  return prompts;
}

}  // namespace scaletrain
