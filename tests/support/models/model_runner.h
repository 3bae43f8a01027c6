// A whole model on one rank, run unit by unit with a region of its own for each: the plainest executor there can be.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/mirrored_buffer.h"
#include "nn/finetune.h"
#include "nn/lora.h"
#include "nn/transformer.h"
#include "optim/optimizer.h"
#include "support/models/model_store.h"

namespace scaletrain {

class ModelRunner : public ModelStore {
 public:
  // optimizer: whose states there are; null: none. more_states: behind these. finetune: its freeze, unfreeze and
  // weight_decays. spec: with its adapters, if it has any.
  ModelRunner(const ModelSpec& spec, std::unique_ptr<Backend> used_backend, const Optimizer* optimizer,
              const std::vector<std::string>& more_states = {}, const FinetuneConfig& finetune = {},
              RecomputeKind recompute = RecomputeKind::none)
      : ModelStore(table_of(spec, finetune, optimizer), std::move(used_backend),
                   {.state_names = states_of(optimizer, more_states)}),
        model(spec, {}, recompute, {.adapter_rows = adapter_rows}) {}

  // The sum of the token losses of a micro-batch. ids and targets: [B·T]; so is document_start, where attention is to
  // stay within documents.
  double evaluate(BatchShape shape, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                  std::span<const std::int32_t> document_start = {}) {
    Run run(*this, shape, {ids, targets, document_start}, Mode::evaluate, 0.0);
    run.forward();
    return run.loss_sum();
  }

  // The same, and adds the gradients of loss_gradient times that sum.
  double train(BatchShape shape, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
               double loss_gradient, std::span<const std::int32_t> document_start = {}) {
    Run run(*this, shape, {ids, targets, document_start, samples}, Mode::train, loss_gradient);
    run.forward();
    run.backward();
    return run.loss_sum();
  }

  Transformer model;
  // Of a model with dropout: the run's seed, and the numbers of the samples of all micro-batches.
  std::uint64_t seed = 0;
  std::vector<std::int64_t> samples{};

 private:
  // What passes through the scratch of adapters does so in pieces, the last of fewer rows.
  static constexpr std::int64_t adapter_rows = 5;

  static ParamTable table_of(const ModelSpec& spec, const FinetuneConfig& finetune, const Optimizer* optimizer) {
    ParamTable table = make_param_table(spec, InitConfig{});
    if (spec.lora.rank > 0) table = with_adapters(table, spec.lora);
    freeze_parameters(table, finetune);
    scale_weight_decays(table, finetune);
    if (optimizer != nullptr)
      table.leave_out_states([&](const Parameter& parameter) { return optimizer->absent_state(parameter); },
                             optimizer->keeps_factors());
    return table;
  }
  static std::vector<std::string> states_of(const Optimizer* optimizer, const std::vector<std::string>& more) {
    std::vector<std::string> states;
    if (optimizer != nullptr) states.assign(optimizer->state_names().begin(), optimizer->state_names().end());
    states.insert(states.end(), more.begin(), more.end());
    return states;
  }

  struct Tokens {
    std::span<const std::int32_t> ids, targets, document_start;
    std::span<const std::int64_t> samples{};
  };

  // One micro-batch.
  class Run {
   public:
    Run(ModelRunner& owner, BatchShape shape, const Tokens& tokens, Mode mode, double loss_gradient)
        : owner_(owner),
          batch_(*owner.backend, static_cast<std::size_t>(4 * shape.rows()) * sizeof(std::int32_t)),
          samples_(*owner.backend, std::max<std::size_t>(tokens.samples.size_bytes(), sizeof(std::int64_t))),
          loss_sum_(*owner.backend, sizeof(double)) {
      const View host = batch_.host(0, DType::i32, {4, shape.rows()});
      std::copy(tokens.ids.begin(), tokens.ids.end(), host.rows(0, 1).as<std::int32_t>());
      std::copy(tokens.targets.begin(), tokens.targets.end(), host.rows(1, 1).as<std::int32_t>());
      for (std::int64_t row = 0; row < shape.rows(); ++row) {
        const std::int32_t start =
            tokens.document_start.empty() ? 0 : tokens.document_start[static_cast<std::size_t>(row)];
        host.rows(2, 1).as<std::int32_t>()[row] = static_cast<std::int32_t>(row % shape.tokens) - start;
        host.rows(3, 1).as<std::int32_t>()[row] = start;
      }
      batch_.to_device(*owner.stream);
      const View device = batch_.device(0, DType::i32, {4, shape.rows()});
      const auto row = [&](std::int64_t index) { return device.rows(index, 1).reshape({shape.rows()}); };
      context_.shape = shape;
      context_.mode = mode;
      context_.ids = row(0);
      context_.targets = row(1);
      context_.positions = row(2);
      if (!tokens.document_start.empty()) context_.document_start = row(3);
      if (!tokens.samples.empty()) {
        const Shape all{static_cast<std::int64_t>(tokens.samples.size())};
        std::copy(tokens.samples.begin(), tokens.samples.end(), samples_.host(0, DType::i64, all).as<std::int64_t>());
        samples_.to_device(*owner.stream);
        context_.samples = samples_.device(0, DType::i64, all);
      }
      context_.seed = owner.seed;
      context_.loss_gradient = loss_gradient;
      context_.loss_sum = loss_sum_.device(0, DType::f64, {1});
      allocate();
    }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    std::size_t num_units() const { return owner_.model.units().size(); }

    template <class Use>
    auto with_handles(std::size_t index, Use use) {
      const Unit& unit = *owner_.model.units()[index];
      ParamStore& weights = owner_.store;
      const UnitRun run{.backend = *owner_.backend,
                        .stream = *owner_.stream,
                        .batch = context_,
                        .weights = weights.acquire(*owner_.stream, unit.index()),
                        .gradients = &weights.acquire_gradients(*owner_.stream, unit.index()),
                        .scratch = scratch_.region()};
      auto result = use(unit, run);
      weights.release_gradients(*owner_.stream, unit.index(), false);
      weights.release(unit.index());
      return result;
    }

   public:
    void forward() {
      for (std::size_t i = 0; i < num_units(); ++i) {
        saved_.push_back(with_handles(i, [&](const Unit& unit, const UnitRun& run) {
          return unit.forward(run, i == 0 ? Bundle{} : outputs_[i - 1], outputs_[i], saved_memory_[i].region());
        }));
      }
    }
    void backward() {
      for (std::size_t i = num_units(); i-- > 0;) {
        with_handles(i, [&](const Unit& unit, const UnitRun& run) {
          unit.backward(run, std::move(saved_[i]), d_outputs_[i], i == 0 ? Bundle{} : d_outputs_[i - 1],
                        work_memory_[i].region());
          return 0;
        });
      }
    }
    double loss_sum() const {
      loss_sum_.to_host(*owner_.stream);
      owner_.stream->synchronize();
      return *loss_sum_.host(0, DType::f64, {1}).as<double>();
    }

   private:
    void allocate() {
      const DType compute = owner_.backend->compute_type();
      const BundleEntry boundary = owner_.model.boundary(context_.shape, compute).at(0);
      std::size_t scratch = 0;
      for (std::size_t i = 0; i < num_units(); ++i) {
        const UnitMemory memory = owner_.model.units()[i]->memory(context_.shape, compute);
        saved_memory_.push_back(owner_.backend->allocate(memory.saved));
        work_memory_.push_back(owner_.backend->allocate(memory.work));
        scratch = std::max(scratch, memory.scratch);
        const bool is_last = i + 1 == num_units();
        for (std::vector<Bundle>* bundles : {&outputs_, &d_outputs_}) {
          bundle_memory_.push_back(owner_.backend->allocate(static_cast<std::size_t>(boundary.shape.num_elements()) *
                                                            size_of(boundary.dtype)));
          bundles->push_back(is_last ? Bundle{}
                                     : Bundle{bundle_memory_.back().view(0, boundary.dtype, boundary.shape)});
        }
      }
      scratch_ = owner_.backend->allocate(scratch);
    }

    ModelRunner& owner_;
    BatchContext context_;
    MirroredBuffer batch_;  // ids, targets, positions, starts of documents
    MirroredBuffer samples_;
    MirroredBuffer loss_sum_;
    std::vector<Buffer> saved_memory_, work_memory_, bundle_memory_;
    Buffer scratch_;
    std::vector<Bundle> outputs_, d_outputs_;
    std::vector<Saved> saved_;
  };
};

}  // namespace scaletrain
