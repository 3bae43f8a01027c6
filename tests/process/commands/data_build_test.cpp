// scaletrain data: token files that are built, whatever kills the builder, and what is said of them.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "process/tiny_run.h"
#include "support/text.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// Many short records: most of the time goes into their JSON, so that a build takes a second and more from few bytes.
const std::string& records_file() {
  static const std::string name = [] {
    std::string lines;
    for (int i = 0; i < 300'000; ++i)
      lines += R"({"id":)" + std::to_string(i) + R"(,"text":"t)" + std::to_string(i % 977) + "\"}\n";
    workspace().write("records/a.jsonl", lines);
    workspace().write("records/b/c.txt", std::string(3'000'001, 'b'));
    return std::string("records");
  }();
  return name;
}

Words build_words(const std::string& output, const Words& more = {}) {
  Words words = {"data", "build", records_file(), "--tokenizer", "bytes", "--output", output, "--threads", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string files_of(const std::string& stem) {
  std::string all;
  for (const char* ending : {".bin", ".idx", ".build.json"}) {
    REQUIRE(fs::exists(workspace() / (stem + ending)));
    all += read_file(workspace() / (stem + ending));
  }
  return all;
}

void check_built(const Ended& end) {
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
}

TEST_CASE("a_build_that_is_killed_at_any_moment_goes_on_to_the_bytes_of_one_that_was_not") {
  const Ended whole = workspace().run(build_words("whole/c", {"--split", "9,1"}), 300.0);
  check_built(whole);
  std::mt19937 random(17);
  std::uniform_real_distribution<double> moment(0.0, std::max(0.2, 1.1 * whole.seconds));
  int killed = 0;
  bool has_gone_on = false;
  for (int i = 0; i < 8; ++i) {
    const std::string output = "killed-" + std::to_string(i) + "/c";
    for (int kills = 0; kills < 5; ++kills) {
      Program program(workspace().launch(build_words(output, {"--split", "9,1"})));
      // Twice the last moments too: of the index, the checksum and the new names.
      sleep_for(kills < 3 ? moment(random) : whole.seconds * (0.6 + 0.1 * kills));
      program.signal(SIGKILL);
      const Ended& end = program.wait();
      killed += end.signal == SIGKILL ? 1 : 0;
      // Each output is there as a whole or not at all.
      for (const std::string part : {"-train", "-validation"}) {
        const fs::path stem = workspace() / (output + part);
        if (fs::exists(stem.string() + ".build.json")) CHECK((files_of(output + part) == files_of("whole/c" + part)));
        if (fs::exists(stem.string() + ".idx")) CHECK(fs::exists(stem.string() + ".bin"));
      }
    }
    const Ended end = workspace().run(build_words(output, {"--split", "9,1"}), 300.0);
    check_built(end);
    has_gone_on = has_gone_on || end.says("went on where an earlier build");
    for (const std::string part : {"-train", "-validation"})
      CHECK((files_of(output + part) == files_of("whole/c" + part)));
    CHECK_FALSE(fs::exists(workspace() / ("killed-" + std::to_string(i) + "/.c.building")));
    fs::remove_all(workspace() / ("killed-" + std::to_string(i)));
  }
  CHECK(killed > 8);
  // A machine on which all of it takes a moment may end it before anything of it is recorded.
  CHECK((has_gone_on || whole.seconds < 1.5));
}

TEST_CASE("a_build_by_shards_side_by_side_is_merged_and_trained_on") {
  check_built(workspace().run(build_words("side/whole"), 300.0));
  std::vector<std::unique_ptr<Program>> jobs;
  jobs.reserve(3);
  for (int shard = 0; shard < 3; ++shard)
    jobs.push_back(std::make_unique<Program>(
        workspace().launch(build_words("side/parts", {"--shard", std::to_string(shard) + "/3"}))));
  for (const auto& job : jobs) check_built(job->wait(300.0));
  const Ended merged = workspace().run({"data", "merge", "side/parts", "--json"});
  check_built(merged);
  const auto answer = nlohmann::json::parse(merged.output);
  CHECK(answer.at("outputs").at(0).at("documents") == 300'001);
  CHECK((files_of("side/parts") == files_of("side/whole")));
  const Ended trained = workspace().run(
      workspace().training("run-side", {"data.train=[{path: side/parts}]", "data.validation=[]", "train.steps=3",
                                        "train.lr_schedule.warmup=1", "checkpoint.every=1000000", "log.every=1000"}));
  CHECK_MESSAGE(trained.exit_code == 0, trained.errors);
}

TEST_CASE("one_output_is_built_by_one_process_at_a_time") {
  Program first(workspace().launch(build_words("busy/c")));
  REQUIRE(wait_until([] { return fs::exists(workspace() / "busy/.c.building/state.json"); }));
  const Ended second = workspace().run(build_words("busy/c"));
  CHECK(second.exit_code == 2);
  CHECK_MESSAGE(second.says("another process builds there now"), second.errors);
  check_built(first.wait(300.0));
}

TEST_CASE("what_cannot_be_built_is_refused_by_name_and_what_is_damaged_ends_with_its_exit_code") {
  const auto refused = [](const Words& words, int code, const std::string& says) {
    const Ended end = workspace().run(words);
    CHECK_MESSAGE(end.exit_code == code, end.errors);
    CHECK_MESSAGE(end.says(says), end.errors);
  };
  workspace().write("small/a.jsonl", "{\"body\":\"x\"}\n");
  workspace().write("small/cut.txt.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03K", 11));
  const std::string lines = "small/a.jsonl";
  refused({"data", "build", lines, "--tokenizer", "bytes", "--output", "o"}, 3, "small/a.jsonl:1: the key \"text\"");
  refused({"data", "build", "small/cut.txt.gz", "--tokenizer", "bytes", "--output", "o2"}, 3,
          "small/cut.txt.gz: at byte 11");
  refused({"data", "build", lines, "--tokenizer", "none", "--output", "o"}, 2, "--tokenizer: none: no such file");
  fs::create_directories(workspace() / "bare-tokenizer");
  refused({"data", "build", lines, "--tokenizer", "bare-tokenizer", "--output", "o"}, 3,
          "--tokenizer: bare-tokenizer: holds no tokenizer");
  refused({"data", "build", lines, "--tokenizer", "bytes", "--output", "o", "--shard", "3/3"}, 2, "--shard: \"3/3\"");
  refused({"data", "build", lines, "--tokenizer", "bytes", "--output", "o", "--split", "0,0"}, 2, "--split:");
  refused({"data", "build", "small/*.csv", "--tokenizer", "bytes", "--output", "o"}, 3, "no file matches");
  refused({"data", "merge", "o3"}, 2, "no shard is there");
  refused({"data", "verify", "small"}, 3, "small: of 2 files 2 cannot be used");
  for (const char* path : {"small", "small/a.jsonl"})
    refused({"data", "inspect", path}, 3, std::string(path) + ": nothing here can be used; what is wrong stands above");
  check_built(workspace().run(
      {"data", "build", lines, "--tokenizer", "bytes", "--output", "o", "--overwrite", "--field", "body"}));
  const Ended seen = workspace().run({"data", "inspect", "o.bin", "--json", "--show", "1", "--tokenizer", "bytes"});
  check_built(seen);
  const auto file = nlohmann::json::parse(seen.output).at("files").at(0);
  CHECK(file.at("documents") == 1);
  CHECK(file.at("tokens") == 2);
  CHECK(file.at("dtype") == "uint16");
  CHECK(file.at("shown").at(0) == "\"x<|endoftext|>\"");
  check_built(workspace().run({"data", "verify", "o"}));
}

TEST_CASE("what_data_is_is_told_also_where_not_all_of_it_can_be_used") {
  workspace().write("mixed/chats.jsonl",
                    "no json\n"
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n"
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                    "{\"role\": \"assistant\", \"content\": \"b\"}]}\n");
  workspace().write("mixed/picture.png", "\x89PNG");
  for (const char* command : {"inspect", "verify"}) {
    const Ended end = workspace().run({"data", command, "mixed", "--on-bad-record", "skip"});
    CHECK_MESSAGE(end.exit_code == (command == std::string("verify") ? 3 : 0), end.errors);
    CHECK(end.output.find("mixed/chats.jsonl: JSONL of conversations") != std::string::npos);
    CHECK(end.output.find("mixed/picture.png: of no known kind, 4 B; cannot be used") != std::string::npos);
    CHECK(end.says("mixed/picture.png looks like no text, JSONL or token file"));
  }
  const Ended verified = workspace().run({"data", "verify", "mixed/chats.jsonl", "--on-bad-record", "skip"});
  check_built(verified);
  CHECK(verified.output.find("2 documents, 1 of them without an answer to learn") != std::string::npos);
  // How much text there is, of each file and of all.
  workspace().write("counted/a.txt", "hello");
  workspace().write("counted/b.jsonl", "{\"text\": \"x\"}\n{\"text\": \"yz\"}\n");
  const Ended counted = workspace().run({"data", "inspect", "counted", "--tokenizer", "bytes"});
  check_built(counted);
  CHECK_MESSAGE(counted.output ==
                    "counted/a.txt: text, 5 B, 1 document, 5 characters, 6 tokens\n"
                    "counted/b.jsonl: JSONL, 29 B, 2 documents, 3 characters, 5 tokens\n"
                    "all 2 files: 34 B, 3 documents, 8 characters, 11 tokens\n",
                counted.output);
  const Ended as_json = workspace().run({"data", "inspect", "counted", "--json"});
  check_built(as_json);
  const auto total = nlohmann::json::parse(as_json.output).at("total");
  CHECK(total ==
        nlohmann::json({{"files", 2}, {"bytes", 34}, {"documents", 3}, {"characters", 8}, {"tokens", nullptr}}));
  // Nothing but bad records is no corpus, and may be built rightly afterwards.
  const Ended empty = workspace().run({"data", "build", "mixed/chats.jsonl", "--tokenizer", "bytes", "--output",
                                       "mixed-out", "--on-bad-record", "skip"});
  CHECK_MESSAGE(empty.exit_code == 3, empty.errors);
  CHECK_MESSAGE(empty.says("SOURCES: nothing is left to build: sources: 3 bad records were skipped"), empty.errors);
  CHECK_FALSE(fs::exists(workspace() / "mixed-out.bin"));
  // The same of shards: each may be of bad records alone, all of them together may not.
  for (const std::string shard : {"0/2", "1/2"})
    check_built(workspace().run({"data", "build", "mixed/chats.jsonl", "--tokenizer", "bytes", "--output",
                                 "mixed-parts", "--on-bad-record", "skip", "--shard", shard}));
  const Ended merged = workspace().run({"data", "merge", "mixed-parts"});
  CHECK_MESSAGE(merged.exit_code == 3, merged.errors);
  CHECK_MESSAGE(merged.says("mixed-parts: nothing is left to build: no shard holds a document: sources: 3 bad records "
                            "were skipped"),
                merged.errors);
  for (const char* left : {"mixed-parts.bin", "mixed-parts.idx", "mixed-parts.build.json", ".mixed-parts.building"})
    CHECK_FALSE(fs::exists(workspace() / left));
  workspace().write("mixed/lines.json", "{\"text\": \"x\"}\n");
  const Ended named = workspace().run({"data", "build", "mixed/lines.json", "--tokenizer", "bytes", "--output", "lj"});
  CHECK_MESSAGE(named.exit_code == 2, named.errors);
  CHECK(named.says("--type jsonl"));
  check_built(workspace().run(
      {"data", "build", "mixed/lines.json", "--tokenizer", "bytes", "--output", "lj", "--type", "jsonl"}));
}

TEST_CASE("an_empty_line_ends_a_document_where_the_separator_is_one") {
  workspace().write("blank/a.txt", "one\nstill one\n\n\ntwo\n");
  const auto documents = [](const std::vector<std::string>& options) {
    std::vector<std::string> command = {"data",  "build",    "blank/a.txt", "--tokenizer",
                                        "bytes", "--output", "blank/out",   "--overwrite"};
    command.insert(command.end(), options.begin(), options.end());
    check_built(workspace().run(command));
    return workspace().run({"data", "inspect", "blank/out.bin", "--tokenizer", "bytes", "--show", "9"}).output;
  };
  const std::string divided = documents({"--separator", ""});
  CHECK_MESSAGE(contains(divided, "document 0: \"one\\nstill one\\n<|endoftext|>\""), divided);
  CHECK_MESSAGE(contains(divided, "document 1: \"two\\n<|endoftext|>\""), divided);
  CHECK(contains(documents({}), "1 document,"));
  const Ended wrong = workspace().run({"data", "inspect", "blank/out.bin", "--separator", ""});
  check_refused(wrong, 2, {"--separator: no source is text, so nothing would use it; remove the option"});
}

TEST_CASE("token_files_say_where_another_tokenizer_has_made_them") {
  workspace().write("made/a.txt", "some text\n");
  const Ended trained = workspace().run({"data", "train-tokenizer", "made/a.txt", "--vocab", "260", "--output",
                                         (workspace() / "made-tokenizer").string()});
  REQUIRE_MESSAGE(trained.exit_code == 0, trained.errors);
  check_built(
      workspace().run({"data", "build", "made/a.txt", "--tokenizer", "made-tokenizer", "--output", "made-out"}));
  check_built(workspace().run({"data", "verify", "made-out.bin", "--tokenizer", "made-tokenizer"}));
  const Ended verified = workspace().run({"data", "verify", "made-out.bin", "--tokenizer", "bytes"});
  CHECK(verified.exit_code == 3);
  CHECK(verified.says("made-out.bin was made with the tokenizer made-tokenizer (bpe "));
  CHECK(verified.says("and this is another file (bytes, 257 tokens), whose ids mean other tokens"));
  // Who looks at them with another sees what they are not.
  const Ended seen = workspace().run({"data", "inspect", "made-out.bin", "--tokenizer", "bytes"});
  check_built(seen);
  CHECK(seen.says("notice: " + (workspace() / "made-out.bin").filename().string() + " was made with the tokenizer "));
  const Ended own = workspace().run({"data", "inspect", "made-out.bin", "--tokenizer", "made-tokenizer"});
  CHECK_FALSE(own.says("notice:"));
}

TEST_CASE("a_program_without_the_module_for_parquet_refuses_it_with_what_to_do") {
  fs::create_directories(workspace() / "bare");
  fs::copy_file(SCALETRAIN_PROGRAM, workspace() / "bare/scaletrain", fs::copy_options::overwrite_existing);
  fs::copy_file(fs::path(SCALETRAIN_SOURCE_FOLDER) / "tests/golden/parquet/plain.parquet", workspace() / "p.parquet",
                fs::copy_options::overwrite_existing);
  Launch launch = workspace().launch({"data", "build", "p.parquet", "--tokenizer", "bytes", "--output", "p"});
  launch.executable = workspace() / "bare/scaletrain";
  const Ended bare = run_program(launch);
  CHECK(bare.exit_code == 2);
  CHECK_MESSAGE(contains(bare.errors,
                         "SOURCES: p.parquet is Parquet, and this program was built without what reads it: "
                         "build it with -DSCALETRAIN_PARQUET=ON, or write the file as JSONL: python3 -c"),
                bare.errors);
  // A module of another program.
  workspace().write("bare/libscaletrain-parquet.so", "no library");
  const Ended damaged = run_program(launch);
  CHECK(damaged.exit_code == 2);
  CHECK_MESSAGE(contains(damaged.errors, "libscaletrain-parquet.so cannot be loaded"), damaged.errors);
  if (!fs::exists(fs::path(SCALETRAIN_PROGRAM).parent_path() / "libscaletrain-parquet.so")) return;
  check_built(workspace().run({"data", "build", "p.parquet", "--tokenizer", "bytes", "--output", "p"}));
  CHECK(fs::exists(workspace() / "p.bin"));
  const Ended missing =
      workspace().run({"data", "build", "p.parquet", "--field", "body", "--tokenizer", "bytes", "--output", "q"});
  CHECK(missing.exit_code == 3);
  CHECK_MESSAGE(contains(missing.errors, "there is no column \"body\"; it has \"id\""), missing.errors);
}

TEST_CASE("jsonl_under_another_name_is_told_with_what_reads_it") {
  workspace().write("plain/corpus", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n");
  const auto build = [](std::vector<std::string> more) {
    std::vector<std::string> command = {"data",  "build",    "plain/corpus", "--tokenizer",
                                        "bytes", "--output", "plain-out",    "--overwrite"};
    command.insert(command.end(), more.begin(), more.end());
    return workspace().run(command);
  };
  const Ended silent = build({"--type", "text"});
  check_built(silent);
  CHECK_FALSE(silent.says("JSON"));
  // It is told again where the same was built before.
  for (int i = 0; i < 2; ++i) {
    const Ended told = build({});
    check_built(told);
    CHECK_MESSAGE(told.says("notice: sources: a file is read as text, but its first lines are JSON objects "
                            "(plain/corpus): --type jsonl reads a document of each line"),
                  told.errors);
    CHECK(told.output.find("in 1 document") != std::string::npos);
  }
  const Ended lines = build({"--type", "jsonl"});
  check_built(lines);
  CHECK_FALSE(lines.says("JSON"));
  CHECK(lines.output.find("in 2 documents") != std::string::npos);
}

}  // namespace
}  // namespace scaletrain
