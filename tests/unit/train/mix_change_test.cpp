// A run whose data.train changes at a resume: each source goes on where it was left, and people are told so.
#include <fmt/format.h>

#include <algorithm>

#include "support/near.h"
#include "train/run_state.h"
#include "train_helpers.h"

namespace scaletrain {
namespace {

// 48 samples of some 250 of train.txt are read in 12 steps; b.txt has 10.
const std::string kAlone = "data.train=[{path: train.txt}]";
const std::string kBoth = "data.train=[{path: b.txt, epochs: 1}, {path: train.txt}]";
const std::string kOther = "data.train=[{path: b.txt, epochs: 1}]";

// Samples taken of each source, in the order of data.train, at the newest checkpoint.
std::vector<std::int64_t> taken(const TinyRun& run) {
  const std::filesystem::path newest = list_checkpoints(run.paths.checkpoints()).front().path;
  const RunState state = read_state(read_manifest(newest), newest.string());
  const Mix& mix = state.history.mix();
  const MixTurns turns(mix, std::vector<std::string>(mix.sources.size(), "source"));
  return turns.taken(state.history.next_sample());
}

std::string log_of(const TinyRun& run) {
  return TempFolder::read(run.paths.folder / "logs" / "rank-00000.log");
}

TEST_CASE("a source that joins a run is read from its beginning to its cap, the other one on from where it was") {
  TinyRun run;
  run.run({kAlone});
  CHECK(taken(run) == std::vector<std::int64_t>{48});
  CHECK(run.run({kBoth, "train.steps=24"}) == ExitCode::finished);
  CHECK(taken(run) == std::vector<std::int64_t>{10, 48 + 38});
  // And is gone on with by the next start, as every other state.
  TinyRun whole;
  whole.run({kAlone});
  whole.run({kBoth, "train.steps=24"}, 3);
  CHECK(whole.run({kBoth, "train.steps=24"}) == ExitCode::finished);
  check_same_numbers(whole.metrics(), run.metrics());
}

TEST_CASE("a capped source that takes another's place needs only what it needs") {
  TinyRun run;
  run.run({kAlone});
  const std::string refusal = message_of<UserError>([&] { run.run({kOther, "train.steps=15"}); });
  CHECK(contains(refusal, "the 3 steps from here on need 12 samples and the epoch caps leave 10"));
  CHECK(contains(refusal, "train.steps"));
  CHECK(run.run({kOther, "train.steps=14"}) == ExitCode::finished);
  CHECK(taken(run) == std::vector<std::int64_t>{8});
}

TEST_CASE("where a resume goes on and what it has read of each source is told ahead") {
  TinyRun run;
  const auto ahead = [&](const std::string& mix) {
    return check_resume(run.paths, run.config({mix, "train.steps=24"}), [](const std::string&) {});
  };
  CHECK_FALSE(ahead(kBoth).has_value());
  run.run({kAlone});
  run.run({kBoth, "train.steps=24"}, 3);  // six samples of each
  const auto both = ahead(kBoth);
  REQUIRE(both.has_value());
  CHECK(both->step == 15);
  CHECK(both->last_step == 24);
  REQUIRE(both->epochs_read.size() == 2);
  CHECK(both->epochs_read[0] == 0.6);
  CHECK(both->epochs_read[1] == Near(54.0 / 251).epsilon(0.01));
  CHECK(ahead(kAlone)->epochs_read == std::vector<double>{both->epochs_read[1]});
  CHECK(ahead("data.train=[{path: c.txt}]")->epochs_read == std::vector<double>{0.0});
}

TEST_CASE("a start says what it will read and what is left, for people and in the metrics") {
  TinyRun run;
  run.run({kAlone});
  const auto tokens = static_cast<std::int64_t>(std::filesystem::file_size(run.folder / "train.txt")) + 1;
  const std::int64_t samples = (tokens - 1 + 15) / 16;
  REQUIRE((samples >= 250 && samples <= 252));
  const std::string holds =
      fmt::format("train.txt: 1 document, 4,{:03} tokens in {} samples; ", tokens - 4000, samples);
  CHECK(contains(log_of(run), holds + "this run = 0.19 epochs"));
  REQUIRE(run.metrics().starts.size() == 1);
  REQUIRE(run.metrics().starts[0].sources.size() == 1);
  const SourceRecord first = run.metrics().starts[0].sources[0];
  CHECK(first.key == "data.train.0");
  CHECK(first.tokens == tokens);
  CHECK(first.samples == samples);
  CHECK(first.taken == 0);
  CHECK(first.taken_at_end == 48);
  CHECK(first.epochs == 48.0 / static_cast<double>(samples));
  run.run({kBoth, "train.steps=24"}, 2);
  CHECK(contains(log_of(run), "data.train has changed: each source goes on where the run left it, new ones begin"));
  CHECK(contains(log_of(run),
                 "b.txt: 1 document, 151 tokens in 10 samples; none of it read yet; this run = 1.00 epochs"));
  CHECK(contains(log_of(run), holds + fmt::format("0.19 epochs read, {} samples of this epoch left; this run = "
                                                  "0.34 epochs",
                                                  samples - 48)));
  run.run({kBoth, "train.steps=24"}, 1);
  CHECK(contains(log_of(run), "0.40 epochs read, 6 samples of its cap left; this run = 1.00 epochs"));
  const std::vector<SourceRecord> sources = run.metrics().restarts.back().sources;
  REQUIRE(sources.size() == 2);
  CHECK(sources[0].taken == 4);
  CHECK(sources[0].cap == 10);
  CHECK(sources[1].taken_at_end == 86);
}

TEST_CASE("a source that is left out stays counted, which is told") {
  TinyRun run;
  run.run({kBoth}, 4);
  const std::vector<std::int64_t> before = taken(run);
  run.run({kAlone}, 2);
  CHECK(contains(log_of(run), "a source that the run has read from is not there now"));
  run.run({kBoth}, 1);
  CHECK(taken(run) == std::vector<std::int64_t>{before.front() + 2, before.back() + 8 + 2});
}

TEST_CASE("a folder that gains a file goes on where it was, and reads the new file in the same epoch") {
  const auto grow = [](TinyRun& run) { run.folder.write("corpus/b.txt", sample_text(400, 13).substr(0, 400)); };
  const auto begin = [](TinyRun& run) {
    run.overrides_always.push_back("data.train=[{path: corpus, epochs: 1}]");
    run.folder.write("corpus/a.txt", sample_text(600, 11).substr(0, 600));
    run.folder.write("corpus/c.txt", sample_text(500, 12).substr(0, 500));
  };
  TinyRun run;
  begin(run);
  run.run();
  REQUIRE(taken(run) == std::vector<std::int64_t>{48});
  grow(run);
  // 600 + 500 and the ends of two documents make 69 samples, 400 and one end make 25.
  CHECK(run.run({"train.steps=23"}) == ExitCode::finished);
  CHECK(taken(run) == std::vector<std::int64_t>{92});
  CHECK(contains(log_of(run), "corpus: 1 file joined, whose 25 samples are read in the rest of this epoch"));
  CHECK_FALSE(contains(log_of(run), "data.train has changed"));
  CHECK(contains(log_of(run), "0.51 epochs read, 46 samples of its cap left; this run = 0.98 epochs"));
  const std::string refusal = message_of<UserError>([&] { run.run({"train.steps=24"}); });
  CHECK(contains(refusal, "the step from here on needs 4 samples and the epoch caps leave 2"));
  // The same where it is interrupted after the file joined.
  TinyRun parts;
  begin(parts);
  parts.run();
  grow(parts);
  parts.run({"train.steps=23"}, 3);
  CHECK(parts.run({"train.steps=23"}) == ExitCode::finished);
  check_same_numbers(parts.metrics(), run.metrics());
}

TEST_CASE(
    "a restart after a failure keeps to the files that the run was started with, the next start reads the new ones") {
  const std::string folder = "data.train=[{path: corpus}]";
  TinyRun undisturbed;
  TinyRun run;
  for (TinyRun* each : {&undisturbed, &run}) {
    each->overrides_always.push_back(folder);
    each->folder.write("corpus/a.txt", sample_text(600, 11).substr(0, 600));
    each->folder.write("corpus/c.txt", sample_text(500, 12).substr(0, 500));
  }
  undisturbed.run();
  run.run({}, 7);
  // Half of a token file: read, it would be refused.
  run.folder.write("corpus/b.bin", std::string("\x88\xD8\x34\x01", 4));
  StartPoint start = run.prepare(run.config());
  start.cause = "rank 0 was killed";
  CHECK(run.train(start) == ExitCode::finished);
  check_same_numbers(run.metrics(), undisturbed.metrics());
  CHECK(contains(log_of(run), "data.train.0.path: 1 file came to "));
  // Whole, and somebody starts the run again.
  std::filesystem::remove(run.folder.path() / "corpus/b.bin");
  run.folder.write("corpus/b.txt", sample_text(400, 13).substr(0, 400));
  CHECK(run.run({"train.steps=16"}) == ExitCode::finished);
  CHECK(contains(log_of(run), "corpus: 1 file joined"));
  // What that start found is what restarts keep to from then on; a note that cannot be read holds nothing up.
  run.folder.write("corpus/d.txt", "new");
  start = run.prepare(run.config({"train.steps=18"}));
  start.cause = "rank 0 was killed";
  run.folder.write("run/data_files.json", "[");
  CHECK(run.train(start) == ExitCode::finished);
  CHECK(contains(log_of(run), "since the run was started are read too: "));
  CHECK(taken(run).size() == 1);
}

TEST_CASE("a run that failed before it had noted its files keeps to those of the restart that could") {
  TinyRun run;
  run.overrides_always.push_back("data.train=[{path: corpus}]");
  run.folder.write("corpus/a.txt", sample_text(600, 11).substr(0, 600));
  run.run({}, 3);
  const auto restart = [&run](const std::string& steps) {
    StartPoint start = run.prepare(run.config({steps}));
    start.cause = "rank 0 was killed";
    return run.train(start);
  };
  std::filesystem::remove(run.folder / "run/data_files.json");
  CHECK(restart("train.steps=14") == ExitCode::finished);
  run.folder.write("corpus/b.txt", "came later");
  CHECK(restart("train.steps=16") == ExitCode::finished);
  CHECK(contains(log_of(run), "data.train.0.path: 1 file came to "));
}

TEST_CASE("a folder that lost a file is another source, which is told with how many are missing") {
  TinyRun run;
  run.overrides_always.push_back("data.train=[{path: corpus}]");
  for (unsigned i = 0; i < 3; ++i) run.folder.write(fmt::format("corpus/{}.txt", i), sample_text(300, i + 20));
  run.run({}, 4);
  std::filesystem::remove(run.folder / "corpus/1.txt");
  run.run({}, 2);
  CHECK(taken(run) == std::vector<std::int64_t>{8});
  CHECK(contains(log_of(run),
                 "corpus holds other content than at the checkpoint (of the 3 files that the run has read "
                 "from, 1 is not there or changed), and is read from its beginning"));
  run.folder.write("corpus/1.txt", sample_text(300, 21));
  run.run({}, 2);
  CHECK(taken(run) == std::vector<std::int64_t>{24});
}

TEST_CASE("a path that holds other content is another source, which is told with what helps") {
  TinyRun run;
  run.run({kAlone}, 4);
  run.folder.write("train.txt", sample_text(4000, 1) + "and more");
  run.run({kAlone}, 2);
  CHECK(taken(run) == std::vector<std::int64_t>{8});
  CHECK(contains(log_of(run), "train.txt holds other content than at the checkpoint, and is read from its beginning"));
  CHECK(contains(log_of(run), "restore its files; others may join them"));
  // Once: not also as a source that is gone, nor as a mix that is another.
  CHECK_FALSE(contains(log_of(run), "that the run has read from"));
  CHECK_FALSE(contains(log_of(run), "data.train has changed"));
  run.folder.write("train.txt", sample_text(4000, 1));
  run.run({kAlone}, 2);
  CHECK(taken(run) == std::vector<std::int64_t>{24});
}

TEST_CASE("a split that is added is told as such, and that the run may have seen what is held out") {
  TinyRun run;
  std::string lines;
  for (unsigned i = 0; i < 60; ++i) lines += sample_text(80, i) + "\n----\n";
  run.folder.write("many.txt", lines);
  const auto split = [](const std::string& more) {
    return "data.train=[{path: many.txt, separator: '----'" + more + "}]";
  };
  run.run({split("")}, 4);
  run.run({split(", split: {validation: 20%, name: held}")}, 2);
  CHECK(contains(log_of(run),
                 "many.txt is read otherwise than at the checkpoint, and so from its beginning: "
                 "data.train.0.split (was none, is 20 %)"));
  CHECK(contains(log_of(run), "data.train.0.split: the run may have trained on documents that are held out"));
  CHECK_FALSE(contains(log_of(run), "holds other content"));
  // A smaller share holds out no others.
  TinyRun less;
  less.folder.write("many.txt", lines);
  less.run({split(", split: {validation: 40%, name: held}")}, 4);
  less.run({split(", split: {validation: 20%, name: held}")}, 2);
  CHECK(contains(log_of(less), "data.train.0.split (was 40 %, is 20 %)"));
  CHECK_FALSE(contains(log_of(less), "may have trained on"));
}

TEST_CASE("a separator or a field that is another is told by its key") {
  TinyRun run;
  std::string lines;
  for (unsigned i = 0; i < 60; ++i) lines += sample_text(80, i) + "\n----\n";
  run.folder.write("many.txt", lines);
  const auto separated = [](const std::string& by) { return "data.train=[{path: many.txt, type: text" + by + "}]"; };
  run.run({separated(", separator: '----'")}, 4);
  run.run({separated("")}, 2);
  CHECK(contains(log_of(run), "data.train.0.separator (was \"----\", is none). To go on where it was, set that back"));
  CHECK_FALSE(contains(log_of(run), "data.train.0.field"));
  CHECK_FALSE(contains(log_of(run), "holds other content"));
  TinyRun fields;
  std::string records;
  for (unsigned i = 0; i < 60; ++i)
    records += R"({"a": ")" + std::string(70 + i, 'x') + R"(", "b": ")" + std::string(90 - i, 'y') + "\"}\n";
  fields.folder.write("many.jsonl", records);
  fields.run({"data.train=[{path: many.jsonl, field: a}]"}, 4);
  fields.run({"data.train=[{path: many.jsonl, field: b}]"}, 2);
  CHECK(contains(log_of(fields), "data.train.0.field (was a, is b). To go on where it was, set that back"));
}

TEST_CASE("a validation set that has gained or lost files since the last start is told") {
  TinyRun run;
  run.folder.write("held/1.txt", sample_text(150, 3));
  run.folder.write("held/2.txt", sample_text(150, 4));
  const std::vector<std::string> settings = {"data.validation=[{name: a, path: held}]"};
  run.run(settings, 3);
  run.run(settings, 3);
  CHECK_FALSE(contains(log_of(run), "the set is another one"));
  run.folder.write("held/below/3.txt", sample_text(150, 5));
  std::filesystem::remove(run.folder / "held/1.txt");
  run.run(settings, 3);
  CHECK(contains(log_of(run), "data.validation.0: " + (run.folder / "held").string() +
                                  ": since the run was last started 1 file joined and 1 file left: the set is another "
                                  "one"));
}

}  // namespace
}  // namespace scaletrain
