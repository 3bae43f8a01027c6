#include "plan/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace scaletrain {

namespace {

struct Chart {
  std::size_t columns = 0;
  std::size_t cell = 1;  // characters
  std::size_t heading = 0;
};

std::string row_text(const std::vector<WorkInterval>& work, const Chart& chart, std::int64_t chunks) {
  std::string row;
  const auto fill_idle = [&](std::size_t until) {
    while (row.size() < until * chart.cell) row += fmt::format("{:<{}}", ".", chart.cell);
  };
  for (const WorkInterval& interval : work) {
    fill_idle(static_cast<std::size_t>(std::lround(interval.start)));
    const auto end = static_cast<std::size_t>(std::lround(interval.end)) * chart.cell;
    const std::string name = to_text(interval.instruction, chunks);
    if (chart.cell == 1) {
      row.append(end - row.size(), name.front());
    } else {
      row += fmt::format("{:<{}}", name, end - row.size());
    }
  }
  fill_idle(chart.columns);
  row.erase(row.find_last_not_of(' ') + 1);
  return row;
}

}  // namespace

std::string timeline_text(const Timetable& timetable, std::int64_t chunks, std::size_t width) {
  Chart chart;
  chart.columns = static_cast<std::size_t>(std::lround(timetable.simulation.makespan));
  chart.heading = fmt::format("stage {} ", timetable.work.size() - 1).size();
  if (chart.heading + chart.columns > width) return {};
  std::size_t longest = 1;
  for (const auto& work : timetable.work)
    for (const WorkInterval& interval : work)
      longest = std::max(longest, to_text(interval.instruction, chunks).size() + 1);
  if (chart.heading + chart.columns * longest <= width) chart.cell = longest;
  std::string text;
  for (std::size_t stage = 0; stage < timetable.work.size(); ++stage)
    text += fmt::format("{:<{}}{}\n", fmt::format("stage {}", stage), chart.heading,
                        row_text(timetable.work[stage], chart, chunks));
  return text;
}

}  // namespace scaletrain
