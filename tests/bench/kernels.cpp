// Times every kernel of the cpu backend at the shapes of GPT-2 124M, in f32 and in bf16 by turns, and what a training
// step made of them would reach of the ceilings. Usage: bench_kernels [threads] [instruction set] [context] [name]; a
// context of 1024 is four samples, a longer one as many as make 4096 tokens, one at least; with a name, only operations
// whose names contain it.
//
// Times are processor time over threads, medians: what others do on the machine meanwhile takes caches and clock, but
// not the time. The ceiling of a type is its multiply-add instruction in registers, times threads.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "bench_tools.h"
#include "ceiling.h"
#include "support/numbers.h"
#include "support/processor_time.h"

namespace scaletrain {
namespace {

constexpr std::int64_t hidden = 768;
constexpr std::int64_t heads = 12;
constexpr std::int64_t head_size = hidden / heads;
constexpr std::int64_t ffn = 4 * hidden;
constexpr std::int64_t vocab = 50257;
constexpr std::int64_t layers = 12;
constexpr std::int64_t head_rows = 256;  // of the head and the loss at a time, as in a step of 4096 tokens
constexpr std::int64_t params_without_positions = 123'653'376;
constexpr int repetitions = 5;
constexpr int repetitions_of_one = 21;  // where a name is given

// A thread's time counts when it sleeps: those of the backend do so some microseconds after an operation.
double settled_seconds() {
  std::this_thread::sleep_for(std::chrono::microseconds(300));
  return processor_seconds();
}

// One backend with the operands of the operation at hand.
class Side {
 public:
  Side(DType type, int threads, const std::string& instruction_set)
      : type_(type),
        backend_(make_cpu_backend({.threads = threads, .instruction_set = instruction_set, .compute = type})),
        stream_(backend_->make_stream()),
        ceiling_((type == DType::f32 ? fma_ceiling() : bf16_ceiling()) * backend_->num_threads()) {
    if (ceiling_ == 0) ceiling_ = calibrate_matmul(*backend_, *stream_, 1.0);
  }

  Backend& backend() const { return *backend_; }
  double ceiling() const { return ceiling_; }
  double calibrate() { return calibrate_matmul(*backend_, *stream_, 1.0); }

  // Values of both signs that vary, so that no branch and no rounding is special.
  View masters(Shape shape, float value = 0.01F) {
    const View view = memory(DType::f32, shape);
    auto* data = view.as<float>();
    for (std::int64_t i = 0; i < shape.num_elements(); ++i)
      data[i] = value * (static_cast<float>((i * 7919) % 1009) / 504.0F - 1.0F);
    return view;
  }
  View activations(Shape shape, float value = 0.01F) {
    if (type_ == DType::f32) return masters(shape, value);
    const View from = masters(shape, value);
    const View view = memory(type_, shape);
    backend_->run(*stream_, Copy{from, view});
    return view;
  }
  View integers(std::int64_t count, std::int64_t modulus) {
    const View view = memory(DType::i32, Shape{count});
    for (std::int64_t i = 0; i < count; ++i)
      view.as<std::int32_t>()[i] = static_cast<std::int32_t>((i * 7919) % modulus);
    return view;
  }
  Weight weight(Shape shape) {
    Weight weight{.values = activations(shape)};
    const std::size_t bytes = backend_->packed_bytes(shape);
    if (bytes == 0) return weight;
    memory_.push_back(backend_->allocate(bytes));
    packed_.push_back(backend_->pack(*stream_, weight.values, memory_.back().region()));
    weight.packed = packed_.back().get();
    return weight;
  }
  // The type's part of a fused matrix, from its element `first`.
  View part(const View& fused, std::int64_t first) const {
    return {static_cast<std::byte*>(fused.data()) + static_cast<std::size_t>(first) * size_of(type_), type_,
            Shape{fused.num_elements() - first}};
  }
  bool is_half() const { return type_ != DType::f32; }

  template <class Run>
  double measure(const Run& run) {
    const double start = settled_seconds();
    run(*backend_, *stream_);
    return (settled_seconds() - start) / backend_->num_threads();
  }
  void clear() {
    packed_.clear();
    memory_.clear();
  }

 private:
  View memory(DType type, Shape shape) {
    memory_.push_back(backend_->allocate(static_cast<std::size_t>(shape.num_elements()) * size_of(type)));
    return memory_.back().view(0, type, shape);
  }

  DType type_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  double ceiling_;
  std::vector<Buffer> memory_;
  std::vector<std::unique_ptr<PackedWeight>> packed_;
};

class Bench {
 public:
  Bench(int threads, const std::string& set, std::int64_t context, std::string only)
      : tokens_(context),
        batch_(std::max<std::int64_t>(1, 4096 / context)),
        rows_(batch_ * context),
        only_(std::move(only)),
        sides_{Side(DType::f32, threads, set), Side(DType::bf16, threads, set)} {}

  void run() {
    for (Side& side : sides_) {
      fmt::print("{}\n  instruction ceiling {:.1f} GFLOP/s", side.backend().description(), side.ceiling() * 1e-9);
      if (only_.empty()) fmt::print(", matrix product {:.1f} GFLOP/s", side.calibrate() * 1e-9);
      fmt::print("\n");
    }
    fmt::print("\n{} samples of {} tokens\n{:<26} {:>9} {:>7} {:>9} | {:>9} {:>7} {:>9} | {:>6}\n", batch_, tokens_,
               "operation", "f32 ms", "share", "a step", "bf16 ms", "share", "a step", "faster");
    linear("qkv", 3 * hidden, hidden, rows_, layers);
    linear("projection", hidden, hidden, rows_, layers);
    linear("ffn in", ffn, hidden, rows_, layers, LinearKind::activated);
    linear("ffn out", hidden, ffn, rows_, layers);
    linear("head", vocab, hidden, head_rows, static_cast<double>(rows_) / head_rows, LinearKind::no_bias);
    attention();
    norms();
    activations();
    loss_and_embedding();
    optimizer();
    if (!only_.empty()) return;
    const auto tokens = static_cast<double>(rows_);
    const double flops = tokens * (6.0 * params_without_positions +
                                   6.0 * static_cast<double>(layers * hidden) * static_cast<double>(tokens_));
    for (int s = 0; s < 2; ++s)
      fmt::print("{}: a step of one micro-batch {:.2f} s, {:.0f} tokens/s, {:.1f} % of the ceiling\n",
                 s == 0 ? "f32" : "bf16", total_[s], tokens / total_[s], 100 * flops / total_[s] / sides_[s].ceiling());
  }

 private:
  enum class LinearKind { plain, activated, no_bias };

  // make(side): operands, and what runs the operation. times: how often a step does.
  template <class Make>
  void time(const std::string& name, double flops, double times, const Make& make) {
    if (name.find(only_) == std::string::npos) return;
    double result[2];
    {
      const auto first = make(sides_[0]);
      const auto second = make(sides_[1]);
      std::vector<double> seconds[2];
      for (int i = 0; i < (only_.empty() ? repetitions : repetitions_of_one); ++i) {
        seconds[0].push_back(sides_[0].measure(first));
        seconds[1].push_back(sides_[1].measure(second));
      }
      for (int s = 0; s < 2; ++s) result[s] = median(seconds[s]);
    }
    for (int s = 0; s < 2; ++s) {
      total_[s] += result[s] * times;
      sides_[s].clear();
    }
    const auto share = [&](int s) { return 100 * flops / result[s] / sides_[s].ceiling(); };
    fmt::print("{:<26} {:>9.3f} {:>6.1f}% {:>9.1f} | {:>9.3f} {:>6.1f}% {:>9.1f} | {:>5.2f}x\n", name, result[0] * 1e3,
               share(0), result[0] * times * 1e3, result[1] * 1e3, share(1), result[1] * times * 1e3,
               result[0] / result[1]);
  }

  static auto running(const Operation& op) {
    return [op](Backend& backend, Stream& stream) { backend.run(stream, op); };
  }

  void linear(const std::string& name, std::int64_t outputs, std::int64_t inputs, std::int64_t n, double times,
              LinearKind kind = LinearKind::plain) {
    const bool activated = kind == LinearKind::activated;
    const auto bias = [&](Side& side) {
      return kind == LinearKind::no_bias ? ConstView() : side.activations({outputs});
    };
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(outputs) * static_cast<double>(inputs);
    time(name + " forward", flops, activated ? 0 : times, [&](Side& side) {
      return running(LinearForward{side.weight({outputs, inputs}),
                                   bias(side),
                                   side.activations({n, inputs}),
                                   {},
                                   side.activations({n, outputs})});
    });
    if (activated) {
      time(name + " forward, gelu_tanh", flops, times, [&](Side& side) {
        return running(LinearForward{.weight = side.weight({outputs, inputs}),
                                     .bias = side.activations({outputs}),
                                     .input = side.activations({n, inputs}),
                                     .addend = {},
                                     .output = side.activations({n, outputs}),
                                     .activation = ActivationType::gelu_tanh,
                                     .activated = side.activations({n, outputs})});
      });
    }
    time(name + " backward input", flops, times, [&](Side& side) {
      return running(LinearBackwardInput{side.weight({outputs, inputs}), side.activations({n, outputs}),
                                         side.activations({n, inputs})});
    });
    time(name + " backward weight", flops, times, [&](Side& side) {
      return running(LinearBackwardWeight{side.activations({n, inputs}), side.activations({n, outputs}),
                                          side.masters({outputs, inputs}),
                                          kind == LinearKind::no_bias ? View() : side.masters({outputs})});
    });
    if (sides_[1].backend().packed_bytes({outputs, inputs}) == 0) return;
    time(name + " pack", 0, times == layers ? times : 1, [&](Side& side) {
      const View values = side.activations({outputs, inputs});
      const std::size_t bytes = side.backend().packed_bytes(values.shape());
      const auto memory = std::make_shared<Buffer>(side.backend().allocate(bytes));
      return [values, memory](Backend& backend, Stream& stream) { backend.pack(stream, values, memory->region()); };
    });
  }

  void attention() {
    const AttentionShape shape{.batch = batch_,
                               .num_queries = tokens_,
                               .num_keys = tokens_,
                               .heads = heads,
                               .kv_heads = heads,
                               .head_size = head_size,
                               .scale = 0.125};
    const std::int64_t stride = 3 * hidden;
    // What a causal mask leaves: half of the products, two forward and five backward.
    const double product = static_cast<double>(batch_ * heads * head_size) * static_cast<double>(tokens_ * tokens_);
    const auto heads_of = [&](Side& side, const View& fused, std::int64_t number) {
      return HeadsView{side.part(fused, number * hidden), stride};
    };
    const auto constant = [](const HeadsView& view) { return ConstHeadsView{view.values, view.row_stride}; };
    const auto forward = [&](Side& side, std::int64_t queries) {
      const View qkv = side.activations({rows_, stride}, 1.0F);
      AttentionShape part = shape;
      part.num_queries = queries;
      part.first_query = tokens_ - queries;
      return running(AttentionForward{part,
                                      constant(heads_of(side, qkv, 0)),
                                      constant(heads_of(side, qkv, 1)),
                                      constant(heads_of(side, qkv, 2)),
                                      {},
                                      {side.activations({rows_, hidden}), hidden},
                                      side.masters({batch_, heads, queries})});
    };
    time("attention forward", 2 * product, layers, [&](Side& side) { return forward(side, tokens_); });
    time("attention backward", 5 * product, layers, [&](Side& side) {
      const View qkv = side.activations({rows_, stride}, 1.0F);
      const View d_qkv = side.activations({rows_, stride});
      return running(
          AttentionBackward{.shape = shape,
                            .query = constant(heads_of(side, qkv, 0)),
                            .key = constant(heads_of(side, qkv, 1)),
                            .value = constant(heads_of(side, qkv, 2)),
                            .output = {side.activations({rows_, hidden}), hidden},
                            .d_output = {side.activations({rows_, hidden}), hidden},
                            .log_sum_exp = side.masters({batch_, heads, tokens_}, 5.0F),
                            .document_start = {},
                            .d_query = heads_of(side, d_qkv, 0),
                            .d_key = heads_of(side, d_qkv, 1),
                            .d_value = heads_of(side, d_qkv, 2),
                            .workspace = side.is_half() ? side.masters({AttentionWorkspace{}.lent(shape)}) : View()});
    });
    time("attention, one query", 0, 0, [&](Side& side) { return forward(side, 1); });
  }

  void norms() {
    const double times = 2 * layers + 1;
    const Shape shape{rows_, hidden};
    const auto type = NormType::layernorm;
    time("norm forward", 0, times, [&](Side& side) {
      return running(NormForward{type, 1e-5, side.activations(shape), side.activations({hidden}),
                                 side.activations({hidden}), side.activations(shape), side.masters({rows_}),
                                 side.masters({rows_})});
    });
    time("norm backward input", 0, times, [&](Side& side) {
      const View d_input = side.activations(shape);
      return running(NormBackwardInput{type, side.activations(shape), side.activations(shape),
                                       side.activations({hidden}), side.masters({rows_}), side.masters({rows_}),
                                       d_input, d_input});
    });
    time("norm backward weight", 0, times, [&](Side& side) {
      return running(NormBackwardWeight{type, side.activations(shape), side.activations(shape), side.masters({rows_}),
                                        side.masters({rows_}), side.masters({hidden}), side.masters({hidden})});
    });
  }

  void activations() {
    const Shape shape{rows_, ffn};
    const Shape narrow{rows_, ffn / 2};
    for (const auto& [type, name, times] : {std::tuple{ActivationType::gelu, "gelu", 0},
                                            {ActivationType::gelu_tanh, "gelu_tanh", 12},
                                            {ActivationType::swiglu, "swiglu", 0}}) {
      const Shape output = type == ActivationType::swiglu ? narrow : shape;
      time(fmt::format("{} forward", name), 0, 0, [&, type = type](Side& side) {
        return running(ActivationForward{type, side.activations(shape, 3.0F), side.activations(output)});
      });
      time(fmt::format("{} backward", name), 0, times, [&, type = type](Side& side) {
        return running(
            ActivationBackward{type, side.activations(shape, 3.0F), side.activations(output), side.activations(shape)});
      });
    }
    time("rope", 0, 0, [&](Side& side) {
      return running(
          RopeRotate{side.activations({rows_, hidden}), hidden, heads, head_size, side.integers(rows_, tokens_)});
    });
    time("residual add", 0, 2 * layers, [&](Side& side) {
      return running(
          Add{side.activations({rows_, hidden}), side.activations({rows_, hidden}), side.activations({rows_, hidden})});
    });
  }

  void loss_and_embedding() {
    for (const bool gradient : {true, false})
      time(gradient ? "cross-entropy, gradient" : "cross-entropy, loss only", 0,
           gradient ? static_cast<double>(rows_) / head_rows : 0, [&](Side& side) {
             return running(CrossEntropy{side.activations({head_rows, vocab}, 5.0F), side.integers(head_rows, vocab),
                                         gradient ? 1.0 : 0.0, number_at(sum_)});
           });
    time("embedding forward", 0, 1, [&](Side& side) {
      return running(EmbeddingForward{side.activations({vocab, hidden}), side.activations({tokens_, hidden}),
                                      side.integers(rows_, vocab), side.integers(rows_, tokens_),
                                      side.activations({rows_, hidden})});
    });
    time("embedding backward", 0, 1, [&](Side& side) {
      return running(EmbeddingBackward{side.activations({rows_, hidden}), side.integers(rows_, vocab),
                                       side.integers(rows_, tokens_), side.masters({vocab, hidden}),
                                       side.masters({tokens_, hidden})});
    });
  }

  void optimizer() {
    constexpr std::int64_t count = params_without_positions;
    time("copy to the compute type", 0, 0, [&](Side& side) {
      return running(Copy{side.masters({count}), side.activations({count})});
    });
    time("fill", 0, 1, [&](Side& side) { return running(Fill{side.masters({count}), 0.0}); });
    time("sums of squares", 0, 1, [&](Side& side) {
      return running(SumsOfSquares{side.masters({count}), {&all_, 1}, number_at(sum_)});
    });
    time("adamw", 0, 1, [&](Side& side) {
      return running(AdamWStep{.param = side.masters({count}),
                               .first_moment = side.masters({count}),
                               .second_moment = side.masters({count}, 0.0F),
                               .gradient = side.masters({count}),
                               .spans = {&span_, 1},
                               .step = record_of(step_),
                               .compute_weights = side.is_half() ? side.activations({count}) : View()});
    });
  }

  std::int64_t tokens_, batch_, rows_;
  std::string only_;
  Side sides_[2];
  double total_[2] = {0, 0};
  double sum_ = 0;
  const ElementSpan all_{.first = 0, .count = params_without_positions};
  const UpdateSpan span_{.first = 0, .count = params_without_positions, .weight_decay = 0.1};
  const StepScalars step_{
      .learning_rate = 1e-3, .gradient_scale = 1.0, .bias_correction1 = 0.1, .bias_correction2 = 0.05};
};

}  // namespace
}  // namespace scaletrain

int main(int argc, char** argv) {
  scaletrain::Bench(argc > 1 ? std::atoi(argv[1]) : 0, argc > 2 ? argv[2] : "auto",
                    argc > 3 ? std::atoll(argv[3]) : 1024, argc > 4 ? argv[4] : "")
      .run();
}
