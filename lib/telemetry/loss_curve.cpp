#include "telemetry/loss_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "telemetry/loss_text.h"

namespace scaletrain {

namespace {

constexpr std::size_t least_width = 40;
constexpr std::size_t least_height = 4;
constexpr char training_mark = '*';
constexpr std::array<char, 3> validation_marks = {'o', 'x', '+'};

struct Point {
  std::size_t column = 0;
  double loss = 0;
  char mark = training_mark;
};

// Steps [first, last] on so many columns.
class StepAxis {
 public:
  StepAxis(std::int64_t first, std::int64_t last, std::size_t columns)
      : first_(first), last_(last), columns_(columns) {}
  std::size_t column_of(std::int64_t step) const {
    if (last_ == first_) return 0;
    const double place = static_cast<double>(step - first_) / static_cast<double>(last_ - first_);
    return static_cast<std::size_t>(std::lround(place * static_cast<double>(columns_ - 1)));
  }

 private:
  std::int64_t first_;
  std::int64_t last_;
  std::size_t columns_;
};

std::vector<Point> training_points(const Metrics& metrics, const StepAxis& axis, std::size_t columns) {
  std::vector<double> sums(columns, 0.0);
  std::vector<std::int64_t> counts(columns, 0);
  for (const StepRecord& record : metrics.steps) {
    if (!std::isfinite(record.loss)) continue;
    const std::size_t column = axis.column_of(record.step);
    sums[column] += record.loss;
    ++counts[column];
  }
  std::vector<Point> points;
  for (std::size_t column = 0; column < columns; ++column)
    if (counts[column] > 0) points.push_back({column, sums[column] / static_cast<double>(counts[column])});
  return points;
}

// The sets in the order of their first evaluation; those beyond the marks are left out.
std::vector<std::string> drawn_sets(const Metrics& metrics) {
  std::vector<std::string> sets;
  for (const EvaluationRecord& record : metrics.evaluations)
    if (sets.size() < validation_marks.size() && std::find(sets.begin(), sets.end(), record.dataset) == sets.end())
      sets.push_back(record.dataset);
  return sets;
}

// Rows from the highest loss down; a column's neighbours are joined where the curve is steep.
class Canvas {
 public:
  Canvas(std::size_t width, std::size_t height, double low, double high)
      : low_(low), high_(high), rows_(height, std::string(width, ' ')) {}

  std::size_t row_of(double loss) const {
    const double place = high_ > low_ ? (high_ - loss) / (high_ - low_) : 0.0;
    return static_cast<std::size_t>(std::lround(std::clamp(place, 0.0, 1.0) * static_cast<double>(rows_.size() - 1)));
  }
  void put(std::size_t column, std::size_t row, char mark) { rows_[row][column] = mark; }
  void join(const Point& before, const Point& point) {
    const std::size_t from = row_of(before.loss);
    const std::size_t to = row_of(point.loss);
    for (std::size_t row = std::min(from, to) + 1; row < std::max(from, to); ++row) put(point.column, row, point.mark);
  }
  const std::vector<std::string>& rows() const { return rows_; }

 private:
  double low_;
  double high_;
  std::vector<std::string> rows_;
};

std::string shortened(const std::string& text, std::size_t most) {
  constexpr std::string_view dots = "...";
  return text.size() <= most ? text : text.substr(0, most - dots.size()).append(dots);
}

// Lines of at most `columns`, which begin behind the margin.
std::string legend(const Metrics& metrics, const std::vector<std::string>& sets, std::size_t margin,
                   std::size_t columns) {
  std::vector<std::string> items;
  items.push_back(fmt::format("{} training {}", training_mark, loss_text(metrics.steps.back().loss)));
  for (std::size_t i = 0; i < sets.size(); ++i) {
    double last = std::numeric_limits<double>::quiet_NaN();
    for (const EvaluationRecord& record : metrics.evaluations)
      if (record.dataset == sets[i]) last = record.loss;
    const std::string loss = " " + loss_text(last);
    items.push_back(shortened(fmt::format("{} validation/{}", validation_marks[i], sets[i]), columns - loss.size()) +
                    loss);
  }
  items.emplace_back("(the last losses)");
  constexpr std::string_view gap = "   ";
  std::string text;
  std::string line;
  for (const std::string& item : items) {
    const bool begins = line.empty() || line.size() + gap.size() + item.size() > columns;
    if (begins && !line.empty()) text += std::string(margin, ' ') + std::exchange(line, {}) + "\n";
    line += (begins ? "" : std::string(gap)) + item;
  }
  return text + std::string(margin, ' ') + line + "\n";
}

}  // namespace

std::string draw_loss_curve(const Metrics& metrics, const CurveOptions& options) {
  if (metrics.steps.empty()) return "no step was made yet\n";
  const std::int64_t first = metrics.steps.front().step;
  const std::int64_t last = metrics.steps.back().step;
  constexpr std::size_t label_width = 10;
  constexpr std::size_t margin = label_width + 2;
  const std::size_t columns = std::max(options.width, least_width) - margin;
  const StepAxis axis(first, last, columns);
  const std::vector<Point> training = training_points(metrics, axis, columns);
  const std::vector<std::string> sets = drawn_sets(metrics);
  std::vector<Point> validation;
  for (const EvaluationRecord& record : metrics.evaluations) {
    const auto set = std::find(sets.begin(), sets.end(), record.dataset);
    if (set == sets.end() || !std::isfinite(record.loss) || record.step < first || record.step > last) continue;
    const char mark = validation_marks[static_cast<std::size_t>(set - sets.begin())];
    validation.push_back({axis.column_of(record.step), record.loss, mark});
  }
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  const auto widen = [&](const Point& point) {
    low = std::min(low, point.loss);
    high = std::max(high, point.loss);
  };
  std::for_each(training.begin(), training.end(), widen);
  std::for_each(validation.begin(), validation.end(), widen);
  if (training.empty()) return "no step has a finite loss\n";

  const std::size_t height = std::max(options.height, least_height);
  Canvas canvas(columns, height, low, high);
  for (std::size_t i = 0; i < training.size(); ++i) {
    if (i > 0) canvas.join(training[i - 1], training[i]);
    canvas.put(training[i].column, canvas.row_of(training[i].loss), training_mark);
  }
  for (const Point& point : validation) canvas.put(point.column, canvas.row_of(point.loss), point.mark);

  std::string text = "loss\n";
  for (std::size_t row = 0; row < height; ++row) {
    const bool is_labelled = row == 0 || row + 1 == height || row == height / 2;
    const double value = high - (high - low) * static_cast<double>(row) / static_cast<double>(height - 1);
    std::string line = canvas.rows()[row];
    line.erase(line.find_last_not_of(' ') + 1);
    text += fmt::format("{:>{}} |{}\n", is_labelled ? loss_text(value) : "", label_width, line);
  }
  text += fmt::format("{:>{}} +{}\n", "", label_width, std::string(columns, '-'));
  const std::string begin = fmt::format("step {}", first);
  const std::string end = fmt::format("step {}", last);
  text += fmt::format("{:>{}}{}{:>{}}\n", "", margin, begin, end, columns - std::min(columns, begin.size()));
  return text + legend(metrics, sets, margin, columns);
}

}  // namespace scaletrain
