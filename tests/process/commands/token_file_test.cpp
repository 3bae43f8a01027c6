// Token files that lie, or that change under a running training: an error with file and offset, never a signal.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "process/tiny_run.h"
#include "refusal.h"
#include "unit/data/token_files.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr int vocab = 300;

std::vector<int> some_tokens(int count) {
  std::vector<int> tokens;
  unsigned state = 7;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int>((state >> 16) % vocab));
  }
  return tokens;
}

std::vector<std::string> training_on(const std::string& data, const std::string& run, int steps = 5) {
  return workspace().training(
      run, {"data.tokenizer.type=ids", "model.vocab=300", "data.train=[{path: " + data + ", type: tokens}]",
            "data.validation=[]", "train.steps=" + std::to_string(steps), "train.lr_schedule.warmup=1",
            "checkpoint.every=1000000", "log.every=1000"});
}

void write_megatron(const std::string& name, const std::string& tokens, const std::string& index) {
  workspace().write(name + ".bin", tokens);
  workspace().write(name + ".idx", index);
}

TEST_CASE("training_runs_on_both_formats") {
  const std::vector<int> tokens = some_tokens(4000);
  workspace().write("good.llmc.bin", test::llmc_file(tokens, false));
  write_megatron("good", test::packed<std::uint16_t>(tokens), test::megatron_index({{1000, 500}, {2500}}, 8, 2));
  for (const char* name : {"good.llmc.bin", "good.bin", "good"}) {
    CAPTURE(name);
    const Ended end = workspace().run(training_on(name, std::string("run-") + name));
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
  }
}

TEST_CASE("loss_across_false_is_refused_where_a_token_file_does_not_say_where_documents_end") {
  workspace().write("no-documents.bin", test::llmc_file(some_tokens(4000), false));
  std::vector<std::string> command = training_on("no-documents.bin", "run-no-documents");
  command.insert(command.end(), {"--set", "data.documents.loss_across=false"});
  const Ended refused = workspace().run(command);
  CHECK_MESSAGE(refused.exit_code == 2, refused.errors);
  for (const char* word : {"data.documents.loss_across: false", "no-documents.bin", "data.tokenizer.end_of_document"})
    CHECK_MESSAGE(refused.says(word), "the message lacks: ", word);
  command.insert(command.end(), {"--set", "data.tokenizer.end_of_document=9"});
  const Ended trained = workspace().run(command);
  CHECK_MESSAGE(trained.exit_code == 0, trained.errors);
}

TEST_CASE("token_files_that_lie_are_refused_with_file_and_offset") {
  const std::vector<int> tokens = some_tokens(4000);
  const std::string data = test::packed<std::uint16_t>(tokens);
  const std::string llmc = test::llmc_file(tokens, false);
  std::string index = test::megatron_index({{1000, 500}, {2500}}, 8, 2);

  workspace().write("short.bin", llmc.substr(0, llmc.size() - 100));
  workspace().write("header-only.bin", llmc.substr(0, 500));
  std::string count = llmc;
  count.replace(8, 4, "\xff\xff\xff\x7f", 4);
  workspace().write("many.bin", count);
  write_megatron("cut", data.substr(0, data.size() - 200), index);
  write_megatron("past-end", data, test::megatron_index({{1000, 500}, {2501}}, 8, 2));
  std::string sequences = index;
  sequences.replace(18, 8, 8, '\xff');
  write_megatron("wrap", data, sequences);
  std::string pointer = index;
  pointer.replace(34 + 3 * 4 + 8, 8, std::string("\0\0\0\0\0\0\0\x7f", 8));
  write_megatron("wild-pointer", data, pointer);
  write_megatron("half-index", data, index.substr(0, index.size() / 2));
  write_megatron("no-magic", data, "x" + index.substr(1));
  workspace().write("alone.idx", index);
  std::vector<int> large = tokens;
  large[1234] = vocab;
  workspace().write("large-token.bin", test::llmc_file(large, false));

  struct Case {
    std::string data;
    std::vector<std::string> words;
    bool is_in_header = false;  // told before a worker starts
  };
  const std::vector<Case> cases = {
      {"short.bin", {"short.bin", "offset 8"}, true},
      {"header-only.bin", {"header-only.bin"}, true},
      {"many.bin", {"many.bin", "offset 8"}, true},
      {"cut.bin", {"cut.idx", "offset"}},
      {"past-end.bin", {"past-end.idx", "offset 42"}},
      {"wrap.bin", {"wrap.idx", "offset 18"}, true},
      {"wild-pointer.bin", {"wild-pointer.idx", "offset 54"}},
      {"half-index.bin", {"half-index.idx", "offset"}, true},
      {"no-magic.bin", {"no-magic.idx", "offset 0"}, true},
      {"alone.idx", {"alone.bin"}, true},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.data);
    const Ended end = workspace().run(training_on(bad.data, "bad-" + bad.data));
    INFO(end.errors);
    CHECK(end.exit_code == 3);
    for (const std::string& word : bad.words) CHECK_MESSAGE(end.says(word), "the message lacks: ", word);
    CHECK(end.cpu_seconds <= refusal_cpu_seconds);
    CHECK(fs::exists(workspace() / ("bad-" + bad.data)) == !bad.is_in_header);
    if (bad.is_in_header) continue;
    // Why the run ended, and nothing else.
    const std::string metrics = read_file(workspace() / ("bad-" + bad.data) / "metrics.jsonl");
    CHECK(metrics.starts_with("{\"kind\":\"end\",\"step\":0,\"code\":3,"));
    CHECK(std::count(metrics.begin(), metrics.end(), '\n') == 1);
  }
  // A token beyond the vocabulary is seen when it is read: 4000 tokens are 31 steps.
  const Ended end = workspace().run(training_on("large-token.bin", "bad-token", 40));
  INFO(end.errors);
  CHECK(end.exit_code == 3);
  CHECK(end.says("large-token.bin"));
  CHECK(end.says("1234"));
  CHECK(end.says("300"));
}

// Starts a long training, does something to its file, and returns how it ended.
template <class Change>
Ended change_while_running(const std::string& name, Change change) {
  const fs::path file = workspace().write(name, test::llmc_file(some_tokens(200000), false));
  Program agent(workspace().launch(training_on(name, "run-" + name, 1000000)));
  REQUIRE(wait_until([&] { return newest_step(workspace() / ("run-" + name)) >= 10 || !agent.running(); }, 60.0));
  change(file);
  return agent.wait(60.0);
}

TEST_CASE("a_file_truncated_while_training_is_an_error_that_names_file_and_offset") {
  for (const bool to_nothing : {true, false}) {
    const Ended end = change_while_running(
        "shrinking.bin", [to_nothing](const fs::path& file) { fs::resize_file(file, to_nothing ? 0 : 5000); });
    fs::remove_all(workspace() / "run-shrinking.bin");
    INFO(end.errors);
    CHECK_FALSE(end.timed_out);
    CHECK(end.exit_code == 3);
    CHECK(end.says("shrinking.bin"));
    CHECK(end.says("offset"));
  }
}

TEST_CASE("tokens_rewritten_while_training_are_an_error_that_names_file_and_offset") {
  const Ended end = change_while_running("changing.bin", [](const fs::path& file) {
    std::string content = read_file(file);
    std::fill(content.begin() + 1024, content.end(), '\xff');
    // In place: the file that is mapped, not a new one by its name.
    std::fstream(file, std::ios::in | std::ios::out | std::ios::binary) << content;
  });
  INFO(end.errors);
  CHECK_FALSE(end.timed_out);
  CHECK(end.exit_code == 3);
  CHECK(end.says("changing.bin"));
  CHECK(end.says("65535"));
}

TEST_CASE("a_file_deleted_while_training_does_not_disturb_it") {
  const fs::path file = workspace().write("deleted.bin", test::llmc_file(some_tokens(200000), false));
  Program agent(workspace().launch(training_on("deleted.bin", "run-deleted", 1000000)));
  const fs::path run = workspace() / "run-deleted";
  REQUIRE(wait_until([&] { return newest_step(run) >= 10 || !agent.running(); }, 60.0));
  fs::remove(file);
  const long step = newest_step(run);
  CHECK(wait_until([&] { return newest_step(run) >= step + 20 || !agent.running(); }, 60.0));
  agent.signal(SIGTERM);
  CHECK_MESSAGE(agent.wait().exit_code == 75, agent.errors());
  // Without the file it cannot be resumed, and says why.
  check_refused(workspace().run(training_on("deleted.bin", "run-deleted", 1000000)), 2,
                {"data.train.0.path", "deleted.bin"});
}

}  // namespace
}  // namespace scaletrain
