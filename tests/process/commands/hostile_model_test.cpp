// Checkpoints and Hugging Face folders from strangers: whatever they claim, they are refused by name, soon and small.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>

#include "process/tiny_run.h"
#include "refusal.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

struct Safetensors {
  json header;
  std::string data;
};

Safetensors open_safetensors(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  return {json::parse(file.substr(8, length)), file.substr(8 + length)};
}

// Name of the tensor that begins at byte 0, and of the one behind it.
std::string tensor_at(const json& header, std::uint64_t offset) {
  for (const auto& [name, entry] : header.items())
    if (name != "__metadata__" && entry.at("data_offsets").at(0) == offset) return name;
  FAIL("no tensor begins there");
  return {};
}

struct HostileFile {
  std::string name;
  std::function<std::string(const std::string& genuine)> make;
};

std::vector<HostileFile> hostile_files() {
  const auto edited = [](auto edit) {
    return [edit](const std::string& genuine) {
      Safetensors file = open_safetensors(genuine);
      edit(file);
      return safetensors(file.header.dump(), file.data);
    };
  };
  const auto first_entry = [](Safetensors& file) -> json& { return file.header[tensor_at(file.header, 0)]; };
  return {
      {"empty", [](const std::string&) { return std::string(); }},
      {"header-length-2^64-1", [](const std::string& genuine) { return std::string(8, '\xff') + genuine.substr(8); }},
      {"header-length-beyond-file",
       [](const std::string& genuine) {
         std::string file = genuine;
         const std::uint64_t length = genuine.size();
         std::memcpy(file.data(), &length, sizeof length);
         return file;
       }},
      {"duplicate-names",
       [](const std::string& genuine) {
         const Safetensors file = open_safetensors(genuine);
         const std::string name = tensor_at(file.header, 0);
         return safetensors(
             "{" + json(name).dump() + ":" + file.header.at(name).dump() + "," + file.header.dump().substr(1),
             file.data);
       }},
      {"overlap", edited([first_entry](Safetensors& file) {
         json& entry = first_entry(file);
         json& next = file.header[tensor_at(file.header, entry.at("data_offsets").at(1).get<std::uint64_t>())];
         next["data_offsets"][0] = next["data_offsets"][0].get<std::uint64_t>() - 4;
       })},
      {"hole", edited([](Safetensors& file) {
         const std::string name = tensor_at(file.header, 0);
         const std::uint64_t bytes = file.header[name]["data_offsets"][1];
         file.header[name]["data_offsets"] = {file.data.size() + 4, file.data.size() + 4 + bytes};
         file.data += std::string(bytes + 4, '\0');
       })},
      {"shape-that-wraps", edited([first_entry](Safetensors& file) {
         first_entry(file)["shape"] = {1ull << 32, 1ull << 32, 4};
       })},
      {"negative-shape", edited([first_entry](Safetensors& file) {
         first_entry(file)["shape"] = {-1, -8224};
       })},
      {"unknown-dtype", edited([first_entry](Safetensors& file) { first_entry(file)["dtype"] = "F12"; })},
      {"offsets-beyond-file", edited([first_entry](Safetensors& file) {
         first_entry(file)["data_offsets"] = {0, 1ull << 62};
       })},
      {"offsets-reversed", edited([first_entry](Safetensors& file) {
         first_entry(file)["data_offsets"] = {64, 0};
       })},
      {"trailing-bytes", [](const std::string& genuine) { return genuine + std::string(64, 'x'); }},
      {"truncated", [](const std::string& genuine) { return genuine.substr(0, genuine.size() - 64); }},
      {"deep-json", [](const std::string&) { return safetensors("{\"a\":" + std::string(200000, '['), ""); }},
      {"not-json", [](const std::string&) { return safetensors("this is no header", "data"); }},
      {"header-is-a-list", [](const std::string&) { return safetensors("[1,2,3]", ""); }},
      {"missing-tensor", edited([](Safetensors& file) {
         // The last one, so that no hole is left.
         const json entries = file.header;
         for (const auto& [name, entry] : entries.items()) {
           if (name == "__metadata__" || entry.at("data_offsets").at(1) != file.data.size()) continue;
           file.data.resize(entry.at("data_offsets").at(0).get<std::size_t>());
           file.header.erase(name);
           return;
         }
       })},
  };
}

const fs::path& genuine_folder() {
  static const fs::path folder = [] {
    fs::path path = workspace() / "genuine-hf";
    const Ended end = workspace().run(
        {"checkpoint", "export", undisturbed_run().string(), "--to", "huggingface", "--output", path.string()});
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    return path;
  }();
  return folder;
}

// A copy of the newest checkpoint or of the exported folder, made anew each time.
fs::path fresh_copy(const fs::path& from) {
  fs::path to = workspace() / "hostile";
  fs::remove_all(to);
  fs::copy(from, to, fs::copy_options::recursive);
  return to;
}

std::vector<std::vector<std::string>> commands_on_models(const fs::path& model) {
  const std::string output = (workspace() / "never-written").string();
  return {{"evaluate", model.string(), "--data", (workspace() / "held.txt").string()},
          {"generate", model.string(), "--prompt", "1", "--max-tokens", "1"},
          {"checkpoint", "export", model.string(), "--to", "huggingface", "--output", output}};
}

void check_all_refuse(const fs::path& model, bool is_checkpoint, const std::vector<std::string>& words) {
  std::vector<std::vector<std::string>> commands = commands_on_models(model);
  if (is_checkpoint) {
    commands.push_back({"checkpoint", "inspect", model.string()});
    commands.push_back({"checkpoint", "verify", model.string()});
  }
  for (const auto& command : commands) {
    CAPTURE(command[0]);
    CAPTURE(command[1]);
    const Ended end = workspace().run(command);
    check_refused(end, 3, words);
    CHECK(end.output.empty());
    CHECK_FALSE(fs::exists(workspace() / "never-written"));
  }
}

TEST_CASE("hostile_safetensors_in_a_checkpoint_are_refused_by_file") {
  const fs::path from = checkpoint(undisturbed_run(), tiny_steps);
  const std::string genuine = read_file(from / "model-00000.safetensors");
  for (const HostileFile& hostile : hostile_files()) {
    CAPTURE(hostile.name);
    const fs::path model = fresh_copy(from);
    replace_file(model, "model-00000.safetensors", hostile.make(genuine));
    check_all_refuse(model, true, {(model / "model-00000.safetensors").string()});
  }
}

TEST_CASE("hostile_safetensors_in_a_hugging_face_folder_are_refused_by_file") {
  const std::string genuine = read_file(genuine_folder() / "model.safetensors");
  for (const HostileFile& hostile : hostile_files()) {
    CAPTURE(hostile.name);
    const fs::path model = fresh_copy(genuine_folder());
    write_file(model / "model.safetensors", hostile.make(genuine));
    check_all_refuse(model, false, {model.string()});
  }
}

struct HostileManifest {
  std::string name;
  std::function<void(json& manifest)> edit;
  std::vector<std::string> words;
};

TEST_CASE("hostile_manifests_are_refused_by_member") {
  const std::vector<HostileManifest> cases = {
      {"parent-folder",
       [](json& m) { m["files"][0]["name"] = "../model-00000.safetensors"; },
       {"../model-00000.safetensors"}},
      {"absolute-path", [](json& m) { m["files"][0]["name"] = "/etc/passwd"; }, {"/etc/passwd"}},
      {"piece-elsewhere", [](json& m) { m["tensors"][0]["pieces"][0]["file"] = "../../x"; }, {"../../x"}},
      {"tokenizer-elsewhere", [](json& m) { m["tokenizer_files"] = {"../../tokenizer.json"}; }, {"tokenizer"}},
      {"future-version", [](json& m) { m["format_version"] = 99; }, {"version 99"}},
      {"a-member-more", [](json& m) { m["surprise"] = 1; }, {"members"}},
      {"a-member-less", [](json& m) { m.erase("history"); }, {"manifest.json"}},
      {"huge-shape",
       [](json& m) {
         m["tensors"][0]["shape"] = {1ll << 40, 1ll << 40};
       },
       {"shape"}},
      {"large-shape",
       [](json& m) {
         m["tensors"][0]["shape"] = {1ll << 40};
         m["tensors"][0]["pieces"][0]["first"] = {0};
         m["tensors"][0]["pieces"][0]["extent"] = {1ll << 40};
       },
       {"manifest says"}},
      {"huge-file", [](json& m) { m["files"][0]["bytes"] = 1ull << 60; }, {"block hashes"}},
      {"negative-step", [](json& m) { m["step"] = -5; }, {"step"}},
      {"uncovered-tensor", [](json& m) { m["tensors"][0]["pieces"][0]["extent"][0] = 1; }, {"elements"}},
      {"overlapping-pieces",
       [](json& m) { m["tensors"][0]["pieces"].push_back(m["tensors"][0]["pieces"][0]); },
       {"pieces"}},
      {"doubled-tensor", [](json& m) { m["tensors"].push_back(m["tensors"][0]); }, {"manifest.json"}},
      {"doubled-file", [](json& m) { m["files"].push_back(m["files"][0]); }, {"listed twice"}},
      {"other-save", [](json& m) { m["save_id"] = "00000000000000000000000000000000"; }, {"two saves are mixed"}},
  };
  for (const HostileManifest& hostile : cases) {
    CAPTURE(hostile.name);
    const fs::path model = fresh_copy(checkpoint(undisturbed_run(), tiny_steps));
    json manifest = open_manifest(model);
    hostile.edit(manifest);
    seal_manifest(model, manifest);
    check_all_refuse(model, true, hostile.words);
  }
  const fs::path model = fresh_copy(checkpoint(undisturbed_run(), tiny_steps));
  write_file(model / "manifest.json", "{\"digest\":\"0000000000000000\"," + std::string(200000, '['));
  check_all_refuse(model, true, {"manifest.json"});
}

TEST_CASE("files_linked_out_of_the_folder_are_refused") {
  const fs::path model = fresh_copy(checkpoint(undisturbed_run(), tiny_steps));
  const fs::path outside = workspace() / "outside.safetensors";
  fs::rename(model / "model-00000.safetensors", outside);
  fs::create_symlink(outside, model / "model-00000.safetensors");
  check_all_refuse(model, true, {"model-00000.safetensors", "link"});
  const fs::path folder = fresh_copy(genuine_folder());
  fs::remove(outside);
  fs::rename(folder / "model.safetensors", outside);
  fs::create_symlink(outside, folder / "model.safetensors");
  check_all_refuse(folder, false, {"model.safetensors", "link"});
}

TEST_CASE("a_shard_index_may_not_lead_out_of_its_folder") {
  for (const char* name : {"../genuine-hf/model.safetensors", "/etc/passwd", "", ".", "no-such-shard.safetensors"}) {
    CAPTURE(name);
    const fs::path folder = fresh_copy(genuine_folder());
    const Safetensors file = open_safetensors(read_file(folder / "model.safetensors"));
    json map = json::object();
    for (const auto& [tensor, entry] : file.header.items())
      if (tensor != "__metadata__") map[tensor] = name;
    fs::remove(folder / "model.safetensors");
    write_file(folder / "model.safetensors.index.json", json{{"metadata", json::object()}, {"weight_map", map}}.dump());
    check_all_refuse(folder, false, {folder.string()});
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

TEST_CASE("a_hostile_config_inside_a_manifest_is_bad_input_that_names_the_manifest") {
  struct Case {
    std::string from;
    std::string to;
  };
  const std::vector<Case> cases = {
      {"layers: 2", "layers: 1000000000"},
      {"layers: 2", "layers: 3"},
      {"layers: 2", "layers: -1"},
      {"hidden: 32", "hidden: 1073741824"},
      {"hidden: 32", "hidden: 64"},
      {"heads: 4", "heads: 5"},
      {"kv_heads: 4", "kv_heads: 3"},
      {"vocab: auto", "vocab: 4611686018427387904"},
      {"vocab: auto", "vocab: 2000000000"},
      {"vocab: auto", "vocab: 5"},
      {"context: 32", "context: 1099511627776"},
      {"ffn_hidden: 128", "ffn_hidden: 4611686018427387904"},
      {"type: bytes", "type: bpe"},
      {"type: bytes", "type: ids"},
      {"dropout: 0", "dropout: 1.5"},
      {"norm: layernorm", "norm: *bomb"},
      {"run:", "run: &a"},
      {"norm_epsilon", "norm_epsilon2"},
      {"position: learned", "position: rope"},
      {"bias: true", "bias: false"},
      {"tie_embeddings: true", "tie_embeddings: false"},
  };
  for (const Case& hostile : cases) {
    CAPTURE(hostile.to);
    const fs::path model = fresh_copy(checkpoint(undisturbed_run(), tiny_steps));
    json manifest = open_manifest(model);
    manifest["config"] = replaced(manifest.at("config").get<std::string>(), hostile.from, hostile.to);
    seal_manifest(model, manifest);
    for (const auto& command : commands_on_models(model)) {
      CAPTURE(command[0]);
      check_refused(workspace().run(command), 3, {model.string()});
    }
  }
  const fs::path run = copy_run(undisturbed_run(), "hostile-run");
  json manifest = open_manifest(checkpoint(run, tiny_steps));
  manifest["config"] = "model: {layers: 1}\nmodel: {layers: 2}\n";
  seal_manifest(checkpoint(run, tiny_steps), manifest);
  const Ended end = workspace().run(workspace().training("hostile-run"));
  CHECK_MESSAGE(end.exit_code == 3, end.errors);
  CHECK(end.says("step-00000200/manifest.json"));
}

TEST_CASE("hostile_sizes_in_a_hugging_face_config_are_refused_by_path") {
  struct Case {
    std::string key;
    json value;
  };
  const std::vector<Case> cases = {{"vocab_size", 2000000000},
                                   {"vocab_size", 0},
                                   {"n_layer", 2000000000},
                                   {"n_layer", -1},
                                   {"n_embd", 1 << 28},
                                   {"n_embd", 33},
                                   {"n_head", 5},
                                   {"n_positions", 2000000000},
                                   {"n_inner", 2000000000},
                                   {"n_layer", 1e300},
                                   {"n_layer", "two"},
                                   {"vocab_size", nullptr},
                                   {"model_type", "mamba"},
                                   {"activation_function", "relu"},
                                   {"layer_norm_epsilon", "small"},
                                   {"model_type", nullptr}};
  for (const Case& hostile : cases) {
    CAPTURE(hostile.key);
    CAPTURE(hostile.value.dump());
    const fs::path folder = fresh_copy(genuine_folder());
    json config = json::parse(read_file(folder / "config.json"));
    config[hostile.key] = hostile.value;
    write_file(folder / "config.json", config.dump());
    check_all_refuse(folder, false, {folder.string()});
  }
  for (const std::string& text : {std::string("{"), std::string("[]"), std::string(), std::string(100000, '[')}) {
    const fs::path folder = fresh_copy(genuine_folder());
    write_file(folder / "config.json", text);
    check_all_refuse(folder, false, {"config.json"});
  }
}

}  // namespace
}  // namespace scaletrain
