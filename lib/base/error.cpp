#include "base/error.h"

#include <fmt/format.h>

namespace scaletrain::detail {

void throw_bug(const char* file, int line, std::string_view condition, std::string_view operands) {
  if (operands.empty()) throw BugError(fmt::format("bug at {}:{}: expected {}", file, line, condition));
  throw BugError(fmt::format("bug at {}:{}: expected {}, found {}", file, line, condition, operands));
}

}  // namespace scaletrain::detail
