#include "base/json.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

namespace scaletrain {
namespace {

using nlohmann::json;

// Watches a parse: refuses depth and duplicate keys as they are met, before the value they belong to exists.
class Watch {
 public:
  Watch(const std::string& where, int depth_limit) : where_(where), depth_limit_(depth_limit) {}

  bool operator()(json::parse_event_t event, const json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        keys_.emplace_back();
        if (static_cast<int>(keys_.size()) > depth_limit_) {
          throw InputError(fmt::format("{}: nested deeper than {} levels", where_, depth_limit_));
        }
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key:
        if (!keys_.back().insert(parsed.get<std::string>()).second) {
          throw InputError(fmt::format("{}: the key {} appears twice in one object", where_,
                                       quoted(parsed.get_ref<const std::string&>())));
        }
        break;
      case json::parse_event_t::value:
        break;
    }
    return true;
  }

 private:
  const std::string& where_;
  int depth_limit_;
  std::vector<std::set<std::string>> keys_;  // one set for each open object or array
};

std::string kind_of(const json& value) {
  if (value.is_number_integer()) return "integer " + value.dump();
  return value.type_name();
}

[[noreturn]] void wrong_type(const json& value, std::string_view key, const std::string& where,
                             std::string_view expected) {
  throw InputError(fmt::format("{}: {} is {}, expected {}", where, quoted(key), kind_of(value), expected));
}

template <class Float>
std::string shortest_text(Float value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 64> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), result.ptr);
  // Without a point it would be read as an integer, and -0 would lose its sign.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

json parse_json(std::string_view text, const std::string& where, JsonLimits limits) {
  if (text.size() > limits.bytes) {
    throw InputError(fmt::format("{}: {} of JSON, at most {} are accepted", where, bytes_text(text.size()),
                                 bytes_text(limits.bytes)));
  }
  // The parser takes a zero byte for the end of the text, and would let anything follow it.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw InputError(fmt::format("{}: not valid JSON at byte {} (a zero byte)", where, zero + 1));
  }
  Watch watch(where, limits.depth);
  const auto callback = [&watch](int, json::parse_event_t event, json& parsed) { return watch(event, parsed); };
  try {
    return json::parse(text.begin(), text.end(), callback);
  } catch (const json::parse_error& error) {
    // Without the parser's text: it counts lines of its own, from the start of `text`.
    throw InputError(fmt::format("{}: not valid JSON at byte {}", where, error.byte));
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: not usable JSON ({})", where, quoted(std::string_view(error.what()), 240)));
  }
}

json read_json_file(const std::filesystem::path& path, JsonLimits limits) {
  return parse_json(read_text_file(path, limits.bytes), path.string(), limits);
}

const json& json_member(const json& object, std::string_view key, const std::string& where) {
  if (!object.is_object()) {
    throw InputError(
        fmt::format("{}: expected an object with the key {}, found {}", where, quoted(key), object.type_name()));
  }
  const auto found = object.find(key);
  if (found == object.end()) throw InputError(fmt::format("{}: the key {} is missing", where, quoted(key)));
  return *found;
}

std::string json_string(const json& object, std::string_view key, const std::string& where) {
  const json& value = json_member(object, key, where);
  if (!value.is_string()) wrong_type(value, key, where, "a string");
  return value.get<std::string>();
}

std::int64_t json_integer(const json& object, std::string_view key, const std::string& where) {
  const json& value = json_member(object, key, where);
  if (!value.is_number_integer()) wrong_type(value, key, where, "an integer of 64 bits");
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    wrong_type(value, key, where, "an integer of 64 bits with a sign");
  }
  return value.get<std::int64_t>();
}

std::uint64_t json_unsigned(const json& object, std::string_view key, const std::string& where) {
  const json& value = json_member(object, key, where);
  // A value built in code may hold a signed integer that is not negative; a parsed one never does.
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<std::int64_t>() < 0)) {
    wrong_type(value, key, where, "an integer of 64 bits without a sign");
  }
  return value.get<std::uint64_t>();
}

double json_number(const json& object, std::string_view key, const std::string& where) {
  const json& value = json_member(object, key, where);
  if (!value.is_number()) wrong_type(value, key, where, "a number");
  return value.get<double>();
}

std::uint64_t json_hash(const json& object, std::string_view key, const std::string& where) {
  std::uint64_t hash = 0;
  const std::string text = json_string(object, key, where);
  if (!from_hex(text, hash)) throw InputError(fmt::format("{}: {} {} is not 16 hexadecimal digits", where, key, text));
  return hash;
}

bool json_bool(const json& object, std::string_view key, const std::string& where) {
  const json& value = json_member(object, key, where);
  if (!value.is_boolean()) wrong_type(value, key, where, "true or false");
  return value.get<bool>();
}

std::string json_float(double value) {
  return shortest_text(value);
}
std::string json_float(float value) {
  return shortest_text(value);
}

}  // namespace scaletrain
