#include "evaluate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"

namespace scaletrain {

namespace {

std::string count_text(std::int64_t count) {
  return grouped_digits(static_cast<std::uint64_t>(count));
}

std::string bits_text(const EvaluationResult& result) {
  const std::optional<double> bits = result.bits_per_byte();
  return bits ? fmt::format("{:.5g}", *bits) : "unknown";
}

std::string line_of(const SetReport& report) {
  const EvaluationResult& result = report.result;
  const std::string bytes =
      result.bits_per_byte() ? fmt::format("{} bits per byte", bits_text(result)) : "bits per byte unknown";
  return fmt::format("{}: loss {:.7g} nats per token (perplexity {:.4g}), {}, over {} tokens\n", report.set,
                     result.loss, std::exp(result.loss), bytes, count_text(result.tokens)) +
         report.difference;
}

// Right-aligned columns, the first one left.
std::string table_of(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format("{:<{}}", row[0], widths[0]);
    for (std::size_t i = 1; i < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], widths[i]);
    text += "\n";
  }
  return text;
}

std::string table_of_set(const std::string& set, const std::vector<SetReport>& reports) {
  std::vector<std::vector<std::string>> rows = {{"model", "nats/token", "perplexity/token", "bits/byte", "tokens"}};
  std::set<std::int64_t> tokens;
  std::string differences;
  const DocumentsConfig* documents = nullptr;
  bool is_cut_alike = true;
  for (const SetReport& report : reports) {
    if (report.set != set) continue;
    if (documents == nullptr) documents = &report.documents;
    is_cut_alike = is_cut_alike && report.documents == *documents;
    const EvaluationResult& result = report.result;
    rows.push_back({report.model, fmt::format("{:.7g}", result.loss), fmt::format("{:.4g}", std::exp(result.loss)),
                    bits_text(result), count_text(result.tokens)});
    tokens.insert(result.tokens);
    if (!report.difference.empty()) differences += "    " + report.model + ":\n" + report.difference;
  }
  std::string notice;
  if (!is_cut_alike) {
    notice =
        "    not to be compared: data.documents of these models differ, and so what a token sees and which count\n";
  } else if (tokens.size() > 1) {
    notice = "    not over the same tokens: of these numbers bits per byte alone may be compared\n";
  }
  return set + "\n" + table_of(rows) + notice + differences;
}

// "0.4321 ± 0.012", of one standard error.
std::string share_text(double share, const std::optional<double>& error) {
  return error ? fmt::format("{:.4f} ± {:.4f}", share, *error) : fmt::format("{:.4f}", share);
}

std::string line_of(const TaskReport& report) {
  const TaskScore& score = report.score;
  return fmt::format("{}: accuracy {}, by length in bytes {}, of {}\n", report.task,
                     share_text(score.accuracy, score.accuracy_error),
                     share_text(score.normalized_accuracy, score.normalized_accuracy_error),
                     grouped_count(static_cast<std::uint64_t>(score.questions), "question")) +
         (report.num_cut > 0 ? fmt::format("    {} longer than the context: of these the end was read\n",
                                           counted(report.num_cut, "text"))
                             : "");
}

std::string table_of_task(const std::string& task, const std::vector<TaskReport>& reports) {
  std::vector<std::vector<std::string>> rows = {{"model", "accuracy", "error", "by length", "error", "questions"}};
  const auto error_text = [](const std::optional<double>& error) {
    return error ? fmt::format("{:.4f}", *error) : std::string("unknown");
  };
  for (const TaskReport& report : reports) {
    if (report.task != task) continue;
    const TaskScore& score = report.score;
    rows.push_back({report.model, fmt::format("{:.4f}", score.accuracy), error_text(score.accuracy_error),
                    fmt::format("{:.4f}", score.normalized_accuracy), error_text(score.normalized_accuracy_error),
                    count_text(score.questions)});
  }
  return task + "\n" + table_of(rows);
}

}  // namespace

std::string text_of(const std::vector<TaskReport>& reports) {
  std::vector<std::string> tasks;
  std::set<std::string> models;
  for (const TaskReport& report : reports) {
    models.insert(report.model);
    if (std::find(tasks.begin(), tasks.end(), report.task) == tasks.end()) tasks.push_back(report.task);
  }
  std::string text;
  if (models.size() <= 1) {
    for (const TaskReport& report : reports) text += line_of(report);
    return text;
  }
  for (const std::string& task : tasks) text += (text.empty() ? "" : "\n") + table_of_task(task, reports);
  return text;
}

nlohmann::json json_of(const TaskReport& report) {
  const TaskScore& score = report.score;
  nlohmann::json json = {{"model", report.model},
                         {"step", nullptr},
                         {"task", report.task},
                         {"questions", score.questions},
                         {"accuracy", score.accuracy},
                         {"accuracy_error", nullptr},
                         {"normalized_accuracy", score.normalized_accuracy},
                         {"normalized_accuracy_error", nullptr},
                         {"cut_texts", report.num_cut}};
  if (report.step) json["step"] = *report.step;
  if (score.accuracy_error) json["accuracy_error"] = *score.accuracy_error;
  if (score.normalized_accuracy_error) json["normalized_accuracy_error"] = *score.normalized_accuracy_error;
  return json;
}

std::string text_of(const std::vector<SetReport>& reports) {
  std::vector<std::string> sets;
  std::set<std::string> models;
  for (const SetReport& report : reports) {
    models.insert(report.model);
    if (std::find(sets.begin(), sets.end(), report.set) == sets.end()) sets.push_back(report.set);
  }
  std::string text;
  if (models.size() <= 1) {
    for (const SetReport& report : reports) text += line_of(report);
    return text;
  }
  for (const std::string& set : sets) text += (text.empty() ? "" : "\n") + table_of_set(set, reports);
  return text;
}

nlohmann::json json_of(const SetReport& report) {
  const EvaluationResult& result = report.result;
  nlohmann::json json = {{"model", report.model},
                         {"step", nullptr},
                         {"dataset", report.set},
                         {"loss", result.loss},
                         {"perplexity", std::exp(result.loss)},
                         {"bits_per_byte", nullptr},
                         {"bytes", nullptr},
                         {"samples", report.samples},
                         {"samples_in_run", nullptr},
                         {"tokens", result.tokens}};
  if (report.step) json["step"] = *report.step;
  if (report.samples_in_run) json["samples_in_run"] = *report.samples_in_run;
  if (const auto bits = result.bits_per_byte()) json["bits_per_byte"] = *bits;
  if (result.bytes) json["bytes"] = *result.bytes;
  return json;
}

}  // namespace scaletrain
