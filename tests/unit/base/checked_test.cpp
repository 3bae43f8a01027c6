#include "base/numbers/checked.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/numbers/strong.h"
#include "base/process/exit_code.h"

using namespace scaletrain;

TEST_CASE("sums and products that do not fit are refused") {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  CHECK(checked_add<std::int64_t>(most - 1, 1) == most);
  CHECK_THROWS_AS(checked_add<std::int64_t>(most, 1), BugError);
  CHECK(checked_mul<std::uint32_t>(65535, 65537) == 4294967295u);
  CHECK_THROWS_AS(checked_mul<std::uint32_t>(65536, 65536), BugError);
  CHECK_FALSE(try_mul<std::int64_t>(most, 2));
  CHECK_FALSE(try_add<std::uint64_t>(~0ull, 1));
  CHECK(try_mul<std::int64_t>(1ll << 31, 1ll << 31) == 1ll << 62);
}

TEST_CASE("division must be exact where it is said to be") {
  CHECK(div_exact(12, 4) == 3);
  CHECK_THROWS_AS(div_exact(13, 4), BugError);
  CHECK_THROWS_AS(div_exact(1, 0), BugError);
  CHECK(ceil_div(13, 4) == 4);
  CHECK(ceil_div(12, 4) == 3);
  CHECK(ceil_div<std::uint64_t>(~0ull, 2) == 1ull << 63);  // no a + b - 1 that wraps
  CHECK(round_up(13, 4) == 16);
  CHECK_THROWS_AS(round_up<std::uint64_t>(~0ull - 1, 4096), BugError);
}

TEST_CASE("narrowing keeps the value or is refused") {
  CHECK(narrow<std::uint8_t>(255) == 255);
  CHECK_THROWS_AS(narrow<std::uint8_t>(256), BugError);
  CHECK_THROWS_AS(narrow<std::uint64_t>(-1), BugError);
  CHECK_THROWS_AS(narrow<std::int32_t>(1ll << 31), BugError);
}

TEST_CASE("a broken check names its place and both operands") {
  std::string message;
  try {
    const int found = 3;
    SCALETRAIN_CHECK_EQ(found, 4);
  } catch (const BugError& error) {
    message = error.what();
  }
  CHECK(message.find("checked_test.cpp:") != std::string::npos);
  CHECK(message.find("found == 4") != std::string::npos);
  CHECK(message.find("3 against 4") != std::string::npos);
  CHECK_THROWS_AS(SCALETRAIN_CHECK(1 > 2), BugError);
  CHECK_NOTHROW(SCALETRAIN_CHECK_LE(2, 2));
  CHECK_THROWS_AS(SCALETRAIN_CHECK_LT(2, 2), BugError);
}

TEST_CASE("strong integers compare and do not mix") {
  CHECK(Rank(3) < Rank(4));
  CHECK(Rank(3) == Rank(3));
  CHECK(Rank(3).value() == 3);
  CHECK_FALSE(std::is_convertible_v<Rank, Stage>);
  CHECK_FALSE(std::is_convertible_v<std::int64_t, Rank>);
}

// Job scripts depend on these numbers.
TEST_CASE("exit codes are what the documentation says") {
  CHECK(static_cast<int>(ExitCode::usage) == 2);
  CHECK(static_cast<int>(ExitCode::input) == 3);
  CHECK(static_cast<int>(ExitCode::peer) == 4);
  CHECK(static_cast<int>(ExitCode::interrupted) == 75);
}
