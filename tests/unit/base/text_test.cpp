#include "base/text.h"

#include "base/numbers/magnitude.h"

#include <doctest/doctest.h>

#include <ctime>
#include <string>
#include <vector>

#include "base/clock.h"

using namespace scaletrain;

namespace {
const std::vector<std::string> keys = {"learning_rate", "steps", "seed", "weight_decay", "tp", "lr", "adamw", "data"};
}

TEST_CASE("the nearest key is found for a slip") {
  CHECK(nearest_word("learning_rat", keys) == "learning_rate");
  CHECK(nearest_word("learnign_rate", keys) == "learning_rate");
  CHECK(nearest_word("learning-rate", keys) == "learning_rate");
  CHECK(nearest_word("lerning_raet", keys) == "learning_rate");
  CHECK(nearest_word("step", keys) == "steps");
  CHECK(nearest_word("seeds", keys) == "seed");
  CHECK(nearest_word("AdamW", keys) == "adamw");
  CHECK(nearest_word("dat", keys) == "data");
  CHECK(nearest_word("lrs", keys) == "lr");
}

TEST_CASE("a word that is like none of the keys is left alone") {
  CHECK_FALSE(nearest_word("dp", keys));  // one edit from "tp", and another thing
  CHECK_FALSE(nearest_word("banana", keys));
  CHECK_FALSE(nearest_word("", keys));
  CHECK_FALSE(nearest_word("x", keys));
  CHECK_FALSE(nearest_word("rate", keys));
  CHECK_FALSE(nearest_word("seed", {}));
  CHECK_FALSE(nearest_word(std::string(100000, 'a'), keys));
}

TEST_CASE("sizes are told with three digits") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(512) == "512 B");
  CHECK(bytes_text(1023) == "1023 B");
  CHECK(bytes_text(1024) == "1.00 KiB");
  CHECK(bytes_text(12ull << 20) == "12.0 MiB");
  CHECK(bytes_text(3ull << 29) == "1.50 GiB");
  CHECK(bytes_text((1ull << 20) - 1) == "1.00 MiB");
  CHECK(bytes_text(100ull << 10) == "100 KiB");
  CHECK(bytes_text(~0ull) == "16.0 EiB");
}

TEST_CASE("a count is told in three digits") {
  CHECK(short_count(0) == "0");
  CHECK(short_count(0.0351) == "0.0351");
  CHECK(short_count(5) == "5");
  CHECK(short_count(45.62) == "45.6");
  CHECK(short_count(999.4) == "999");
  CHECK(short_count(999.6) == "1.00K");
  CHECK(short_count(124439808) == "124M");
  CHECK(short_count(8.0303e9) == "8.03B");
  CHECK(short_count(15.0e12) == "15.0T");
  CHECK(short_count(3.15e23) == "3.15e+23");
  CHECK(short_count(-1) == "unknown");
  CHECK(short_count(0.0 / 0.0) == "unknown");
}

TEST_CASE("digits are grouped by three") {
  CHECK(grouped_digits(0) == "0");
  CHECK(grouped_digits(999) == "999");
  CHECK(grouped_digits(1000) == "1,000");
  CHECK(grouped_digits(124439808) == "124,439,808");
  CHECK(grouped_digits(~0ull) == "18,446,744,073,709,551,615");
}

TEST_CASE("things are counted in the singular and the plural") {
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(std::size_t{1200}, "rank") == "1200 ranks");
  CHECK(counted(1, "micro-batch", "es") == "1 micro-batch");
  CHECK(counted(2, "micro-batch", "es") == "2 micro-batches");
  CHECK(grouped_count(0, "token") == "0 tokens");
  CHECK(grouped_count(1, "token") == "1 token");
  CHECK(grouped_count(124439808, "token") == "124,439,808 tokens");
}

TEST_CASE("durations are told in two units") {
  CHECK(duration_text(4.23) == "4.2 s");
  CHECK(duration_text(0) == "0.0 s");
  CHECK(duration_text(59.97) == "1 min 0 s");
  CHECK(duration_text(200) == "3 min 20 s");
  CHECK(duration_text(3599.7) == "1 h 0 min");
  CHECK(duration_text(7500) == "2 h 5 min");
  CHECK(duration_text(86400 * 3 + 3600 * 4) == "3 d 4 h");
  CHECK(duration_text(86400.0 * 2'180'204) == "2,180,204 d 0 h");
  CHECK(duration_text(-1) == "unknown");
  CHECK(duration_text(0.0 / 0.0) == "unknown");
}

// The well-formed and ill-formed sequences of the Unicode standard, chapter 3.9.
TEST_CASE("ill-formed UTF-8 is found at its first byte") {
  CHECK_FALSE(first_invalid_utf8(""));
  CHECK_FALSE(first_invalid_utf8("plain"));
  CHECK_FALSE(first_invalid_utf8("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xed\x9f\xbf \xee\x80\x80 \xf4\x8f\xbf\xbf"));
  CHECK(first_invalid_utf8("ab\xff") == 2);
  CHECK(first_invalid_utf8("a\xc0\x80") == 1);          // overlong
  CHECK(first_invalid_utf8("a\xe0\x9f\xbf") == 1);      // overlong
  CHECK(first_invalid_utf8("a\xf0\x8f\xbf\xbf") == 1);  // overlong
  CHECK(first_invalid_utf8("abc\xed\xa0\x80") == 3);    // surrogate
  CHECK(first_invalid_utf8("\xf4\x90\x80\x80") == 0);   // beyond U+10FFFF
  CHECK(first_invalid_utf8("\xe2\x82") == 0);           // cut
  CHECK(first_invalid_utf8("\x80") == 0);               // a continuation alone
  CHECK(first_invalid_utf8("\xc3\xa9\xc3") == 2);
  CHECK_FALSE(first_invalid_utf8(std::string_view("\0", 1)));
}

TEST_CASE("text is wrapped at blanks and bars, below its first word") {
  CHECK(wrapped_text("", 10, 2).empty());
  CHECK(wrapped_text("one two three", 10, 2) == "one two\n  three");
  CHECK(wrapped_text("one two three", 9, 2) == "one two\n  three");
  CHECK(wrapped_text("one two three", 8, 2) == "one\n  two\n  three");
  CHECK(wrapped_text("one,  two", 80, 4) == "one,  two");
  CHECK(wrapped_text("gpipe|1f1b|zb-h1", 11, 0) == "gpipe|1f1b|\nzb-h1");
  CHECK(wrapped_text("one of: a | b", 9, 0) == "one of: a\n| b");
  CHECK(wrapped_text("a far-too-long-word b", 8, 1) == "a\n far-too-long-word\n b");
}

TEST_CASE("text is split at every separator") {
  CHECK(split_text("a,b,,c", ',') == std::vector<std::string>{"a", "b", "", "c"});
  CHECK(split_text("", ',') == std::vector<std::string>{""});
  CHECK(split_text(",", ',') == std::vector<std::string>{"", ""});
}

TEST_CASE("quoted text is printable and short") {
  CHECK(quoted(std::string_view("abc")) == "\"abc\"");
  CHECK(quoted(std::string("a\"b\\c\n\t")) == R"("a\"b\\c\n\t")");
  CHECK(quoted(std::string_view("\x1b[31m\x7f\xff", 7)) == R"("\x1b[31m\x7f\xff")");
  CHECK(quoted(std::string_view("\xc3\xa9")) == "\"\xc3\xa9\"");
  CHECK(quoted(std::string(100, 'a'), 5) == "\"aaaaa\"...");
  CHECK(quoted(std::string("aaa\xc3\xa9"), 4) == "\"aaa\"...");  // never cuts a character in two
  CHECK(quoted(std::string("12345"), 5) == "\"12345\"");
}

TEST_CASE("wall-clock text is UTC in ISO 8601") {
  const std::string text = wall_clock_text();
  REQUIRE(text.size() == 20);
  std::tm utc{};
  REQUIRE(::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc) != nullptr);
  CHECK(std::abs(std::difftime(::timegm(&utc), std::time(nullptr))) < 10);
}
