// A small model with everything it needs to run on one backend, and one step of it as an executor would do it.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/numbers/philox.h"
#include "config/keys/keys.h"
#include "nn/init.h"
#include "nn/transformer.h"
#include "support/models/model_store.h"
#include "support/models/tiny_model.h"
#include "support/numbers.h"
#include "support/philox_below.h"
#include "support/ranks/host_stream.h"

namespace scaletrain {

inline std::vector<double> to_doubles(const ConstView& view) {
  std::vector<double> out(static_cast<std::size_t>(view.num_elements()));
  convert_floats(view.dtype(), view.data(), DType::f64, out.data(), out.size());
  return out;
}

inline std::vector<double> normal_values(std::string_view name, std::size_t count, float mean, float deviation) {
  std::vector<float> values(count);
  fill_normal(philox_key(77, name), 0, mean, deviation, values);
  return {values.begin(), values.end()};
}

// Memory of exactly the planned size, filled with bytes that are not a number in any floating type: what is read before
// it is written shows.
class PoisonedRegion {
 public:
  explicit PoisonedRegion(std::size_t bytes) : buffer_(bytes) { poison(); }
  void poison() {
    if (buffer_.size() != 0) std::memset(buffer_.data(), 0xFF, buffer_.size());
  }
  Region region() const { return {buffer_.data(), buffer_.size()}; }
  View view(DType dtype, Shape shape) const { return buffer_.view(0, dtype, shape); }

 private:
  Buffer buffer_;
};

// Calls visit(index in the box, index in the tensor) for every element of a box of one or two dims, in order.
template <class Visit>
void for_each_element(const Shape& shape, const Box& box, Visit visit) {
  const bool is_matrix = shape.num_dims() == 2;
  const std::int64_t columns = is_matrix ? shape[1] : 1;
  const std::int64_t width = is_matrix ? box.extent[1] : 1;
  const std::int64_t first_column = is_matrix ? box.first[1] : 0;
  for (std::int64_t i = 0; i < box.extent[0]; ++i)
    for (std::int64_t j = 0; j < width; ++j)
      visit(static_cast<std::size_t>(i * width + j),
            static_cast<std::size_t>((box.first[0] + i) * columns + first_column + j));
}

// Which part of the model a test's rank has, and its groups.
struct TestRank {
  TensorPart part;
  const RankGroups* groups = nullptr;
  RecomputeKind recompute = RecomputeKind::none;
};

struct TestModel : ModelStore {
  TestModel(const ModelSpec& model_spec, std::unique_ptr<Backend> used_backend, const InitConfig& init = {},
            const TestRank& test_rank = {})
      : ModelStore(make_param_table(model_spec, init), std::move(used_backend),
                   {.sequence = test_rank.part.sequence, .groups = test_rank.groups},
                   {Mesh(1, test_rank.part.degree, 1), {.tensor = test_rank.part.rank}}),
        spec(model_spec),
        rank(test_rank),
        model(spec, rank.part, rank.recompute, {}, backend->attention_workspace()) {}

  // Values far from those of initialisation, so that no gradient is small by symmetry.
  void randomise() {
    for (const Parameter& parameter : table.parameters()) {
      if (parameter.tied_to) continue;
      const bool is_norm_weight = parameter.init.kind == InitialValues::Kind::ones;
      const std::vector<double> values = normal_values(
          parameter.name, static_cast<std::size_t>(parameter.shape.num_elements()), is_norm_weight ? 1.0f : 0.0f, 0.3f);
      assign(parameter, values);
    }
    store.values_changed(host_stream());
  }

  // This rank's part of a tensor's values.
  void assign(const Parameter& parameter, const std::vector<double>& values) {
    const View master = store.master(parameter.name);
    std::vector<double> held(static_cast<std::size_t>(master.num_elements()));
    for_each_element(parameter.shape, ParamTable::box_of(parameter, rank.part.degree, rank.part.rank),
                     [&](std::size_t local, std::size_t global) { held.at(local) = values.at(global); });
    convert_floats(DType::f64, held.data(), master.dtype(), master.data(), held.size());
  }

  std::map<std::string, std::vector<double>> gradients() const {
    std::map<std::string, std::vector<double>> out;
    for (const Parameter& parameter : table.parameters())
      out[parameter.name] = to_doubles(store.gradient(parameter.name));
    return out;
  }

  ModelSpec spec;
  TestRank rank;
  Transformer model;
};

struct TestBatch {
  TestBatch(const ModelSpec& spec, BatchShape batch_shape) : shape(batch_shape) {
    const auto rows = static_cast<std::uint64_t>(shape.rows());
    const PhiloxKey key = philox_key(5, "batch");
    for (std::uint64_t n = 0; n < rows; ++n) {
      ids.push_back(static_cast<std::int32_t>(philox_below(key, 2 * n, std::uint64_t(spec.vocab))));
      const bool is_masked = n % 5 == 3;
      targets.push_back(is_masked ? -1
                                  : static_cast<std::int32_t>(philox_below(key, 2 * n + 1, std::uint64_t(spec.vocab))));
      positions.push_back(static_cast<std::int32_t>(n) % static_cast<std::int32_t>(shape.tokens));
    }
    for (std::int64_t sample = 0; sample < shape.samples; ++sample) samples.push_back(sample * 3 + 11);
  }

  // A new document begins at token `start` of every sample.
  void add_document(std::int32_t start) {
    document_start.clear();
    for (const std::int32_t position : positions) document_start.push_back(position >= start ? start : 0);
  }

  BatchContext context(Mode mode) {
    const auto view = [&](const std::vector<std::int32_t>& values) {
      return values.empty() ? ConstView() : ConstView(values.data(), DType::i32, {shape.rows()});
    };
    BatchContext batch;
    batch.shape = shape;
    batch.mode = mode;
    batch.ids = view(ids);
    batch.targets = view(targets);
    batch.positions = view(positions);
    batch.document_start = view(document_start);
    batch.samples = ConstView(samples.data(), DType::i64, {shape.samples});
    batch.seed = seed;
    batch.loss_gradient = loss_gradient;
    batch.loss_sum = number_at(loss_sum);
    return batch;
  }

  BatchShape shape;
  std::vector<std::int32_t> ids, targets, positions, document_start;
  std::vector<std::int64_t> samples;
  std::uint64_t seed = 9;
  double loss_gradient = 0.37;
  double loss_sum = 0.0;
};

enum class BackwardForm { whole, split };

// One unit with its regions.
class UnitHarness {
 public:
  UnitHarness(TestModel& model, int index, TestBatch& batch)
      : model_(model),
        unit_(*model.model.units()[static_cast<std::size_t>(index)]),
        batch_(batch),
        memory_(unit_.memory(batch.shape, model.backend->compute_type())),
        saved(memory_.saved),
        work(memory_.work),
        scratch(memory_.scratch) {}

  // Calls use() with the handles of the unit acquired and poisoned scratch.
  template <class Use>
  auto with_run(Mode mode, Use use) {
    struct Handles {  // released whatever happens
      Handles(TestModel& used_model, int used_unit)
          : model(used_model),
            unit(used_unit),
            weights(model.store.acquire(*model.stream, unit)),
            gradients(model.store.acquire_gradients(*model.stream, unit)) {}
      ~Handles() {
        model.store.release_gradients(*model.stream, unit, false);
        model.store.release(unit);
      }
      Handles(const Handles&) = delete;
      Handles& operator=(const Handles&) = delete;
      TestModel& model;
      int unit;
      const UnitWeights& weights;
      const UnitGradients& gradients;
    };
    const Handles handles(model_, unit_.index());
    scratch.poison();
    const BatchContext context = batch_.context(mode);
    const UnitRun run{.backend = *model_.backend,
                      .stream = *model_.stream,
                      .batch = context,
                      .weights = handles.weights,
                      .gradients = &handles.gradients,
                      .tensor = model_.rank.groups == nullptr ? nullptr : model_.rank.groups->find(GroupKind::tensor),
                      .scratch = scratch_override ? *scratch_override : scratch.region()};
    return use(run);
  }

  Saved forward(Mode mode, const Bundle& input, const Bundle& output) {
    saved.poison();
    return with_run(mode, [&](const UnitRun& run) {
      return unit_.forward(with_handles(run, run.weights, nullptr), input, output, saved.region());
    });
  }

  void backward(BackwardForm form, Saved held, const Bundle& d_output, const Bundle& d_input) {
    if (form == BackwardForm::whole) {
      with_run(Mode::train,
               [&](const UnitRun& run) { unit_.backward(run, std::move(held), d_output, d_input, Region{}); });
      return;
    }
    pending_ = backward_input(std::move(held), d_output, d_input);
    backward_weight();
  }

  WeightWork backward_input(Saved held, const Bundle& d_output, const Bundle& d_input) {
    work.poison();
    return with_run(Mode::train, [&](const UnitRun& run) {
      return unit_.backward_input(with_handles(run, run.weights, nullptr), std::move(held), d_output, d_input,
                                  work.region());
    });
  }
  void backward_input_later(Saved held, const Bundle& d_output, const Bundle& d_input) {
    pending_ = backward_input(std::move(held), d_output, d_input);
  }
  void backward_weight() {
    with_run(Mode::train, [&](const UnitRun& run) {
      const UnitWeights none;
      const UnitWeights& weights = unit_.weight_pass_reads_weights() ? run.weights : none;
      unit_.backward_weight(with_handles(run, weights, run.gradients), std::move(pending_));
    });
  }

  const Unit& unit() const { return unit_; }
  const UnitMemory& memory() const { return memory_; }

 private:
  // A pass gets no more than it may need.
  static UnitRun with_handles(const UnitRun& run, const UnitWeights& weights, const UnitGradients* gradients) {
    return {.backend = run.backend,
            .stream = run.stream,
            .batch = run.batch,
            .weights = weights,
            .gradients = gradients,
            .tensor = run.tensor,
            .scratch = run.scratch};
  }

  TestModel& model_;
  const Unit& unit_;
  TestBatch& batch_;
  UnitMemory memory_;
  WeightWork pending_;

 public:
  PoisonedRegion saved;
  PoisonedRegion work;
  PoisonedRegion scratch;
  const Region* scratch_override = nullptr;
};

// All units in order, each with regions of its own, and a bundle between each two.
class ModelHarness {
 public:
  ModelHarness(TestModel& model, TestBatch& batch) : batch_(batch) {
    const auto count = static_cast<int>(model.model.units().size());
    const std::vector<BundleEntry> boundary = model.model.boundary(batch.shape, model.backend->compute_type());
    const Shape shape = boundary.at(0).shape;
    const DType compute = boundary.at(0).dtype;
    const std::size_t bytes = static_cast<std::size_t>(shape.num_elements()) * size_of(compute);
    for (int index = 0; index < count; ++index) {
      units_.push_back(std::make_unique<UnitHarness>(model, index, batch));
      memory_.emplace_back(bytes);
      bundles_.push_back(index + 1 < count ? Bundle{memory_.back().view(compute, shape)} : Bundle{});
      d_bundles_.push_back({});
    }
    for (Bundle& d_bundle : d_bundles_) {
      memory_.emplace_back(bytes);
      d_bundle = {memory_.back().view(compute, shape)};
    }
  }

  double evaluate() {
    batch_.loss_sum = 0.0;
    forward(Mode::evaluate);
    return batch_.loss_sum;
  }

  // Adds to the gradients; returns the sum of the losses.
  double train(BackwardForm form) {
    batch_.loss_sum = 0.0;
    std::vector<Saved> saved = forward(Mode::train);
    for (std::size_t i = units_.size(); i-- > 0;) {
      const Bundle d_input = i == 0 ? Bundle{} : d_bundles_[i - 1];
      const Bundle d_output = i + 1 == units_.size() ? Bundle{} : d_bundles_[i];
      if (form == BackwardForm::whole)
        units_[i]->backward(form, std::move(saved[i]), d_output, d_input);
      else
        units_[i]->backward_input_later(std::move(saved[i]), d_output, d_input);
    }
    if (form == BackwardForm::split) {
      for (PoisonedRegion& memory : d_memory()) memory.poison();  // gradients between units are gone by then
      for (std::size_t i = units_.size(); i-- > 0;) units_[i]->backward_weight();
    }
    return batch_.loss_sum;
  }

  // The last block's output.
  View hidden() const { return bundles_[bundles_.size() - 2].hidden; }
  // The gradient of a unit's output after a plain backward; not the head's.
  View d_output(std::size_t unit) const { return d_bundles_.at(unit).hidden; }

 private:
  std::span<PoisonedRegion> d_memory() { return std::span(memory_).subspan(units_.size()); }

  std::vector<Saved> forward(Mode mode) {
    std::vector<Saved> saved;
    for (std::size_t i = 0; i < units_.size(); ++i)
      saved.push_back(units_[i]->forward(mode, i == 0 ? Bundle{} : bundles_[i - 1], bundles_[i]));
    return saved;
  }

  TestBatch& batch_;
  std::vector<std::unique_ptr<UnitHarness>> units_;
  std::vector<PoisonedRegion> memory_;
  std::vector<Bundle> bundles_, d_bundles_;
};

inline ModelSpec tiny_gpt2() {
  constexpr std::int64_t vocab = 7;
  return make_model_spec(tiny_model({.layers = 2, .hidden = 8, .heads = 2, .ffn_hidden = 10, .context = 6}), vocab);
}

// The sizes of GPT-2 124M, but for the number of layers and the context.
inline ModelSpec wide_gpt2() {
  ModelSpec spec = tiny_gpt2();
  spec.hidden = 768;
  spec.heads = 12;
  spec.kv_heads = 12;
  spec.head_size = 64;
  spec.ffn_hidden = 3072;
  spec.vocab = 50257;
  return spec;
}

inline ModelSpec tiny_llama() {
  constexpr std::int64_t vocab = 7;
  ModelConfig model =
      tiny_model({.layers = 2, .hidden = 12, .heads = 3, .kv_heads = 1, .ffn_hidden = 10, .context = 6});
  make_llama(model);
  model.tie_embeddings = false;
  return make_model_spec(model, vocab);
}

// Of Qwen3's family, but for its scaled rotations: heads of another size than hidden / heads, together wider than
// hidden, whose queries and keys are normed.
inline ModelSpec tiny_qwen3() {
  ModelSpec spec = tiny_llama();
  spec.head_size = 6;
  spec.qk_norm = true;
  spec.rope_scaling = {
      .factor = 4.0, .low_frequency_factor = 1.0, .high_frequency_factor = 4.0, .original_context = 8.0};
  return spec;
}

// Of Gemma's families, all that any of them has: norms behind the maps and of query and key, all with weights around
// zero, scaled embeddings, a gate by gelu, caps of scores and of logits; the first layer with a window and a rotation
// of its own.
inline ModelSpec tiny_gemma() {
  ModelSpec spec = tiny_llama();
  spec.head_size = 6;
  spec.activation = ActivationKind::geglu;
  spec.tie_embeddings = true;
  spec.qk_norm = spec.post_norm = spec.scale_embeddings = true;
  spec.norm_weight_offset = 1.0;
  spec.attention_scale = 0.7;
  spec.attention_softcap = 0.8;
  spec.logit_softcap = 0.6;
  spec.window = 3;
  spec.global_every = 2;
  spec.window_rope_theta = 50.0;
  return spec;
}

inline ModelSpec with_dropout(ModelSpec spec) {
  spec.dropout = {.embedding = 0.2, .attention = 0.3, .residual = 0.25};
  return spec;
}

inline double largest(const std::vector<double>& values) {
  double out = 0.0;
  for (const double value : values) out = std::isnan(value) ? value : std::max(out, std::abs(value));
  return out;
}

// The largest difference over the largest element; `floor` stands in for tensors that are zero but for rounding.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b, double floor) {
  std::vector<double> differences;
  for (std::size_t i = 0; i < a.size(); ++i) differences.push_back(a[i] - b[i]);
  return largest(differences) / std::max(largest(b), floor);
}

// The largest of the elements' own errors: each difference over that element or, if larger, the root mean square of all
// elements. `floor` stands in for tensors that are zero but for rounding.
inline double element_error(const std::vector<double>& a, const std::vector<double>& b, double floor) {
  double squares = 0.0;
  for (const double value : b) squares += value * value;
  const double scale = std::max(b.empty() ? 0.0 : std::sqrt(squares / static_cast<double>(b.size())), floor);
  std::vector<double> errors;
  for (std::size_t i = 0; i < a.size(); ++i) errors.push_back((a[i] - b[i]) / std::max(std::abs(b[i]), scale));
  return largest(errors);
}

}  // namespace scaletrain
