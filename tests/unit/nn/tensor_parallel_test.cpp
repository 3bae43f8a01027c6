// Tensor-parallel units against those of one rank: losses, every gradient, and what passes between units.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/numbers/checked.h"
#include "comm/collective/direct_communicator.h"
#include "model_ranks.h"
#include "nn/tensor_sums.h"
#include "support/near.h"
#include "support/ranks/host_stream.h"

using namespace scaletrain;

namespace {

void check_equal(const Outcome& found, const Outcome& expected) {
  for (std::size_t i = 0; i < found.losses.size(); ++i) {
    CHECK(found.losses[i] == Near(expected.losses[i % 2]).epsilon(1e-12));
    CHECK(found.losses[i] == found.losses[i % 2]);  // the same bits on every rank
  }
  CHECK(found.disagreement == 0.0);
  double floor = 0.0;
  for (const auto& entry : expected.values) floor = std::max(floor, 1e-3 * largest(entry.second));
  CHECK(floor > 0.0);
  for (const auto& entry : found.values) {
    const std::string& name = entry.first;
    CAPTURE(name);
    REQUIRE(entry.second.size() == expected.values.at(name).size());
    CHECK(relative_error(entry.second, expected.values.at(name), floor) <= 1e-10);
  }
}

void check_degrees(BatchShape shape, const std::vector<std::int64_t>& degrees) {
  for (const Style& style : styles()) {
    CAPTURE(style.name);
    const Outcome expected = run_model({.spec = style.spec, .shape = shape});
    for (const std::int64_t degree : degrees)
      for (const bool sequence : {false, true})
        for (const BackwardForm form : {BackwardForm::whole, BackwardForm::split}) {
          CAPTURE(degree);
          CAPTURE(sequence);
          CAPTURE(int(form));
          check_equal(
              run_model({.spec = style.spec, .shape = shape, .degree = degree, .sequence = sequence, .form = form}),
              expected);
        }
  }
}

}  // namespace

TEST_CASE("tensor ranks compute the losses and gradients of one rank, with and without sequence shards") {
  check_degrees({2, 5}, {2, 4, 8});  // 10 rows divide by 2 only
}

TEST_CASE("tensor ranks without rows of their own take part in everything") {
  check_degrees({1, 5}, {8});
}

TEST_CASE("a bias of a row-parallel map is added once") {
  const ModelSpec spec = gpt2_of_eight_heads();
  const BatchShape shape{2, 5};
  const auto elements = static_cast<std::size_t>(shape.rows() * spec.hidden);
  const std::vector<double> input = normal_values("input", elements, 0.0f, 1.0f);
  const std::vector<double> attention_bias = normal_values("attention bias", 16, 5.0f, 1.0f);
  const std::vector<double> ffn_bias = normal_values("ffn bias", 16, -7.0f, 1.0f);
  for (const std::int64_t degree : {1, 2, 4, 8})
    for (const bool sequence : {false, true}) {
      CAPTURE(degree);
      CAPTURE(sequence);
      std::vector<std::vector<double>> outputs(static_cast<std::size_t>(degree));
      const auto run = [&](std::size_t index, const TestRank& rank) {
        TestModel model(spec, make_reference_backend(DType::f64), {}, rank);  // all weights are zero
        model.assign(*model.table.find("blocks.0.attention.output.bias"), attention_bias);
        model.assign(*model.table.find("blocks.0.ffn.down.bias"), ffn_bias);
        model.store.values_changed(host_stream());
        TestBatch batch(spec, shape);
        UnitHarness block(model, 1, batch);
        const std::int64_t own = own_rows(rank.part, shape.rows());
        PoisonedRegion memory(static_cast<std::size_t>(2 * own * spec.hidden) * sizeof(double));
        const View both = memory.view(DType::f64, {2, own, spec.hidden});
        const View in = both.rows(0, 1).reshape({own, spec.hidden});
        const View out = both.rows(1, 1).reshape({own, spec.hidden});
        std::int64_t before = 0;
        if (divides_rows(rank.part))
          for (std::int64_t r = 0; r < rank.part.rank; ++r)
            before += sequence_shards(shape.rows(), degree)[static_cast<std::size_t>(r)];
        if (own != 0) std::copy_n(input.begin() + before * spec.hidden, own * spec.hidden, in.as<double>());
        block.forward(Mode::train, {in}, {out});
        outputs[index] = to_doubles(out);
      };
      on_tensor_ranks(spec, degree, sequence, run);
      std::vector<double> expected;
      for (std::size_t i = 0; i < elements; ++i)
        expected.push_back(input[i] + attention_bias[i % 16] + ffn_bias[i % 16]);
      std::vector<double> found;
      for (const std::vector<double>& output : outputs)
        if (sequence || found.empty()) found.insert(found.end(), output.begin(), output.end());
      CHECK(found == expected);
      if (!sequence)
        for (const std::vector<double>& output : outputs) CHECK(output == expected);
    }
}

TEST_CASE("parts of the vocabulary without rows take no probability") {
  // With zero weights every token has the probability 1/V: padding up to a multiple of the degree would show.
  for (const std::int64_t vocab : {3, 5, 9}) {
    ModelSpec spec = gpt2_of_eight_heads();
    spec.vocab = vocab;
    for (const std::int64_t degree : {2, 4, 8}) {
      CAPTURE(vocab);
      CAPTURE(degree);
      std::vector<double> losses(static_cast<std::size_t>(degree));
      on_tensor_ranks(spec, degree, false, [&](std::size_t index, const TestRank& rank) {
        TestModel model(spec, make_reference_backend(DType::f64), {}, rank);
        TestBatch batch(spec, {2, 5});
        ModelHarness harness(model, batch);
        losses[index] = harness.evaluate();
      });
      for (const double loss : losses)
        CHECK(loss == Near(8 * std::log(static_cast<double>(vocab))).epsilon(1e-13));  // 2 of 10 are masked
    }
  }
}

TEST_CASE("the head's chunks are the same on every tensor rank") {
  // 300 001 entries on two ranks: chunks of 32 of the 50 rows on both, though one has an entry less.
  ModelSpec spec = tiny_gpt2();
  spec.hidden = 2;
  spec.head_size = 1;
  spec.layers = 1;
  spec.vocab = 300001;
  spec.context = 50;
  const BatchShape shape{1, 50};
  REQUIRE(head_chunk_rows(50, 150001, 50 * spec.ffn_hidden / 2) == 32);
  struct HeadOutcome {
    double loss = 0.0;
    std::vector<double> d_input;
  };
  const auto run = [&](const TestRank& rank) {
    TestModel model(spec, make_cpu_backend({.threads = 1}), {}, rank);
    model.randomise();
    TestBatch batch(spec, shape);
    UnitHarness head(model, 2, batch);
    PoisonedRegion memory(2 * 100 * sizeof(float));
    const View both = memory.view(DType::f32, {2, 50, 2});
    const View input = both.rows(0, 1).reshape({50, 2});
    const View d_input = both.rows(1, 1).reshape({50, 2});
    const std::vector<double> values = normal_values("input", 100, 0.0f, 1.0f);
    std::copy(values.begin(), values.end(), input.as<float>());
    head.backward(BackwardForm::whole, head.forward(Mode::train, {input}, {}), {}, {d_input});
    return HeadOutcome{batch.loss_sum, to_doubles(d_input)};
  };
  const HeadOutcome expected = run({});
  std::vector<HeadOutcome> found(2);
  on_tensor_ranks(spec, 2, false, [&](std::size_t index, const TestRank& rank) { found[index] = run(rank); });
  for (const HeadOutcome& rank : found) {
    CHECK(rank.loss == Near(expected.loss).epsilon(1e-6));
    CHECK(relative_error(rank.d_input, expected.d_input, 0.0) <= 1e-4);
  }
  CHECK(found[0].d_input == found[1].d_input);
}

TEST_CASE("sequence shards divide what a block saves of C columns, heads and ffn columns the rest") {
  // GPT-2 124M on 4 tensor ranks, B=4, T=1024, f32. Per token: two norms (C + 2) and middle C of a quarter of the rows;
  // qkv, attention, log-sum-exp and ffn a quarter wide of all of them.
  const ModelSpec spec = wide_gpt2();
  const BatchShape shape{4, 1024};
  const auto saved = [&](bool sequence) {
    return Transformer(spec, {.degree = 4, .rank = 1, .sequence = sequence})
        .units()[1]
        ->memory(shape, DType::f32)
        .saved;
  };
  const std::size_t wide = std::size_t(4096) * 4 * (3 * 192 + 192 + 3 + 8 * 192);
  CHECK(saved(true) == wide + std::size_t(1024) * 4 * (2 * (768 + 2) + 768));
  CHECK(saved(false) == wide + std::size_t(4096) * 4 * (2 * (768 + 2) + 768));
  const Transformer model(spec, {.degree = 4, .rank = 3, .sequence = true});
  CHECK(model.boundary({1, 7}, DType::f32)[0].shape == Shape{1, 768});
  CHECK(model.spec() == spec);
}

TEST_CASE("memory() of tensor ranks is what the passes use: one cache line less is refused") {
  const ModelSpec spec = gpt2_of_eight_heads();
  const BatchShape shape{2, 5};
  for (const bool sequence : {false, true}) {
    CAPTURE(sequence);
    std::vector<std::vector<std::string>> accepted(2);
    on_tensor_ranks(spec, 2, sequence, [&](std::size_t index, const TestRank& rank) {
      TestModel model(spec, make_reference_backend(DType::f64), {}, rank);
      model.randomise();
      TestBatch batch(spec, shape);
      const std::int64_t own = own_rows(rank.part, shape.rows());
      PoisonedRegion memory(static_cast<std::size_t>(4 * own * spec.hidden) * sizeof(double));
      std::vector<Bundle> bundles;
      for (std::int64_t i = 0; i < 4; ++i)
        bundles.push_back({memory.view(DType::f64, {4, own, spec.hidden}).rows(i, 1).reshape({own, spec.hidden})});
      // Regions are carved before anything is sent: both ranks refuse, and none waits.
      for (const int unit : {0, 1, 3}) {
        UnitHarness harness(model, unit, batch);
        const Bundle input = unit == 0 ? Bundle{} : bundles[0];
        const Bundle output = unit == 3 ? Bundle{} : bundles[1];
        const Bundle d_output = unit == 3 ? Bundle{} : bundles[2];
        const Bundle d_input = unit == 0 ? Bundle{} : bundles[3];
        for (const Bundle& bundle : bundles) std::fill_n(bundle.hidden.as<double>(), bundle.hidden.num_elements(), 0.5);
        const auto expect_refusal = [&](const std::string& what, const auto& call) {
          try {
            call();
            accepted[index].push_back(std::to_string(unit) + " " + what);
          } catch (const BugError&) {
          }
        };
        const auto shortened = [](const PoisonedRegion& region) {
          return Region{region.region().data, region.region().size - buffer_alignment};
        };
        if (harness.memory().saved != 0)
          expect_refusal("saved", [&] {
            harness.with_run(Mode::train, [&](const UnitRun& run) {
              return harness.unit().forward(run, input, output, shortened(harness.saved));
            });
          });
        Saved saved = harness.forward(Mode::train, input, output);
        expect_refusal("work", [&] {
          harness.with_run(Mode::train, [&](const UnitRun& run) {
            return harness.unit().backward_input(run, std::move(saved), d_output, d_input, shortened(harness.work));
          });
        });
        if (harness.memory().scratch == 0) continue;
        Saved again = harness.forward(Mode::train, input, output);
        const Region small = shortened(harness.scratch);
        harness.scratch_override = &small;
        expect_refusal("scratch", [&] { harness.backward(BackwardForm::whole, std::move(again), d_output, d_input); });
      }
    });
    for (const std::vector<std::string>& calls : accepted) CHECK(calls == std::vector<std::string>{});
  }
}

namespace {

// Kind, elements of the whole operand, elements sent.
std::string text_of(CollectiveKind kind, DType dtype, std::int64_t elements, std::int64_t sent) {
  return std::string(to_text(kind)) + " " + std::string(to_text(dtype)) + " " + std::to_string(elements) + ", " +
         std::to_string(sent) + " sent; ";
}

std::string traced_calls(const Trace& trace, std::size_t first) {
  std::string text;
  for (std::size_t i = first; i < trace.records.size(); ++i) {
    const TraceRecord& record = trace.records[i];
    text += text_of(record.kind, record.dtype, record.elements, record.sent_elements);
  }
  return text;
}

std::string declared_calls(const std::vector<GroupCall>& calls, const TensorPart& part) {
  std::string text;
  for (const GroupCall& call : calls) {
    const std::int64_t sent =
        call.kind == CollectiveKind::all_gather ? call.own * (part.degree - 1)
        : call.kind == CollectiveKind::reduce_scatter
            ? call.elements - call.own
            : direct_all_reduce_sent(call.dtype, call.elements, narrow<int>(part.degree), narrow<int>(part.rank));
    text += call.group == GroupKind::tensor ? text_of(call.kind, call.dtype, call.elements, sent) : "another group";
  }
  return text;
}

// The first pass of a rank's units whose calls are not the declared ones.
std::string undeclared_pass(const ModelSpec& spec, const TestRank& rank, BatchShape shape, const Trace& trace) {
  TestModel model(spec, make_reference_backend(DType::f64), {}, rank);
  model.randomise();
  TestBatch batch(spec, shape);
  const Shape own{own_rows(rank.part, shape.rows()), spec.hidden};
  std::vector<std::vector<double>> values(4, std::vector<double>(static_cast<std::size_t>(own.num_elements()), 0.5));
  const auto bundle = [&](std::size_t i) { return Bundle{View(values[i].data(), DType::f64, own)}; };
  std::string problem;
  for (int unit = 0; unit < narrow<int>(model.model.units().size()); ++unit) {
    UnitHarness harness(model, unit, batch);
    const auto check = [&](Opcode pass, const auto& call) {
      const std::size_t first = trace.records.size();
      call();
      const std::string made = traced_calls(trace, first);
      const std::string declared = declared_calls(model.model.calls(unit, pass, shape, DType::f64), rank.part);
      if (problem.empty() && made != declared)
        problem =
            std::to_string(unit) + " " + std::string(to_text(pass)) + " asks for " + made + "but declares " + declared;
    };
    Saved saved;
    check(Opcode::forward, [&] { saved = harness.forward(Mode::train, bundle(0), bundle(1)); });
    check(Opcode::backward, [&] { harness.backward(BackwardForm::whole, std::move(saved), bundle(2), bundle(3)); });
    saved = harness.forward(Mode::train, bundle(0), bundle(1));
    check(Opcode::backward_input, [&] { harness.backward_input_later(std::move(saved), bundle(2), bundle(3)); });
    check(Opcode::backward_weight, [&] { harness.backward_weight(); });
  }
  return problem;
}

}  // namespace

TEST_CASE("every pass of a unit declares what it asks of its tensor group, call by call") {
  const BatchShape shape{2, 5};
  const std::int64_t degree = 4;  // rows, ffn and vocabulary do not divide by it
  for (const Style& style : styles()) {
    CAPTURE(style.name);
    for (const bool sequence : {false, true}) {
      CAPTURE(sequence);
      for (const RecomputeKind recompute : {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full}) {
        CAPTURE(to_text(recompute));
        std::vector<Trace> traces;
        std::vector<std::string> problems(static_cast<std::size_t>(degree), "did not run");
        RanksOptions options;
        options.traces = &traces;
        run_ranks(
            Mesh(1, degree, 1), facts_of(style.spec),
            [&](Rank rank, RankGroups& groups, InProcessWorld&) {
              const auto index = static_cast<std::size_t>(rank.value());
              const TestRank test_rank{.part = {.degree = degree, .rank = rank.value(), .sequence = sequence},
                                       .groups = &groups,
                                       .recompute = recompute};
              problems[index] = undeclared_pass(style.spec, test_rank, shape, traces[index]);
            },
            options);
        for (const std::string& problem : problems) CHECK(problem == "");
        CHECK(traces[0].records.size() > 10);
      }
    }
  }
}

TEST_CASE("a unit of several tensor ranks refuses to run without its group") {
  const TensorPart part{.degree = 2, .rank = 0, .sequence = false};
  CHECK_THROWS_AS(TensorSums(nullptr, host_stream(), part), BugError);
  const auto single = make_single_communicator("tensor");
  CHECK_THROWS_AS(TensorSums(single.get(), host_stream(), part), BugError);
  CHECK_FALSE(TensorSums(nullptr, host_stream(), {.degree = 1, .rank = 0, .sequence = true}).sequence());
}
