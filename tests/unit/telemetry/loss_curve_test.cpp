#include "telemetry/loss_curve.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/text.h"

using namespace scaletrain;

namespace {

Metrics falling(std::int64_t steps) {
  Metrics metrics;
  for (std::int64_t step = 1; step <= steps; ++step) {
    StepRecord record;
    record.step = step;
    record.loss = 1.0 + 4.0 / static_cast<double>(step);
    metrics.steps.push_back(record);
  }
  return metrics;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = split_text(text, '\n');
  REQUIRE(lines.back().empty());  // the last line ends
  lines.pop_back();
  return lines;
}

}  // namespace

TEST_CASE("a curve that falls is drawn from the upper left to the lower right within its columns") {
  Metrics metrics = falling(450);
  metrics.evaluations.push_back({.step = 225, .dataset = "held-out", .loss = 2.0, .tokens = 1});
  metrics.evaluations.push_back({.step = 450, .dataset = "held-out", .loss = 1.5, .tokens = 1});
  const auto lines = lines_of(draw_loss_curve(metrics, {.width = 60, .height = 9}));
  REQUIRE(lines.size() == 14);  // "loss", nine rows, the axis, its numbers, the legend of two lines
  for (const std::string& line : lines) CHECK(line.size() <= 60);
  for (const std::string& line : lines)
    CHECK(std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  // The first column is the mean of four steps or so, the last of as many.
  CHECK(lines[1].substr(12, 1) == "*");
  CHECK(lines[9].find("*") < 40);
  CHECK(lines[9].back() == '*');
  CHECK(lines[1].find('*', 16) == std::string::npos);
  // Evaluations lie at half and at the whole of the width, the later one lower.
  const auto row_of = [&](std::size_t column) {
    for (std::size_t row = 1; row <= 9; ++row)
      if (lines[row].size() > column && lines[row][column] == 'o') return row;
    return std::size_t{0};
  };
  CHECK(row_of(59) > row_of(12 + 23));
  CHECK(row_of(12 + 23) > 0);
  CHECK(lines[11].find("step 1 ") != std::string::npos);
  CHECK(lines[11].ends_with("step 450"));
  CHECK(lines[12] == "            * training 1.0089   o validation/held-out 1.5000");
  CHECK(lines[13] == "            (the last losses)");
}

TEST_CASE("the legend of a curve fits its columns whatever the sets are called") {
  Metrics metrics = falling(10);
  for (const char* name : {"web", "a-name-that-is-longer-than-the-whole-of-a-narrow-picture", "books"})
    metrics.evaluations.push_back({.step = 5, .dataset = name, .loss = 2.0, .tokens = 1});
  for (const std::size_t width : {40, 60, 80, 120}) {
    const std::string picture = draw_loss_curve(metrics, {.width = width, .height = 4});
    for (const std::string& line : lines_of(picture)) CHECK(line.size() <= width);
    for (const char* item : {"* training 1.4000", "o validation/web 2.0000", "x validation/a-na",
                             "+ validation/books 2.0000", "(the last losses)"})
      CHECK_MESSAGE(picture.find(item) != std::string::npos, item);
    CHECK((picture.find("... 2.0000") != std::string::npos) == (width < 120));  // the long name
  }
}

TEST_CASE("a curve of one step, of equal losses or of none is drawn without a division by nothing") {
  CHECK(draw_loss_curve({}, {}) == "no step was made yet\n");
  CHECK(lines_of(draw_loss_curve(falling(1), {})).size() == 16);
  Metrics metrics = falling(3);
  for (StepRecord& record : metrics.steps) record.loss = 2.0;
  CHECK(draw_loss_curve(metrics, {}).find("2.0000") != std::string::npos);
  for (StepRecord& record : metrics.steps) record.loss = std::nan("");
  CHECK(draw_loss_curve(metrics, {}) == "no step has a finite loss\n");
  // Too small a picture is drawn at the least size.
  CHECK(lines_of(draw_loss_curve(falling(10), {.width = 1, .height = 0})).size() == 9);
}
