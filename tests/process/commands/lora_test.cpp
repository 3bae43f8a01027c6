// Adapters from the first step to what other programs read: their checkpoints, the base that these need, evaluate,
// generate and export.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "models.h"
#include "process/tiny_run.h"
#include "refusal.h"
#include "support/near.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// The tiny model as somebody else's folder.
const std::string& base_folder() {
  static const std::string folder = [] {
    std::string name = (workspace() / "base").string();
    const Ended end = workspace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--output", name});
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    return name;
  }();
  return folder;
}

std::vector<std::string> lora_run(const std::string& run, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"model.init.from=" + base_folder(), "finetune.lora={rank: 4, alpha: 8}", "train.steps=40",
                             "evaluate.batches=1000", "train.optimizer.learning_rate=1e-2"});
  return workspace().training(run, more);
}

// Forty steps on one rank.
const fs::path& trained() {
  static const fs::path run = [] {
    const Ended end = workspace().run(lora_run("lora"));
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    return workspace() / "lora";
  }();
  return run;
}

double held_loss(const std::string& model, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"evaluate", model, "--data", held(), "--json"});
  return loss_of(workspace().run(more));
}

void copy_base(const std::string& name) {
  fs::copy(base_folder(), workspace() / name, fs::copy_options::recursive);
}

TEST_CASE("a_checkpoint_of_adapters_holds_them_alone_and_names_its_base") {
  const nlohmann::json manifest = open_manifest(checkpoint(trained(), 40));
  CHECK(manifest.at("base").at("path") == base_folder());
  CHECK(manifest.at("base").at("content").get<std::string>().size() == 16);
  std::set<std::string> tensors;
  for (const nlohmann::json& tensor : manifest.at("tensors")) tensors.insert(tensor.at("name").get<std::string>());
  CHECK(tensors.contains("blocks.1.attention.qkv.lora_a"));
  CHECK(tensors.contains("blocks.1.attention.key.lora_b/exp_avg"));
  for (const std::string& name : tensors) CHECK_MESSAGE(name.find(".lora_") != std::string::npos, name);
  // The first step is the base's, later ones are better.
  const Trajectory found = trajectory_of(trained());
  CHECK(std::stod(found.evaluations.at({40, "held"})) < held_loss(base_folder(), {"--tokenizer", "bytes"}));
}

TEST_CASE("a_run_says_at_its_start_what_it_trains_where_that_is_not_all_of_the_model") {
  const auto begun = [](const std::string& run, std::vector<std::string> more) {
    more.insert(more.begin(), {"train.steps=1", "train.lr_schedule.warmup=0"});
    Ended end = workspace().run(workspace().training(run, more));
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    return end;
  };
  CHECK_FALSE(begun("all-trained", {}).says("trained: "));
  const std::string freeze = "finetune.freeze=[\"embedding.*\", blocks.0.*]";
  const std::string unfreeze = "finetune.unfreeze=[{step: 5, patterns: [blocks.0.*]}]";
  const Ended frozen = begun("some-trained", {freeze, unfreeze});
  CHECK_MESSAGE(frozen.says("trained: "), frozen.errors);
  CHECK_MESSAGE(frozen.says("; after 5 steps also blocks.0 ("), frozen.errors);
  CHECK_MESSAGE(frozen.says("; frozen: embedding ("), frozen.errors);
  const Ended checked =
      workspace().run({"check", (workspace() / "config.yaml").string(), "--set", freeze, "--set", unfreeze});
  CHECK_MESSAGE(checked.exit_code == 0, checked.errors);
  CHECK_MESSAGE(checked.output.find("what joins has its memory from the start") != std::string::npos, checked.output);
}

TEST_CASE("adapters_resume_to_the_bit_and_on_other_layouts") {
  const fs::path run = copy_run(trained(), "lora-again");
  fs::remove_all(checkpoint(run, 40));
  const Ended end = workspace().run(lora_run("lora-again"));
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(trajectory_of(run).steps == trajectory_of(trained()).steps);
  const fs::path other = copy_run(trained(), "lora-other");
  fs::remove_all(checkpoint(other, 40));
  const Ended on_two = workspace().run(lora_run("lora-other", {"parallel.tensor=2"}));
  REQUIRE_MESSAGE(on_two.exit_code == 0, on_two.errors);
  const double expected = std::stod(trajectory_of(trained()).evaluations.at({40, "held"}));
  CHECK(std::stod(trajectory_of(other).evaluations.at({40, "held"})) == Near(expected).epsilon(1e-5));
}

// Masters and compute weights are apart: the base's and the adapters' are gathered together, once.
TEST_CASE("adapters_in_halves_start_and_resume_on_replicas_with_sharded_optimizer_state") {
  const std::vector<std::string> on_two = {"parallel.data=2", "precision.compute=bf16"};
  const auto arguments = [&](const std::string& run, const std::string& steps) {
    std::vector<std::string> more = on_two;
    more.push_back("train.steps=" + steps);
    return lora_run(run, more);
  };
  const Ended begun = workspace().run(arguments("lora-halves", "10"));
  REQUIRE_MESSAGE(begun.exit_code == 0, begun.errors);
  const Ended on = workspace().run(arguments("lora-halves", "20"));
  REQUIRE_MESSAGE(on.exit_code == 0, on.errors);
  const Ended moved = workspace().run(lora_run("lora-halves", {"train.steps=30", "parallel.data=2"}));
  REQUIRE_MESSAGE(moved.exit_code == 0, moved.errors);
  const Trajectory found = trajectory_of(workspace() / "lora-halves");
  CHECK(std::stod(found.evaluations.at({30, "held"})) < std::stod(found.evaluations.at({10, "held"})));
}

TEST_CASE("a_resume_without_the_adapters_base_or_with_another_one_is_refused_and_one_that_has_moved_is_taken") {
  copy_run(trained(), "lora-based");
  const auto from = [](const std::string& folder) {
    return lora_run("lora-based", {"train.steps=41", "model.init.from=" + (workspace() / folder).string()});
  };
  check_refused(workspace().run(from("gone")), 3,
                {"model.init.from: no such folder: " + (workspace() / "gone").string(), "hold adapters alone"});
  copy_base("changed");
  const fs::path weights = workspace() / "changed" / "model.safetensors";
  std::string bytes = read_file(weights);
  bytes[bytes.size() - 5000] = static_cast<char>(bytes[bytes.size() - 5000] ^ 1);
  write_file(weights, bytes);
  const Ended changed = workspace().run(from("changed"));
  CHECK_MESSAGE(changed.exit_code == 3, changed.errors);
  CHECK(
      changed.says((workspace() / "changed").string() + ": its weights are not those that the checkpoint's adapters "));
  copy_base("moved");
  const Ended moved = workspace().run(from("moved"));
  CHECK_MESSAGE(moved.exit_code == 0, moved.errors);
  CHECK(open_manifest(checkpoint(workspace() / "lora-based", 41)).at("base").at("path") ==
        (workspace() / "moved").string());
}

TEST_CASE("adapters_are_merged_by_evaluate_generate_and_export") {
  const double expected = std::stod(trajectory_of(trained()).evaluations.at({40, "held"}));
  CHECK(held_loss(trained().string()) == Near(expected).epsilon(1e-6));
  const std::string merged = (workspace() / "merged").string();
  const Ended end =
      workspace().run({"checkpoint", "export", trained().string(), "--to", "huggingface", "--output", merged});
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(held_loss(merged, {"--tokenizer", "bytes"}) == Near(expected).epsilon(1e-6));
  const auto text_of = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--prompt", "the ", "--max-tokens", "16", "--greedy"});
    const Ended text = workspace().run(more);
    CHECK_MESSAGE(text.exit_code == 0, text.errors);
    return text.output;
  };
  CHECK(text_of({trained().string()}) == text_of({merged, "--tokenizer", "bytes"}));
}

TEST_CASE("an_adapter_is_exported_as_peft_has_it") {
  const fs::path folder = workspace() / "adapter";
  const Ended begun =
      workspace().run(lora_run("lora-named", {"train.steps=1", "train.lr_schedule.warmup=0",
                                              "model.init.from=" + (workspace() / "./base/").string()}));
  REQUIRE_MESSAGE(begun.exit_code == 0, begun.errors);
  CHECK_MESSAGE(begun.says("trained: "), begun.errors);
  CHECK_MESSAGE(begun.says("frozen: embedding, parts of blocks.0 to blocks."), begun.errors);
  const fs::path named = workspace() / "adapter-named";
  REQUIRE(workspace()
              .run({"checkpoint", "export", (workspace() / "lora-named").string(), "--to", "huggingface", "--adapter",
                    "--output", named.string()})
              .exit_code == 0);
  CHECK(nlohmann::json::parse(read_file(named / "adapter_config.json")).at("base_model_name_or_path") == base_folder());
  const std::vector<std::string> arguments = {"checkpoint",  "export",    trained().string(), "--to",
                                              "huggingface", "--adapter", "--output",         folder.string()};
  const Ended end = workspace().run(arguments);
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  const nlohmann::json config = nlohmann::json::parse(read_file(folder / "adapter_config.json"));
  CHECK(config.at("peft_type") == "LORA");
  CHECK(config.at("r") == 4);
  CHECK(config.at("lora_alpha") == 8);
  CHECK(config.at("fan_in_fan_out") == true);
  CHECK(config.at("base_model_name_or_path") == base_folder());
  CHECK(config.at("target_modules") == nlohmann::json{"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"});
  // How text is read lies beside it, as beside the merged model.
  const fs::path merged = workspace() / "merged-beside";
  REQUIRE(workspace()
              .run({"checkpoint", "export", trained().string(), "--to", "huggingface", "--output", merged.string()})
              .exit_code == 0);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    CHECK(read_file(folder / name) == read_file(merged / name));
  CHECK_FALSE(fs::exists(folder / "generation_config.json"));
  CHECK_FALSE(fs::exists(folder / "config.json"));
  CHECK_MESSAGE(end.says("notice: the model reads bytes: the tokenizer.json written for it"), end.errors);
  const std::string tensors = read_file(folder / "adapter_model.safetensors");
  CHECK(tensors.find("\"base_model.model.transformer.h.1.attn.c_attn.lora_B.weight\":") != std::string::npos);
  check_refused(workspace().run(arguments), 2, {folder.string() + ": already exists"});
  check_refused(workspace().run({"checkpoint", "export", newest(), "--to", "huggingface", "--adapter", "--output",
                                 (workspace() / "none").string()}),
                2, {"--adapter: ", "was not trained with finetune.lora"});
}

TEST_CASE("an_adapter_is_exported_without_a_tokenizer_that_cannot_be_read_and_says_so") {
  workspace().write("letters/a.txt", "the text of a tokenizer\n");
  const std::string tokenizer = (workspace() / "letters-tokenizer").string();
  REQUIRE(workspace()
              .run({"data", "train-tokenizer", "letters/a.txt", "--vocab", "257", "--output", tokenizer})
              .exit_code == 0);
  const Ended begun =
      workspace().run(lora_run("lora-letters", {"train.steps=1", "train.lr_schedule.warmup=0",
                                                "data.tokenizer={type: bpe, path: " + tokenizer + "}"}));
  REQUIRE_MESSAGE(begun.exit_code == 0, begun.errors);
  std::size_t damaged = 0;
  for (const fs::path& folder : {fs::path(tokenizer), workspace() / "lora-letters"})
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
      if (entry.path().filename() == "tokenizer.json") {
        // As long as it was: a checkpoint with a file of another length is refused as a whole.
        write_file(entry.path(), std::string(fs::file_size(entry.path()), ' '));
        ++damaged;
      }
  REQUIRE(damaged >= 2);
  const fs::path folder = workspace() / "adapter-letters";
  const auto exported = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"checkpoint", "export", (workspace() / "lora-letters").string(), "--to", "huggingface"});
    return workspace().run(more);
  };
  const Ended end = exported({"--adapter", "--output", folder.string()});
  CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK_MESSAGE(end.says("notice: no tokenizer lies beside the adapter: "), end.errors);
  CHECK(fs::exists(folder / "adapter_model.safetensors"));
  CHECK_FALSE(fs::exists(folder / "tokenizer.json"));
  // A whole model is nothing without it.
  check_refused(exported({"--output", (workspace() / "merged-letters").string()}), 3, {"tokenizer.json"});
}

TEST_CASE("adapters_of_pefts_are_what_a_run_begins_as_and_others_than_the_configs_are_refused_with_what_to_write") {
  const std::string adapter = (workspace() / "begins").string();
  REQUIRE(
      workspace()
          .run({"checkpoint", "export", trained().string(), "--to", "huggingface", "--adapter", "--output", adapter})
          .exit_code == 0);
  const auto begun = [&](const std::string& run, const std::string& lora, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"finetune.lora={from: " + adapter + lora + "}", "train.steps=1",
                               "train.lr_schedule.warmup=0", "train.optimizer.learning_rate=1e-12"});
    return workspace().run(lora_run(run, more));
  };
  const double expected = std::stod(trajectory_of(trained()).evaluations.at({40, "held"}));
  // Of a step that learns next to nothing they are what they were; on two ranks each has its part.
  for (const std::string layout : {"parallel.tensor=1", "parallel.tensor=2"}) {
    CAPTURE(layout);
    const std::string run = "lora-from-" + layout.substr(layout.size() - 1);
    const Ended end = begun(run, ", rank: 4, alpha: 8", {layout});
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    CHECK(std::stod(trajectory_of(workspace() / run).evaluations.at({1, "held"})) == Near(expected).epsilon(1e-6));
  }
  // A run that has a checkpoint reads them no more.
  fs::rename(adapter, adapter + "-away");
  const Ended on = begun("lora-from-1", ", rank: 4, alpha: 8", {"train.steps=2"});
  CHECK_MESSAGE(on.exit_code == 0, on.errors);
  check_refused(begun("lora-refused", ", rank: 4, alpha: 8"), 2, {"finetune.lora.from: no such folder: " + adapter});
  fs::rename(adapter + "-away", adapter);

  const std::string theirs =
      "have rank 4, alpha 8 and the targets attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj; write `rank: 4";
  check_refused(begun("lora-refused", ", rank: 8, alpha: 8"), 2,
                {"finetune.lora.from: the adapters in " + adapter, theirs});
  check_refused(begun("lora-refused", ", rank: 4, alpha: 4"), 2, {theirs});
  check_refused(begun("lora-refused", ", rank: 4, alpha: 8, targets: [c_fc]"), 2, {theirs});
  check_refused(
      workspace().run({"check", (workspace() / "config.yaml").string(), "--set", "model.init.from=" + base_folder(),
                       "--set", "finetune.lora={from: " + adapter + ", rank: 2}"}),
      2, {theirs});
  const std::string config = read_file(fs::path(adapter) / "adapter_config.json");
  const auto refuses = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json other = nlohmann::json::parse(config);
    other[key] = value;
    write_file(fs::path(adapter) / "adapter_config.json", other.dump());
    check_refused(
        begun("lora-refused", ", rank: 4, alpha: 8"), 3,
        {"finetune.lora.from: ", "\"" + std::string(key) + "\" is " + value.dump(), "which is not supported"});
  };
  refuses("use_rslora", true);
  // peft changes the model's own weights, too, when it loads such adapters.
  refuses("init_lora_weights", "pissa_niter_4");
  refuses("init_lora_weights", "OLoRA");
  refuses("alora_invocation_tokens", {3, 4});
  write_file(fs::path(adapter) / "adapter_config.json", config);

  // Adapters are no model.
  check_refused(workspace().run(lora_run("lora-refused", {"model.init.from=" + adapter})), 3,
                {"model.init.from: ", "holds adapters of peft's", "finetune.lora.from"});
  check_refused(workspace().run({"evaluate", adapter, "--data", held()}), 3,
                {"holds adapters of peft's", "merge_and_unload()"});
}

TEST_CASE("evaluate_says_where_the_base_of_adapters_is_missing_and_takes_it_from_elsewhere") {
  copy_base("once");
  const Ended begun = workspace().run(lora_run("lora-once", {"train.steps=1", "train.lr_schedule.warmup=0",
                                                             "model.init.from=" + (workspace() / "once").string()}));
  REQUIRE_MESSAGE(begun.exit_code == 0, begun.errors);
  const std::string run = (workspace() / "lora-once").string();
  const double before = held_loss(run);
  fs::remove_all(workspace() / "once");
  check_refused(workspace().run({"evaluate", run, "--data", held()}), 3,
                {"need their base model, which is not in " + (workspace() / "once").string(), "--base"});
  CHECK(held_loss(run, {"--base", base_folder()}) == before);
  check_refused(workspace().run({"evaluate", newest(), "--data", held(), "--base", base_folder()}), 2,
                {"--base: ", "needs no other"});
  // Of several models those that have adapters take it.
  const Ended both = workspace().run({"evaluate", newest(), run, "--data", held(), "--json", "--base", base_folder()});
  REQUIRE_MESSAGE(both.exit_code == 0, both.errors);
  CHECK(nlohmann::json::parse(both.output).at(1).at("loss").get<double>() == before);
}

TEST_CASE("adapters_that_cannot_be_trained_are_refused_by_key") {
  const auto refused = [](const std::string& setting, int code, const std::vector<std::string>& words) {
    check_refused(workspace().run(lora_run("lora-refused", {setting})), code, words);
  };
  refused("finetune.lora={rank: 4, targets: [q_proj]}", 2,
          {"finetune.lora.targets: \"q_proj\" is no map of this model", "c_attn, attn.c_proj, c_fc, mlp.c_proj"});
  refused("finetune.lora={rank: 4, dropout: 1}", 2, {"finetune.lora.dropout"});
  refused("model.init.from=null", 2, {"finetune.lora: ", "model.init.from"});
  refused("finetune.freeze=[blocks.0.*]", 2, {"finetune.freeze: has no effect"});
  CHECK_FALSE(fs::exists(workspace() / "lora-refused"));
}

}  // namespace
}  // namespace scaletrain
