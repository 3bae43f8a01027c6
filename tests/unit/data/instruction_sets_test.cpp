// Data sets of instructions beside text, what ends a completion, and what data inspect says of their files.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "data/corpus/inspection.h"
#include "data/instructions/instruction_source.h"
#include "instruction_scene.h"
#include "support/text.h"

using namespace scaletrain;
using namespace scaletrain::test;
using nlohmann::json;

TEST_CASE("text beside instructions keeps its own attention where nobody chose one for both") {
  Scene scene;
  scene.config.train = {scene.source("a.jsonl", {small_chat(2, 8, 'a'), small_chat(2, 8, 'b')}),
                        source_at(scene.folder.write("t.txt", "one\n--\ntwo\n--\nthree\n"))};
  scene.config.train[1].separator = "--";
  ValidationConfig set;
  set.name = "v";
  set.path = scene.config.train[1].path;
  set.separator = "--";
  const auto starts_of = [&](DocumentAttention attention) {
    scene.config.documents.attention = attention;
    const auto data = open_training_data(scene.config, *scene.tokenizer, scene.options(64));
    std::map<bool, Ids> starts;  // of instructions or not
    for (std::int64_t number = 0; number < 2; ++number) {
      const Sample sample = read(*data, number);
      starts[std::count(sample.inputs.begin(), sample.inputs.end(), kTurnBegin) > 0] = sample.starts;
    }
    const auto validation = open_validation_set(set, scene.config, *scene.tokenizer, scene.options(64), "v");
    CHECK(read(*validation, 0).starts == starts[false]);
    CHECK(validation->attention() ==
          (attention == DocumentAttention::instructions ? DocumentAttention::across : attention));
    return starts;
  };
  const auto within = starts_of(DocumentAttention::within);
  const auto apart = starts_of(DocumentAttention::instructions);
  CHECK(within.at(true) == Ids({0, 31}));
  CHECK(within.at(false).size() == 3);
  CHECK(apart.at(true) == Ids({0, 31}));
  CHECK(apart.at(false) == Ids({0}));
  set.path = scene.config.train[0].path;
  set.separator.reset();
  set.records = RecordKind::messages;
  CHECK(open_validation_set(set, scene.config, *scene.tokenizer, scene.options(64), "v")->attention() ==
        DocumentAttention::within);
}

TEST_CASE("a completion ends with the eos that the tokenizer's files name, else the model's, else a document's end") {
  Scene scene;
  const json record = {{"prompt", "q"}, {"completion", "a"}};
  scene.config.train = {scene.source("a.jsonl", {record, record}, RecordKind::prompt_completion)};
  const std::filesystem::path& folder = scene.path;
  // The hash of the data, and what a sample learns.
  const auto read_it = [&] {
    scene.told.clear();
    const auto data = open_training_data(scene.config, *scene.tokenizer, scene.options(16));
    const Sample sample = read(*data, 0);
    Ids learned;
    for (const std::int32_t target : sample.targets)
      if (target >= 0) learned.push_back(target);
    return std::pair(data->hash(), learned);
  };
  const auto [plain, plain_ids] = read_it();
  CHECK(plain_ids == Ids({'a', kEndOfText, 'a', kEndOfText}));
  CHECK_FALSE(scene.has_told("each ends with"));

  std::ofstream(folder / "config.json") << R"({"eos_token_id": [258, 257]})";
  CHECK(read_it() == std::pair(plain, plain_ids));  // which of them is not said
  std::ofstream(folder / "config.json") << R"({"eos_token_id": [)" << kTurnEnd << "]}";
  const auto [by_model, model_ids] = read_it();
  CHECK(model_ids == Ids({'a', kTurnEnd, 'a', kTurnEnd}));
  CHECK(by_model != plain);
  CHECK(scene.has_told("; each ends with token " + std::to_string(kTurnEnd) + " (eos_token_id of "));

  std::ofstream(folder / "config.json") << R"({"eos_token_id": 5000})";
  CHECK(read_it() == std::pair(plain, plain_ids));  // none of the tokenizer's
  std::ofstream(folder / "tokenizer_config.json") << R"({"eos_token": {"content": "<|im_end|>"}})";
  std::ofstream(folder / "config.json") << R"({"eos_token_id": 65})";
  CHECK(read_it() == std::pair(by_model, model_ids));
  CHECK(scene.has_told("(eos_token of "));
  CHECK(completion_end(scene.config, *scene.tokenizer)->named_by ==
        "eos_token of " + (folder / "tokenizer_config.json").string());

  // The config has the last word: the same token as the tokenizer's own is the same data.
  scene.config.tokenizer.end_of_document = kEndOfText;
  CHECK(read_it() == std::pair(plain, plain_ids));
  // Conversations end their turns by the template.
  scene.config.tokenizer.end_of_document.reset();
  scene.config.instructions.chat_template = "chatml";
  CHECK_FALSE(instruction_rules(RecordKind::messages, scene.config, *scene.tokenizer, 16, "data.train.0").end);
}

TEST_CASE("data inspect and verify tell instructions by name, and read their records") {
  const TempFolder folder;
  const json chat = small_chat(2, 3, 'a');
  const auto file = folder.write("a.jsonl", chat.dump() + "\n" + chat.dump() + "\n");
  InspectionOptions options;
  const InspectedFile inspected = inspect_data(file.string(), options).files.at(0);
  CHECK(inspected.kind == "JSONL of conversations");
  CHECK(inspected.records == RecordKind::messages);
  CHECK(inspected.documents == 2);
  CHECK_FALSE(inspected.characters);
  options.show = 1;
  CHECK(inspect_data(file.string(), options).files.at(0).shown ==
        std::vector<std::string>{R"("user" "aa", "assistant" "aaa")"});
  const InspectedFile verified = verify_data(file.string(), options).files.at(0);
  CHECK(verified.documents == 2);
  CHECK_FALSE(verified.problem);

  const std::string pair = R"({"prompt": "q", "completion": "c"})";
  folder.write("a.jsonl", pair + "\n{\"prompt\": \"q\"}\n" + pair + "\n");
  const InspectedFile bad = verify_data(file.string(), options).files.at(0);
  CHECK(bad.kind == "JSONL of prompts and completions");
  CHECK(contains(bad.problem.value_or(""), "a.jsonl:2: the field \"completion\" is missing"));
  options.on_bad_record = BadRecordPolicy::skip;
  const Inspection skipped = verify_data(file.string(), options);
  CHECK(skipped.files.at(0).documents == 2);
  CHECK(skipped.files.at(0).shown == std::vector<std::string>{R"(prompt "q", completion "c")"});
  CHECK(skipped.notes.num_skipped() == 1);

  // A field that is there makes it text.
  options.field = "prompt";
  CHECK(inspect_data(file.string(), options).files.at(0).kind == "JSONL");
}
