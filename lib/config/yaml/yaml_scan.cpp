#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "config/yaml/yaml_tree.h"

namespace scaletrain {

namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

// Knows just enough of YAML's lexical rules to tell structure from text: quotes, comments, plain scalars, block scalars
// and flow brackets.
class Scanner {
 public:
  Scanner(std::string_view text, int source, Diagnostics& diagnostics)
      : text_(text), source_(source), diagnostics_(diagnostics) {}

  YamlScan run() {
    if (!check_bytes()) return result_;
    std::size_t start = 0;
    for (line_ = 1; start <= text_.size() && !stopped_; ++line_) {
      std::size_t end = text_.find('\n', start);
      if (end == std::string_view::npos) end = text_.size();
      std::string_view content = text_.substr(start, end - start);
      if (!content.empty() && content.back() == '\r') content.remove_suffix(1);
      scan_line(content);
      start = end + 1;
    }
    if (!brackets_.empty()) result_.open_bracket = brackets_.back();
    return result_;
  }

 private:
  void refuse(std::size_t column, std::string message) {
    diagnostics_.add({source_, line_, static_cast<int>(column) + 1}, std::move(message));
    result_.is_clean = false;
  }

  void refuse_offset(std::size_t offset, std::string message) {
    const std::string_view before = text_.substr(0, offset);
    line_ = 1 + static_cast<int>(std::count(before.begin(), before.end(), '\n'));
    const std::size_t newline = before.rfind('\n');
    refuse(newline == std::string_view::npos ? offset : offset - newline - 1, std::move(message));
  }

  bool check_bytes() {
    if (text_.size() > kMaxConfigBytes) {
      refuse(0,
             fmt::format("{} of YAML; a config is at most {}", bytes_text(text_.size()), bytes_text(kMaxConfigBytes)));
      return false;
    }
    if (const auto offset = first_invalid_utf8(text_)) {
      refuse_offset(*offset, fmt::format("byte 0x{:02x} is not valid UTF-8; save the file as UTF-8",
                                         static_cast<unsigned char>(text_[*offset])));
      return false;
    }
    for (std::size_t i = 0; i < text_.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text_[i]);
      const bool is_line_end = byte == '\n' || (byte == '\r' && i + 1 < text_.size() && text_[i + 1] == '\n');
      if ((byte < 0x20 && byte != '\t' && !is_line_end) || byte == 0x7F) {
        refuse_offset(i, fmt::format("control byte 0x{:02x}; a config is plain text", byte));
        return false;
      }
    }
    return true;
  }

  void scan_line(std::string_view content) {
    std::size_t at = content.find_first_not_of(' ');
    if (at == std::string_view::npos) return;
    if (in_block_scalar_ && (at > block_parent_ || content.find_first_not_of(" \t") == std::string_view::npos)) return;
    in_block_scalar_ = false;
    if (content[at] == '\t') {
      const std::size_t first = content.find_first_not_of(" \t");
      if (first == std::string_view::npos || content[first] == '#') return;
      if (brackets_.empty()) return refuse(at, "a tab in the indentation; use spaces");
    }
    if (at == 0 && content[0] == '%') return refuse(0, "YAML directives are not used in configs");
    if (at == 0 && (content.starts_with("---") || content.starts_with("...")) &&
        (content.size() == 3 || is_blank(content[3]))) {
      at = 3;
    }
    while (at < content.size() && !stopped_ && !in_block_scalar_) at = scan_token(content, at);
  }

  // Whether the line ends or a blank follows: what makes ':', '-' and '?' indicators.
  static bool ends_indicator(std::string_view content, std::size_t at) {
    return at >= content.size() || is_blank(content[at]);
  }

  // Returns the offset behind the token that begins at `at`.
  std::size_t scan_token(std::string_view content, std::size_t at) {
    const char c = content[at];
    if (is_blank(c)) return at + 1;
    if (c == '#' && (at == 0 || is_blank(content[at - 1]))) return content.size();
    if (++tokens_ > kMaxYamlTokens) {
      refuse(at, fmt::format("more than {} values; this is no config", kMaxYamlTokens));
      stopped_ = true;
      return content.size();
    }
    const bool in_flow = !brackets_.empty();
    if (!in_flow && (c == '-' || c == '?') && ends_indicator(content, at + 1)) {
      parent_column_ = at;
      return at + 1;
    }
    if (c == ':' && (ends_indicator(content, at + 1) || in_flow)) return at + 1;
    if (c == '[' || c == '{') return open_bracket(at);
    if (c == ']' || c == '}') {
      if (in_flow) brackets_.pop_back();
      return at + 1;
    }
    if (c == ',' && in_flow) return at + 1;
    if (!in_flow && (c == '|' || c == '>')) return block_scalar(content, at);
    if (!in_flow) parent_column_ = at;
    if (c == '"' || c == '\'') return quoted_text(content, at);
    if (c == '&') return refused_mark(content, at, "anchors (&name) are not used in configs; write the value out");
    if (c == '*') return refused_mark(content, at, "aliases (*name) are not used in configs; write the value out");
    if (c == '!') return refused_mark(content, at, "tags (!name) are not used in configs; the key decides the type");
    return plain_text(content, at);
  }

  std::size_t open_bracket(std::size_t at) {
    brackets_.push_back({source_, line_, static_cast<int>(at) + 1});
    if (brackets_.size() > static_cast<std::size_t>(kMaxYamlDepth)) {
      refuse(at, fmt::format("more than {} levels of nesting", kMaxYamlDepth));
      stopped_ = true;
    }
    return at + 1;
  }

  std::size_t refused_mark(std::string_view content, std::size_t at, const char* message) {
    refuse(at, message);
    std::size_t end = at;
    while (end < content.size() && !is_blank(content[end])) ++end;
    return end;
  }

  std::size_t block_scalar(std::string_view content, std::size_t at) {
    std::size_t end = at + 1;
    while (end < content.size() && std::string_view("+-123456789").find(content[end]) != std::string_view::npos) ++end;
    if (!ends_indicator(content, end)) return plain_text(content, at);
    in_block_scalar_ = true;
    block_parent_ = parent_column_;
    return content.size();
  }

  std::size_t quoted_text(std::string_view content, std::size_t at) {
    const char quote = content[at];
    for (std::size_t i = at + 1; i < content.size(); ++i) {
      if (quote == '"' && content[i] == '\\') {
        ++i;
      } else if (content[i] == quote) {
        if (quote == '\'' && i + 1 < content.size() && content[i + 1] == quote) {
          ++i;
        } else {
          return i + 1;
        }
      }
    }
    refuse(at, fmt::format("the quote {} opened here is not closed on its line", quote));
    return content.size();
  }

  std::size_t plain_text(std::string_view content, std::size_t at) {
    const bool in_flow = !brackets_.empty();
    std::size_t i = at;
    for (; i < content.size(); ++i) {
      const char c = content[i];
      if (c == ':' && ends_indicator(content, i + 1)) break;
      if (c == '#' && i > at && is_blank(content[i - 1])) break;
      if (!in_flow) continue;
      if (c == '$' && i + 1 < content.size() && content[i + 1] == '{') {
        refuse(i, "${NAME} inside [ ] or { } needs quotes: \"${NAME}\"");
        const std::size_t close = content.find('}', i);
        i = close == std::string_view::npos ? content.size() - 1 : close;
        continue;
      }
      if (std::string_view(",[]{}").find(c) != std::string_view::npos) break;
      if (c == ':' && i + 1 < content.size() &&
          std::string_view(",[]{}").find(content[i + 1]) != std::string_view::npos)
        break;
    }
    return std::max(i, at + 1);
  }

  std::string_view text_;
  int source_;
  Diagnostics& diagnostics_;
  YamlScan result_;
  int line_ = 1;
  int tokens_ = 0;
  bool stopped_ = false;
  std::vector<Place> brackets_;
  std::size_t parent_column_ = 0;  // of the innermost key or dash: a block scalar is indented further
  bool in_block_scalar_ = false;
  std::size_t block_parent_ = 0;
};

}  // namespace

YamlScan scan_yaml(std::string_view text, int source, Diagnostics& diagnostics) {
  return Scanner(text, source, diagnostics).run();
}

}  // namespace scaletrain
