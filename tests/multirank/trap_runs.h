// What the tests of traps share: a tiny model on any layout, and what its ranks hold and read.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/models/tiny_model.h"
#include "support/ranks/rank_trainer.h"

namespace scaletrain {

// With biases and tied embeddings; uneven masks unless said otherwise.
inline Config trap_config() {
  Config config = tiny_config({.ffn_hidden = 21, .context = 5, .vocab = 23});
  config.run.seed = 7;
  config.train.steps = 50;
  config.train.lr_schedule.warmup = 5;
  config.train.optimizer.learning_rate = 1e-2;
  config.parallel.zero = 0;
  return config;
}

struct TrapLayout {
  std::string name;
  std::int64_t data, tensor, pipeline;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int64_t chunks = 1;
  bool sequence = false;

  Config on(Config config, std::int64_t zero) const {
    config.parallel.data = data;
    config.parallel.tensor = tensor;
    config.parallel.pipeline = pipeline;
    config.parallel.schedule = schedule;
    config.parallel.chunks = chunks;
    config.parallel.sequence = sequence;
    config.parallel.zero = zero;
    return config;
  }
  // Without replicas ZeRO is refused.
  std::vector<std::int64_t> zero_stages() const {
    return data > 1 ? std::vector<std::int64_t>{0, 1, 2, 3} : std::vector<std::int64_t>{0};
  }
};

inline const std::vector<TrapLayout>& trap_layouts() {
  static const std::vector<TrapLayout> all = {
      {"data 3", 3, 1, 1},
      {"tensor 4, sequence shards", 1, 4, 1, ScheduleKind::one_f_one_b, 1, true},
      {"pipeline 4", 1, 1, 4},
      {"data 2, pipeline 2, two chunks", 2, 1, 2, ScheduleKind::interleaved, 2},
      {"data 2, tensor 2, pipeline 2, zb-h1, sequence shards", 2, 2, 2, ScheduleKind::zb_h1, 1, true},
      {"data 2, tensor 4", 2, 4, 1},
  };
  return all;
}

// Runs work(trainer, rank, world) on every rank, and gives back each one's answer.
template <class Answer, class Work>
std::vector<Answer> on_ranks(const Config& config, const PhasePlan& plan, Work work,
                             TestBackend backend = TestBackend::reference_f64, Masks masks = Masks::uneven) {
  std::vector<Answer> answers(static_cast<std::size_t>(plan.mesh.world()));
  run_ranks(plan.mesh, plan.group_facts(), [&](Rank rank, RankGroups& groups, InProcessWorld& world) {
    RankTrainer trainer(config, plan, rank, groups, backend, masks);
    answers[static_cast<std::size_t>(rank.value())] = work(trainer, rank, world);
  });
  return answers;
}

inline std::vector<double> doubles_of(ConstView view) {
  std::vector<double> values(static_cast<std::size_t>(view.num_elements()));
  convert_floats(view.dtype(), FencedMemory::of_process().values(view).data(), DType::f64, values.data(),
                 values.size());
  return values;
}

// Everything of one kind that a rank holds.
inline std::vector<double> held_values(ParamStore& store, StateKind kind, std::size_t state = 0) {
  std::vector<double> all;
  for (const ParamRange& range : store.held(kind)) {
    const std::vector<double> values = doubles_of(store.values(kind, range, state));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Everything a rank keeps from step to step.
inline std::vector<std::vector<double>> state_of(RankTrainer& trainer) {
  ParamStore& store = trainer.settled_store();
  return {held_values(store, StateKind::master), held_values(store, StateKind::optimizer, 0),
          held_values(store, StateKind::optimizer, 1)};
}

// Spoils one gradient accumulator of this rank's shard as the step's first micro-batch begins: an overflow that no
// other rank has had.
class OverflowingSource final : public MicroBatchSource {
 public:
  OverflowingSource(SyntheticSource& source, ParamStore& store, double value)
      : source_(source), store_(store), value_(value) {}

  Filled fill(MicroBatch micro_batch, const BatchTensors& tensors) override {
    if (!has_overflowed_) overflow();
    return source_.fill(micro_batch, tensors);
  }
  bool has_overflowed() const { return has_overflowed_; }

 private:
  void overflow() {
    const ShardLayout& layout = store_.layout();
    const std::int64_t tensor_degree = layout.mesh().degree(Axis::tensor);
    for (const ParamRange& range : layout.shard_ranges(layout.position().data)) {
      const Parameter& parameter = store_.table().parameters()[static_cast<std::size_t>(range.parameter)];
      // One that nobody else holds, and that is not reduced with a copy's.
      if (range.count == 0 || ParamTable::replication_degree(parameter, tensor_degree) > 1 || parameter.unit == 0 ||
          parameter.tied_to)
        continue;
      const View gradient = store_.values(StateKind::gradient, range);
      convert_floats(DType::f64, &value_, gradient.dtype(), gradient.rows(range.count - 1, 1).data(), 1);
      has_overflowed_ = true;
      return;
    }
  }

  SyntheticSource& source_;
  ParamStore& store_;
  double value_;
  bool has_overflowed_ = false;
};

// Values by what they are a part of: ranks with the same key must have the same bits.
class Agreement {
 public:
  // May be called by several threads at once.
  void add(const std::string& key, const std::vector<double>& values) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = known_.try_emplace(key, values);
    if (is_new) return;
    ++compared_[key];
    if (entry->second != values && problem_.empty()) problem_ = "ranks differ about " + key;
  }
  // What layers read: the weights of every unit, as acquire() gives them, by row (of a tied copy its owner) and box.
  // All ranks must call it.
  void add_weights(RankTrainer& trainer, TestBackend backend = TestBackend::reference_f64) {
    ParamStore& store = trainer.settled_store();
    const auto device = make_test_backend(backend);
    const auto stream = device->make_stream();
    for (const int unit : store.layout().units()) {
      const UnitWeights& weights = store.acquire(*stream, unit);
      std::map<std::string, std::int64_t> next;  // within a fused matrix
      for (const Parameter& parameter : store.table().parameters_of(unit)) {
        const ParamSpan& span = *store.layout().find(store.table().index_of(parameter.name));
        if (span.count == 0) continue;
        const std::string& name = parameter.fused.empty() ? parameter.name : parameter.fused;
        const std::string prefix = store.table().units()[static_cast<std::size_t>(unit)].name + ".";
        const std::string local = name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name;
        const std::vector<double> matrix = doubles_of(weights.find(local).values);
        std::int64_t& first = next[name];
        const auto begin = matrix.begin() + static_cast<std::ptrdiff_t>(first);
        first += span.count;
        std::string key = parameter.tied_to.value_or(parameter.name);
        for (const std::int64_t place : span.box.first) key += " " + std::to_string(place);
        for (const std::int64_t extent : span.box.extent) key += " +" + std::to_string(extent);
        add(key, {begin, begin + static_cast<std::ptrdiff_t>(span.count)});
      }
      store.release(unit);
    }
  }

  const std::string& problem() const { return problem_; }
  // How often a rank's values of a key that contains `part` were compared with another's.
  std::int64_t compared(const std::string& part) const {
    std::int64_t count = 0;
    for (const auto& entry : compared_)
      if (entry.first.find(part) != std::string::npos) count += entry.second;
    return count;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<double>> known_;
  std::map<std::string, std::int64_t> compared_;
  std::string problem_;
};

}  // namespace scaletrain
