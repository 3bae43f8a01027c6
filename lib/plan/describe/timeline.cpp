#include "plan/describe/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace scaletrain {

namespace {

// More columns than this for a forward show nothing more.
constexpr double max_letters_per_forward = 4.0;
constexpr std::string_view cut_mark = " ~ ";

std::size_t column_at(double time, double scale) {
  return static_cast<std::size_t>(std::lround(time * scale));
}

std::size_t longest_name(const Timetable& timetable, std::int64_t chunks) {
  std::size_t longest = 1;
  for (const auto& work : timetable.work)
    for (const WorkInterval& interval : work) longest = std::max(longest, to_text(interval.instruction, chunks).size());
  return longest;
}

// Of the work that takes time at all.
double shortest_work(const Timetable& timetable) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const auto& work : timetable.work)
    for (const WorkInterval& interval : work)
      if (interval.end > interval.start) shortest = std::min(shortest, interval.end - interval.start);
  return shortest;
}

// Most forwards take as long as the median one, so that columns of its length show them alike.
double median_forward(const Timetable& timetable) {
  std::vector<double> times;
  for (const auto& work : timetable.work)
    for (const WorkInterval& interval : work)
      if (interval.instruction.op == Opcode::forward && interval.end > interval.start)
        times.push_back(interval.end - interval.start);
  if (times.empty()) return 1.0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// The scale at which every name fits its work and all fits the room; with a space behind each name if possible.
std::optional<double> named_scale(const Timetable& timetable, std::int64_t chunks, std::size_t room) {
  const auto longest = static_cast<double>(longest_name(timetable, chunks));
  const double shortest = shortest_work(timetable);
  for (const double letters : {longest + 1, longest}) {
    const double scale = letters / shortest;
    if (column_at(timetable.simulation.makespan, scale) > room) continue;
    bool fits = true;
    for (const auto& work : timetable.work)
      for (const WorkInterval& interval : work) {
        const auto columns = static_cast<double>(column_at(interval.end, scale) - column_at(interval.start, scale));
        fits = fits && (columns >= longest || interval.end <= interval.start);
      }
    if (fits) return scale;
  }
  return std::nullopt;
}

enum class Cells { names, letters, letters_and_chunks, coarse };

std::string cell_text(const WorkInterval& interval, std::size_t width, std::int64_t chunks, Cells cells) {
  const std::string name = to_text(interval.instruction, chunks);
  if (cells == Cells::coarse) return std::string(width, name.front());
  if (cells == Cells::names) return fmt::format("{:<{}}", name, width).substr(0, width);
  const bool is_odd = interval.instruction.micro_batch && interval.instruction.micro_batch->value() % 2 != 0;
  const char letter = is_odd ? static_cast<char>(std::tolower(static_cast<unsigned char>(name.front()))) : name.front();
  if (cells == Cells::letters) return std::string(width, letter);
  return fmt::format("{:<{}}", fmt::format("{}{}", letter, interval.instruction.chunk), width).substr(0, width);
}

struct Grid {
  double scale = 1.0;  // columns for a unit of time
  std::size_t columns = 0;
  Cells cells = Cells::letters;
};

std::string row_text(const std::vector<WorkInterval>& work, const Grid& grid, std::int64_t chunks) {
  std::string row;
  for (const WorkInterval& interval : work) {
    const std::size_t start = column_at(interval.start, grid.scale);
    const std::size_t end = column_at(interval.end, grid.scale);
    if (start > row.size()) row.append(start - row.size(), '.');
    if (end > row.size()) row += cell_text(interval, end - row.size(), chunks, grid.cells);
  }
  if (grid.columns > row.size()) row.append(grid.columns - row.size(), '.');
  return row;
}

}  // namespace

TimelineChart draw_timeline(const Timetable& timetable, std::int64_t chunks, std::size_t width,
                            std::size_t max_stages) {
  const double makespan = timetable.simulation.makespan;
  const std::size_t num_stages = timetable.work.size();
  const std::size_t heading = fmt::format("stage {} ", num_stages - 1).size();
  const std::size_t room = std::max(width, heading + 2 * cut_mark.size()) - heading;
  TimelineChart chart;
  const std::optional<double> named = named_scale(timetable, chunks, room);
  chart.is_named = named.has_value();
  const double forward = median_forward(timetable);
  const std::size_t half = (room - cut_mark.size()) / 2;
  // The last stages begin behind as many forwards as there are stages, which half of the page must hold.
  const std::size_t with_chunk = fmt::format("F{}", chunks - 1).size();
  chart.tells_chunks = !chart.is_named && chunks > 1 && num_stages * with_chunk <= half;
  const double letters =
      std::clamp(std::floor(static_cast<double>(room) * forward / makespan),
                 chart.tells_chunks ? static_cast<double>(with_chunk) : 1.0, max_letters_per_forward);
  double scale = named.value_or(letters / forward);
  std::size_t columns = column_at(makespan, scale);
  const bool is_coarse = columns > room && num_stages > half;
  if (is_coarse) {
    scale = static_cast<double>(room) / makespan;
    columns = room;
    chart.forwards_per_column = 1.0 / (scale * forward);
  }
  const Cells letter_cells = chart.tells_chunks ? Cells::letters_and_chunks : Cells::letters;
  const Cells cells = is_coarse ? Cells::coarse : chart.is_named ? Cells::names : letter_cells;
  if (columns > room) chart.columns_left_out = static_cast<std::int64_t>(columns - 2 * half);
  chart.columns_per_forward = std::lround(scale * forward);
  if (num_stages > max_stages) chart.stages_left_out = static_cast<std::int64_t>(num_stages - max_stages / 2 * 2);
  for (std::size_t stage = 0; stage < num_stages; ++stage) {
    if (chart.stages_left_out > 0 && stage == max_stages / 2) {
      chart.rows += fmt::format("... ({} stages)\n", chart.stages_left_out);
      stage += static_cast<std::size_t>(chart.stages_left_out);
    }
    std::string row = row_text(timetable.work[stage], {scale, columns, cells}, chunks);
    if (chart.columns_left_out > 0) row = row.substr(0, half) + std::string(cut_mark) + row.substr(columns - half);
    row.erase(row.find_last_not_of(' ') + 1);
    chart.rows += fmt::format("{:<{}}{}\n", fmt::format("stage {}", stage), heading, row);
  }
  return chart;
}

}  // namespace scaletrain
