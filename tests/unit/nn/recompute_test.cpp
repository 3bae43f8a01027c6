// Units that compute activations again in the backward, against those that keep them.
#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "model_ranks.h"
#include "support/forwarding_backend.h"

using namespace scaletrain;

namespace {

constexpr RecomputeKind recomputing_kinds[] = {RecomputeKind::selective, RecomputeKind::full};

// Every activation, norm and kind of position, with and without bias, key/value heads that queries share.
std::vector<Style> recomputed_styles() {
  std::vector<Style> all = styles();
  all.push_back({"GPT-2, approximate GELU", gpt2_of_eight_heads()});
  all.back().spec.activation = ActivationKind::gelu_tanh;
  all.push_back({"GPT-2 without bias, rotary, rmsnorm", gpt2_of_eight_heads()});
  all.back().spec.bias = all.back().spec.qkv_bias = false;
  all.back().spec.norm = NormKind::rmsnorm;
  all.back().spec.position = PositionKind::rope;
  all.push_back({"Llama with layernorm", llama_of_eight_heads(8)});
  all.back().spec.norm = NormKind::layernorm;
  return all;
}

void check_same_bits(const ModelRun& keeping) {
  const Outcome expected = run_model(keeping);
  for (const RecomputeKind kind : recomputing_kinds) {
    CAPTURE(to_text(kind));
    ModelRun again = keeping;
    again.recompute = kind;
    const Outcome found = run_model(again);
    CHECK(found.losses == expected.losses);
    for (const auto& entry : expected.values) {
      CAPTURE(entry.first);
      CHECK(largest(entry.second) > 0.0);  // NaN is not
      CHECK(found.values.at(entry.first) == entry.second);
    }
  }
}

// Counts matrix products and attentions of a forward.
class CountingBackend final : public ForwardingBackend {
 public:
  explicit CountingBackend(int& count) : ForwardingBackend(make_reference_backend(DType::f64)), count_(count) {}

 private:
  void launch(Stream& stream, const Operation& op) override {
    count_ += std::holds_alternative<LinearForward>(op) || std::holds_alternative<AttentionForward>(op) ? 1 : 0;
    inner().run(stream, op);
  }

  int& count_;
};

// Products and attentions of a block's forward that a step on one rank makes, beyond the head's.
int forward_products(RecomputeKind kind, BackwardForm form) {
  int count = 0;
  TestModel model(tiny_gpt2(), std::make_unique<CountingBackend>(count), {}, {.part = {}, .recompute = kind});
  model.randomise();
  TestBatch batch(model.spec, {2, 5});
  ModelHarness(model, batch).train(form);
  const int of_head = form == BackwardForm::split ? 2 : 1;
  return count - of_head;
}

}  // namespace

TEST_CASE("a backward that computes activations again gives the bits of one that was left them") {
  for (const Style& style : recomputed_styles()) {
    CAPTURE(style.name);
    for (const std::int64_t degree : {1, 2}) {
      for (const bool sequence : {false, true}) {
        if (sequence && degree == 1) continue;
        for (const BackwardForm form : {BackwardForm::whole, BackwardForm::split}) {
          CAPTURE(degree);
          CAPTURE(sequence);
          CAPTURE(int(form));
          check_same_bits({.spec = style.spec, .shape = {2, 5}, .degree = degree, .sequence = sequence, .form = form});
        }
      }
    }
  }
}

TEST_CASE("tensor ranks without rows of their own recompute with the others") {
  check_same_bits({.spec = gpt2_of_eight_heads(), .shape = {1, 5}, .degree = 8, .sequence = true});
}

TEST_CASE("recomputation changes no bit of what the processor's kernels compute, in fp32 and in halves") {
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    for (const BackwardForm form : {BackwardForm::whole, BackwardForm::split}) {
      CAPTURE(to_text(compute));
      CAPTURE(int(form));
      check_same_bits({.spec = llama_of_eight_heads(2),
                       .shape = {2, 5},
                       .degree = 2,
                       .sequence = true,
                       .form = form,
                       .recompute = RecomputeKind::none,
                       .make_backend = [compute] { return make_cpu_backend({.threads = 1, .compute = compute}); }});
    }
  }
}

TEST_CASE("a block that recomputes keeps nothing, or products and attention; the rest is scratch or, split, work") {
  // GPT-2 124M, B=4, T=1024, f32, per token: as in "what a block saves is what its formula says".
  constexpr std::size_t rows = 4096;
  constexpr std::size_t element = 4;
  constexpr std::size_t norms = 2 * (768 + 2);
  constexpr std::size_t wide = 3072;  // the gradient of pre_activation
  const auto memory = [](RecomputeKind kind, std::size_t unit) {
    const Transformer model(wide_gpt2(), {}, kind);
    return model.units()[unit]->memory({4, 1024}, DType::f32);
  };
  const UnitMemory none = memory(RecomputeKind::none, 1);
  const UnitMemory selective = memory(RecomputeKind::selective, 1);
  CHECK(selective.saved == rows * element * (3 * 768 + 768 + 12 + 768 + 3072));
  CHECK(selective.scratch == rows * element * (norms + 3072 + wide));
  // The weight pass reads both norms and the activation.
  CHECK(selective.work == none.work + rows * element * (norms + 3072));
  const UnitMemory full = memory(RecomputeKind::full, 1);
  CHECK(full.saved == 0);
  CHECK(full.scratch == rows * element * (norms + 3 * 768 + 768 + 12 + 768 + 2 * 3072 + wide));
  // And attention and the residual stream in the middle; a gradient has no place in qkv, which others overwrite.
  CHECK(full.work == none.work + rows * element * (norms + 3072 + 768 + 768 + 768));
  const UnitMemory head = memory(RecomputeKind::none, 3);
  for (const RecomputeKind kind : recomputing_kinds) {
    const UnitMemory again = memory(kind, 3);
    CHECK(again.saved == 0);
    CHECK(again.scratch == head.scratch + rows * element * (768 + 2));
    CHECK(again.work == head.work + rows * element * (768 + 2));
    CHECK(memory(kind, 0).scratch == memory(RecomputeKind::none, 0).scratch);
  }
}

TEST_CASE(
    "recomputation repeats no product that the backward does not read: none if selective, all but the last if full") {
  for (const BackwardForm form : {BackwardForm::whole, BackwardForm::split}) {
    CAPTURE(int(form));
    // Two blocks: qkv, attention, its output, up, down.
    CHECK(forward_products(RecomputeKind::none, form) == 2 * 5);
    CHECK(forward_products(RecomputeKind::selective, form) == 2 * 5);
    CHECK(forward_products(RecomputeKind::full, form) == 2 * (5 + 4));
  }
}

TEST_CASE("full recomputation declares the forward's calls but the last sum, as recomputed ones") {
  const BatchShape shape{2, 5};
  const auto calls = [&](RecomputeKind kind, bool sequence, Opcode pass) {
    const Transformer model(gpt2_of_eight_heads(), {.degree = 2, .rank = 1, .sequence = sequence}, kind);
    return model.calls(1, pass, shape, DType::f32);
  };
  for (const bool sequence : {false, true}) {
    CAPTURE(sequence);
    std::vector<GroupCall> again = calls(RecomputeKind::none, sequence, Opcode::forward);
    CHECK(again.size() == (sequence ? 4 : 2));
    again.pop_back();
    for (GroupCall& call : again) {
      CHECK(call.purpose == CallPurpose::activations);
      call.purpose = CallPurpose::recomputed_activations;
    }
    for (const Opcode pass : {Opcode::backward, Opcode::backward_input}) {
      const std::vector<GroupCall> plain = calls(RecomputeKind::none, sequence, pass);
      std::vector<GroupCall> expected = again;
      expected.insert(expected.end(), plain.begin(), plain.end());
      CHECK(calls(RecomputeKind::full, sequence, pass) == expected);
      CHECK(calls(RecomputeKind::selective, sequence, pass) == plain);
    }
    for (const Opcode pass : {Opcode::forward, Opcode::backward_weight})
      CHECK(calls(RecomputeKind::full, sequence, pass) == calls(RecomputeKind::none, sequence, pass));
  }
}
