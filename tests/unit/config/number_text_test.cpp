#include "config/keys/number_text.h"

#include <doctest/doctest.h>

#include <bit>
#include <limits>
#include <random>

using namespace scaletrain;

TEST_CASE("integers take decimal and binary suffixes and exact fractions") {
  CHECK(parse_integer("0") == 0);
  CHECK(parse_integer("-17") == -17);
  CHECK(parse_integer("10B") == 10'000'000'000);
  CHECK(parse_integer("2.5M") == 2'500'000);
  CHECK(parse_integer("512Ki") == 524'288);
  CHECK(parse_integer("1.5Ki") == 1536);
  CHECK(parse_integer("1e9") == 1'000'000'000);
  CHECK(parse_integer("1.5e1") == 15);
  CHECK(parse_integer("30e-1") == 3);
  CHECK(parse_integer("3T") == 3'000'000'000'000);
  CHECK(parse_integer("9223372036854775807") == std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("what is no exact 64-bit integer is none") {
  for (const char* text : {"",
                           "-",
                           "abc",
                           "1.5",
                           "0.1K1",
                           "1.0001K",
                           "9223372036854775808",
                           "9223372036854775807K",
                           "1e30",
                           "1e999999999999",
                           "1e-1",
                           "010",
                           "0x10",
                           "1_000",
                           " 1",
                           "1 ",
                           "1KK",
                           "K",
                           "1k",
                           ".",
                           "1e",
                           "inf",
                           "nan",
                           "--1",
                           "18446744073709551616",
                           "1ki"})
    CHECK_MESSAGE(!parse_integer(text), text);
}

TEST_CASE("numbers are decimal, finite and never silently zero") {
  CHECK(parse_number("6e-4") == 6e-4);
  CHECK(parse_number("-.5") == -0.5);
  CHECK(parse_number("1.5K") == 1500.0);
  CHECK(parse_number("0.1") == 0.1);
  for (const char* text : {"", "inf", "nan", "-inf", "1e400", "1e-400", "0x1p3", "1,5", "1e5x", "1e308T", "007"})
    CHECK_MESSAGE(!parse_number(text), text);
}

TEST_CASE("number_text reads back to the same bits") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (!(value > -1e308 && value < 1e308)) continue;
    const auto back = parse_number(number_text(value));
    REQUIRE(back.has_value());
    CHECK(std::bit_cast<std::uint64_t>(*back) == std::bit_cast<std::uint64_t>(value));
  }
}

TEST_CASE("durations need a unit") {
  CHECK(parse_duration("90s") == 90.0);
  CHECK(parse_duration("30m") == 1800.0);
  CHECK(parse_duration("2h") == 7200.0);
  CHECK(parse_duration("1.5d") == 129600.0);
  CHECK(parse_duration("250ms") == 0.25);
  for (const char* text : {"90", "", "s", "-1s", "30M", "2 h", "1e400s"}) CHECK_MESSAGE(!parse_duration(text), text);
}

TEST_CASE("sizes are whole bytes") {
  CHECK(parse_size("4GiB") == 4294967296u);
  CHECK(parse_size("10MB") == 10'000'000u);
  CHECK(parse_size("512") == 512u);
  CHECK(parse_size("0.5KiB") == 512u);
  for (const char* text : {"", "-1", "GiB", "0.3B", "1e30", "17179869184GiB", "4Gi"})
    CHECK_MESSAGE(!parse_size(text), text);
}
