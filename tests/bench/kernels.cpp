// Times every kernel of the cpu backend at the shapes of GPT-2 124M (T = 1024, micro-batch 4), and what a training step
// made of them would reach of the ceiling. Usage: bench_kernels [threads] [instruction set].
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "support/numbers.h"

namespace scaletrain {
namespace {

constexpr std::int64_t batch = 4;
constexpr std::int64_t tokens = 1024;
constexpr std::int64_t rows = batch * tokens;
constexpr std::int64_t hidden = 768;
constexpr std::int64_t heads = 12;
constexpr std::int64_t head_size = hidden / heads;
constexpr std::int64_t ffn = 4 * hidden;
constexpr std::int64_t vocab = 50257;
constexpr std::int64_t layers = 12;
constexpr std::int64_t head_parts = 8;
constexpr std::int64_t head_rows = rows / head_parts;  // rows of the head and the loss at a time
constexpr std::int64_t params = 124'439'808;
constexpr int repetitions = 3;

class Bench {
 public:
  Bench(int threads, const std::string& instruction_set)
      : backend_(make_cpu_backend({.threads = threads, .instruction_set = instruction_set})),
        stream_(backend_->make_stream()) {}

  void run() {
    fmt::print("{}\n", backend_->description());
    // The best of two, before and after: the clock of a processor changes under load.
    ceiling_ = calibrate_matmul(*backend_, *stream_, 1.0);
    fmt::print("matrix product {:.1f} GFLOP/s\n\n{:<26} {:>9} {:>8} {:>7} {:>8} {:>9}\n", ceiling_ * 1e-9, "operation",
               "ms", "GFLOP/s", "share", "GB/s", "ms a step");
    linear("qkv", 3 * hidden, hidden, rows, layers);
    linear("projection", hidden, hidden, rows, layers);
    linear("ffn in", ffn, hidden, rows, layers);
    linear("ffn out", hidden, ffn, rows, layers);
    linear("head", vocab, hidden, head_rows, head_parts);
    attention();
    norms();
    activations();
    others();
    const double flops = rows * (6.0 * (params - tokens * hidden) + 6.0 * layers * hidden * tokens);
    fmt::print("\na step of one micro-batch: {:.2f} s, {:.0f} tokens/s, {:.1f} % of the ceiling\n", total_,
               rows / total_, 100 * flops / total_ / ceiling_);
    fmt::print("without the optimizer: {:.1f} %\n", 100 * flops / (total_ - optimizer_) / ceiling_);
    fmt::print("matrix product at the end: {:.1f} GFLOP/s\n", calibrate_matmul(*backend_, *stream_, 0.5) * 1e-9);
  }

 private:
  View floats(Shape shape, float value = 0.01F) {
    memory_.push_back(backend_->allocate(static_cast<std::size_t>(shape.num_elements()) * sizeof(float)));
    View view = memory_.back().view(0, DType::f32, shape);
    // Values of both signs that vary, so that no branch and no rounding is special.
    auto* data = view.as<float>();
    for (std::int64_t i = 0; i < shape.num_elements(); ++i)
      data[i] = value * (static_cast<float>((i * 7919) % 1009) / 504.0F - 1.0F);
    return view;
  }

  View integers(std::int64_t count, std::int64_t modulus) {
    memory_.push_back(backend_->allocate(static_cast<std::size_t>(count) * sizeof(std::int32_t)));
    View view = memory_.back().view(0, DType::i32, Shape{count});
    for (std::int64_t i = 0; i < count; ++i)
      view.as<std::int32_t>()[i] = static_cast<std::int32_t>((i * 7919) % modulus);
    return view;
  }

  // bytes: what the operation must read and write at least. times: how often a step runs it.
  template <class Op>
  void time(const std::string& name, const Op& op, double flops, double bytes, double times) {
    double best = 1e30;
    for (int i = 0; i < repetitions; ++i) {
      const MonotonicTime start = monotonic_now();
      backend_->run(*stream_, op);
      best = std::min(best, seconds_since(start));
    }
    total_ += best * times;
    fmt::print("{:<26} {:>9.3f} {:>8.1f} {:>6.1f}% {:>8.1f} {:>9.1f}\n", name, best * 1e3, flops / best * 1e-9,
               100 * flops / best / ceiling_, bytes / best * 1e-9, best * times * 1e3);
  }

  void linear(const std::string& name, std::int64_t outputs, std::int64_t inputs, std::int64_t n, double times) {
    const View input = floats({n, inputs});
    const View weight = floats({outputs, inputs});
    const View bias = floats({outputs});
    const View output = floats({n, outputs});
    const View d_weight = floats({outputs, inputs});
    const View d_bias = floats({outputs});
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(outputs) * static_cast<double>(inputs);
    const double bytes = 4.0 * static_cast<double>(n * (inputs + outputs) + outputs * inputs);
    time(name + " forward", LinearForward{{.values = weight}, bias, input, {}, output}, flops, bytes, times);
    time(name + " backward input", LinearBackwardInput{{.values = weight}, output, input}, flops, bytes, times);
    time(name + " backward weight", LinearBackwardWeight{input, output, d_weight, d_bias}, flops, bytes, times);
    memory_.clear();
  }

  void attention() {
    const View qkv = floats({rows, 3 * hidden}, 1.0F);
    const View d_qkv = floats({rows, 3 * hidden});
    const View output = floats({rows, hidden});
    const View d_output = floats({rows, hidden});
    const View log_sum_exp = floats({batch, heads, tokens});
    const AttentionShape shape{.batch = batch,
                               .num_queries = tokens,
                               .num_keys = tokens,
                               .heads = heads,
                               .kv_heads = heads,
                               .head_size = head_size,
                               .scale = 0.125};
    const auto part = [](const View& fused, std::int64_t first) {
      return View(fused.as<float>() + first, DType::f32, Shape{fused.num_elements() - first});
    };
    const std::int64_t stride = 3 * hidden;
    const ConstHeadsView query{part(qkv, 0), stride};
    const ConstHeadsView key{part(qkv, hidden), stride};
    const ConstHeadsView value{part(qkv, 2 * hidden), stride};
    // What a causal mask leaves: half of the products, two forward and five backward.
    const double product = 2.0 * batch * heads * tokens * tokens * head_size / 2;
    const double bytes = 4.0 * rows * hidden;
    time("attention forward", AttentionForward{shape, query, key, value, {}, {output, hidden}, log_sum_exp},
         2 * product, 4 * bytes, layers);
    time("attention backward",
         AttentionBackward{shape,
                           query,
                           key,
                           value,
                           {output, hidden},
                           {d_output, hidden},
                           log_sum_exp,
                           {},
                           {part(d_qkv, 0), stride},
                           {part(d_qkv, hidden), stride},
                           {part(d_qkv, 2 * hidden), stride}},
         5 * product, 8 * bytes, layers);
    AttentionShape decode = shape;
    decode.num_queries = 1;
    decode.first_query = tokens - 1;
    time("attention, one query", AttentionForward{decode, query, key, value, {}, {output, hidden}, {}}, 0, 2 * bytes,
         0);
    memory_.clear();
  }

  void norms() {
    const View x = floats({rows, hidden});
    const View y = floats({rows, hidden});
    const View dx = floats({rows, hidden});
    const View weight = floats({hidden});
    const View bias = floats({hidden});
    const View mean = floats({rows});
    const View rstd = floats({rows});
    const double bytes = 4.0 * rows * hidden;
    const double times = 2 * layers + 1;
    time("norm forward", NormForward{NormType::layernorm, 1e-5, x, weight, bias, y, mean, rstd}, 0, 2 * bytes, times);
    time("norm backward input", NormBackwardInput{NormType::layernorm, y, x, weight, mean, rstd, dx, dx}, 0, 4 * bytes,
         times);
    time("norm backward weight", NormBackwardWeight{NormType::layernorm, y, x, mean, rstd, weight, bias}, 0, 2 * bytes,
         times);
    memory_.clear();
  }

  void activations() {
    const View x = floats({rows, ffn}, 3.0F);
    const View y = floats({rows, ffn});
    const View dx = floats({rows, ffn});
    const double bytes = 4.0 * rows * ffn;
    for (const auto& [type, name, times] :
         {std::tuple{ActivationType::gelu, "gelu", 0}, {ActivationType::gelu_tanh, "gelu_tanh", 12}}) {
      time(fmt::format("{} forward", name), ActivationForward{type, x, y}, 0, 2 * bytes, times);
      time(fmt::format("{} backward", name), ActivationBackward{type, x, y, dx}, 0, 3 * bytes, times);
    }
    const View half(y.data(), DType::f32, Shape{rows, ffn / 2});
    time("swiglu forward", ActivationForward{ActivationType::swiglu, x, half}, 0, 1.5 * bytes, 0);
    time("swiglu backward", ActivationBackward{ActivationType::swiglu, x, half, dx}, 0, 2.5 * bytes, 0);
    const View positions = integers(rows, tokens);
    time("rope", RopeRotate{x, hidden, heads, head_size, positions}, 0, 2 * bytes / 4, 0);
    memory_.clear();
  }

  void others() {
    const View logits = floats({head_rows, vocab}, 5.0F);
    const View targets = integers(head_rows, vocab);
    double sum = 0;
    const double logit_bytes = 4.0 * head_rows * vocab;
    time("cross-entropy, gradient", CrossEntropy{logits, targets, 1.0, number_at(sum)}, 0, 2 * logit_bytes, head_parts);
    time("cross-entropy, loss only", CrossEntropy{logits, targets, 0.0, number_at(sum)}, 0, logit_bytes, 0);
    memory_.clear();

    const View table = floats({vocab, hidden});
    const View position_table = floats({tokens, hidden});
    const View x = floats({rows, hidden});
    const View ids = integers(rows, vocab);
    const View positions = integers(rows, tokens);
    const double bytes = 4.0 * rows * hidden;
    time("embedding forward", EmbeddingForward{table, position_table, ids, positions, x}, 0, 2 * bytes, 1);
    time("embedding backward", EmbeddingBackward{x, ids, positions, table, position_table}, 0, 6 * bytes, 1);
    memory_.clear();

    const View param = floats({params});
    const View first_moment = floats({params});
    const View second_moment = floats({params}, 0.0F);
    const View gradient = floats({params});
    const double param_bytes = 4.0 * params;
    const StepScalars step{
        .learning_rate = 1e-3, .gradient_scale = 1.0, .bias_correction1 = 0.1, .bias_correction2 = 0.05};
    const DecaySpan span{.first = 0, .count = params, .weight_decay = 0.1};
    time("copy", Copy{param, first_moment}, 0, 2 * param_bytes, 0);
    time("add", Add{param, gradient, first_moment}, 0, 3 * param_bytes, 0);
    const double before = total_;
    time("fill", Fill{gradient, 0.0}, 0, param_bytes, 1);
    time("sum of squares", SumOfSquares{gradient, number_at(sum)}, 0, param_bytes, 1);
    time("adamw",
         AdamWStep{.param = param,
                   .first_moment = first_moment,
                   .second_moment = second_moment,
                   .gradient = gradient,
                   .spans = {&span, 1},
                   .step = record_of(step)},
         0, 7 * param_bytes, 1);
    optimizer_ = total_ - before;
    memory_.clear();
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> memory_;
  double ceiling_ = 0;
  double total_ = 0;
  double optimizer_ = 0;
};

}  // namespace
}  // namespace scaletrain

int main(int argc, char** argv) {
  scaletrain::Bench(argc > 1 ? std::atoi(argv[1]) : 0, argc > 2 ? argv[2] : "auto").run();
}
