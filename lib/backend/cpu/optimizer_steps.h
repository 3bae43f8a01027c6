// The optimizers' updates, span by span and in pieces that threads take: a part of cpu_backend.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "backend/cpu/device.h"
#include "backend/cpu/kernels.h"
#include "backend/host_backend.h"
#include "backend/moment_codes.h"
#include "base/numbers/checked.h"

namespace scaletrain::cpu {

// Of AdamW and its kin, but for what is a span's own.
template <class Step>
AdamWScalars adamw_scalars(const Step& op, const StepScalars& step) {
  return {.beta1 = static_cast<float>(op.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
          .beta2 = static_cast<float>(op.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - op.beta2),
          .gradient_scale = static_cast<float>(step.gradient_scale),
          .inverse_correction1 = static_cast<float>(1.0 / step.bias_correction1),
          .inverse_correction2 = static_cast<float>(1.0 / step.bias_correction2),
          .epsilon = static_cast<float>(op.epsilon),
          .learning_rate = 0.0F,
          .weight_decay = 0.0F,
          .slow_beta = static_cast<float>(step.slow_beta),
          .one_minus_slow_beta = static_cast<float>(1.0 - step.slow_beta),
          .slow_weight = static_cast<float>(step.slow_weight)};
}

template <class S>
void compute(Device<S>& device, const AdamWStep& op) {
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  AdamWScalars scalars = adamw_scalars(op, step);
  S* const compute_weights = op.compute_weights ? op.compute_weights.as<S>() : nullptr;
  for (const UpdateSpan& span : op.spans) {
    scalars.learning_rate = static_cast<float>(step.learning_rate * span.rate_factor);
    scalars.weight_decay = static_cast<float>(span.weight_decay);
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      const std::int64_t first = span.first + piece;
      device.kernels.adamw(op.param.as<float>() + first, op.first_moment.as<float>() + first,
                           op.second_moment.as<float>() + first, op.gradient.as<float>() + first,
                           offset_or_null(compute_weights, first), static_cast<std::size_t>(count), scalars);
    });
  }
}

// Blocks are decoded to floats, updated by the kernel of AdamW, and encoded: a few hundred bytes, which stay in cache.
template <class S>
void compute(Device<S>& device, const BlockAdamWStep& op) {
  static_assert(piece_elements % most_in_moment_block == 0);
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  AdamWScalars scalars = adamw_scalars(op, step);
  S* const compute_weights = op.compute_weights ? op.compute_weights.as<S>() : nullptr;
  const MomentCodes& of_first = first_moment_codes();
  const MomentCodes& of_second = second_moment_codes();
  const auto update_block = [&](std::int64_t at) {
    alignas(64) float first[most_in_moment_block];
    alignas(64) float second[most_in_moment_block];
    std::uint8_t* const first_codes = op.first_codes.as<std::uint8_t>() + at;
    std::uint8_t* const second_codes = op.second_codes.as<std::uint8_t>() + at;
    float& first_scale = op.first_scales.as<float>()[at / op.block];
    float& second_scale = op.second_scales.as<float>()[at / op.block];
    decode_moments(first_codes, first_scale, of_first, op.block, first);
    decode_moments(second_codes, second_scale, of_second, op.block, second);
    device.kernels.adamw(op.param.as<float>() + at, first, second, op.gradient.as<float>() + at,
                         offset_or_null(compute_weights, at), static_cast<std::size_t>(op.block), scalars);
    first_scale = encode_moments(first, of_first, op.block, first_codes);
    second_scale = encode_moments(second, of_second, op.block, second_codes);
  };
  for (const UpdateSpan& span : op.spans) {
    scalars.learning_rate = static_cast<float>(step.learning_rate * span.rate_factor);
    scalars.weight_decay = static_cast<float>(span.weight_decay);
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      for (std::int64_t done = 0; done < count; done += op.block) update_block(span.first + piece + done);
    });
  }
}

inline MomentumScalars momentum_scalars(const SgdStep& op, const StepScalars& step, const UpdateSpan& span) {
  const double rate = step.learning_rate * span.rate_factor;
  MomentumScalars scalars{.gradient_scale = static_cast<float>(step.gradient_scale),
                          .weight_decay = static_cast<float>(span.weight_decay),
                          .momentum = static_cast<float>(op.momentum),
                          .into_buffer = 1.0F,
                          .of_direction = 0.0F,
                          .of_buffer = static_cast<float>(rate)};
  if (op.form == MomentumForm::nesterov) {
    scalars.of_direction = static_cast<float>(rate);
    scalars.of_buffer = static_cast<float>(rate * op.momentum);
  } else if (op.form == MomentumForm::scaled) {
    scalars.into_buffer = static_cast<float>(rate);
    scalars.of_buffer = 1.0F;
  }
  return scalars;
}

template <class S>
void compute(Device<S>& device, const SgdStep& op) {
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  S* const compute_weights = op.compute_weights ? op.compute_weights.as<S>() : nullptr;
  for (const UpdateSpan& span : op.spans) {
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      const std::int64_t first = span.first + piece;
      S* const computed = offset_or_null(compute_weights, first);
      const auto rate = static_cast<float>(step.learning_rate * span.rate_factor);
      if (op.form == MomentumForm::none) {
        device.kernels.sgd(op.param.as<float>() + first, op.gradient.as<float>() + first, computed,
                           static_cast<std::size_t>(count), static_cast<float>(step.gradient_scale), rate,
                           static_cast<float>(span.weight_decay));
      } else {
        const MomentumScalars scalars = momentum_scalars(op, step, span);
        device.kernels.sgd_with_momentum(op.param.as<float>() + first, op.momentum_buffer.as<float>() + first,
                                         op.gradient.as<float>() + first, computed, static_cast<std::size_t>(count),
                                         scalars);
      }
    });
  }
}

template <class S>
void compute(Device<S>& device, const LionStep& op) {
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  LionScalars scalars{.beta1 = static_cast<float>(op.beta1),
                      .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
                      .beta2 = static_cast<float>(op.beta2),
                      .one_minus_beta2 = static_cast<float>(1.0 - op.beta2),
                      .gradient_scale = static_cast<float>(step.gradient_scale),
                      .learning_rate = 0.0F,
                      .weight_decay = 0.0F};
  S* const compute_weights = op.compute_weights ? op.compute_weights.as<S>() : nullptr;
  for (const UpdateSpan& span : op.spans) {
    scalars.learning_rate = static_cast<float>(step.learning_rate * span.rate_factor);
    scalars.weight_decay = static_cast<float>(span.weight_decay);
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      const std::int64_t first = span.first + piece;
      device.kernels.lion(op.param.as<float>() + first, op.momentum.as<float>() + first,
                          op.gradient.as<float>() + first, offset_or_null(compute_weights, first),
                          static_cast<std::size_t>(count), scalars);
    });
  }
}

template <class S>
void compute(Device<S>& device, const AdemamixStep& op) {
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  AdamWScalars scalars = adamw_scalars(op, step);
  S* const compute_weights = op.compute_weights ? op.compute_weights.as<S>() : nullptr;
  for (const UpdateSpan& span : op.spans) {
    scalars.learning_rate = static_cast<float>(step.learning_rate * span.rate_factor);
    scalars.weight_decay = static_cast<float>(span.weight_decay);
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      const std::int64_t first = span.first + piece;
      device.kernels.ademamix(op.param.as<float>() + first, op.first_moment.as<float>() + first,
                              op.slow_moment.as<float>() + first, op.second_moment.as<float>() + first,
                              op.gradient.as<float>() + first, offset_or_null(compute_weights, first),
                              static_cast<std::size_t>(count), scalars);
    });
  }
}

template <class S>
void compute(Device<S>& device, const AdamDirection& op) {
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  AdamWScalars scalars = adamw_scalars(op, step);
  for (const UpdateSpan& span : op.spans) {
    scalars.weight_decay = static_cast<float>(span.weight_decay);
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      const std::int64_t first = span.first + piece;
      device.kernels.adam_direction(op.param.as<float>() + first, op.gradient.as<float>() + first,
                                    op.first_moment.as<float>() + first, op.second_moment.as<float>() + first,
                                    static_cast<std::size_t>(count), scalars);
    });
  }
}

template <class S>
void compute(Device<S>& device, const MomentumDirection& op) {
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  const auto scale = static_cast<float>(step.gradient_scale);
  const auto kept = static_cast<float>(op.beta);
  const auto added = static_cast<float>(1.0 - op.beta);
  for (const UpdateSpan& span : op.spans) {
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      float* gradient = op.gradient.as<float>() + span.first + piece;
      float* momentum = op.momentum.as<float>() + span.first + piece;
      for (std::int64_t i = 0; i < count; ++i) {
        const float g = gradient[i] * scale;
        momentum[i] = kept * momentum[i] + added * g;
        gradient[i] = op.nesterov ? kept * momentum[i] + added * g : momentum[i];
      }
    });
  }
}

template <class S>
void compute(Device<S>& device, const ScaleSpans& op) {
  for (const UpdateSpan& span : op.spans) {
    const auto factor = static_cast<float>(span.rate_factor);
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      float* values = op.values.as<float>() + span.first + piece;
      for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
    });
  }
}

// Columns that a thread sums at once: their sums stay in its cache, and what it reads of a row is a few lines of it.
inline constexpr std::int64_t columns_at_once = 64;

// visit(row, first column, first element, count) of each row's stretch within [begin, end) of the columns.
template <class Visit>
void for_rows_of_part(std::int64_t elements, std::int64_t first_column, std::int64_t num_columns, std::int64_t begin,
                      std::int64_t end, Visit visit) {
  const std::int64_t num_rows = ceil_div(first_column + elements, num_columns);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t from = std::max(begin, row == 0 ? first_column : 0);
    const std::int64_t to = std::min(end, first_column + elements - row * num_columns);
    if (from < to) visit(row, from, row * num_columns + from - first_column, to - from);
  }
}

// In double of floats, whose squares are exact there, in several sums that the compiler may make at once.
inline double sum_of_squares(const float* values, std::int64_t count) {
  constexpr std::int64_t lanes = 8;
  double sums[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane)
      sums[lane] += static_cast<double>(values[i + lane]) * values[i + lane];
  double sum = 0;
  for (; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  for (const double lane : sums) sum += lane;
  return sum;
}

template <class S>
void compute(Device<S>& device, const MatrixSquares& op) {
  const std::int64_t columns = op.columns.num_elements();
  const std::int64_t elements = op.values.num_elements();
  const float* values = op.values.as<float>();
  const std::int64_t rows_at_once = std::max<std::int64_t>(1, piece_elements / columns);
  device.for_pieces(op.rows.num_elements(), rows_at_once, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t row = first; row < first + count; ++row) {
      const std::int64_t begin = std::max<std::int64_t>(0, row * columns - op.first_column);
      const std::int64_t end = std::min(elements, (row + 1) * columns - op.first_column);
      op.rows.as<double>()[row] = sum_of_squares(values + begin, end - begin);
    }
  });
  device.for_pieces(columns, columns_at_once, [&](std::int64_t first, std::int64_t count) {
    double* sums = op.columns.as<double>();
    std::fill_n(sums + first, count, 0.0);
    for_rows_of_part(elements, op.first_column, columns, first, first + count,
                     [&](std::int64_t, std::int64_t column, std::int64_t element, std::int64_t length) {
                       for (std::int64_t i = 0; i < length; ++i)
                         sums[column + i] += static_cast<double>(values[element + i]) * values[element + i];
                     });
  });
}

template <class S>
void compute(Device<S>& device, const FactoredDirection& op) {
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  const std::int64_t num_columns = op.columns.num_elements();
  const auto scale = static_cast<float>(step.gradient_scale);
  const auto largest = static_cast<float>(op.largest);
  const float* of_columns = op.columns.as<float>();
  device.for_pieces(op.gradient.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    const std::int64_t place = op.first_column + first;
    const float* of_rows = op.rows.as<float>() + place / num_columns;
    for_rows_of_part(count, place % num_columns, num_columns, 0, num_columns,
                     [&](std::int64_t row, std::int64_t column, std::int64_t element, std::int64_t length) {
                       float* gradient = op.gradient.as<float>() + first + element;
                       for (std::int64_t i = 0; i < length; ++i)
                         gradient[i] = gradient[i] * scale * std::min(of_rows[row] * of_columns[column + i], largest);
                     });
  });
}

template <class S>
void compute(Device<S>& device, const RmsDirection& op) {
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  const auto scale = static_cast<float>(step.gradient_scale);
  const auto weight = static_cast<float>(op.weight);
  const auto kept = static_cast<float>(1.0 - op.weight);
  const auto smallest = static_cast<float>(op.smallest);
  for (const UpdateSpan& span : op.spans) {
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      float* gradient = op.gradient.as<float>() + span.first + piece;
      float* second = op.second_moment.as<float>() + span.first + piece;
      for (std::int64_t i = 0; i < count; ++i) {
        const float g = gradient[i] * scale;
        second[i] = kept * second[i] + weight * (g * g);
        gradient[i] = g / std::max(std::sqrt(second[i]), smallest);
      }
    });
  }
}

template <class S>
void compute(Device<S>& device, const AverageStep& op) {
  const auto weight = static_cast<float>(1.0 - op.decay);
  device.for_pieces(op.average.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    float* average = op.average.as<float>() + first;
    const float* param = op.param.as<float>() + first;
    for (std::int64_t i = 0; i < count; ++i) average[i] += weight * (param[i] - average[i]);
  });
}

template <class S>
void compute(Device<S>& device, const Swap& op) {
  device.for_pieces(op.a.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    float* a = op.a.as<float>() + first;
    std::swap_ranges(a, a + count, op.b.as<float>() + first);
  });
}

}  // namespace scaletrain::cpu
