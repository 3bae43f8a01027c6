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
  for (const SetReport& report : reports) {
    if (report.set != set) continue;
    const EvaluationResult& result = report.result;
    rows.push_back({report.model, fmt::format("{:.7g}", result.loss), fmt::format("{:.4g}", std::exp(result.loss)),
                    bits_text(result), count_text(result.tokens)});
    tokens.insert(result.tokens);
    if (!report.difference.empty()) differences += "    " + report.model + ":\n" + report.difference;
  }
  const std::string notice =
      tokens.size() > 1 ? "    not over the same tokens: of these numbers bits per byte alone may be compared\n" : "";
  return set + "\n" + table_of(rows) + notice + differences;
}

}  // namespace

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
