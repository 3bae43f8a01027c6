// The cpu backend: hands each operation, cut into items, to the pool.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/attention.h"
#include "backend/cpu/instruction_sets.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/sgemm.h"
#include "backend/cpu/thread_pool.h"
#include "backend/host_backend.h"

namespace scaletrain::cpu {

namespace {

// Elements that a thread takes at a time from a long array: 128 KiB, so that handing out costs nothing and the piece is
// a multiple of every vector.
constexpr std::int64_t piece_elements = 32768;

// Partial sums that are kept at a time before they are added up in order.
constexpr std::int64_t partial_sums = 4096;
constexpr std::size_t partial_bytes = partial_sums * sizeof(double);

constexpr int max_threads = 4096;

// Ids are indices into memory: a wrong one must not read or write elsewhere.
void check_indices(const ConstView& indices, std::int64_t lowest, std::int64_t end) {
  const auto* ids = indices.as<std::int32_t>();
  for (std::int64_t i = 0; i < indices.num_elements(); ++i) {
    SCALETRAIN_CHECK_LE(lowest, ids[i]);
    SCALETRAIN_CHECK_LT(ids[i], end);
  }
}

std::size_t workspace_size(int threads) {
  return partial_bytes + static_cast<std::size_t>(threads) * attention_scratch_bytes();
}

const float* floats_or_null(const ConstView& view) {
  return view ? view.as<float>() : nullptr;
}

const float* offset_or_null(const float* data, std::int64_t offset) {
  return data ? data + offset : nullptr;
}

// What the kernels share.
struct Device {
  const Kernels& kernels;
  Buffer workspace;  // partial sums, then each thread's scratch
  ThreadPool pool;

  // body(first, count) for pieces of [0, total) of a size that does not depend on the number of threads.
  template <class Body>
  void for_pieces(std::int64_t total, std::int64_t piece, Body&& body) {
    pool.for_each((total + piece - 1) / piece, [&](std::int64_t item, int) {
      const std::int64_t first = item * piece;
      body(first, std::min(piece, total - first));
    });
  }

  // The same for rows of `columns` elements, in pieces of about as many elements.
  template <class Body>
  void for_rows(std::int64_t rows, std::int64_t columns, Body&& body) {
    for_pieces(rows, std::clamp<std::int64_t>(piece_elements / std::max<std::int64_t>(columns, 1), 1, 1024), body);
  }

  // The sum in order of value(i) for i in [0, count), which threads compute some at a time: the same bits for any
  // number of threads.
  template <class Value>
  double ordered_sum(std::int64_t count, std::int64_t at_a_time, Value&& value) {
    auto* partial = reinterpret_cast<double*>(workspace.data());
    double sum = 0;
    for (std::int64_t begin = 0; begin < count; begin += partial_sums) {
      const std::int64_t part = std::min(partial_sums, count - begin);
      for_pieces(part, at_a_time, [&](std::int64_t first, std::int64_t values) {
        for (std::int64_t i = first; i < first + values; ++i) partial[i] = value(begin + i);
      });
      for (std::int64_t i = 0; i < part; ++i) sum += partial[i];
    }
    return sum;
  }
};

void compute(Device& device, const LinearForward& op) {
  linear_forward(device.pool, device.kernels, op);
}
void compute(Device& device, const LinearBackwardInput& op) {
  linear_backward_input(device.pool, op);
}
void compute(Device& device, const LinearBackwardWeight& op) {
  linear_backward_weight(device.pool, device.kernels, op);
}

void compute(Device& device, const NormForward& op) {
  const std::int64_t columns = op.input.shape()[1];
  float* mean = op.type == NormType::layernorm ? op.mean.as<float>() : nullptr;
  device.for_rows(op.input.shape()[0], columns, [&](std::int64_t row, std::int64_t rows) {
    device.kernels.norm_forward({.input = op.input.as<float>() + row * columns,
                                 .weight = op.weight.as<float>(),
                                 .bias = floats_or_null(op.bias),
                                 .output = op.output.as<float>() + row * columns,
                                 .mean = mean ? mean + row : nullptr,
                                 .rstd = op.rstd.as<float>() + row,
                                 .rows = static_cast<std::size_t>(rows),
                                 .columns = static_cast<std::size_t>(columns),
                                 .epsilon = op.epsilon});
  });
}

void compute(Device& device, const NormBackwardInput& op) {
  const std::int64_t columns = op.input.shape()[1];
  const float* mean = op.type == NormType::layernorm ? op.mean.as<float>() : nullptr;
  device.for_rows(op.input.shape()[0], columns, [&](std::int64_t row, std::int64_t rows) {
    device.kernels.norm_backward_input({.d_output = op.d_output.as<float>() + row * columns,
                                        .input = op.input.as<float>() + row * columns,
                                        .weight = op.weight.as<float>(),
                                        .mean = offset_or_null(mean, row),
                                        .rstd = op.rstd.as<float>() + row,
                                        .addend = offset_or_null(floats_or_null(op.addend), row * columns),
                                        .d_input = op.d_input.as<float>() + row * columns,
                                        .rows = static_cast<std::size_t>(rows),
                                        .columns = static_cast<std::size_t>(columns)});
  });
}

void compute(Device& device, const NormBackwardWeight& op) {
  const std::int64_t columns = op.input.shape()[1];
  device.for_pieces(columns, column_share(columns, device.pool.size()), [&](std::int64_t first, std::int64_t count) {
    device.kernels.norm_backward_weight({.d_output = op.d_output.as<float>(),
                                         .input = op.input.as<float>(),
                                         .mean = op.type == NormType::layernorm ? op.mean.as<float>() : nullptr,
                                         .rstd = op.rstd.as<float>(),
                                         .rows = static_cast<std::size_t>(op.input.shape()[0]),
                                         .columns = static_cast<std::size_t>(columns),
                                         .first = static_cast<std::size_t>(first),
                                         .last = static_cast<std::size_t>(first + count),
                                         .d_weight = op.d_weight.as<float>(),
                                         .d_bias = op.d_bias ? op.d_bias.as<float>() : nullptr});
  });
}

void compute(Device& device, const ActivationForward& op) {
  const auto* input = op.input.as<float>();
  auto* output = op.output.as<float>();
  if (op.type == ActivationType::swiglu) {
    const std::int64_t features = op.output.shape()[1];
    device.for_rows(op.output.shape()[0], features, [&](std::int64_t row, std::int64_t rows) {
      for (std::int64_t r = row; r < row + rows; ++r) {
        const float* gate = input + r * 2 * features;
        device.kernels.swiglu_forward(gate, gate + features, output + r * features, static_cast<std::size_t>(features));
      }
    });
    return;
  }
  const auto kernel = op.type == ActivationType::gelu ? device.kernels.gelu_forward : device.kernels.gelu_tanh_forward;
  device.for_pieces(op.output.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    kernel(input + first, output + first, static_cast<std::size_t>(count));
  });
}

void compute(Device& device, const ActivationBackward& op) {
  const auto* input = op.input.as<float>();
  const auto* d_output = op.d_output.as<float>();
  auto* d_input = op.d_input.as<float>();
  if (op.type == ActivationType::swiglu) {
    const std::int64_t features = op.d_output.shape()[1];
    device.for_rows(op.d_output.shape()[0], features, [&](std::int64_t row, std::int64_t rows) {
      for (std::int64_t r = row; r < row + rows; ++r) {
        const float* gate = input + r * 2 * features;
        float* d_gate = d_input + r * 2 * features;
        device.kernels.swiglu_backward(gate, gate + features, d_output + r * features, d_gate, d_gate + features,
                                       static_cast<std::size_t>(features));
      }
    });
    return;
  }
  const auto kernel =
      op.type == ActivationType::gelu ? device.kernels.gelu_backward : device.kernels.gelu_tanh_backward;
  device.for_pieces(op.d_output.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    kernel(input + first, d_output + first, d_input + first, static_cast<std::size_t>(count));
  });
}

void compute(Device& device, const RopeRotate& op) {
  const std::int64_t half = op.head_size / 2;
  std::vector<double> frequencies(static_cast<std::size_t>(half));
  for (std::int64_t d = 0; d < half; ++d)
    frequencies[static_cast<std::size_t>(d)] =
        std::pow(op.theta, -2.0 * static_cast<double>(d) / static_cast<double>(op.head_size));
  device.for_rows(op.positions.num_elements(), op.num_heads * op.head_size, [&](std::int64_t row, std::int64_t rows) {
    device.kernels.rope({.values = op.values.as<float>() + row * op.row_stride,
                         .row_stride = op.row_stride,
                         .rows = static_cast<std::size_t>(rows),
                         .heads = static_cast<std::size_t>(op.num_heads),
                         .half = static_cast<std::size_t>(half),
                         .positions = op.positions.as<std::int32_t>() + row,
                         .frequencies = frequencies.data(),
                         .direction = op.inverse ? -1.0F : 1.0F});
  });
}

void compute(Device& device, const AttentionForward& op) {
  attention_forward(device.pool, device.kernels, device.workspace.data() + partial_bytes, op);
}

void compute(Device& device, const AttentionBackward& op) {
  attention_backward(device.pool, device.kernels, device.workspace.data() + partial_bytes, op);
}

void compute(Device& device, const EmbeddingForward& op) {
  const std::int64_t columns = op.output.shape()[1];
  const auto width = static_cast<std::size_t>(columns);
  const std::int64_t held = op.table.shape()[0];
  check_indices(op.ids, 0, op.vocabulary != 0 ? op.vocabulary : held);
  if (op.position_table) check_indices(op.positions, 0, op.position_table.shape()[0]);
  device.for_rows(op.output.shape()[0], columns, [&](std::int64_t row, std::int64_t rows) {
    for (std::int64_t r = row; r < row + rows; ++r) {
      const std::int64_t id = op.ids.as<std::int32_t>()[r] - op.first_id;
      const float* token = id >= 0 && id < held ? op.table.as<float>() + id * columns : nullptr;
      const float* position =
          op.position_table ? op.position_table.as<float>() + op.positions.as<std::int32_t>()[r] * columns : nullptr;
      float* output = op.output.as<float>() + r * columns;
      if (token && position)
        device.kernels.add(token, position, output, width);
      else if (token || position)
        std::memcpy(output, token ? token : position, width * sizeof(float));
      else
        device.kernels.fill(output, 0.0F, width);
    }
  });
}

// Threads share the columns, so that each row of a table is summed in order of n.
void compute(Device& device, const EmbeddingBackward& op) {
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
        device.kernels.add(sum, op.d_output.as<float>() + n * columns + first, sum, static_cast<std::size_t>(count));
      }
    });
  };
  scatter(op.d_table, op.ids, op.first_id, op.vocabulary != 0 ? op.vocabulary : op.d_table.shape()[0]);
  if (op.d_position_table) scatter(op.d_position_table, op.positions, 0, op.d_position_table.shape()[0]);
}

void compute(Device& device, const CrossEntropy& op) {
  const std::int64_t columns = op.logits.shape()[1];
  const auto width = static_cast<std::size_t>(columns);
  const bool gradient = op.d_scale != 0.0;
  check_indices(op.targets, -1, columns);
  const std::int64_t rows_at_a_time = std::max<std::int64_t>(piece_elements / columns, 1);
  *op.loss_sum.as<double>() += device.ordered_sum(op.logits.shape()[0], rows_at_a_time, [&](std::int64_t row) {
    const std::int32_t target = op.targets.as<std::int32_t>()[row];
    float* logits = op.logits.as<float>() + row * columns;
    if (target >= 0)
      return device.kernels.cross_entropy_row(logits, width, static_cast<std::size_t>(target), op.d_scale,
                                              gradient ? 1 : 0);
    if (gradient) device.kernels.fill(logits, 0.0F, width);
    return 0.0;
  });
}

void compute(Device& device, const SoftmaxStatistics& op) {
  const std::int64_t columns = op.logits.shape()[1];
  check_indices(op.targets, -1, op.vocabulary);
  device.for_rows(op.logits.shape()[0], columns, [&](std::int64_t row, std::int64_t rows) {
    for (std::int64_t r = row; r < row + rows; ++r) {
      float* statistics = op.statistics.as<float>() + r * 3;
      statistics[0] = -std::numeric_limits<float>::infinity();
      statistics[1] = 0.0F;
      statistics[2] = 0.0F;
      if (columns == 0) continue;
      const float* logits = op.logits.as<float>() + r * columns;
      statistics[1] = static_cast<float>(
          device.kernels.softmax_statistics_row(logits, static_cast<std::size_t>(columns), &statistics[0]));
      const std::int64_t target = op.targets.as<std::int32_t>()[r] - op.first_class;
      if (target >= 0 && target < columns) statistics[2] = logits[target];
    }
  });
}

// The loss is computed from the statistics alone, in double and in the order of the ranks: all get the same bits.
void compute(Device& device, const CrossEntropyParts& op) {
  const std::int64_t ranks = op.statistics.shape()[0];
  const std::int64_t rows = op.logits.shape()[0];
  const std::int64_t columns = op.logits.shape()[1];
  const auto width = static_cast<std::size_t>(columns);
  const bool gradient = op.d_scale != 0.0;
  check_indices(op.targets, -1, op.vocabulary);
  const std::int64_t rows_at_a_time = std::max<std::int64_t>(piece_elements / std::max<std::int64_t>(columns, 1), 1);
  *op.loss_sum.as<double>() += device.ordered_sum(rows, rows_at_a_time, [&](std::int64_t row) {
    const std::int32_t target = op.targets.as<std::int32_t>()[row];
    float* logits = op.logits.as<float>() + row * columns;
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
      device.kernels.softmax_row(logits, width, maximum, static_cast<float>(op.d_scale / sum));
      const std::int64_t local = target - op.first_class;
      if (local >= 0 && local < columns) logits[local] -= static_cast<float>(op.d_scale);
    }
    return std::log(sum) + (static_cast<double>(maximum) - wanted);
  });
}

void compute(Device& device, const Add& op) {
  device.for_pieces(op.output.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    device.kernels.add(op.a.as<float>() + first, op.b.as<float>() + first, op.output.as<float>() + first,
                       static_cast<std::size_t>(count));
  });
}

void compute(Device& device, const Copy& op) {
  const DType from = op.input.dtype();
  const DType to = op.output.dtype();
  device.for_pieces(op.output.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    const auto* input =
        static_cast<const std::byte*>(op.input.data()) + static_cast<std::size_t>(first) * size_of(from);
    auto* output = static_cast<std::byte*>(op.output.data()) + static_cast<std::size_t>(first) * size_of(to);
    if (from == to)
      std::memcpy(output, input, static_cast<std::size_t>(count) * size_of(to));
    else
      convert_floats(from, input, to, output, static_cast<std::size_t>(count));
  });
}

void compute(Device& device, const Fill& op) {
  device.for_pieces(op.output.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    device.kernels.fill(op.output.as<float>() + first, static_cast<float>(op.value), static_cast<std::size_t>(count));
  });
}

void compute(Device& device, const SumOfSquares& op) {
  const std::int64_t total = op.values.num_elements();
  *op.result.as<double>() =
      device.ordered_sum((total + piece_elements - 1) / piece_elements, 1, [&](std::int64_t piece) {
        const std::int64_t first = piece * piece_elements;
        return device.kernels.sum_of_squares(op.values.as<float>() + first,
                                             static_cast<std::size_t>(std::min(piece_elements, total - first)));
      });
}

void compute(Device& device, const AdamWStep& op) {
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  AdamWScalars scalars{.beta1 = static_cast<float>(op.beta1),
                       .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
                       .beta2 = static_cast<float>(op.beta2),
                       .one_minus_beta2 = static_cast<float>(1.0 - op.beta2),
                       .gradient_scale = static_cast<float>(step.gradient_scale),
                       .inverse_correction1 = static_cast<float>(1.0 / step.bias_correction1),
                       .inverse_correction2 = static_cast<float>(1.0 / step.bias_correction2),
                       .epsilon = static_cast<float>(op.epsilon),
                       .learning_rate = static_cast<float>(step.learning_rate),
                       .weight_decay = 0.0F};
  for (const DecaySpan& span : op.spans) {
    scalars.weight_decay = static_cast<float>(span.weight_decay);
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      const std::int64_t first = span.first + piece;
      device.kernels.adamw(op.param.as<float>() + first, op.first_moment.as<float>() + first,
                           op.second_moment.as<float>() + first, op.gradient.as<float>() + first,
                           static_cast<std::size_t>(count), scalars);
    });
  }
}

void compute(Device& device, const SgdStep& op) {
  const StepScalars step = step_scalars_at(op.step);
  if (step.skip != 0) return;
  for (const DecaySpan& span : op.spans) {
    device.for_pieces(span.count, piece_elements, [&](std::int64_t piece, std::int64_t count) {
      const std::int64_t first = span.first + piece;
      device.kernels.sgd(op.param.as<float>() + first, op.gradient.as<float>() + first, static_cast<std::size_t>(count),
                         static_cast<float>(step.gradient_scale), static_cast<float>(step.learning_rate),
                         static_cast<float>(span.weight_decay));
    });
  }
}

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(int threads, const Kernels& kernels, WorkCount* work)
      : device_{.kernels = kernels, .workspace = Buffer(workspace_size(threads)), .pool = ThreadPool(threads, work)} {}

  DType compute_type() const override { return DType::f32; }
  std::string description() const override {
    return fmt::format("cpu {}, {} thread{}, {}", device_.kernels.name, num_threads(), num_threads() == 1 ? "" : "s",
                       sgemm_description());
  }
  int num_threads() const override { return device_.pool.size(); }
  std::size_t workspace_bytes() const override { return cpu_workspace_bytes(num_threads()); }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView) override { return nullptr; }

 private:
  void launch(Stream&, const Operation& op) override {
    std::visit([&](const auto& descriptor) { compute(device_, descriptor); }, op);
  }

  Device device_;
};

}  // namespace

}  // namespace scaletrain::cpu

namespace scaletrain {

namespace {

int resolve_threads(int threads) {
  if (threads < 0 || threads > cpu::max_threads)
    throw UserError(
        fmt::format("threads is {}: expected a number from 1 to {}, or 0 for the processors this process may run on",
                    threads, cpu::max_threads));
  return threads == 0 ? num_usable_processors() : threads;
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  const int threads = resolve_threads(options.threads);
  return std::make_unique<cpu::CpuBackend>(threads, cpu::choose_kernels(options.instruction_set), options.work);
}

std::string cpu_kernels_text() {
  const cpu::Kernels& kernels = cpu::choose_kernels("auto");
  const std::string_view instructions = cpu::instructions_of(kernels);
  return fmt::format("{}{}; matrix products by oneDNN with {}", kernels.name,
                     instructions.empty() ? "" : fmt::format(" ({})", instructions), cpu::sgemm_instructions());
}

std::size_t cpu_workspace_bytes(int threads) {
  const int count = resolve_threads(threads);
  return cpu::workspace_size(count) + static_cast<std::size_t>(count) * cpu::sgemm_scratch_bytes;
}

}  // namespace scaletrain
