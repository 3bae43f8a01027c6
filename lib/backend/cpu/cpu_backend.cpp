// The cpu backend: hands each operation, cut into items, to the pool.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend/cpu/attention.h"
#include "backend/cpu/device.h"
#include "backend/cpu/dropout.h"
#include "backend/cpu/instruction_sets.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear_tiles.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/optimizer_steps.h"
#include "backend/cpu/sgemm.h"
#include "backend/cpu/thread_pool.h"
#include "backend/cpu/vocabulary.h"
#include "backend/host_backend.h"

namespace scaletrain::cpu {

namespace {

constexpr int max_threads = 4096;

constexpr std::size_t shared_bytes(bool has_panels) {
  return has_panels ? shared_pack_bytes : 0;
}

std::size_t workspace_size(int threads, DType compute, bool has_panels) {
  const std::size_t scratch = compute == DType::f32 ? tile_scratch_bytes<float>() : half_scratch_bytes;
  return partial_bytes + shared_bytes(has_panels) + static_cast<std::size_t>(threads) * scratch;
}

// Whether products of the type are multiplied by panels on this processor.
bool has_panels(DType compute) {
  if (compute == DType::f32) return choose_f32_panels("auto") != nullptr;
  return compute == DType::bf16 && choose_bf16("auto") != nullptr;
}

template <class S>
const S* elements_or_null(const ConstView& view) {
  return view ? view.as<S>() : nullptr;
}

template <class S>
void compute(Device<S>& device, const LinearForward& op) {
  linear_forward(device.pool, device.products, op);
}
template <class S>
void compute(Device<S>& device, const LinearBackwardInput& op) {
  linear_backward_input(device.pool, device.products, op);
}
template <class S>
void compute(Device<S>& device, const LinearBackwardWeight& op) {
  linear_backward_weight(device.pool, device.products, op);
}

template <class S>
void compute(Device<S>& device, const MatrixProduct& op) {
  matrix_product(device.pool, device.products, op);
}

// body(row, rows) for rows that follow each other: pieces of all of them, or, where they are heads, each group of
// those.
template <class S, class Body>
void for_norm_rows(Device<S>& device, const ConstView& input, std::int64_t heads, Body&& body) {
  const std::int64_t rows = input.shape()[0];
  const std::int64_t columns = input.shape()[1];
  if (heads == 0) return device.for_rows(rows, columns, body);
  device.for_rows(rows / heads, heads * columns, [&](std::int64_t first, std::int64_t groups) {
    for (std::int64_t group = first; group < first + groups; ++group) body(group * heads, heads);
  });
}

template <class S>
void compute(Device<S>& device, const NormForward& op) {
  const std::int64_t columns = op.input.shape()[1];
  auto* mean = op.type == NormType::layernorm ? op.mean.as<float>() : nullptr;
  for_norm_rows(device, op.input, op.input_rows.heads, [&](std::int64_t row, std::int64_t rows) {
    device.kernels.norm_forward({.input = op.input.as<S>() + op.input_rows.start(row, columns),
                                 .weight = op.weight.as<S>(),
                                 .bias = elements_or_null<S>(op.bias),
                                 .output = op.output.as<S>() + op.output_rows.start(row, columns),
                                 .mean = mean ? mean + row : nullptr,
                                 .rstd = op.rstd.as<float>() + row,
                                 .rows = static_cast<std::size_t>(rows),
                                 .columns = static_cast<std::size_t>(columns),
                                 .epsilon = op.epsilon,
                                 .weight_offset = static_cast<float>(op.weight_offset)});
  });
}

template <class S>
void compute(Device<S>& device, const NormBackwardInput& op) {
  const std::int64_t columns = op.input.shape()[1];
  const float* mean = op.type == NormType::layernorm ? op.mean.as<float>() : nullptr;
  for_norm_rows(device, op.input, op.input_rows.heads, [&](std::int64_t row, std::int64_t rows) {
    device.kernels.norm_backward_input({.d_output = op.d_output.as<S>() + op.d_output_rows.start(row, columns),
                                        .input = op.input.as<S>() + op.input_rows.start(row, columns),
                                        .weight = op.weight.as<S>(),
                                        .mean = offset_or_null(mean, row),
                                        .rstd = op.rstd.as<float>() + row,
                                        .addend = offset_or_null(elements_or_null<S>(op.addend), row * columns),
                                        .d_input = op.d_input.as<S>() + op.d_input_rows.start(row, columns),
                                        .rows = static_cast<std::size_t>(rows),
                                        .columns = static_cast<std::size_t>(columns),
                                        .weight_offset = static_cast<float>(op.weight_offset)});
  });
}

template <class S>
void compute(Device<S>& device, const NormBackwardWeight& op) {
  const std::int64_t columns = op.input.shape()[1];
  const std::int64_t rows = op.input.shape()[0];
  const std::int64_t group = op.input_rows.heads == 0 ? rows : op.input_rows.heads;
  const float* mean = op.type == NormType::layernorm ? op.mean.as<float>() : nullptr;
  device.for_pieces(columns, column_share(columns, device.pool.size()), [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t row = 0; row < rows; row += group)
      device.kernels.norm_backward_weight({.d_output = op.d_output.as<S>() + op.d_output_rows.start(row, columns),
                                           .input = op.input.as<S>() + op.input_rows.start(row, columns),
                                           .mean = offset_or_null(mean, row),
                                           .rstd = op.rstd.as<float>() + row,
                                           .rows = static_cast<std::size_t>(group),
                                           .columns = static_cast<std::size_t>(columns),
                                           .first = static_cast<std::size_t>(first),
                                           .last = static_cast<std::size_t>(first + count),
                                           .d_weight = op.d_weight.as<float>(),
                                           .d_bias = op.d_bias ? op.d_bias.as<float>() : nullptr});
  });
}

template <class S>
void compute(Device<S>& device, const ActivationForward& op) {
  const std::int64_t columns = op.input.shape()[1];
  const std::int64_t features = op.output.shape()[1];
  device.for_rows(op.output.shape()[0], features, [&](std::int64_t row, std::int64_t rows) {
    activate_rows<S>(device.kernels, op.type, {op.input.as<S>() + row * columns, columns}, features,
                     {op.output.as<S>() + row * features, features}, rows, features);
  });
}

template <class S>
void compute(Device<S>& device, const ActivationBackward& op) {
  const auto* input = op.input.as<S>();
  const auto* d_output = op.d_output.as<S>();
  auto* d_input = op.d_input.as<S>();
  if (is_gated(op.type)) {
    const auto backward =
        op.type == ActivationType::swiglu ? device.kernels.swiglu_backward : device.kernels.geglu_backward;
    const std::int64_t features = op.d_output.shape()[1];
    device.for_rows(op.d_output.shape()[0], features, [&](std::int64_t row, std::int64_t rows) {
      for (std::int64_t r = row; r < row + rows; ++r) {
        const S* gate = input + r * 2 * features;
        S* d_gate = d_input + r * 2 * features;
        backward(gate, gate + features, d_output + r * features, d_gate, d_gate + features,
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

template <class S>
void compute(Device<S>& device, const RopeRotate& op) {
  const std::int64_t half = op.head_size / 2;
  std::vector<double> frequencies(static_cast<std::size_t>(half));
  for (std::int64_t d = 0; d < half; ++d)
    frequencies[static_cast<std::size_t>(d)] = scaled_frequency(
        op.scaling, std::pow(op.theta, -2.0 * static_cast<double>(d) / static_cast<double>(op.head_size)));
  device.for_rows(op.positions.num_elements(), op.num_heads * op.head_size, [&](std::int64_t row, std::int64_t rows) {
    device.kernels.rope({.values = op.values.as<S>() + row * op.row_stride,
                         .row_stride = op.row_stride,
                         .rows = static_cast<std::size_t>(rows),
                         .heads = static_cast<std::size_t>(op.num_heads),
                         .half = static_cast<std::size_t>(half),
                         .positions = op.positions.as<std::int32_t>() + row,
                         .frequencies = frequencies.data(),
                         .direction = op.inverse ? -1.0F : 1.0F});
  });
}

template <class S>
void compute(Device<S>& device, const AttentionForward& op) {
  attention_forward(device.pool, device.products, op);
}

template <class S>
void compute(Device<S>& device, const AttentionBackward& op) {
  attention_backward(device.pool, device.products, op);
}

template <class S>
void compute(Device<S>& device, const Add& op) {
  const auto add = [&](const auto* a, const auto* b, auto* output, const auto& kernel) {
    device.for_pieces(op.output.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
      kernel(a + first, b + first, output + first, static_cast<std::size_t>(count));
    });
  };
  if (op.output.dtype() == dtype_of<S>())
    add(op.a.as<S>(), op.b.as<S>(), op.output.as<S>(), device.kernels.add);
  else
    add(op.a.as<float>(), op.b.as<float>(), op.output.as<float>(), device.all.f32.add);
}

template <class S>
void compute(Device<S>& device, const Dropout& op) {
  dropout(device, op);
}

template <class S>
void compute(Device<S>& device, const Scale& op) {
  const std::int64_t columns = op.input.shape()[1];
  const auto factor = static_cast<float>(op.factor);
  device.for_rows(op.input.shape()[0], columns, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t row = first; row < first + count; ++row) {
      const S* from = op.input.as<S>() + row * op.input_row_stride();
      S* to = op.output.as<S>() + row * op.output_row_stride();
      if (factor != 1.0F)
        device.kernels.scale(from, to, static_cast<std::size_t>(columns), factor);
      else if (to != from)
        std::copy_n(from, columns, to);
    }
  });
}

template <class S>
void compute(Device<S>& device, const SoftCap& op) {
  device.for_pieces(op.output.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    device.kernels.soft_cap(op.input.as<S>() + first, op.output.as<S>() + first, static_cast<std::size_t>(count),
                            static_cast<float>(op.cap));
  });
}

template <class S>
void compute(Device<S>& device, const SoftCapBackward& op) {
  device.for_pieces(op.d_input.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    device.kernels.soft_cap_backward(op.input.as<S>() + first, op.d_output.as<S>() + first, op.d_input.as<S>() + first,
                                     static_cast<std::size_t>(count), static_cast<float>(op.cap));
  });
}

// Elements of one floating type from another: by the kernels where one of them is f32, which is what training copies.
void convert(const Kernels& kernels, DType from, const std::byte* input, DType to, std::byte* output,
             std::size_t count) {
  const auto* in = reinterpret_cast<const float*>(input);
  auto* out = reinterpret_cast<float*>(output);
  if (from == to)
    std::memcpy(output, input, count * size_of(to));
  else if (from == DType::f32 && to == DType::bf16)
    kernels.bf16.from_floats(in, reinterpret_cast<Bf16*>(output), count);
  else if (from == DType::f32 && to == DType::f16)
    kernels.f16.from_floats(in, reinterpret_cast<F16*>(output), count);
  else if (from == DType::bf16 && to == DType::f32)
    kernels.bf16.to_floats(reinterpret_cast<const Bf16*>(input), out, count);
  else if (from == DType::f16 && to == DType::f32)
    kernels.f16.to_floats(reinterpret_cast<const F16*>(input), out, count);
  else
    convert_floats(from, input, to, output, count);
}

template <class S>
void compute(Device<S>& device, const Copy& op) {
  const DType from = op.input.dtype();
  const DType to = op.output.dtype();
  device.for_pieces(op.output.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
    convert(device.all, from,
            static_cast<const std::byte*>(op.input.data()) + static_cast<std::size_t>(first) * size_of(from), to,
            static_cast<std::byte*>(op.output.data()) + static_cast<std::size_t>(first) * size_of(to),
            static_cast<std::size_t>(count));
  });
}

template <class S>
void compute(Device<S>& device, const Fill& op) {
  const auto fill = [&](auto* output, const auto& kernel) {
    device.for_pieces(op.output.num_elements(), piece_elements, [&](std::int64_t first, std::int64_t count) {
      kernel(output + first, static_cast<float>(op.value), static_cast<std::size_t>(count));
    });
  };
  if (op.output.dtype() == dtype_of<S>())
    fill(op.output.as<S>(), device.kernels.fill);
  else
    fill(op.output.as<float>(), device.all.f32.fill);
}

template <class S>
void compute(Device<S>& device, const SumsOfSquares& op) {
  const auto sum = [&](const auto* values, const auto& kernel) {
    auto* result = op.results.as<double>();
    for (const ElementSpan& span : op.spans) {
      const auto* of_span = values + span.first;
      const std::int64_t pieces = (span.count + piece_elements - 1) / piece_elements;
      *result++ = device.ordered_sum(pieces, 1, [&](std::int64_t piece, int) {
        const std::int64_t first = piece * piece_elements;
        return kernel(of_span + first, static_cast<std::size_t>(std::min(piece_elements, span.count - first)));
      });
    }
  };
  if (op.values.dtype() == dtype_of<S>())
    sum(op.values.as<S>(), device.kernels.sum_of_squares);
  else
    sum(op.values.as<float>(), device.all.f32.sum_of_squares);
}

template <class S>
const TypedKernels<S>& kernels_of(const Kernels& kernels) {
  if constexpr (std::is_same_v<S, float>)
    return kernels.f32;
  else if constexpr (std::is_same_v<S, Bf16>)
    return kernels.bf16;
  else
    return kernels.f16;
}

template <class S>
class CpuBackend final : public HostBackend {
 public:
  // panels: the processor's own products, or null.
  CpuBackend(int threads, const Kernels& kernels, const PanelKernels<S>* panels, WorkCount* work)
      : CpuBackend(threads, kernels, panels, work, Buffer(workspace_size(threads, dtype_of<S>(), panels != nullptr))) {}

  DType compute_type() const override { return dtype_of<S>(); }
  std::string description() const override {
    return fmt::format("cpu {}{}, {} thread{}, {}", device_.all.name, type_text(), num_threads(),
                       num_threads() == 1 ? "" : "s", sgemm_description());
  }
  int num_threads() const override { return device_.pool.size(); }
  std::size_t workspace_bytes() const override { return cpu_workspace_bytes(num_threads(), dtype_of<S>()); }
  std::size_t packed_bytes(const Shape& weight) const override {
    return std::is_same_v<S, Bf16> && device_.products.panels != nullptr ? PackedBf16::bytes(weight) : 0;
  }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView values, Region memory) override {
    const std::size_t bytes = packed_bytes(values.shape());
    if (bytes == 0) return nullptr;
    SCALETRAIN_CHECK(values.dtype() == dtype_of<S>());
    SCALETRAIN_CHECK_LE(bytes, memory.size);
    auto packed = std::make_unique<PackedBf16>(values.shape(), memory.data);
    if constexpr (std::is_same_v<S, Bf16>) pack_weight(device_.pool, *device_.products.panels, values, *packed);
    return packed;
  }

 private:
  CpuBackend(int threads, const Kernels& kernels, const PanelKernels<S>* panels, WorkCount* work, Buffer workspace)
      : device_{.all = kernels,
                .kernels = kernels_of<S>(kernels),
                .workspace = std::move(workspace),
                .products = {.all = kernels,
                             .typed = kernels_of<S>(kernels),
                             .panels = panels,
                             .scratch = nullptr,
                             .shared = nullptr,
                             .shared_bytes = shared_bytes(panels != nullptr)},
                .pool = ThreadPool(threads, work)} {
    device_.products.shared = device_.workspace.data() + partial_bytes;
    device_.products.scratch = device_.products.shared + device_.products.shared_bytes;
  }

  std::string type_text() const {
    if constexpr (std::is_same_v<S, float>) return "";
    if constexpr (std::is_same_v<S, F16>) return " fp16, f32 products";
    return fmt::format(" bf16, {} products",
                       device_.products.panels != nullptr ? device_.products.panels->name : "f32");
  }

  void launch(Stream&, const Operation& op) override {
    std::visit([&](const auto& descriptor) { compute(device_, descriptor); }, op);
  }

  Device<S> device_;
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
  const cpu::Kernels& kernels = cpu::choose_kernels(options.instruction_set);
  switch (options.compute) {
    case DType::f32:
      return std::make_unique<cpu::CpuBackend<float>>(threads, kernels, cpu::choose_f32_panels(options.instruction_set),
                                                      options.work);
    case DType::bf16:
      return std::make_unique<cpu::CpuBackend<Bf16>>(threads, kernels, cpu::choose_bf16(options.instruction_set),
                                                     options.work);
    case DType::f16:
      return std::make_unique<cpu::CpuBackend<F16>>(threads, kernels, nullptr, options.work);
    default:
      SCALETRAIN_CHECK_EQ(to_text(options.compute), to_text(DType::f32));
      return nullptr;
  }
}

std::string cpu_kernels_text() {
  const cpu::Kernels& kernels = cpu::choose_kernels("auto");
  const std::string_view instructions = cpu::instructions_of(kernels);
  return fmt::format("{}{}; matrix products by oneDNN with {}", kernels.name,
                     instructions.empty() ? "" : fmt::format(" ({})", instructions), cpu::sgemm_instructions());
}

std::string cpu_precision_text(DType compute) {
  if (compute == DType::f32) return "fp32";
  if (compute == DType::f16) return "fp16, products in fp32";
  const cpu::PanelKernels<Bf16>* const kernels = cpu::choose_bf16("auto");
  return kernels != nullptr ? fmt::format("bf16, products by {}", kernels->title) : "bf16, products in fp32";
}

std::size_t cpu_workspace_bytes(int threads, DType compute) {
  const int count = resolve_threads(threads);
  const bool has_panels = cpu::has_panels(compute);
  // Panels multiply all of bf16, and some of f32.
  const std::size_t sgemm_scratch = compute == DType::bf16 && has_panels ? 0 : cpu::sgemm_scratch_bytes;
  return cpu::workspace_size(count, compute, has_panels) + static_cast<std::size_t>(count) * sgemm_scratch;
}

std::size_t cpu_packed_bytes(const Shape& weight, DType compute) {
  return compute == DType::bf16 && cpu::choose_bf16("auto") != nullptr ? cpu::PackedBf16::bytes(weight) : 0;
}

}  // namespace scaletrain
