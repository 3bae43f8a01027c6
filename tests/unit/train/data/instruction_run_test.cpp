// Runs on instructions: losses of PyTorch, every layout, and resumes to the bit.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"
#include "support/chat_tokenizer.h"
#include "support/near.h"
#include "unit/train/ranks_run.h"

using namespace scaletrain;

namespace {

std::filesystem::path golden_instructions() {
  return std::filesystem::path(SCALETRAIN_GOLDEN_FOLDER) / "instructions";
}

// Conversations of several lengths, in a file of their own; some are longer than a sample.
std::string chats(int first, int count) {
  std::string lines;
  for (int i = first; i < first + count; ++i) {
    const std::string sum = std::to_string(i % 7 + i % 5);
    lines += R"({"messages": [{"role": "user", "content": ")" + std::to_string(i % 7) + "+" + std::to_string(i % 5) +
             R"("}, {"role": "assistant", "content": ")" + std::string(static_cast<std::size_t>(i % 9), 'x') + sum +
             "\"}]}\n";
  }
  return lines;
}

// Text, conversations and completions in one mix. A conversation has 21 tokens beside its letters.
template <class Run>
struct InstructionRun : Run {
  InstructionRun() {
    test::write_chat_tokenizer(this->folder);
    this->folder.write("chats/a.jsonl", chats(0, 60));
    this->folder.write("held-out.jsonl", chats(100, 11));
    this->folder.write("pairs.jsonl",
                       "{\"prompt\": \"Q: 1+1\\nA: \", \"completion\": \"2\"}\n"
                       "{\"prompt\": \"\", \"completion\": \"all of it\"}\n");
    const std::vector<std::string> settings = {
        "model.context=48",
        "data.tokenizer={type: bpe, path: tokenizer}",
        "data.train=[{path: chats, records: messages, weight: 2}, {path: train.txt}, "
        "{path: pairs.jsonl, records: prompt_completion}]",
        "data.validation=[{name: v, path: held-out.jsonl, records: messages}]",
        "evaluate.batches=0",
    };
    this->overrides_always.insert(this->overrides_always.end(), settings.begin(), settings.end());
  }
};

std::string log_of(const TinyRun& run) {
  return TempFolder::read(run.paths.folder / "logs" / "rank-00000.log");
}

}  // namespace

TEST_CASE("packed instructions have the loss and the gradient of each by itself in float64") {
  const nlohmann::json expected = read_json_file(golden_instructions() / "loss.json");
  for (const std::string loss : {"answers", "all"}) {
    CAPTURE(loss);
    TinyRun run;
    const std::string model = (golden_instructions().parent_path() / "choices").string();
    const std::string records = (golden_instructions() / "records.jsonl").string();
    // A whole epoch is one step; of 12 records 11 have an answer within the context.
    const int rows = loss == "all" ? 7 : 6;
    run.overrides_always = {
        "model={layers: 2, hidden: 16, heads: 2, ffn_hidden: 64, context: 24, activation: gelu_tanh, init: {from: " +
            model + "}}",
        "data.train=[{path: " + records + ", records: prompt_completion}]",
        "data.validation=[{name: v, path: " + records + ", records: prompt_completion}]",
        "data.instructions.loss=" + loss,
        "train.steps=1",
        "train.global_batch=" + std::to_string(rows),
        "train.lr_schedule.warmup=1",
        "train.optimizer.learning_rate=0",
        "train.clip_norm=null",
        "evaluate={every: 1, batches: 0}",
    };
    REQUIRE(run.run() == ExitCode::finished);
    CAPTURE(log_of(run));
    const Metrics metrics = run.metrics();
    const nlohmann::json& one = expected.at(loss);
    REQUIRE(metrics.steps.size() == 1);
    CHECK(metrics.steps[0].loss == Near(one.at("loss").get<double>()).epsilon(1e-6));
    CHECK(metrics.steps[0].grad_norm == Near(one.at("grad_norm").get<double>()).epsilon(1e-5));
    REQUIRE(metrics.evaluations.size() == 1);
    CHECK(metrics.evaluations[0].loss == Near(one.at("loss").get<double>()).epsilon(1e-6));
    CHECK(metrics.evaluations[0].tokens == one.at("tokens"));
    CHECK(contains(log_of(run), " samples of 24 "));
  }
}

TEST_CASE("a run on instructions that was interrupted goes on to the bit") {
  InstructionRun<TinyRun> whole;
  REQUIRE(whole.run() == ExitCode::finished);
  CHECK(contains(log_of(whole), "60 conversations of"));
  CHECK(contains(log_of(whole), "2 completions of"));
  for (const std::int64_t stop : {1, 6}) {
    CAPTURE(stop);
    InstructionRun<TinyRun> parts;
    REQUIRE(parts.run({}, stop) == ExitCode::interrupted);
    REQUIRE(parts.run() == ExitCode::finished);
    check_same_numbers(parts.metrics(), whole.metrics());
    CHECK(tensors_of(parts.checkpoint(12)) == tensors_of(whole.checkpoint(12)));
  }
}

TEST_CASE("conversations that are added to a run's folder join its epoch") {
  InstructionRun<TinyRun> run;
  REQUIRE(run.run({"train.steps=4"}) == ExitCode::finished);
  run.folder.write("chats/b.jsonl", chats(200, 40));
  REQUIRE(run.run() == ExitCode::finished);
  CHECK(contains(log_of(run), "1 file joined"));
  CHECK(contains(log_of(run), "100 documents"));
  // Another loss is other data, and said to be.
  REQUIRE(run.run({"train.steps=13", "data.instructions.loss=all"}) == ExitCode::finished);
  CHECK(contains(log_of(run),
                 "is read otherwise than at the checkpoint, and so from its beginning: "
                 "data.instructions.loss (was answers, is all)"));
}

TEST_CASE("a run on instructions has the same losses on every layout, and goes on on another") {
  InstructionRun<RanksRun> one;
  REQUIRE(one.run() == ExitCode::finished);
  const std::vector<std::vector<std::string>> layouts = {
      {"parallel.data=2"},
      {"parallel.tensor=2", "parallel.sequence=true"},
      {"parallel.pipeline=2", "parallel.data=2", "parallel.zero=3"},
  };
  for (const std::vector<std::string>& layout : layouts) {
    CAPTURE(layout.front());
    const int world = layout.size() == 3 ? 4 : 2;
    InstructionRun<RanksRun> many;
    REQUIRE(all_are(many.run_ranks(world, layout), ExitCode::finished));
    check_same_losses(many.metrics(), one.metrics());
  }
  InstructionRun<RanksRun> moved;
  REQUIRE(all_are(moved.run_ranks(2, {"parallel.data=2"}, 1, 5), ExitCode::interrupted));
  REQUIRE(all_are(moved.run_ranks(2, {"parallel.pipeline=2"}), ExitCode::finished));
  check_same_losses(moved.metrics(), one.metrics());
}
