#include "train/step/scalars.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

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
  put_scalar(scalars, name, std::span(&value, 1));
}

void put_scalar(Scalars& scalars, const std::string& name, std::span<const double> values) {
  std::string all;
  for (const double value : values) {
    char text[64];
    const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::hex).ptr;
    if (!all.empty()) all += ' ';
    all.append(text, end);
  }
  scalars[name] = std::move(all);
}

std::int64_t get_integer(const Scalars& scalars, const std::string& name, const std::string& where) {
  const std::string& text = scalar_text(scalars, name, where);
  std::int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) refuse(name, text, "an integer", where);
  return value;
}

double get_double(const Scalars& scalars, const std::string& name, const std::string& where) {
  const std::vector<double> values = get_doubles(scalars, name, where);
  if (values.size() != 1) refuse(name, scalar_text(scalars, name, where), "one number", where);
  return values.front();
}

std::vector<double> get_doubles(const Scalars& scalars, const std::string& name, const std::string& where) {
  const std::string& text = scalar_text(scalars, name, where);
  std::vector<double> values;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (!values.empty() && *at++ != ' ') refuse(name, text, "a space between numbers", where);
    double value = 0;
    const auto result = std::from_chars(at, end, value, std::chars_format::hex);
    if (result.ec != std::errc()) refuse(name, text, "hexadecimal floating-point numbers", where);
    values.push_back(value);
    at = result.ptr;
  }
  return values;
}

bool has_scalar(const Scalars& scalars, const std::string& name) {
  return scalars.contains(name);
}

}  // namespace scaletrain
