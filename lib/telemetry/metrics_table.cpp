#include "telemetry/metrics_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace scaletrain {

namespace {

using Cell = MetricsTable::Cell;

// What is known of a step.
struct Row {
  const StepRecord* step = nullptr;
  std::map<std::string, double> evaluations{};  // by key
  const SkipRecord* skip = nullptr;
};

struct Column {
  std::string key;
  std::function<Cell(const Row&)> cell;
};

std::vector<Column> columns_of_steps() {
  const auto of_step = [](auto member) {
    return [member](const Row& row) { return row.step == nullptr ? Cell() : Cell(row.step->*member); };
  };
  const auto of_noise = [](auto member) {
    return [member](const Row& row) {
      return row.step == nullptr || !row.step->noise ? Cell() : Cell((*row.step->noise).*member);
    };
  };
  return {{"tokens", of_step(&StepRecord::tokens)},
          {"loss", of_step(&StepRecord::loss)},
          {"learning_rate", of_step(&StepRecord::learning_rate)},
          {"grad_norm", of_step(&StepRecord::grad_norm)},
          {"step_seconds", of_step(&StepRecord::step_seconds)},
          {"tokens_per_second", of_step(&StepRecord::tokens_per_second)},
          {"mfu", of_step(&StepRecord::mfu)},
          {"elapsed_seconds", of_step(&StepRecord::elapsed_seconds)},
          {"wall_time",
           [](const Row& row) {
             return row.step == nullptr || row.step->wall_time.empty() ? Cell() : Cell(row.step->wall_time);
           }},
          {"loss_scale",
           [](const Row& row) {
             return row.step == nullptr || !row.step->loss_scale ? Cell() : Cell(*row.step->loss_scale);
           }},
          {"gpu_memory_in_use",
           [](const Row& row) {
             return row.step == nullptr || !row.step->gpu_memory_in_use
                        ? Cell()
                        : Cell(static_cast<std::int64_t>(*row.step->gpu_memory_in_use));
           }},
          {"batch",
           [](const Row& row) { return row.step == nullptr || !row.step->batch ? Cell() : Cell(*row.step->batch); }},
          {"noise_square", of_noise(&NoiseRecord::square)},
          {"noise_variance", of_noise(&NoiseRecord::variance)},
          {"noise_scale",
           [](const Row& row) {
             const bool is_known = row.step != nullptr && row.step->noise && row.step->noise->scale;
             return is_known ? Cell(*row.step->noise->scale) : Cell();
           }},
          {"noise_batch_small", of_noise(&NoiseRecord::batch_small)},
          {"noise_batch_big", of_noise(&NoiseRecord::batch_big)},
          {"skip", [](const Row& row) { return row.skip == nullptr ? Cell() : Cell(row.skip->reason); }}};
}

std::string loss_key(const EvaluationRecord& record) {
  return fmt::format("validation/{}/loss", record.dataset);
}

std::string accuracy_key(const TaskRecord& record, std::string_view which) {
  return fmt::format("task/{}/{}", record.task, which);
}

std::map<std::int64_t, Row> rows_of(const Metrics& metrics) {
  std::map<std::int64_t, Row> rows;
  for (const StepRecord& record : metrics.steps) rows[record.step].step = &record;
  for (const EvaluationRecord& record : metrics.evaluations)
    rows[record.step].evaluations[loss_key(record)] = record.loss;
  for (const TaskRecord& record : metrics.tasks) {
    rows[record.step].evaluations[accuracy_key(record, "accuracy")] = record.accuracy;
    rows[record.step].evaluations[accuracy_key(record, "normalized_accuracy")] = record.normalized_accuracy;
  }
  for (const SkipRecord& record : metrics.skips) rows[record.step].skip = &record;
  return rows;
}

// In the order in which sets, then tasks, were met.
void add_columns_of_evaluations(std::vector<Column>& columns, const Metrics& metrics) {
  std::set<std::string> known;
  const auto add = [&](const std::string& key) {
    if (!known.insert(key).second) return;
    columns.push_back({key, [key](const Row& row) {
                         const auto found = row.evaluations.find(key);
                         return found == row.evaluations.end() ? Cell() : Cell(found->second);
                       }});
  };
  for (const EvaluationRecord& record : metrics.evaluations) add(loss_key(record));
  for (const TaskRecord& record : metrics.tasks) {
    add(accuracy_key(record, "accuracy"));
    add(accuracy_key(record, "normalized_accuracy"));
  }
}

std::vector<Column> chosen(const std::vector<Column>& columns, const std::vector<std::string>& keys) {
  std::vector<std::string> names = {"step"};
  for (const Column& column : columns) names.push_back(column.key);
  std::vector<Column> out;
  std::set<std::string> asked;
  for (const std::string& key : keys) {
    if (!asked.insert(key).second) throw UserError(fmt::format("--keys: {} is there twice", key));
    if (key == "step") continue;
    const auto found =
        std::find_if(columns.begin(), columns.end(), [&key](const Column& column) { return column.key == key; });
    if (found == columns.end()) {
      const auto nearest = nearest_word(key, names);
      throw UserError(fmt::format(
          "--keys: this run has no {}; {}", quoted(key),
          nearest ? "did you mean " + *nearest + "?" : fmt::format("there are: {}", fmt::join(names, ", "))));
    }
    out.push_back(*found);
  }
  return out;
}

std::string quoted_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out.append(c == '"' ? 2 : 1, c);
  return out + "\"";
}

std::string csv_field(const Cell& cell) {
  if (!cell) return {};
  if (const auto* text = std::get_if<std::string>(&*cell)) return quoted_field(*text);
  if (const auto* count = std::get_if<std::int64_t>(&*cell)) return std::to_string(*count);
  const double number = std::get<double>(*cell);
  return std::isfinite(number) ? json_float(number) : fmt::format("{}", number);
}

std::string json_value(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&*cell)) return nlohmann::json(*text).dump();
  if (const auto* count = std::get_if<std::int64_t>(&*cell)) return std::to_string(*count);
  return json_float(std::get<double>(*cell));
}

std::string column_field(const Cell& cell) {
  if (!cell) return "-";
  if (const auto* number = std::get_if<double>(&*cell)) return fmt::format("{:.6g}", *number);
  return csv_field(cell);
}

}  // namespace

MetricsTable table_of(const Metrics& metrics, const std::vector<std::string>& keys) {
  std::vector<Column> columns = columns_of_steps();
  add_columns_of_evaluations(columns, metrics);
  const std::map<std::int64_t, Row> rows = rows_of(metrics);
  if (!keys.empty()) {
    columns = chosen(columns, keys);
  } else {
    std::erase_if(columns, [&rows](const Column& column) {
      return std::none_of(rows.begin(), rows.end(), [&column](const auto& row) { return column.cell(row.second); });
    });
  }
  MetricsTable table;
  table.keys = {"step"};
  for (const Column& column : columns) table.keys.push_back(column.key);
  table.rows.reserve(rows.size());
  for (const auto& [step, row] : rows) {
    std::vector<Cell>& cells = table.rows.emplace_back();
    cells.reserve(table.keys.size());
    cells.emplace_back(step);
    for (const Column& column : columns) cells.push_back(column.cell(row));
  }
  return table;
}

std::string to_csv(const MetricsTable& table) {
  std::string out;
  for (const std::string& key : table.keys) out += (out.empty() ? "" : ",") + quoted_field(key);
  out += '\n';
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) out += ',';
      out += csv_field(row[i]);
    }
    out += '\n';
  }
  return out;
}

std::string to_json_lines(const MetricsTable& table) {
  std::vector<std::string> names;
  for (const std::string& key : table.keys) names.push_back(nlohmann::json(key).dump());
  std::string out;
  for (const auto& row : table.rows) {
    char before = '{';
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!row[i]) continue;
      out += before;
      out.append(names[i]).append(1, ':').append(json_value(row[i]));
      before = ',';
    }
    out += "}\n";
  }
  return out;
}

std::string to_columns(const MetricsTable& table) {
  std::vector<std::vector<std::string>> lines = {table.keys};
  for (const auto& row : table.rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const Cell& cell : row) line.push_back(column_field(cell));
  }
  std::vector<std::size_t> widths(table.keys.size(), 0);
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string out;
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) out += fmt::format("{}{:>{}}", i > 0 ? "  " : "", line[i], widths[i]);
    out += '\n';
  }
  return out;
}

}  // namespace scaletrain
