// The operations of the cpu backend that read token ids: embeddings and cross-entropy. Internal to cpu_backend.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/device.h"
#include "backend/cpu/matmul.h"
#include "backend/operations.h"

namespace scaletrain::cpu {

// Ids are indices into memory: a wrong one must not read or write elsewhere.
inline void check_indices(const ConstView& indices, std::int64_t lowest, std::int64_t end) {
  const auto* ids = indices.as<std::int32_t>();
  for (std::int64_t i = 0; i < indices.num_elements(); ++i) {
    SCALETRAIN_CHECK_LE(lowest, ids[i]);
    SCALETRAIN_CHECK_LT(ids[i], end);
  }
}

template <class S>
void compute(Device<S>& device, const EmbeddingForward& op) {
  const std::int64_t columns = op.output.shape()[1];
  const auto width = static_cast<std::size_t>(columns);
  const std::int64_t held = op.table.shape()[0];
  check_indices(op.ids, 0, op.vocabulary != 0 ? op.vocabulary : held);
  if (op.position_table) check_indices(op.positions, 0, op.position_table.shape()[0]);
  device.for_rows(op.output.shape()[0], columns, [&](std::int64_t row, std::int64_t rows) {
    for (std::int64_t r = row; r < row + rows; ++r) {
      const std::int64_t id = op.ids.as<std::int32_t>()[r] - op.first_id;
      const S* token = id >= 0 && id < held ? op.table.as<S>() + id * columns : nullptr;
      const S* position =
          op.position_table ? op.position_table.as<S>() + op.positions.as<std::int32_t>()[r] * columns : nullptr;
      S* output = op.output.as<S>() + r * columns;
      if (token && position)
        device.kernels.add(token, position, output, width);
      else if (token || position)
        std::memcpy(output, token ? token : position, width * sizeof(S));
      else
        device.kernels.fill(output, 0.0F, width);
    }
  });
}

// Threads share the columns, so that each row of a table is summed in order of n.
template <class S>
void compute(Device<S>& device, const EmbeddingBackward& op) {
  const std::int64_t columns = op.d_output.shape()[1];
  const auto scatter = [&](const View& d_table, const ConstView& indices, std::int64_t first_index, std::int64_t end) {
    check_indices(indices, 0, end);
    const auto* ids = indices.as<std::int32_t>();
    const std::int64_t held = d_table.shape()[0];
    device.for_pieces(columns, column_share(columns, device.pool.size()), [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t n = 0; n < indices.num_elements(); ++n) {
        const std::int64_t index = ids[n] - first_index;
        if (index < 0 || index >= held) continue;
        float* sum = d_table.as<float>() + index * columns + first;
        device.kernels.add_to_sums(op.d_output.as<S>() + n * columns + first, sum, static_cast<std::size_t>(count));
      }
    });
  };
  scatter(op.d_table, op.ids, op.first_id, op.vocabulary != 0 ? op.vocabulary : op.d_table.shape()[0]);
  if (op.d_position_table) scatter(op.d_position_table, op.positions, 0, op.d_position_table.shape()[0]);
}

// A row's gradient of a loss with a shape, in place of its logits. target: -1: another rank's.
template <class S>
void shaped_gradient(Device<S>& device, S* logits, std::size_t width, float maximum, double sum, std::int64_t target,
                     double d_scale, const LossShape& shape, std::int64_t classes) {
  const double of_softmax = 1.0 + 2.0 * shape.z_loss * (std::log(sum) + static_cast<double>(maximum));
  const double offset = d_scale * shape.label_smoothing / static_cast<double>(classes);
  device.kernels.offset_softmax_row(logits, width, maximum, static_cast<float>(d_scale * of_softmax / sum),
                                    static_cast<float>(offset), target,
                                    static_cast<float>(d_scale * (1.0 - shape.label_smoothing) + offset));
}

template <class S>
double shaped_cross_entropy(Device<S>& device, S* logits, std::int64_t columns, std::int64_t target,
                            const CrossEntropy& op) {
  const auto width = static_cast<std::size_t>(columns);
  float wanted = 0.0F;
  device.kernels.to_floats(logits + target, &wanted, 1);
  float maximum = 0.0F;
  const double sum = device.kernels.softmax_statistics_row(logits, width, &maximum);
  shaped_gradient(device, logits, width, maximum, sum, target, op.d_scale, op.shape, columns);
  return std::log(sum) + (static_cast<double>(maximum) - static_cast<double>(wanted));
}

template <class S>
void compute(Device<S>& device, const CrossEntropy& op) {
  const std::int64_t columns = op.logits.shape()[1];
  const auto width = static_cast<std::size_t>(columns);
  const bool gradient = op.d_scale != 0.0;
  check_indices(op.targets, -1, columns);
  const std::int64_t rows_at_a_time = std::max<std::int64_t>(piece_elements / columns, 1);
  *op.loss_sum.as<double>() +=
      device.ordered_sum(op.logits.shape()[0], rows_at_a_time, [&](std::int64_t row, int worker) {
        const std::int32_t target = op.targets.as<std::int32_t>()[row];
        S* logits = op.logits.as<S>() + row * columns;
        if (target >= 0 && gradient && op.shape) return shaped_cross_entropy(device, logits, columns, target, op);
        if (target >= 0)
          return device.kernels.cross_entropy_row(logits, width, static_cast<std::size_t>(target), op.d_scale,
                                                  gradient ? 1 : 0, device.scratch_row(worker, columns));
        if (gradient) device.kernels.fill(logits, 0.0F, width);
        return 0.0;
      });
}

template <class S>
void compute(Device<S>& device, const SoftmaxStatistics& op) {
  const std::int64_t columns = op.logits.shape()[1];
  check_indices(op.targets, -1, op.vocabulary);
  device.for_rows(op.logits.shape()[0], columns, [&](std::int64_t row, std::int64_t rows) {
    for (std::int64_t r = row; r < row + rows; ++r) {
      float* statistics = op.statistics.as<float>() + r * 3;
      statistics[0] = -std::numeric_limits<float>::infinity();
      statistics[1] = 0.0F;
      statistics[2] = 0.0F;
      if (columns == 0) continue;
      const S* logits = op.logits.as<S>() + r * columns;
      statistics[1] = static_cast<float>(
          device.kernels.softmax_statistics_row(logits, static_cast<std::size_t>(columns), &statistics[0]));
      const std::int64_t target = op.targets.as<std::int32_t>()[r] - op.first_class;
      if (target >= 0 && target < columns) device.kernels.to_floats(logits + target, &statistics[2], 1);
    }
  });
}

// The loss is computed from the statistics alone, in double and in the order of the ranks: all get the same bits.
template <class S>
void compute(Device<S>& device, const CrossEntropyParts& op) {
  const std::int64_t ranks = op.statistics.shape()[0];
  const std::int64_t rows = op.logits.shape()[0];
  const std::int64_t columns = op.logits.shape()[1];
  const auto width = static_cast<std::size_t>(columns);
  const bool gradient = op.d_scale != 0.0;
  check_indices(op.targets, -1, op.vocabulary);
  const std::int64_t rows_at_a_time = std::max<std::int64_t>(piece_elements / std::max<std::int64_t>(columns, 1), 1);
  *op.loss_sum.as<double>() += device.ordered_sum(rows, rows_at_a_time, [&](std::int64_t row, int) {
    const std::int32_t target = op.targets.as<std::int32_t>()[row];
    S* logits = op.logits.as<S>() + row * columns;
    if (target < 0) {
      if (gradient) device.kernels.fill(logits, 0.0F, width);
      return 0.0;
    }
    const auto statistics = [&](std::int64_t rank) { return op.statistics.as<float>() + (rank * rows + row) * 3; };
    float maximum = -std::numeric_limits<float>::infinity();
    for (std::int64_t rank = 0; rank < ranks; ++rank) maximum = std::max(maximum, statistics(rank)[0]);
    double sum = 0.0;
    double wanted = 0.0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const float* of_rank = statistics(rank);
      sum += static_cast<double>(of_rank[1]) * std::exp(static_cast<double>(of_rank[0]) - static_cast<double>(maximum));
      wanted += static_cast<double>(of_rank[2]);
    }
    if (gradient && columns > 0) {
      const std::int64_t distance = target - op.first_class;
      const std::int64_t local = distance < columns ? std::max<std::int64_t>(distance, -1) : -1;
      if (op.shape)
        shaped_gradient(device, logits, width, maximum, sum, local, op.d_scale, op.shape, op.vocabulary);
      else
        device.kernels.softmax_row(logits, width, maximum, static_cast<float>(op.d_scale / sum), local,
                                   static_cast<float>(op.d_scale));
    }
    return std::log(sum) + (static_cast<double>(maximum) - wanted);
  });
}

}  // namespace scaletrain::cpu
