#include "telemetry/log.h"

#include <doctest/doctest.h>

#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "support/temp_folder.h"

using namespace scaletrain;

TEST_CASE("each line has UTC time, level and text, at once") {
  const TempFolder folder;
  Log log({.file = folder / "rank.log"});
  log.info("hello {} %v");
  log.warn("careful");
  log.error("broken");
  const auto lines = split_text(TempFolder::read(folder / "rank.log"), '\n');
  REQUIRE(lines.size() == 4);
  const std::string time = R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z )";
  CHECK(std::regex_match(lines[0], std::regex(time + R"(info hello \{\} %v)")));
  CHECK(std::regex_match(lines[1], std::regex(time + "warning careful")));
  CHECK(std::regex_match(lines[2], std::regex(time + "error broken")));
}

TEST_CASE("every line of a message of many has time and level") {
  const TempFolder folder;
  Log log({.file = folder / "rank.log"});
  log.warn("first\n  second\n");
  log.info("");
  const auto lines = split_text(TempFolder::read(folder / "rank.log"), '\n');
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].ends_with("Z warning first"));
  CHECK(lines[1].ends_with("Z warning   second"));
  CHECK(lines[2].ends_with("Z info "));
}

TEST_CASE("a log continues the file it finds") {
  const TempFolder folder;
  folder.write("rank.log", "before\n");
  Log log({.file = folder / "rank.log"});
  Log moved = std::move(log);
  moved.info("after");
  const auto text = TempFolder::read(folder / "rank.log");
  CHECK(text.starts_with("before\n"));
  CHECK(text.ends_with(" info after\n"));
}

TEST_CASE("the console gets the text with a word for what is not ordinary") {
  std::vector<std::string> seen;
  Log log({.console = [&](std::string_view text) { seen.emplace_back(text); }});
  log.info("a");
  log.warn("b");
  log.error("c");
  CHECK(seen == std::vector<std::string>{"a", "warning: b", "error: c"});
}

TEST_CASE("a log that cannot be opened is refused and one that cannot be written is silent") {
  const TempFolder folder;
  CHECK_THROWS_AS(Log({.file = folder / "absent/rank.log"}), InputError);
  CHECK_THROWS_AS(Log({.file = folder.path()}), InputError);
  Log full({.file = "/dev/full"});
  CHECK_NOTHROW(full.info("lost"));
  Log none({});
  CHECK_NOTHROW(none.info("nowhere"));
}

TEST_CASE("lines of several threads do not mix") {
  const TempFolder folder;
  Log log({.file = folder / "rank.log"});
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log, t] {
      for (int i = 0; i < 200; ++i) log.info(std::string(50, static_cast<char>('a' + t)));
    });
  }
  for (auto& thread : threads) thread.join();
  const auto lines = split_text(TempFolder::read(folder / "rank.log"), '\n');
  REQUIRE(lines.size() == 801);
  const std::regex line(R"(\S+ info (a{50}|b{50}|c{50}|d{50}))");
  for (std::size_t i = 0; i < 800; ++i) REQUIRE(std::regex_match(lines[i], line));
}

TEST_CASE("rank logs sort as text") {
  CHECK(rank_log_path("runs/a", 7) == "runs/a/logs/rank-00007.log");
  CHECK(rank_log_path("runs/a", 12345) == "runs/a/logs/rank-12345.log");
}
