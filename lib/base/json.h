// JSON from files that nobody vouches for: bounded depth and size, no duplicate keys, no trailing text, valid UTF-8.
// Includes nlohmann's forward declarations only; sources that build or read values include <nlohmann/json.hpp>
// themselves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace scaletrain {

struct JsonLimits {
  int depth = 64;
  std::uint64_t bytes = 64ull << 20;
};

// Parses text; `where` (a file, a file with an offset) begins every message. Errors are InputErrors.
nlohmann::json parse_json(std::string_view text, const std::string& where, JsonLimits limits = {});
nlohmann::json read_json_file(const std::filesystem::path& path, JsonLimits limits = {});

// Members of an object, typed. Missing or of another type: an InputError naming `where` and the key.
const nlohmann::json& json_member(const nlohmann::json& object, std::string_view key, const std::string& where);
std::string json_string(const nlohmann::json& object, std::string_view key, const std::string& where);
std::int64_t json_integer(const nlohmann::json& object, std::string_view key, const std::string& where);
std::uint64_t json_unsigned(const nlohmann::json& object, std::string_view key, const std::string& where);
double json_number(const nlohmann::json& object, std::string_view key, const std::string& where);
// What to_hex() made of one number.
std::uint64_t json_hash(const nlohmann::json& object, std::string_view key, const std::string& where);
bool json_bool(const nlohmann::json& object, std::string_view key, const std::string& where);

// A double or float as the shortest decimal text that reads back to the same bits; "NaN", "Infinity" become null.
std::string json_float(double value);
std::string json_float(float value);

}  // namespace scaletrain
