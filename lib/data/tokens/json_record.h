// Internal to lib/data: one string out of a line of JSON, several times as fast as a parser of all of JSON.
#pragma once

#include <string>
#include <string_view>

namespace scaletrain {

// Puts the string that the object `line` has under `field` into `out` and returns true; only where parse_json()
// (base/json.h) would take the line and find that string. False: no such string, an error, or something that is rare
// (surrogates, exponents, keys with escapes, many keys, deep nesting): then parse_json() is to be asked.
bool find_string_member(std::string_view line, std::string_view field, std::string& out);

}  // namespace scaletrain
