// The quick reader of records against the parser that decides what JSON is.
#include "data/tokens/json_record.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

using namespace scaletrain;

namespace {

// Whether it takes the line; what it takes must be what the parser finds.
bool takes(const std::string& line) {
  std::string found;
  if (!find_string_member(line, "text", found)) return false;
  CAPTURE(line);
  try {
    const nlohmann::json value = parse_json(line, "line");
    REQUIRE(value.is_object());
    REQUIRE(value.contains("text"));
    REQUIRE(value.at("text").is_string());
    REQUIRE(value.at("text").get<std::string>() == found);
  } catch (const InputError& error) {
    FAIL(error.what());
  }
  return true;
}

}  // namespace

TEST_CASE("records as they are written everywhere are read quickly") {
  for (const std::string line :
       {R"({"text":"a"})",
        R"( { "id" : -12.5 , "text" : "a\n\"b\"\\ \u00e9\u20ac\/" , "meta" : {"x":[1,2,{"y":null}],"text":"no"} } )",
        R"({"text":""})", R"({"a":true,"b":false,"c":[],"d":{},"text":"é😀"})", R"({"text":"\u0000"})",
        "{\"text\":\"0123456789abcdef\\t0123456\"}\r"})
    CHECK(takes(line));
}

TEST_CASE("what no parser takes, and what is rare, is left to the parser") {
  for (const std::string line : {R"({"text":1})",
                                 R"({"text":null})",
                                 R"({"body":"a"})",
                                 R"(["text"])",
                                 R"({"text":"a"} x)",
                                 R"({"text":"a")",
                                 R"({"text":"a",})",
                                 R"({"text":"a","text":"b"})",
                                 R"({"text":"a","x":1,"x":2})",
                                 R"({"x":{"y":1,"y":2},"text":"a"})",
                                 R"({"text":"\ud83d\ude00"})",
                                 R"({"text":"\ud83d"})",
                                 R"({"text":"\x"})",
                                 R"({"text":"\u12g4"})",
                                 R"({"n":01,"text":"a"})",
                                 R"({"n":1.,"text":"a"})",
                                 R"({"n":1e999,"text":"a"})",
                                 R"({"n":-,"text":"a"})",
                                 R"({"n":.5,"text":"a"})",
                                 R"({"t\u0065xt":"a"})",
                                 R"({"n":nul,"text":"a"})",
                                 R"({"n":[1,],"text":"a"})",
                                 R"({'text':"a"})",
                                 R"({"text":"a"}{})",
                                 "{\"text\":\"a\tb\"}",
                                 "{\"text\":\"\xff\"}",
                                 "{\"text\":\"\xed\xa0\x80\"}",
                                 "{\"text\":\"\xc0\x80\"}"})
    CHECK_FALSE(takes(line));
  CHECK_FALSE(takes(std::string("{\"text\":\"a\0b\"}", 14)));
  CHECK_FALSE(takes("{\"x\":" + std::string(70, '[') + std::string(70, ']') + ",\"text\":\"a\"}"));
}

TEST_CASE("records with any bytes changed are never read otherwise than the parser reads them") {
  std::mt19937 random(5);
  const std::vector<std::string> lines = {R"({"id":12,"text":"one \"two\" \u00e9\n","x":[1.5,{"y":null}]})",
                                          R"({"text":"abcdefghijklmnop\\qrstuvwxyz é 😀 漢字","n":-0.25,"t":true})"};
  const std::string pieces = "\"\\{}[],:u0eE.-1 \t\x1f\x80\xc3\xe9ntfx\n";
  int taken = 0;
  for (int i = 0; i < 60'000; ++i) {
    std::string line = lines[random() % lines.size()];
    for (unsigned k = random() % 3 + 1; k > 0; --k) {
      const std::size_t at = random() % line.size();
      const char c = pieces[random() % pieces.size()];
      switch (random() % 3) {
        case 0:
          line[at] = c;
          break;
        case 1:
          line.insert(at, 1, c);
          break;
        default:
          line.erase(at, 1);
      }
    }
    taken += takes(line) ? 1 : 0;
  }
  CHECK(taken > 5000);
}
