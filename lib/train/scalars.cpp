#include "train/scalars.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace scaletrain {

namespace {

const std::string& scalar_text(const Scalars& scalars, const std::string& name, const std::string& where) {
  const auto found = scalars.find(name);
  if (found == scalars.end()) throw InputError(fmt::format("{}: scalar \"{}\" is missing", where, name));
  return found->second;
}

[[noreturn]] void refuse(const std::string& name, const std::string& text, const char* expected,
                         const std::string& where) {
  throw InputError(fmt::format("{}: scalar \"{}\" is {}, expected {}", where, name, quoted(text), expected));
}

}  // namespace

void put_scalar(Scalars& scalars, const std::string& name, std::int64_t value) {
  scalars[name] = std::to_string(value);
}

void put_scalar(Scalars& scalars, const std::string& name, double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::hex).ptr;
  scalars[name] = std::string(text, end);
}

std::int64_t get_integer(const Scalars& scalars, const std::string& name, const std::string& where) {
  const std::string& text = scalar_text(scalars, name, where);
  std::int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) refuse(name, text, "an integer", where);
  return value;
}

double get_double(const Scalars& scalars, const std::string& name, const std::string& where) {
  const std::string& text = scalar_text(scalars, name, where);
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::hex);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size())
    refuse(name, text, "a hexadecimal floating-point number", where);
  return value;
}

bool has_scalar(const Scalars& scalars, const std::string& name) {
  return scalars.contains(name);
}

}  // namespace scaletrain
