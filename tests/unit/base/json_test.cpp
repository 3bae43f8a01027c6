#include "base/json.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/numbers/philox.h"
#include "support/temp_folder.h"
#include "support/text.h"

using namespace scaletrain;

namespace {

std::string refusal_of(const std::string& text, JsonLimits limits = {}) {
  return message_of<InputError>([&] { parse_json(text, "file.json", limits); });
}

bool refused(const std::string& text, JsonLimits limits = {}) {
  return refusal_of(text, limits).starts_with("file.json: ");
}

std::string nested(std::size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

}  // namespace

TEST_CASE("plain JSON is read") {
  const auto value = parse_json(R"( {"a": [1, -2, 3.5, true, null, "x\u00e9"], "b": {}} )", "file.json");
  CHECK(value["a"][1] == -2);
  CHECK(value["a"][2] == 3.5);
  CHECK(value["a"][5] == "x\xc3\xa9");
  CHECK(value["b"].empty());
}

TEST_CASE("malformed JSON is refused with its place") {
  for (const char* bad : {"",
                          " ",
                          "{",
                          "[1,]",
                          "{\"a\":1,}",
                          "{'a':1}",
                          "{a:1}",
                          "01",
                          "+1",
                          "1.",
                          ".5",
                          "NaN",
                          "Infinity",
                          "tru",
                          "\"abc",
                          "\"\\x\"",
                          "\"\t\"",
                          "[1] x",
                          "{} {}",
                          "1 2",
                          "// c\n1",
                          "1e999",
                          "\"\\ud800\"",
                          "\"\xff\"",
                          "\"\xc0\x80\"",
                          "\"\xed\xa0\x80\"",
                          "\xff"}) {
    INFO(bad);
    CHECK(refused(bad));
  }
  CHECK(refused(std::string("[1]\0", 4)));
  CHECK(refusal_of("[1, x]").find("byte 5") != std::string::npos);
}

TEST_CASE("a message stays short when the damaged text is long") {
  CHECK(refusal_of("\"" + std::string(100000, 'a')).size() < 1000);
}

TEST_CASE("depth is bounded before it can hurt") {
  CHECK_FALSE(refused(nested(64)));
  CHECK(refused(nested(65)));
  CHECK(refusal_of(nested(65)).find("deeper than 64") != std::string::npos);
  std::string brackets;
  brackets.resize(5'000'000, '[');
  CHECK(refused(brackets));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  CHECK(refused(objects));
  CHECK(refused(nested(4), {.depth = 3}));
}

TEST_CASE("size is bounded before parsing") {
  CHECK(refused("[1, 2, 3]", {.bytes = 8}));
  CHECK_FALSE(refused("[1, 2, 3]", {.bytes = 9}));
  const TempFolder folder;
  const auto file = folder.write("big.json", "[1, 2, 3]");
  CHECK_THROWS_AS(read_json_file(file, {.bytes = 8}), InputError);
  CHECK(read_json_file(file, {.bytes = 9}).size() == 3);
  CHECK_THROWS_AS(read_json_file(folder / "absent.json"), InputError);
}

TEST_CASE("duplicate keys are refused at any level and only within one object") {
  CHECK(refused(R"({"a":1,"a":1})"));
  CHECK(refused(R"({"b":[{"a":1,"c":{},"a":2}]})"));
  CHECK(refused(R"({"a":{"x":1},"b":2,"a":{}})"));
  CHECK(refused(R"({"a":1,"\u0061":1})"));
  CHECK(refusal_of(R"({"key":1,"key":1})").find("\"key\"") != std::string::npos);
  CHECK_FALSE(refused(R"({"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]})"));
}

TEST_CASE("typed members refuse what does not fit") {
  const auto object = parse_json(
      R"({"i":-5,"u":18446744073709551615,"large":18446744073709551616,"f":2.0,"s":"t","b":false,"n":null,
          "least":-9223372036854775808,"below":-9223372036854775809,"most":9223372036854775807})",
      "m");
  CHECK(json_integer(object, "i", "m") == -5);
  CHECK(json_integer(object, "least", "m") == std::numeric_limits<std::int64_t>::min());
  CHECK(json_integer(object, "most", "m") == std::numeric_limits<std::int64_t>::max());
  CHECK(json_unsigned(object, "u", "m") == ~0ull);
  CHECK(json_number(object, "f", "m") == 2.0);
  CHECK(json_number(object, "i", "m") == -5.0);
  CHECK(json_string(object, "s", "m") == "t");
  CHECK(json_bool(object, "b", "m") == false);
  CHECK_THROWS_AS(json_integer(object, "u", "m"), InputError);
  CHECK_THROWS_AS(json_integer(object, "below", "m"), InputError);
  CHECK_THROWS_AS(json_unsigned(object, "large", "m"), InputError);
  CHECK_THROWS_AS(json_unsigned(object, "i", "m"), InputError);
  CHECK_THROWS_AS(json_integer(object, "f", "m"), InputError);
  CHECK_THROWS_AS(json_integer(object, "b", "m"), InputError);
  CHECK_THROWS_AS(json_number(object, "n", "m"), InputError);
  CHECK_THROWS_AS(json_number(object, "s", "m"), InputError);
  CHECK_THROWS_AS(json_string(object, "i", "m"), InputError);
  CHECK_THROWS_AS(json_bool(object, "i", "m"), InputError);
  CHECK_THROWS_WITH_AS(json_member(object, "absent", "file:3"), "file:3: the key \"absent\" is missing", InputError);
  CHECK_THROWS_AS(json_member(parse_json("[]", "m"), "a", "m"), InputError);
  CHECK(json_unsigned(nlohmann::json{{"built", 3}}, "built", "m") == 3);
}

TEST_CASE("floats read back to the same bits") {
  const PhiloxKey key{11, 12};
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const std::uint64_t bits = philox_u64(key, i);
    const auto value = std::bit_cast<double>(bits);
    const auto single = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isfinite(value)) {
      REQUIRE(std::bit_cast<std::uint64_t>(parse_json(json_float(value), "f").get<double>()) == bits);
    }
    if (std::isfinite(single)) {
      REQUIRE(std::bit_cast<std::uint32_t>(parse_json(json_float(single), "f").get<float>()) ==
              static_cast<std::uint32_t>(bits));
    }
  }
  CHECK(json_float(0.1) == "0.1");
  CHECK(json_float(0.1f) == "0.1");
  CHECK(json_float(3.0) == "3.0");
  CHECK(std::signbit(parse_json(json_float(-0.0), "f").get<double>()));
  CHECK(parse_json(json_float(1e22), "f").get<double>() == 1e22);
  CHECK(json_float(std::nan("")) == "null");
  CHECK(json_float(-std::numeric_limits<double>::infinity()) == "null");
  CHECK(json_float(std::numeric_limits<float>::infinity()) == "null");
}
