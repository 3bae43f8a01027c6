// The contract of units: what they hold, how much memory they use, what they add to.
#include "nn/unit.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <variant>

#include "model_ranks.h"
#include "nn/block_tensors.h"
#include "support/forwarding_backend.h"
#include "support/near.h"

using namespace scaletrain;

namespace {

// Bytes of the largest region in which a call succeeds must be exactly what memory() says: one line less is refused.
Region shortened(const PoisonedRegion& region) {
  const Region whole = region.region();
  return {whole.data, whole.size - buffer_alignment};
}

struct Bundles {
  Bundles(const ModelSpec& spec, BatchShape shape, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      memory.emplace_back(std::size_t(shape.rows() * spec.hidden) * sizeof(double));
      bundles.push_back({memory.back().view(DType::f64, {shape.rows(), spec.hidden})});
      const std::vector<double> values = normal_values("bundle", std::size_t(shape.rows() * spec.hidden), 0.0f, 1.0f);
      std::copy(values.begin(), values.end(), bundles.back().hidden.as<double>());
    }
  }
  std::vector<PoisonedRegion> memory;
  std::vector<Bundle> bundles;
};

// What the backwards of attention were lent, by all ranks.
struct LentSums {
  std::atomic<int> backwards{0};
  std::atomic<int> lent{0};  // of the right type and shape
};

// The memory that a backward of attention is lent holds NaNs before it and behind it: whatever else lies there is lost.
class SpoilingBackend final : public ForwardingBackend {
 public:
  SpoilingBackend(std::unique_ptr<Backend> spoiled, const AttentionWorkspace& workspace, LentSums& seen)
      : ForwardingBackend(std::move(spoiled)), workspace_(workspace), seen_(seen) {}
  AttentionWorkspace attention_workspace() const override { return workspace_; }

 private:
  void launch(Stream& stream, const Operation& op) override {
    const auto* const attention = std::get_if<AttentionBackward>(&op);
    if (attention == nullptr) return inner().run(stream, op);
    const AttentionShape& shape = attention->shape;
    const View& sums = attention->workspace;
    ++seen_.backwards;
    seen_.lent += sums && sums.dtype() == DType::f32 && sums.shape() == Shape{workspace_.lent(shape)};
    spoil(sums);
    inner().run(stream, op);
    spoil(sums);
  }

  static void spoil(const View& memory) {
    if (memory) std::memset(memory.data(), 0xFF, memory.num_bytes());
  }

  AttentionWorkspace workspace_;
  LentSums& seen_;
};

// Every backward of attention of the run is lent such memory in halves and none in fp32, and no number changes.
void check_lent_sums(const ModelRun& run, const AttentionWorkspace& workspace, DType compute) {
  const auto make_backend = [compute] { return make_cpu_backend({.threads = 1, .compute = compute}); };
  LentSums seen;
  ModelRun plain = run;
  plain.make_backend = make_backend;
  ModelRun spoiled = run;
  spoiled.make_backend = [&] { return std::make_unique<SpoilingBackend>(make_backend(), workspace, seen); };
  const Outcome expected = run_model(plain);
  const Outcome found = run_model(spoiled);
  CHECK(seen.backwards == static_cast<int>(run.degree * run.spec.layers));
  CHECK(seen.lent == (compute == DType::f32 ? 0 : seen.backwards.load()));
  CHECK(found.losses == expected.losses);
  for (const auto& entry : expected.values) {
    CAPTURE(entry.first);
    CHECK(largest(entry.second) > 0.0);
    CHECK(found.values.at(entry.first) == entry.second);
  }
}

}  // namespace

TEST_CASE("memory() is what the passes use: exactly that is enough, one cache line less is refused") {
  for (const int variant : {0, 1, 2, 3, 4, 5}) {
    const bool is_llama = variant % 2 == 1;
    const auto recompute = static_cast<RecomputeKind>(variant / 2);
    CAPTURE(to_text(recompute));
    const ModelSpec spec = is_llama ? tiny_llama() : with_dropout(tiny_gpt2());
    const BatchShape shape{2, 5};
    TestModel model(spec, make_reference_backend(DType::f64), {}, {.part = {}, .recompute = recompute});
    model.randomise();
    TestBatch batch(spec, shape);
    Bundles b(spec, shape, 4);
    for (const int index : {0, 1, 3}) {
      CAPTURE(is_llama);
      CAPTURE(index);
      UnitHarness harness(model, index, batch);
      const Bundle input = index == 0 ? Bundle{} : b.bundles[0];
      const Bundle output = index == 3 ? Bundle{} : b.bundles[1];
      const Bundle d_output = index == 3 ? Bundle{} : b.bundles[2];
      const Bundle d_input = index == 0 ? Bundle{} : b.bundles[3];
      const Unit& unit = harness.unit();
      if (harness.memory().saved != 0) {
        CHECK_THROWS_AS(harness.with_run(Mode::train,
                                         [&](const UnitRun& run) {
                                           return unit.forward(run, input, output, shortened(harness.saved));
                                         }),
                        BugError);
      }
      Saved saved = harness.forward(Mode::train, input, output);
      CHECK_THROWS_AS(harness.with_run(Mode::train,
                                       [&](const UnitRun& run) {
                                         return unit.backward_input(run, std::move(saved), d_output, d_input,
                                                                    shortened(harness.work));
                                       }),
                      BugError);
      CHECK(harness.memory().work != 0);
      if (harness.memory().scratch == 0) continue;
      Saved again = harness.forward(Mode::train, input, output);
      const Region small = shortened(harness.scratch);
      harness.scratch_override = &small;
      CHECK_THROWS_AS(harness.backward(BackwardForm::whole, std::move(again), d_output, d_input), BugError);
    }
  }
}

TEST_CASE("what a block saves is what its formula says") {
  // GPT-2 124M, B=4, T=1024, f32: two norms (C + 2), qkv 3C, attention C, log-sum-exp H, middle C, ffn 2·4C per token.
  const Transformer model(wide_gpt2());
  const UnitMemory block = model.units()[1]->memory({4, 1024}, DType::f32);
  CHECK(block.saved == std::size_t(4096) * 4 * (2 * (768 + 2) + 3 * 768 + 768 + 12 + 768 + 8 * 768));
  CHECK(block.scratch == std::size_t(4096) * 4 * 3072);
  const UnitMemory head = model.units()[3]->memory({4, 1024}, DType::f32);
  CHECK(head.scratch == std::size_t(256) * 4 * 50257 + 64);  // logits of four panels of rows, and a loss
  CHECK(head.scratch <= block.scratch * 103 / 100);
  CHECK(model.units()[0]->memory({4, 1024}, DType::f32).saved == 0);
}

TEST_CASE("the gradients of a half's queries are summed in memory that nothing needs by then") {
  const BatchShape shape{2, 16};
  ModelSpec spec = wide_gpt2();
  const auto sums_of = [&](DType compute, bool& in_pre_activation, std::size_t& scratch_bytes) {
    const BlockExtent extent{spec, {}, shape, compute};
    RegionAllocator counting = RegionAllocator::counting();
    carve_block(counting, extent);
    const Buffer saved(counting.used());
    RegionAllocator saved_region(saved.region());
    const BlockTensors tensors = carve_block(saved_region, extent);
    scratch_bytes = Transformer(spec).units()[1]->memory(shape, compute).scratch;
    const Buffer scratch(scratch_bytes);
    RegionAllocator scratch_region(scratch.region());
    const View sums = attention_workspace(extent, tensors, carve_block_scratch(scratch_region, extent));
    in_pre_activation = sums.data() == tensors.pre_activation.data();
    if (in_pre_activation) CHECK(sums.num_bytes() <= tensors.pre_activation.num_bytes());
    return sums;
  };
  bool in_pre_activation = false;
  std::size_t bytes = 0;
  CHECK(!sums_of(DType::f32, in_pre_activation, bytes));
  for (const DType half : {DType::bf16, DType::f16}) {
    CAPTURE(int(half));
    spec = wide_gpt2();
    View sums = sums_of(half, in_pre_activation, bytes);
    CHECK(sums.dtype() == DType::f32);
    CHECK(sums.shape() == Shape{2 * 16 * 12 * 64});
    CHECK(in_pre_activation);
    CHECK(bytes == 32 * 3072 * 2);
    spec.ffn_hidden = 2 * 768 - 1;  // an element too few
    sums = sums_of(half, in_pre_activation, bytes);
    CHECK(sums.dtype() == DType::f32);
    CHECK(!in_pre_activation);
    CHECK(bytes == 32 * (2304 * 2 + 768 * 4));
  }
}

TEST_CASE("the backward of attention on a GPU works in scratch of its own, of the size that its library asks for") {
  const BatchShape shape{1, 512};
  const ModelSpec spec = wide_gpt2();
  const AttentionWorkspace workspace = {.keeps_scores = true, .least_queries = 128};
  const Transformer model(spec, {}, RecomputeKind::none, {}, workspace);
  for (const DType compute : {DType::f32, DType::bf16}) {
    const BlockExtent extent{spec, {}, shape, compute, RecomputeKind::none, workspace};
    RegionAllocator counting = RegionAllocator::counting();
    const BlockTensors tensors = carve_block(counting, extent);
    RegionAllocator scratch = RegionAllocator::counting();
    const BlockScratch carved = carve_block_scratch(scratch, extent);
    CHECK(model.units()[1]->memory(shape, compute).scratch == scratch.used());
    const std::size_t wide = 512 * 3072 * size_of(compute);
    if (compute == DType::f32) {
      CHECK(scratch.used() == wide);
      CHECK(!attention_workspace(extent, tensors, carved));
      continue;
    }
    // Halves for 512 keys of 512 rows of 12 heads, a number for each row of a head, and 128 to align them.
    CHECK(carved.attention_workspace.shape() == Shape{512 * 12 * (512 / 2 + 1) + 128});
    CHECK(scratch.used() == wide + 4 * (512 * 12 * (512 / 2 + 1) + 128));
    CHECK(attention_workspace(extent, tensors, carved).shape() == carved.attention_workspace.shape());
  }
}

TEST_CASE("every backward of attention in halves is lent memory for its queries' sums, which holds nothing else") {
  // The sums lie in scratch, for there are few ffn features; and where the forward kept its pre-activation.
  const ModelSpec few_features = gpt2_of_eight_heads();
  ModelSpec many_features = llama_of_eight_heads(2);
  many_features.ffn_hidden = 40;
  for (const ModelSpec& spec : {few_features, many_features}) {
    for (const std::int64_t degree : {1, 2}) {
      for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full}) {
        for (const BackwardForm form : {BackwardForm::whole, BackwardForm::split}) {
          for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
            CAPTURE(to_text(spec.activation));
            CAPTURE(degree);
            CAPTURE(to_text(recompute));
            CAPTURE(int(form));
            CAPTURE(to_text(compute));
            // What a processor asks for, and what a GPU does: more than fits where the pre-activation was.
            for (const AttentionWorkspace& workspace : {AttentionWorkspace{}, AttentionWorkspace{.keeps_scores = true}})
              check_lent_sums({.spec = spec,
                               .shape = {2, 5},
                               .degree = degree,
                               .sequence = degree > 1,
                               .form = form,
                               .recompute = recompute},
                              workspace, compute);
          }
        }
      }
    }
  }
}

TEST_CASE("the head's chunks take about 32 MiB of logits or a block's scratch and cover any batch") {
  CHECK(head_chunk_rows(4096, 50257, 0) == 160);
  CHECK(head_chunk_rows(4096, 50257, 4096 * 3072) == 256);  // 250 rows would fit: four panels
  CHECK(head_chunk_rows(65536, 50257, 65536 * 3072) == 512);
  CHECK(head_chunk_rows(100, 257, 0) == 100);
  CHECK(head_chunk_rows(1, 50257, 3072) == 1);
  for (const std::int64_t vocab : {2, 257, 32000, 50257, 128256, 500000})
    for (const std::int64_t rows : {1, 15, 17, 160, 161, 1000, 4096, 100003})
      for (const std::int64_t ffn : {0, 128, 3072, 14336}) {
        const std::int64_t chunk = head_chunk_rows(rows, vocab, rows * ffn);
        CHECK(chunk >= 1);
        CHECK(chunk <= rows);
        CHECK(6 * chunk * vocab <= 7 * std::max<std::int64_t>(8 << 20, rows * ffn));
      }
  CHECK(head_chunk_rows(1000, 10000000, 0) == 16);  // products of fewer rows would cost more than the memory does
  // A GPU is full with more of them: 384 MiB of halves.
  const ScratchRows of_gpu = ScratchRows::aligned_to(64);
  CHECK(head_chunk_rows(65536, 50257, 65536 * 3072, of_gpu) == 3904);  // 17 chunks
  CHECK(head_chunk_rows(65536, 128256, 65536 * 3072, of_gpu) == 1600);
}

TEST_CASE("the head's chunks do not change loss or gradients") {
  // 300 000 entries: chunks of 16 of the 40 rows. The same rows in three batches of one chunk each must give the same.
  ModelSpec spec = tiny_gpt2();
  spec.hidden = 2;
  spec.heads = 1;
  spec.kv_heads = 1;
  spec.head_size = 2;
  spec.layers = 1;
  spec.vocab = 300000;
  spec.context = 40;
  REQUIRE(head_chunk_rows(40, spec.vocab, 40 * spec.ffn_hidden) == 16);
  TestModel model(spec, make_reference_backend(DType::f64));
  model.randomise();
  TestBatch batch(spec, {1, 40});
  Bundles b(spec, batch.shape, 2);
  UnitHarness harness(model, 2, batch);
  const auto train = [&](UnitHarness& unit, const Bundle& input, const Bundle& d_input) {
    Saved saved = unit.forward(Mode::train, input, {});
    unit.backward(BackwardForm::whole, std::move(saved), {}, d_input);
  };
  train(harness, b.bundles[0], b.bundles[1]);
  const double loss = batch.loss_sum;
  const std::vector<double> d_input = to_doubles(b.bundles[1].hidden);
  const std::vector<double> d_weight = to_doubles(model.store.gradient("embedding.token.weight"));

  model.store.zero_gradients(*model.stream);
  double sum = 0.0;
  for (const std::int64_t first : {0, 16, 32}) {
    const std::int64_t count = std::min<std::int64_t>(16, 40 - first);
    TestBatch piece(spec, {1, count});
    piece.targets.assign(batch.targets.begin() + first, batch.targets.begin() + first + count);
    UnitHarness one(model, 2, piece);
    train(one, {b.bundles[0].hidden.rows(first, count)}, {b.bundles[1].hidden.rows(first, count)});
    sum += piece.loss_sum;
  }
  CHECK(sum == Near(loss).epsilon(1e-13));
  CHECK(relative_error(to_doubles(b.bundles[1].hidden), d_input, 0.0) <= 1e-13);
  CHECK(relative_error(to_doubles(model.store.gradient("embedding.token.weight")), d_weight, 0.0) <= 1e-13);
}

TEST_CASE("gradients are added to, and the input's gradient may take the place of the output's") {
  const ModelSpec spec = tiny_llama();
  const BatchShape shape{2, 5};
  TestModel model(spec, make_reference_backend(DType::f64));
  model.randomise();
  TestBatch batch(spec, shape);
  for (const BackwardForm form : {BackwardForm::whole, BackwardForm::split}) {
    CAPTURE(int(form));
    Bundles b(spec, shape, 4);
    UnitHarness harness(model, 1, batch);
    model.store.zero_gradients(*model.stream);
    harness.backward(form, harness.forward(Mode::train, b.bundles[0], b.bundles[1]), b.bundles[2], b.bundles[3]);
    const std::vector<double> d_input = to_doubles(b.bundles[3].hidden);
    std::map<std::string, std::vector<double>> once = model.gradients();
    harness.backward(form, harness.forward(Mode::train, b.bundles[0], b.bundles[1]), b.bundles[2], b.bundles[2]);
    CHECK(to_doubles(b.bundles[2].hidden) == d_input);
    for (auto& entry : once) {
      for (double& value : entry.second) value *= 2;
      CHECK(relative_error(to_doubles(model.store.gradient(entry.first)), entry.second, 1e-30) <= 1e-14);
    }
    CHECK(largest(once.at("blocks.0.attention.key.weight")) > 0);
  }
}

TEST_CASE("what a unit saved can only be consumed by that unit, and a loss gradient of zero is refused") {
  const ModelSpec spec = tiny_gpt2();
  const BatchShape shape{1, 4};
  TestModel model(spec, make_reference_backend(DType::f64));
  TestBatch batch(spec, shape);
  Bundles b(spec, shape, 4);
  UnitHarness first(model, 1, batch);
  UnitHarness second(model, 2, batch);
  Saved saved = first.forward(Mode::train, b.bundles[0], b.bundles[1]);
  CHECK(bool(saved));
  CHECK_THROWS_AS(second.backward(BackwardForm::whole, std::move(saved), b.bundles[2], b.bundles[3]), BugError);
  CHECK_THROWS_AS(first.backward(BackwardForm::whole, Saved(), b.bundles[2], b.bundles[3]), BugError);
  UnitHarness head(model, 3, batch);
  batch.loss_gradient = 0.0;
  CHECK_THROWS_AS(head.backward(BackwardForm::whole, head.forward(Mode::train, b.bundles[0], {}), {}, b.bundles[3]),
                  BugError);
}
