#include "completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "base/text.h"
#include "config/keys/keys.h"
#include "config/keys/suggest.h"
#include "config/keys/unsupported.h"

namespace scaletrain {

namespace {

// Offers what begins with what was typed.
class Offers {
 public:
  explicit Offers(std::string typed) : typed_(std::move(typed)) {}
  void add(std::string word, std::string meaning = {}) {
    if (word.starts_with(typed_)) out_.words.push_back({std::move(word), std::move(meaning)});
  }
  void add_files() { out_.files = true; }
  Completions take() { return std::move(out_); }

 private:
  std::string typed_;
  Completions out_;
};

// The first item of a list stands for all of them.
std::string first_of_list(std::string path) {
  for (std::size_t at = path.find("[]"); at != std::string::npos; at = path.find("[]")) path.replace(at, 2, ".0");
  return path;
}

// The words that a key's type lists: "one of: a | b", "true | false", "integer or auto".
std::vector<std::string> words_of_type(std::string type) {
  constexpr std::string_view choice = "one of: ";
  const bool is_choice = type.starts_with(choice) || type.starts_with("true | false");
  if (type.starts_with(choice)) type.erase(0, choice.size());
  std::vector<std::string> words;
  if (const std::size_t at = type.rfind(" or "); at != std::string::npos) {
    words.push_back(type.substr(at + 4));
    type.erase(at);
  }
  if (!is_choice) return words;
  for (std::string part : split_text(type, '|')) {
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    words.push_back(std::move(part));
  }
  return words;
}

// `before`: what stands before the key in the word ("--set="), as below.
void add_keys(Offers& offers, const std::string& before) {
  for (const KeyInfo& key : config_keys()) offers.add(before + first_of_list(key.path) + "=", key.meaning);
}

void add_values_of_key(Offers& offers, const std::string& before, std::string_view path) {
  const std::string wanted = table_path(path);
  for (const KeyInfo& key : config_keys()) {
    if (key.path != wanted) continue;
    const std::vector<std::string> not_yet = unsupported_values_of(key.path);
    for (const std::string& word : words_of_type(key.type)) {
      if (std::find(not_yet.begin(), not_yet.end(), word) != not_yet.end()) continue;
      offers.add(before + std::string(path) + "=" + word, word == key.fallback ? "the default" : "");
    }
  }
}

// Keys and the sections above them.
void add_key_names(Offers& offers) {
  std::vector<std::string> sections;
  for (const KeyInfo& key : config_keys()) {
    for (std::size_t dot = key.path.find('.'); dot != std::string::npos; dot = key.path.find('.', dot + 1)) {
      std::string section = first_of_list(key.path.substr(0, dot));
      if (std::find(sections.begin(), sections.end(), section) == sections.end()) sections.push_back(section);
    }
  }
  for (const std::string& section : sections) offers.add(section, "all keys of this section");
  for (const KeyInfo& key : config_keys())
    if (std::find(sections.begin(), sections.end(), first_of_list(key.path)) == sections.end())
      offers.add(first_of_list(key.path), key.meaning);
}

// What an option or argument takes is said by its type's name, which the help shows too: "KEY=VALUE",
// "auto|never|FILE", "FOLDER", or by the words of its check: "TEXT:{fp32,bf16}".
void add_values(Offers& offers, const CLI::Option& option, const std::string& before, const std::string& typed) {
  const std::string type = option.get_type_name();
  if (type == "KEY") return add_key_names(offers);
  if (type == "KEY=VALUE") {
    const std::string rest = typed.substr(before.size());
    const std::size_t equals = rest.find('=');
    if (equals == std::string::npos) return add_keys(offers, before);
    return add_values_of_key(offers, before, rest.substr(0, equals));
  }
  if (const std::size_t brace = type.find('{'); brace != std::string::npos) {
    for (const std::string& word : split_text(type.substr(brace + 1, type.find('}') - brace - 1), ','))
      offers.add(before + word);
    return;
  }
  for (const std::string& part : split_text(type, '|')) {
    const bool is_word = std::all_of(part.begin(), part.end(), [](char c) { return c < 'A' || c > 'Z'; });
    if (is_word && !part.empty()) offers.add(before + part);
    if (part == "FILE" || part == "FOLDER" || part == "PATH" || part == "CHECKPOINT" ||
        (part == "TEXT" && option.get_positional()))
      offers.add_files();
  }
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

// Where the cursor is: inside which command, behind which option, at which argument.
struct Cursor {
  const CLI::App* command = nullptr;
  const CLI::Option* pending = nullptr;  // takes the next word
  std::size_t arguments = 0;             // given already
  bool only_arguments = false;           // behind "--"
};

void pass(Cursor& cursor, const std::string& word) {
  if (cursor.pending != nullptr) {
    cursor.pending = nullptr;
  } else if (!cursor.only_arguments && word == "--") {
    cursor.only_arguments = true;
  } else if (!cursor.only_arguments && word.starts_with("-") && word.size() > 1) {
    const CLI::Option* option = cursor.command->get_option_no_throw(word.substr(0, word.find('=')));
    if (option != nullptr && takes_value(*option) && word.find('=') == std::string::npos) cursor.pending = option;
  } else {
    for (const CLI::App* command : cursor.command->get_subcommands([](const CLI::App*) { return true; })) {
      if (command->get_name() != word) continue;
      cursor.command = command;
      cursor.arguments = 0;
      return;
    }
    ++cursor.arguments;
  }
}

void add_options(Offers& offers, const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) offers.add("--" + name, option->get_description());
  }
}

void add_arguments(Offers& offers, const Cursor& cursor, const std::string& typed) {
  for (const CLI::App* command : cursor.command->get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_group().empty()) offers.add(command->get_name(), command->get_description());
  std::size_t number = 0;
  for (const CLI::Option* option : cursor.command->get_options())
    if (option->get_positional() && number++ == cursor.arguments) add_values(offers, *option, "", typed);
}

}  // namespace

Completions complete(const CLI::App& app, const std::vector<std::string>& words) {
  Cursor cursor{.command = &app};
  for (std::size_t i = 0; i + 1 < words.size(); ++i) pass(cursor, words[i]);
  const std::string typed = words.empty() ? "" : words.back();
  Offers offers(typed);
  const std::size_t equals = typed.find('=');
  if (cursor.pending != nullptr) {
    add_values(offers, *cursor.pending, "", typed);
  } else if (!cursor.only_arguments && typed.starts_with("--") && equals != std::string::npos) {
    const CLI::Option* option = cursor.command->get_option_no_throw(typed.substr(0, equals));
    if (option != nullptr && takes_value(*option)) add_values(offers, *option, typed.substr(0, equals + 1), typed);
  } else if (!cursor.only_arguments && typed.starts_with("-")) {
    add_options(offers, *cursor.command);
  } else {
    add_arguments(offers, cursor, typed);
  }
  Completions out = offers.take();
  // Nothing is left to name but options.
  if (out.words.empty() && !out.files && typed.empty() && cursor.pending == nullptr && !cursor.only_arguments) {
    Offers options(typed);
    add_options(options, *cursor.command);
    out = options.take();
  }
  return out;
}

std::string to_text(const Completions& completions) {
  std::string text;
  for (const Completion& completion : completions.words) text += completion.word + "\t" + completion.meaning + "\n";
  return text + (completions.files ? ":files\n" : "");
}

}  // namespace scaletrain
