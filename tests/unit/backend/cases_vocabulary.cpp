// Operations on a part of the vocabulary: lookups, and softmax cross-entropy over logits that no rank has all of.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "cases.h"
#include "plain_reference.h"
#include "support/numbers.h"

namespace scaletrain::parity {

namespace {

// One rank's part of a vocabulary: rows or classes [first, first + count) of `whole`.
struct Part {
  std::int64_t whole = 0, first = 0, count = 0;
};

// Parts in the middle, at the ends, the whole and none.
Part part_of(std::size_t index, std::int64_t columns) {
  const auto i = static_cast<std::int64_t>(index);
  switch (index % 4) {
    case 0:
      return {columns, 0, columns};
    case 1:
      return {2 * columns + i % 3 + i % 5, columns + i % 3, columns};
    case 2:
      return {columns + 3, 3, columns};
    default:
      return {columns + 7, 0, columns};
  }
}

Ids some_targets(const std::string& key, std::int64_t rows, std::int64_t vocabulary) {
  Ids targets = random_ids(key, rows, vocabulary);
  for (std::size_t n = 1; n < targets.size(); n += 3) targets[n] = -1;
  return targets;
}

std::vector<Extent> extents_with_empty_parts() {
  std::vector<Extent> extents = row_extents();
  for (const std::int64_t rows : {0, 1, 5, 67}) extents.push_back({rows, 0});
  return extents;
}

std::string name_of(const Extent& e, const Part& part) {
  return std::to_string(e.rows) + " rows, " + std::to_string(part.count) + " from " + std::to_string(part.first) +
         " of " + std::to_string(part.whole);
}

struct VocabularyOperands {
  Extent extent;
  Part part;
  Values logits;
  Ids targets;
  Values others;  // [other ranks, rows, 3]
  std::int64_t num_others = 0;
  double d_scale = 0;
};

std::shared_ptr<VocabularyOperands> softmax_operands(std::size_t index, const Extent& e) {
  const std::string key = "softmax parts" + std::to_string(index);
  auto o = std::make_shared<VocabularyOperands>();
  o->extent = e;
  o->part = part_of(index, e.columns);
  if (e.columns == 0) o->part = {11, 11, 0};
  o->logits = normal(key + "logits", e.rows * e.columns, 1.0, index % 3 == 0 ? 6.0 : 2.0);
  o->targets = some_targets(key + "targets", e.rows, o->part.whole);
  o->num_others = o->part.count == o->part.whole ? 0 : 1 + static_cast<std::int64_t>(index % 7);
  o->d_scale = index % 5 == 3 ? 0.0 : 0.75;
  const Values maxima = normal(key + "maxima", o->num_others * e.rows, 3.0, 2.0);
  for (std::int64_t rank = 0; rank < o->num_others; ++rank)
    for (std::int64_t n = 0; n < e.rows; ++n) {
      const std::int64_t local = o->targets[static_cast<std::size_t>(n)] - o->part.first;
      const bool is_elsewhere = o->targets[static_cast<std::size_t>(n)] >= 0 && (local < 0 || local >= o->part.count);
      const double maximum = maxima[static_cast<std::size_t>(rank * e.rows + n)];
      const bool is_empty = rank == 1;  // a rank without classes
      o->others.push_back(is_empty ? -std::numeric_limits<double>::infinity() : maximum);
      o->others.push_back(is_empty ? 0.0 : 1.5);
      o->others.push_back(is_elsewhere && rank == 0 ? maximum - 0.5 : 0.0);
    }
  o->others = rounded_to_float(o->others);
  return o;
}

Values statistics_of(const VocabularyOperands& o) {
  const auto reference = make_plain_reference();
  Device device(*reference);
  const View statistics = device.put_master(Values(static_cast<std::size_t>(o.extent.rows * 3)), {o.extent.rows, 3});
  device.run(SoftmaxStatistics{.logits = device.put(o.logits, {o.extent.rows, o.extent.columns}),
                               .targets = device.put_ids(o.targets, {o.extent.rows}),
                               .first_class = o.part.first,
                               .vocabulary = o.part.whole,
                               .statistics = statistics});
  return rounded_to_float(Device::get(statistics));
}

}  // namespace

std::vector<Case> softmax_statistics_cases() {
  std::vector<Case> cases;
  for (const Extent& e : extents_with_empty_parts()) {
    const auto o = softmax_operands(cases.size(), e);
    Case c;
    c.name = name_of(e, o->part);
    c.reduction_length = static_cast<double>(std::max<std::int64_t>(1, e.columns));
    c.run = [o](Device& device) {
      const std::int64_t rows = o->extent.rows;
      const View statistics = device.put_master(Values(static_cast<std::size_t>(rows * 3), 7.0), {rows, 3});
      device.run(SoftmaxStatistics{.logits = device.put_padded(o->logits, rows, o->extent.columns),
                                   .targets = device.put_ids(o->targets, {rows}),
                                   .first_class = o->part.first,
                                   .vocabulary = o->part.whole,
                                   .statistics = statistics,
                                   .num_classes = o->extent.columns});
      Values finite = Device::get(statistics);  // no difference of infinities can be judged
      for (double& value : finite)
        if (value == -std::numeric_limits<double>::infinity()) value = -1e30;
      return std::vector<Output>{{"statistics", finite, Kind::master}};
    };
    Values scale;
    for (std::int64_t n = 0; n < e.rows; ++n)
      scale.insert(scale.end(), {untouched, e.columns == 0 ? untouched : 1.0, untouched});
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> cross_entropy_parts_cases() {
  std::vector<Case> cases;
  std::vector<std::pair<Extent, LossShape>> extents;
  for (const Extent& e : extents_with_empty_parts()) extents.emplace_back(e, LossShape());
  for (const Extent& e : extents_with_empty_parts()) extents.emplace_back(e, shape_of_case(extents.size()));
  for (const auto& [e, shape] : extents) {
    const auto o = softmax_operands(cases.size(), e);
    Values statistics = o->others;
    const Values own = statistics_of(*o);
    statistics.insert(statistics.end(), own.begin(), own.end());
    Case c;
    c.name = name_of(e, o->part) + (o->d_scale != 0 ? " with gradient" : "") + (shape ? " shaped" : "");
    c.reduction_length = static_cast<double>(std::max<std::int64_t>(1, e.columns));
    c.run = [o, statistics, shape = shape](Device& device) {
      double loss_sum = 0.5;
      const std::int64_t rows = o->extent.rows;
      const std::int64_t columns = o->extent.columns;
      const View logits = device.put_padded(o->logits, rows, columns);
      device.run(CrossEntropyParts{.logits = logits,
                                   .targets = device.put_ids(o->targets, {rows}),
                                   .first_class = o->part.first,
                                   .vocabulary = o->part.whole,
                                   .statistics = device.put_master(statistics, {o->num_others + 1, rows, 3}),
                                   .d_scale = o->d_scale,
                                   .loss_sum = number_at(loss_sum),
                                   .num_classes = columns,
                                   .shape = shape});
      return std::vector<Output>{{"loss_sum", {loss_sum}, Kind::master}, {"logits", Device::get(logits, columns)}};
    };
    double loss_scale = 0.5;
    Values logits_scale;
    for (std::int64_t n = 0; n < e.rows; ++n) {
      const std::int32_t target = o->targets[static_cast<std::size_t>(n)];
      double total = 0;
      double wanted = 0;
      for (std::int64_t rank = 0; rank <= o->num_others; ++rank) {
        const double* of_rank = statistics.data() + (rank * e.rows + n) * 3;
        total += of_rank[1] * std::exp(of_rank[0]);
        wanted += of_rank[2];
      }
      if (target >= 0) loss_scale += std::max(1.0, std::fabs(wanted));
      for (std::int64_t v = 0; v < e.columns; ++v) {
        const double probability = std::exp(o->logits[static_cast<std::size_t>(n * e.columns + v)]) / total;
        const double size = (o->part.first + v == target ? 1.0 : probability) * weight_of(shape, std::log(total)) +
                            shape.label_smoothing / static_cast<double>(o->part.whole);
        logits_scale.push_back(target < 0 || o->d_scale == 0 ? untouched : o->d_scale * size);
      }
    }
    c.scales = {{loss_scale}, logits_scale};
    cases.push_back(c);
  }
  return cases;
}

namespace {

struct Lookup {
  Extent extent;
  Part part;
  std::int64_t num_positions = 0;
  Values table, positions_table, d_output;
  Ids ids, positions;
};

std::shared_ptr<Lookup> lookup_operands(std::size_t index, const Extent& e) {
  const std::string key = "lookup part" + std::to_string(index);
  auto o = std::make_shared<Lookup>();
  o->extent = e;
  const auto i = static_cast<std::int64_t>(index);
  o->part = {7 + i, 1 + i % 5, i % 6 == 5 ? 0 : 1 + i % 3};
  o->num_positions = index % 2 == 1 ? 1 + i % 40 : 0;
  o->table = normal(key + "table", o->part.count * e.columns);
  o->positions_table = normal(key + "positions table", o->num_positions * e.columns);
  o->d_output = normal(key + "d_output", e.rows * e.columns);
  o->ids = random_ids(key + "ids", e.rows, o->part.whole);
  o->positions = random_ids(key + "positions", e.rows, std::max<std::int64_t>(1, o->num_positions));
  return o;
}

}  // namespace

std::vector<Case> embedding_part_forward_cases() {
  std::vector<Case> cases;
  for (const Extent& e : row_extents()) {
    const auto o = lookup_operands(cases.size(), e);
    Case c;
    c.name = name_of(e, o->part) + ", " + std::to_string(o->num_positions) + " positions";
    c.run = [o](Device& device) {
      const auto [rows, columns] = o->extent;
      const View output = device.put(Values(static_cast<std::size_t>(rows * columns), 7.0), {rows, columns});
      EmbeddingForward op{.table = device.put(o->table, {o->part.count, columns}),
                          .position_table = {},
                          .ids = device.put_ids(o->ids, {rows}),
                          .positions = {},
                          .output = output,
                          .first_id = o->part.first,
                          .vocabulary = o->part.whole};
      if (o->num_positions > 0) {
        op.position_table = device.put(o->positions_table, {o->num_positions, columns});
        op.positions = device.put_ids(o->positions, {rows});
      }
      device.run(op);
      return std::vector<Output>{{"output", Device::get(output)}};
    };
    Values scale;
    for (std::int64_t n = 0; n < e.rows; ++n) {
      const std::int64_t id = o->ids[static_cast<std::size_t>(n)] - o->part.first;
      const bool is_held = id >= 0 && id < o->part.count;
      for (std::int64_t v = 0; v < e.columns; ++v) {
        if (!is_held || o->num_positions == 0) {
          scale.push_back(untouched);  // a copy, or zero
          continue;
        }
        const std::int64_t position = o->positions[static_cast<std::size_t>(n)];
        scale.push_back(std::hypot(o->table[static_cast<std::size_t>(id * e.columns + v)],
                                   o->positions_table[static_cast<std::size_t>(position * e.columns + v)]));
      }
    }
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

std::vector<Case> embedding_part_backward_cases() {
  std::vector<Case> cases;
  for (const Extent& e : row_extents()) {
    const auto o = lookup_operands(cases.size(), e);
    Case c;
    c.name = name_of(e, o->part);
    c.run = [o](Device& device) {
      const auto [rows, columns] = o->extent;
      const View d_table = device.put_master(o->table, {o->part.count, columns});
      device.run(EmbeddingBackward{.d_output = device.put(o->d_output, {rows, columns}),
                                   .ids = device.put_ids(o->ids, {rows}),
                                   .positions = {},
                                   .d_table = d_table,
                                   .d_position_table = {},
                                   .first_id = o->part.first,
                                   .vocabulary = o->part.whole});
      return std::vector<Output>{{"d_table", Device::get(d_table), Kind::master}};
    };
    Values squares = map(o->table, square);
    double most = 1;
    std::vector<double> uses(static_cast<std::size_t>(o->part.count), 0.0);
    for (std::int64_t n = 0; n < e.rows; ++n) {
      const std::int64_t id = o->ids[static_cast<std::size_t>(n)] - o->part.first;
      if (id < 0 || id >= o->part.count) continue;
      most = std::max(most, uses[static_cast<std::size_t>(id)] += 1.0);
      for (std::int64_t v = 0; v < e.columns; ++v)
        squares[static_cast<std::size_t>(id * e.columns + v)] +=
            square(o->d_output[static_cast<std::size_t>(n * e.columns + v)]);
    }
    c.reduction_length = most;
    Values scale;
    for (std::size_t at = 0; at < squares.size(); ++at) {
      const auto id = at / static_cast<std::size_t>(e.columns);
      scale.push_back(uses[id] == 0.0 ? untouched : std::sqrt(squares[at]));
    }
    c.scales = {scale};
    cases.push_back(c);
  }
  return cases;
}

}  // namespace scaletrain::parity
