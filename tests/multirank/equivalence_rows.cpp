#include "equivalence_rows.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "support/models/tiny_model.h"

namespace scaletrain::equivalence {

namespace {

constexpr std::int64_t max_ranks = 8;
constexpr std::int64_t head_size = 4;
constexpr std::int64_t max_layers = 8;

// Sizes that must divide are chosen for the mesh; everything else need not.
std::int64_t heads_for(std::int64_t tensor) {
  if (tensor == 3) return 6;
  return max_ranks % tensor == 0 ? max_ranks : tensor;
}

std::int64_t global_batch_for(std::int64_t data) {
  if (max_ranks % data == 0) return max_ranks;
  return data % 3 == 0 ? 12 : 2 * data;
}

bool has_chunks(const Row& row);

std::int64_t num_layers(const Row& row, std::int64_t few) {
  return row.pipeline * (has_chunks(row) ? 2 : 1) <= few ? few : max_layers;
}

bool has_replicas(const Row& row) {
  return row.data > 1;
}
bool has_tensor(const Row& row) {
  return row.tensor > 1;
}
bool has_stages(const Row& row) {
  return row.pipeline > 1;
}

Switch zero_switch() {
  Switch out{.name = "zero", .values = {}};
  for (std::int64_t stage = 0; stage <= 3; ++stage) {
    out.values.push_back({.name = std::to_string(stage),
                          .is_possible = stage == 0 ? nullptr : has_replicas,
                          .apply = [stage](const Row&, LayoutRun& run) { run.config.parallel.zero = stage; }});
  }
  for (const std::int64_t stage : {1, 3})
    out.values.push_back({.name = std::to_string(stage) + " in pairs",
                          .is_possible = [](const Row& row) { return row.data > 2 && row.data % 2 == 0; },
                          .apply =
                              [stage](const Row&, LayoutRun& run) {
                                run.config.parallel.zero = stage;
                                run.config.parallel.zero_group = 2;
                              }});
  out.values.push_back({.name = "3, gradients by the step",
                        .is_possible = [](const Row& row) { return row.data == 2; },
                        .apply =
                            [](const Row&, LayoutRun& run) {
                              run.config.parallel.zero = 3;
                              run.config.parallel.zero_reduce = ZeroReduceKind::step;
                            }});
  return out;
}

constexpr std::size_t schedule_column = 1;
constexpr std::size_t interleaved_value = 2;
bool has_chunks(const Row& row) {
  return row.values[schedule_column] == interleaved_value;
}

Switch schedule_switch() {
  const auto set = [](ScheduleKind kind, std::int64_t chunks) {
    return [kind, chunks](const Row&, LayoutRun& run) {
      run.config.parallel.schedule = kind;
      run.config.parallel.chunks = chunks;
    };
  };
  return {.name = "schedule",
          .values = {
              {.name = "1f1b", .is_possible = nullptr, .apply = set(ScheduleKind::one_f_one_b, 1)},
              {.name = "gpipe", .is_possible = has_stages, .apply = set(ScheduleKind::gpipe, 1)},
              {.name = "interleaved",
               .is_possible = [](const Row& row) { return 2 * row.pipeline <= max_layers; },
               .apply = set(ScheduleKind::interleaved, 2)},
              {.name = "zb-h1", .is_possible = has_stages, .apply = set(ScheduleKind::zb_h1, 1)},
          }};
}

Switch sequence_switch() {
  return {.name = "sequence",
          .values = {
              {.name = "off", .is_possible = nullptr, .apply = [](const Row&, LayoutRun&) {}},
              {.name = "on",
               .is_possible = has_tensor,
               .apply = [](const Row&, LayoutRun& run) { run.config.parallel.sequence = true; }},
          }};
}

Switch micro_batch_switch() {
  const auto samples = [](const Row& row) { return global_batch_for(row.data) / row.data; };
  return {.name = "micro-batches",
          .values = {
              {.name = "of one sample",
               .is_possible = nullptr,
               .apply = [](const Row&, LayoutRun& run) { run.config.train.micro_batch = 1; }},
              {.name = "fewer than stages",  // one of all samples where there is one stage
               .is_possible = [samples](const Row& row) { return samples(row) > 1; },
               .apply =
                   [samples](const Row& row, LayoutRun& run) {
                     std::int64_t count = std::max<std::int64_t>(1, row.pipeline - 1);
                     while (samples(row) % count != 0) --count;
                     run.config.train.micro_batch = samples(row) / count;
                   }},
          }};
}

Switch recompute_switch() {
  const auto set = [](RecomputeKind kind) {
    return [kind](const Row&, LayoutRun& run) { run.config.train.recompute = kind; };
  };
  return {.name = "recompute",
          .values = {{.name = "none", .is_possible = nullptr, .apply = set(RecomputeKind::none)},
                     {.name = "selective", .is_possible = nullptr, .apply = set(RecomputeKind::selective)},
                     {.name = "full", .is_possible = nullptr, .apply = set(RecomputeKind::full)}}};
}

Switch tied_switch() {
  const auto set = [](bool tied) {
    return [tied](const Row&, LayoutRun& run) { run.config.model.tie_embeddings = tied; };
  };
  return {.name = "embeddings",
          .changes_baseline = true,
          .values = {{.name = "tied", .is_possible = nullptr, .apply = set(true)},
                     {.name = "untied", .is_possible = nullptr, .apply = set(false)}}};
}

Switch family_switch() {
  return {.name = "family",
          .changes_baseline = true,
          .values = {
              {.name = "gpt2", .is_possible = nullptr, .apply = [](const Row&, LayoutRun&) {}},
              {.name = "llama",
               .is_possible = nullptr,
               .apply = [](const Row&, LayoutRun& run) { make_llama(run.config.model); }},
              {.name = "qwen2",
               .is_possible = nullptr,
               .apply =
                   [](const Row&, LayoutRun& run) {
                     make_llama(run.config.model);
                     run.config.model.qkv_bias = true;
                     run.config.model.rope_scaling = {.type = RopeScalingKind::linear, .factor = 2.0};
                   }},
              // Heads of another size than hidden / heads, together wider than hidden.
              {.name = "qwen3",
               .is_possible = nullptr,
               .apply =
                   [](const Row&, LayoutRun& run) {
                     make_llama(run.config.model);
                     run.config.model.qk_norm = true;
                     run.config.model.head_dim = head_size + 2;
                   }},
              {.name = "gemma",
               .is_possible = nullptr,
               .apply = [](const Row&, LayoutRun& run) { make_gemma(run.config.model); }},
          }};
}

Switch kv_switch() {
  const auto set = [](auto kv_heads) {
    return [kv_heads](const Row& row, LayoutRun& run) { run.config.model.kv_heads = kv_heads(row); };
  };
  const auto half = [](const Row& row) { return heads_for(row.tensor) / 2; };
  // Two where they can be divided evenly among the ranks, else one.
  const auto few = [](const Row& row) { return row.tensor % 2 == 0 ? std::max<std::int64_t>(1, row.tensor / 2) : 1; };
  return {
      .name = "key/value heads",
      .changes_baseline = true,
      .values = {
          {.name = "all", .is_possible = nullptr, .apply = set([](const Row& row) { return heads_for(row.tensor); })},
          {.name = "half",
           .is_possible =
               [half](const Row& row) {
                 return heads_for(row.tensor) % 2 == 0 && half(row) >= row.tensor && half(row) % row.tensor == 0;
               },
           .apply = set(half)},
          {.name = "fewer than ranks", .is_possible = has_tensor, .apply = set(few)},
      }};
}

Switch sizes_switch() {
  const auto set = [](std::int64_t vocab, std::int64_t ffn, std::int64_t context, std::int64_t layers) {
    return [=](const Row& row, LayoutRun& run) {
      ModelConfig& model = run.config.model;
      model.vocab = vocab;
      model.ffn_hidden = ffn;
      model.context = context;
      model.layers = num_layers(row, layers);
    };
  };
  return {.name = "sizes",
          .changes_baseline = true,
          .values = {
              {.name = "round", .is_possible = nullptr, .apply = set(64, 64, 12, 4)},
              {.name = "prime", .is_possible = nullptr, .apply = set(61, 53, 11, 5)},
          }};
}

Switch mask_switch() {
  const auto set = [](Masks masks) { return [masks](const Row&, LayoutRun& run) { run.masks = masks; }; };
  return {.name = "masks",
          .changes_baseline = true,
          .values = {{.name = "uneven", .is_possible = nullptr, .apply = set(Masks::uneven)},
                     {.name = "none", .is_possible = nullptr, .apply = set(Masks::none)}}};
}

Switch document_switch() {
  const auto set = [](DocumentAttention attention) {
    return [attention](const Row&, LayoutRun& run) { run.config.data.documents.attention = attention; };
  };
  return {.name = "attention",
          .changes_baseline = true,
          .values = {{.name = "across documents", .is_possible = nullptr, .apply = set(DocumentAttention::across)},
                     {.name = "within documents", .is_possible = nullptr, .apply = set(DocumentAttention::within)}}};
}

Switch loss_switch() {
  const auto set = [](double label_smoothing, double z_loss) {
    return [=](const Row&, LayoutRun& run) {
      run.config.train.label_smoothing = label_smoothing;
      run.config.train.z_loss = z_loss;
    };
  };
  return {.name = "loss",
          .changes_baseline = true,
          .values = {{.name = "cross-entropy", .is_possible = nullptr, .apply = set(0.0, 0.0)},
                     {.name = "of smoothed labels, and z-loss", .is_possible = nullptr, .apply = set(0.1, 0.01)}}};
}

Switch finetune_switch() {
  return {.name = "trained",
          .changes_baseline = true,
          .values = {
              {.name = "everything alike", .is_possible = nullptr, .apply = [](const Row&, LayoutRun&) {}},
              // Frozen: a whole block, and of the others a weight whose bias is trained and a norm; the tied tensor's
              // copies.
              {.name = "parts, with rates and decays of their own",
               .is_possible = nullptr,
               .apply =
                   [](const Row&, LayoutRun& run) {
                     run.config.finetune.freeze = {"embedding.token.*", "blocks.0.*", "*.ffn.down.weight",
                                                   "*.attention_norm.weight"};
                     run.config.finetune.learning_rates = {{"blocks.*.weight", 0.5}, {"*_norm.weight", 2.0}};
                     run.config.finetune.layer_decay = 0.75;
                     run.config.finetune.weight_decays = {
                         {"*.attention.*", 0.0}, {"*.up.weight", 3.0}, {"*_norm.weight", 2.0}};
                   }},
              // Of fused maps some and all; maps whose outputs and whose inputs are divided.
              {.name = "adapters of all maps",
               .is_possible = nullptr,
               .apply = [](const Row&,
                           LayoutRun& run) { run.config.finetune.lora = LoraConfig{.rank = 3, .alpha = 12.0}; }},
              {.name = "adapters of some maps",
               .is_possible = nullptr,
               .apply =
                   [](const Row&, LayoutRun& run) {
                     const bool llama = run.config.model.norm == NormKind::rmsnorm;
                     run.config.finetune.lora = LoraConfig{.rank = 2, .alpha = 8.0};
                     run.config.finetune.lora->targets =
                         llama ? std::vector<std::string>{"v_proj", "k_proj", "o_proj", "gate_proj"}
                               : std::vector<std::string>{"c_attn", "mlp.c_proj"};
                   }},
          }};
}

// Behind what trains: adapters have one of their own.
Switch dropout_switch() {
  return {.name = "dropout",
          .changes_baseline = true,
          .values = {{.name = "none", .is_possible = nullptr, .apply = [](const Row&, LayoutRun&) {}},
                     {.name = "everywhere", .is_possible = nullptr, .apply = [](const Row&, LayoutRun& run) {
                        run.config.model.embedding_dropout = 0.1;
                        run.config.model.attention_dropout = 0.2;
                        run.config.model.residual_dropout = 0.15;
                        if (run.config.finetune.lora) run.config.finetune.lora->dropout = 0.25;
                      }}}};
}

Switch stream_switch() {
  const auto set = [](TestBackend backend) { return [backend](const Row&, LayoutRun& run) { run.backend = backend; }; };
  return {.name = "streams",
          .values = {{.name = "at once", .is_possible = nullptr, .apply = set(TestBackend::cpu)},
                     {.name = "late", .is_possible = nullptr, .apply = set(TestBackend::late_cpu)},
                     {.name = "late and fenced", .is_possible = nullptr, .apply = set(TestBackend::fenced_cpu)}}};
}

Switch offload_switch() {
  const auto set = [](OffloadKind offload) {
    return [offload](const Row&, LayoutRun& run) { run.config.train.optimizer.offload = offload; };
  };
  return {.name = "offload",
          .values = {{.name = "none", .is_possible = nullptr, .apply = set(OffloadKind::none)},
                     {.name = "host", .is_possible = nullptr, .apply = set(OffloadKind::host)}}};
}

Switch reduce_switch() {
  const auto set = [](Precision reduce) {
    return [reduce](const Row&, LayoutRun& run) { run.config.precision.reduce = reduce; };
  };
  return {.name = "sums over replicas",
          .values = {{.name = "fp32", .is_possible = nullptr, .apply = set(Precision::fp32)},
                     {.name = "bf16", .is_possible = has_replicas, .apply = set(Precision::bf16)}}};
}

std::vector<Row> all_meshes() {
  std::vector<Row> out;
  for (std::int64_t data = 1; data <= max_ranks; ++data)
    for (std::int64_t tensor = 1; data * tensor <= max_ranks; ++tensor)
      for (std::int64_t pipeline = 1; data * tensor * pipeline <= max_ranks; ++pipeline)
        out.push_back({.data = data, .tensor = tensor, .pipeline = pipeline, .values = {}});
  return out;
}

std::size_t mesh_index(const Row& row) {
  const auto found =
      std::find_if(meshes().begin(), meshes().end(), [&](const Row& mesh) { return same_mesh(row, mesh); });
  return static_cast<std::size_t>(found - meshes().begin());
}

constexpr std::size_t open_value = std::numeric_limits<std::size_t>::max();

// (column, value, column, value), the lower column first; the mesh is the column behind the last switch.
using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

// Finds the rows. A row is grown from a pair that is still missing, switch by switch, each time by the value that
// covers the most: the time this takes grows with the number of pairs, not with that of all rows there could be.
class Cover {
 public:
  explicit Cover(const std::vector<Switch>& all) : switches_(all) {
    for (const Row& mesh : meshes()) {
      for (std::size_t a = 0; a < count(); ++a) {
        for_each_value(mesh, a, [&](std::size_t value_a) {
          missing_.insert({a, value_a, count(), mesh_index(mesh)});
          for (std::size_t b = a + 1; b < count(); ++b)
            for_each_value(mesh, b, [&](std::size_t value_b) { missing_.insert({a, value_a, b, value_b}); });
        });
      }
    }
  }

  std::vector<Row> take() {
    for (const Row& mesh : meshes()) {
      const std::size_t own = mesh_index(mesh);
      const auto is_own = [&](const Pair& pair) { return std::get<2>(pair) == count() && std::get<3>(pair) == own; };
      while (std::any_of(missing_.begin(), missing_.end(), is_own)) {
        Best best;
        for (const Pair& pair : missing_)
          if (is_own(pair)) best.offer(*this, grow(mesh, pair));
        add(best.row);
      }
    }
    while (!missing_.empty()) {
      Best best;
      for (const Row& mesh : meshes())
        if (allows(mesh, *missing_.begin())) best.offer(*this, grow(mesh, *missing_.begin()));
      SCALETRAIN_CHECK(best.covered > 0);
      add(best.row);
    }
    return std::move(rows_);
  }

 private:
  // Of several rows the first that covers the most.
  struct Best {
    void offer(const Cover& cover, Row candidate) {
      std::size_t own = 0;
      cover.for_each_pair(candidate, [&](const Pair& pair) { own += cover.missing_.count(pair); });
      if (own <= covered) return;
      covered = own;
      row = std::move(candidate);
    }
    Row row{};
    std::size_t covered = 0;
  };

  std::size_t count() const { return switches_.size(); }
  bool is_allowed(const Row& mesh, std::size_t which, std::size_t value) const {
    const SwitchValue& own = switches_[which].values[value];
    return !own.is_possible || own.is_possible(mesh);
  }
  bool allows(const Row& mesh, const Pair& pair) const {
    const auto [a, value_a, b, value_b] = pair;
    return is_allowed(mesh, a, value_a) && (b == count() || is_allowed(mesh, b, value_b));
  }
  template <class Visit>
  void for_each_value(const Row& mesh, std::size_t which, Visit visit) const {
    for (std::size_t value = 0; value < switches_[which].values.size(); ++value)
      if (is_allowed(mesh, which, value)) visit(value);
  }
  template <class Visit>
  void for_each_pair(const Row& row, Visit visit) const {
    for (std::size_t a = 0; a < count(); ++a) {
      for (std::size_t b = a + 1; b < count(); ++b) visit(Pair{a, row.values[a], b, row.values[b]});
      visit(Pair{a, row.values[a], count(), mesh_index(row)});
    }
  }

  Row grow(Row row, const Pair& seed) const {
    row.values.assign(count(), open_value);
    const auto [a, value_a, b, value_b] = seed;
    row.values[a] = value_a;
    if (b < count()) row.values[b] = value_b;
    for (std::size_t i = 1; i <= count(); ++i) {
      const std::size_t which = (a + i) % count();
      if (row.values[which] != open_value) continue;
      // First what it covers now, then what it could cover with switches that are still open.
      std::pair<std::size_t, std::size_t> most{0, 0};
      for_each_value(row, which, [&](std::size_t value) {
        const std::pair<std::size_t, std::size_t> own{num_covered(row, which, value), num_missing(which, value)};
        if (row.values[which] != open_value && own <= most) return;
        row.values[which] = value;
        most = own;
      });
    }
    return row;
  }
  std::size_t num_covered(const Row& row, std::size_t which, std::size_t value) const {
    std::size_t covered = missing_.count({which, value, count(), mesh_index(row)});
    for (std::size_t other = 0; other < count(); ++other) {
      if (other == which || row.values[other] == open_value) continue;
      covered += other < which ? missing_.count({other, row.values[other], which, value})
                               : missing_.count({which, value, other, row.values[other]});
    }
    return covered;
  }
  std::size_t num_missing(std::size_t which, std::size_t value) const {
    std::size_t found = 0;
    for (const Pair& pair : missing_) {
      const auto [a, value_a, b, value_b] = pair;
      found += (a == which && value_a == value) || (b == which && value_b == value);
    }
    return found;
  }

  void add(const Row& row) {
    for_each_pair(row, [&](const Pair& pair) { missing_.erase(pair); });
    rows_.push_back(row);
  }

  const std::vector<Switch>& switches_;
  std::set<Pair> missing_;
  std::vector<Row> rows_;
};

void apply_switches(const Row& row, bool only_baseline, LayoutRun& run) {
  for (std::size_t which = 0; which < switches().size(); ++which) {
    const Switch& own = switches()[which];
    if (own.changes_baseline || !only_baseline) own.values[row.values[which]].apply(row, run);
  }
}

LayoutRun base_run(const Row& row) {
  LayoutRun run;
  run.backend = TestBackend::cpu;
  Config& config = run.config;
  config.run.seed = 5;
  config.model.heads = heads_for(row.tensor);
  config.model.hidden = config.model.heads * head_size;
  config.model.init.std = 0.1;
  config.train.global_batch = global_batch_for(row.data);
  config.train.micro_batch = 1;
  config.train.steps = 50;
  config.train.lr_schedule.warmup = 10;
  config.train.optimizer.learning_rate = 1e-3;
  config.parallel.zero = 0;
  return run;
}

}  // namespace

const std::vector<Switch>& switches() {
  static const std::vector<Switch> all = {
      zero_switch(),    schedule_switch(), sequence_switch(), micro_batch_switch(), tied_switch(),      family_switch(),
      kv_switch(),      sizes_switch(),    mask_switch(),     stream_switch(),      recompute_switch(), reduce_switch(),
      offload_switch(), document_switch(), finetune_switch(), loss_switch(),        dropout_switch()};
  return all;
}

const std::vector<Row>& meshes() {
  static const std::vector<Row> all = all_meshes();
  return all;
}

bool same_mesh(const Row& a, const Row& b) {
  return a.data == b.data && a.tensor == b.tensor && a.pipeline == b.pipeline;
}

std::vector<Row> make_rows(const std::vector<Switch>& all) {
  return Cover(all).take();
}

std::string text(const Row& row) {
  std::string out = "data " + std::to_string(row.data) + " x tensor " + std::to_string(row.tensor) + " x pipeline " +
                    std::to_string(row.pipeline);
  for (std::size_t which = 0; which < row.values.size(); ++which)
    out += ", " + switches()[which].name + " " + switches()[which].values[row.values[which]].name;
  return out;
}

LayoutRun run_of(const Row& row) {
  LayoutRun run = base_run(row);
  run.config.parallel.data = row.data;
  run.config.parallel.tensor = row.tensor;
  run.config.parallel.pipeline = row.pipeline;
  apply_switches(row, false, run);
  return run;
}

LayoutRun baseline_of(const Row& row) {
  LayoutRun run = base_run(row);
  apply_switches(row, true, run);
  return run;
}

LayoutRun in_half(LayoutRun run, DType half) {
  const bool is_bf16 = half == DType::bf16;
  if (run.backend == TestBackend::cpu) {
    run.backend = is_bf16 ? TestBackend::cpu_bf16 : TestBackend::cpu_f16;
  } else if (run.backend == TestBackend::late_cpu) {
    run.backend = is_bf16 ? TestBackend::late_cpu_bf16 : TestBackend::late_cpu_f16;
  } else {
    SCALETRAIN_CHECK(run.backend == TestBackend::fenced_cpu);
    run.backend = is_bf16 ? TestBackend::fenced_cpu_bf16 : TestBackend::fenced_cpu_f16;
  }
  if (!is_bf16) run.config.precision.loss_scale = 1024;
  return run;
}

std::string baseline_key(const Row& row) {
  const LayoutRun run = baseline_of(row);
  const ModelConfig& model = run.config.model;
  std::string key;
  for (const std::int64_t number : {model.layers, model.heads, model.kv_heads, run.config.train.global_batch})
    key += std::to_string(number) + " ";
  for (std::size_t which = 0; which < switches().size(); ++which)
    if (switches()[which].changes_baseline && switches()[which].name != "key/value heads")
      key += std::to_string(row.values[which]) + " ";
  return key;
}

}  // namespace scaletrain::equivalence
