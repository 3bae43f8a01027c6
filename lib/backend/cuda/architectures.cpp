#include "backend/cuda/architectures.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <vector>

namespace scaletrain::cuda {

namespace {

struct Architecture {
  std::string_view text;  // "90a"
  int sm = 0;             // 0: a word
  bool is_specific = false;
  bool has_code = true;
  bool has_ptx = true;
};

std::vector<Architecture> parse(std::string_view list) {
  std::vector<Architecture> all;
  while (!list.empty()) {
    std::string_view one = list.substr(0, list.find(','));
    list.remove_prefix(std::min(one.size() + 1, list.size()));
    Architecture parsed;
    const std::size_t dash = one.find('-');
    const std::string_view form = dash == std::string_view::npos ? std::string_view() : one.substr(dash);
    parsed.text = one.substr(0, dash);
    parsed.has_ptx = form != "-real";
    parsed.has_code = form != "-virtual";
    const char* const end = parsed.text.data() + parsed.text.size();
    const auto [rest, error] = std::from_chars(parsed.text.data(), end, parsed.sm);
    const bool has_letter = error == std::errc() && rest != end;
    parsed.is_specific = has_letter && *rest == 'a';
    if (has_letter) parsed.has_ptx = false;  // beyond what its code runs on
    all.push_back(parsed);
  }
  return all;
}

bool runs_on(const Architecture& one, int sm) {
  if (one.sm == 0) return true;
  if (one.is_specific) return one.sm == sm;
  const bool is_same_major = one.sm / 10 == sm / 10;
  return one.sm <= sm && ((one.has_code && is_same_major) || one.has_ptx);
}

}  // namespace

bool is_compiled_for(std::string_view architectures, int sm) {
  const std::vector<Architecture> all = parse(architectures);
  return std::any_of(all.begin(), all.end(), [sm](const Architecture& one) { return runs_on(one, sm); });
}

std::string architectures_text(std::string_view architectures) {
  std::string text;
  for (const Architecture& one : parse(architectures)) {
    if (!text.empty()) text += ", ";
    text += one.sm == 0 ? std::string(one.text) : "sm_" + std::string(one.text);
  }
  return text;
}

}  // namespace scaletrain::cuda
