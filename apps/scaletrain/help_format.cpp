#include "help_format.h"

#include <CLI/CLI.hpp>
#include <string>

#include "base/text.h"

namespace scaletrain {

namespace {

constexpr std::size_t margin = 2;
constexpr std::size_t hanging = 6;  // of a first column that takes several lines

class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return two_columns(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option),
                       get_column_width());
  }
  std::string make_subcommand(const CLI::App* command) const override {
    constexpr std::size_t column = 16;
    return two_columns(command->get_display_name(true), command->get_description(), column);
  }

 private:
  // The meanings begin at `column`.
  static std::string two_columns(const std::string& name, const std::string& meaning, std::size_t column) {
    std::string out(margin, ' ');
    if (margin + name.size() < column) {
      out += name + std::string(column - margin - name.size(), ' ');
    } else {
      const bool is_short = margin + name.size() <= help_width;
      out += is_short ? name : wrapped_text(name, help_width, hanging);
      if (!meaning.empty()) out += "\n" + std::string(column, ' ');
    }
    return out + wrapped_text(meaning, help_width, column) + "\n";
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> make_help_format() {
  return std::make_shared<HelpFormat>();
}

}  // namespace scaletrain
