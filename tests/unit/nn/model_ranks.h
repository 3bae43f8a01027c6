// A small model whose units a group of tensor ranks, threads of this process, run together; and what they computed.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model_fixture.h"
#include "support/ranks/ranks.h"

namespace scaletrain {

// Eight heads, so that eight tensor ranks have one each; ffn and vocabulary divide by none of the degrees, and leave
// nothing to the last of eight ranks.
inline ModelSpec gpt2_of_eight_heads() {
  ModelSpec spec = tiny_gpt2();
  spec.hidden = 16;
  spec.heads = 8;
  spec.kv_heads = 8;
  spec.head_size = 2;
  spec.ffn_hidden = 11;
  spec.vocab = 11;
  return spec;
}

inline ModelSpec llama_of_eight_heads(std::int64_t kv_heads) {
  ModelSpec spec = gpt2_of_eight_heads();
  spec.kv_heads = kv_heads;
  spec.ffn_hidden = 13;
  spec.vocab = 9;
  spec.norm = NormKind::rmsnorm;
  spec.activation = ActivationKind::swiglu;
  spec.position = PositionKind::rope;
  spec.bias = spec.qkv_bias = false;
  spec.tie_embeddings = false;
  return spec;
}

// Heads twice as wide as hidden in all, with norms of their own.
inline ModelSpec qwen3_of_eight_heads(std::int64_t kv_heads) {
  ModelSpec spec = llama_of_eight_heads(kv_heads);
  spec.head_size = 4;
  spec.qk_norm = true;
  return spec;
}

// All of Gemma's: every second layer sees all, the others three tokens.
inline ModelSpec gemma_of_eight_heads(std::int64_t kv_heads) {
  ModelSpec spec = qwen3_of_eight_heads(kv_heads);
  spec.activation = ActivationKind::geglu;
  spec.tie_embeddings = true;
  spec.post_norm = spec.scale_embeddings = true;
  spec.norm_weight_offset = 1.0;
  spec.attention_softcap = 0.8;
  spec.logit_softcap = 0.9;
  spec.window = 3;
  spec.global_every = 2;
  spec.window_rope_theta = 50.0;
  return spec;
}

struct Style {
  std::string name;
  ModelSpec spec;
};

inline std::vector<Style> styles() {
  std::vector<Style> all{{"GPT-2, tied", gpt2_of_eight_heads()},
                         {"GPT-2, untied, a gate with bias", gpt2_of_eight_heads()},
                         {"Llama, 2 key/value heads", llama_of_eight_heads(2)},
                         {"Llama, 4 key/value heads, tied, with bias", llama_of_eight_heads(4)},
                         {"Qwen3, 2 key/value heads", qwen3_of_eight_heads(2)},
                         {"Qwen2, 4 key/value heads", llama_of_eight_heads(4)},
                         {"Gemma, 2 key/value heads", gemma_of_eight_heads(2)},
                         {"GPT-2 with dropout", with_dropout(gpt2_of_eight_heads())},
                         {"Gemma with dropout", with_dropout(gemma_of_eight_heads(2))}};
  all[1].spec.tie_embeddings = false;
  all[1].spec.activation = ActivationKind::swiglu;
  all[3].spec.tie_embeddings = true;
  all[3].spec.bias = all[3].spec.qkv_bias = true;
  all[5].spec.qkv_bias = true;
  return all;
}

// What the ranks of a model computed, put together.
struct Outcome {
  std::vector<double> losses;  // of evaluation and training, of every rank
  std::map<std::string, std::vector<double>> values;
  double disagreement = 0.0;  // between ranks that hold the same element
};

// One rank's contribution.
struct RankOutcome {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> gradients;
  std::vector<std::vector<double>> bundles;  // own rows: the last hidden state, then every unit's output gradient
};

struct ModelRun {
  ModelSpec spec;
  BatchShape shape;
  std::int64_t degree = 1;
  bool sequence = false;
  BackwardForm form = BackwardForm::whole;
  RecomputeKind recompute = RecomputeKind::none;
  std::function<std::unique_ptr<Backend>()> make_backend = [] { return make_reference_backend(DType::f64); };
};

inline RankOutcome run_rank(const ModelRun& run, const TestRank& rank) {
  TestModel model(run.spec, run.make_backend(), {}, rank);
  model.randomise();
  TestBatch batch(run.spec, run.shape);
  batch.add_document(2);
  ModelHarness harness(model, batch);
  RankOutcome outcome;
  outcome.losses.push_back(harness.evaluate());
  outcome.bundles.push_back(to_doubles(harness.hidden()));
  outcome.losses.push_back(harness.train(run.form));
  model.store.finish_gradients(*model.stream, all_units(model.table));
  model.store.settle(*model.stream);
  outcome.gradients = model.gradients();
  if (run.form == BackwardForm::whole) {
    for (std::size_t unit = 0; unit + 1 < model.model.units().size(); ++unit)
      outcome.bundles.push_back(to_doubles(harness.d_output(unit)));
  }
  return outcome;
}

inline Outcome put_together(const ModelSpec& spec, std::int64_t degree, const std::vector<RankOutcome>& ranks,
                            bool has_shards) {
  Outcome whole;
  for (const RankOutcome& rank : ranks) whole.losses.insert(whole.losses.end(), rank.losses.begin(), rank.losses.end());
  const auto merge = [&](double& place, double value, bool& is_set) {
    if (is_set) whole.disagreement = std::max(whole.disagreement, std::abs(place - value));
    place = value;
    is_set = true;
  };
  const ParamTable table = make_param_table(spec, {});
  for (const Parameter& parameter : table.parameters()) {
    const auto count = static_cast<std::size_t>(parameter.shape.num_elements());
    std::vector<double>& values = whole.values[parameter.name];
    values.resize(count);
    std::vector<char> is_set(count, 0);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      for_each_element(parameter.shape, ParamTable::box_of(parameter, degree, static_cast<std::int64_t>(rank)),
                       [&](std::size_t local, std::size_t global) {
                         bool was_set = is_set[global] != 0;
                         merge(values[global], ranks[rank].gradients.at(parameter.name).at(local), was_set);
                         is_set[global] = 1;
                       });
    if (std::count(is_set.begin(), is_set.end(), 0) != 0) values.clear();  // a comparison will say so
  }
  for (std::size_t i = 0; i < ranks[0].bundles.size(); ++i) {
    std::vector<double>& values = whole.values["bundle " + std::to_string(i)];
    for (const RankOutcome& rank : ranks) {
      if (has_shards || values.empty()) {
        values.insert(values.end(), rank.bundles[i].begin(), rank.bundles[i].end());
        continue;
      }
      for (std::size_t e = 0; e < values.size(); ++e)
        whole.disagreement = std::max(whole.disagreement, std::abs(values[e] - rank.bundles[i].at(e)));
    }
  }
  return whole;
}

inline GroupFacts facts_of(const ModelSpec& spec) {
  return {.kv_heads = spec.kv_heads, .tied = spec.tie_embeddings};
}

// Runs use(rank of the tensor group, TestRank) on a thread for each; one rank has no group.
template <class Use>
void on_tensor_ranks(const ModelSpec& spec, std::int64_t degree, bool sequence, Use use) {
  if (degree == 1) return use(std::size_t{0}, TestRank{});
  run_ranks(Mesh(1, degree, 1), facts_of(spec), [&](Rank rank, RankGroups& groups, InProcessWorld&) {
    const TestRank test_rank{.part = {.degree = degree, .rank = rank.value(), .sequence = sequence}, .groups = &groups};
    use(static_cast<std::size_t>(rank.value()), test_rank);
  });
}

inline Outcome run_model(const ModelRun& run) {
  std::vector<RankOutcome> ranks(static_cast<std::size_t>(run.degree));
  on_tensor_ranks(run.spec, run.degree, run.sequence, [&](std::size_t index, TestRank rank) {
    rank.recompute = run.recompute;
    ranks[index] = run_rank(run, rank);
  });
  return put_together(run.spec, run.degree, ranks, run.sequence && run.degree > 1);
}

}  // namespace scaletrain
