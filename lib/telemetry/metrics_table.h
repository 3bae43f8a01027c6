// A run's metrics as a table: a row per step, with what was evaluated at that step beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "telemetry/metrics_reader.h"

namespace scaletrain {

struct MetricsTable {
  // Nothing: the step has no such number. A double that is not finite was one that is none.
  using Cell = std::optional<std::variant<std::int64_t, double, std::string>>;

  std::vector<std::string> keys;        // of the columns; "step" is the first
  std::vector<std::vector<Cell>> rows;  // in the order of steps, a cell per key
};

// keys: those of `step` lines, validation/NAME/loss, and skip (why a step's update was not applied). Empty: all of
// which a step has one. `step` comes first, whether it is asked for or not. UserError: a key that is none, or that is
// asked for twice.
MetricsTable table_of(const Metrics& metrics, const std::vector<std::string>& keys = {});

// Numbers as metrics.jsonl spells them, which read back to the same bits; those that are none as nan, inf or -inf, and
// cells that are empty as nothing. Quotes as RFC 4180 has them; lines end with "\n".
std::string to_csv(const MetricsTable& table);
// An object a line, without the cells that are empty; numbers that are none are null.
std::string to_json_lines(const MetricsTable& table);
// Columns for people, with six digits.
std::string to_columns(const MetricsTable& table);

}  // namespace scaletrain
