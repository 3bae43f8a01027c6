#include "tiny_run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "base/hash.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// Sentences of a small grammar with long-range agreement: enough structure that a loss falls, and that two different
// trajectories differ in every step.
std::string sentences(std::uint32_t seed, int count) {
  static const std::array<const char*, 8> subjects = {"the old ship",  "a quiet river",    "my brother",
                                                      "the tall tree", "every lighthouse", "the north wind",
                                                      "a lost dog",    "the city"};
  static const std::array<const char*, 8> verbs = {"waits for", "remembers",  "turns to", "stands beside",
                                                   "runs from", "listens to", "follows",  "answers"};
  static const std::array<const char*, 8> objects = {"the morning", "an empty road",  "its own shadow",
                                                     "the harbour", "a distant bell", "the first snow",
                                                     "nobody",      "the sea"};
  std::string text;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    text += subjects[seed >> 29];
    text += ' ';
    text += verbs[(seed >> 26) & 7];
    text += ' ';
    text += objects[(seed >> 23) & 7];
    text += i % 7 == 6 ? ".\n" : ", ";
  }
  return text;
}

constexpr std::string_view config_text = R"(run: {name: tiny, directory: run, device: cpu}
model: {layers: 2, hidden: 32, heads: 4, context: 32}
data:
  train: [{path: train.txt}]
  validation: [{name: held, path: held.txt}]
train:
  steps: 200
  global_batch: 4
  micro_batch: 2
  optimizer: {learning_rate: 1e-3}
  lr_schedule: {type: cosine, warmup: 10}
evaluate: {every: 20, batches: 2}
checkpoint: {every: 20, keep: 100}
log: {peak_tflops: 0.4}
)";

// The characters of a number (or null) behind "name": in a line of JSON.
std::string number_text(const std::string& line, const std::string& name) {
  const std::string key = "\"" + name + "\":";
  const std::size_t at = line.find(key);
  if (at == std::string::npos) throw std::runtime_error("no " + name + " in " + line);
  const std::size_t begin = at + key.size();
  return line.substr(begin, line.find_first_of(",}", begin) - begin);
}

template <class Map, class StepOf>
void cancel_beyond(Map& map, long step, StepOf step_of) {
  for (auto entry = map.begin(); entry != map.end();) entry = step_of(*entry) > step ? map.erase(entry) : ++entry;
}

constexpr std::string_view digest_prefix = "{\"digest\":\"";

}  // namespace

Workspace::Workspace() {
  folder_.write("train.txt", sentences(1, 4000));
  folder_.write("held.txt", sentences(2, 100));
  folder_.write("config.yaml", config_text);
}

Launch Workspace::launch(std::vector<std::string> arguments) const {
  return {.executable = SCALETRAIN_PROGRAM,
          .arguments = std::move(arguments),
          .environment = {{"SCALETRAIN_CACHE", (folder_ / "cache").string()}},
          .directory = folder_.path()};
}

Ended Workspace::run(std::vector<std::string> arguments, double timeout_seconds) const {
  return run_program(launch(std::move(arguments)), timeout_seconds);
}

std::vector<std::string> Workspace::training(const std::string& run, const std::vector<std::string>& settings) const {
  std::vector<std::string> arguments = {"run", "config.yaml", "--set", "run.directory=" + run};
  for (const std::string& setting : settings) {
    arguments.emplace_back("--set");
    arguments.push_back(setting);
  }
  return arguments;
}

const Workspace& workspace() {
  static const Workspace place;
  return place;
}

Trajectory trajectory_of(const fs::path& run) {
  Trajectory found;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const nlohmann::json object = nlohmann::json::parse(line);
    const auto kind = object.at("kind").get<std::string>();
    if (kind == "step") {
      found.steps[object.at("step").get<long>()] =
          number_text(line, "loss") + " " + number_text(line, "learning_rate") + " " + number_text(line, "grad_norm");
    } else if (kind == "evaluation") {
      found.evaluations[{object.at("step").get<long>(), object.at("dataset").get<std::string>()}] =
          number_text(line, "loss");
    } else if (kind == "restart") {
      const long step = object.at("step").get<long>();
      cancel_beyond(found.steps, step, [](const auto& entry) { return entry.first; });
      cancel_beyond(found.evaluations, step, [](const auto& entry) { return entry.first.first; });
    }
  }
  return found;
}

long newest_step(const fs::path& run) {
  std::ifstream in(run / "metrics.jsonl", std::ios::binary | std::ios::ate);
  if (!in) return 0;
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - 4096));
  const std::string tail((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string_view key = "\"kind\":\"step\",\"step\":";
  const std::size_t at = tail.rfind(key);
  return at == std::string::npos ? 0 : std::atol(tail.c_str() + at + key.size());
}

Launch slowed(Launch launch, double milliseconds, double seconds) {
  launch.environment.emplace_back("LD_PRELOAD", SLOW_KERNEL_LIBRARY);
  launch.environment.emplace_back("SLOW_PROCESS", "scaletrain r0");
  launch.environment.emplace_back("SLOW_MILLISECONDS", std::to_string(milliseconds));
  launch.environment.emplace_back("SLOW_SECONDS", std::to_string(seconds));
  return launch;
}

const fs::path& undisturbed_run() {
  static const fs::path run = [] {
    const Ended end = workspace().run(workspace().training("undisturbed"));
    if (end.exit_code != 0) throw std::runtime_error("the undisturbed run failed:\n" + end.errors);
    return workspace() / "undisturbed";
  }();
  return run;
}

fs::path copy_run(const fs::path& from, const std::string& name) {
  fs::path to = workspace() / name;
  fs::remove_all(to);
  fs::copy(from, to, fs::copy_options::recursive);
  return to;
}

std::vector<std::string> checkpoint_names(const fs::path& run) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(run / "checkpoints", error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(".")) names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> hidden_names(const fs::path& run, std::string_view prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(run / "checkpoints", error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().filename().string().starts_with(prefix)) names.push_back(entry->path().filename().string());
  }
  return names;
}

fs::path checkpoint(const fs::path& run, int step) {
  const std::string digits = std::to_string(step);
  return run / "checkpoints" / ("step-" + std::string(8 - digits.size(), '0') + digits);
}

std::string read_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + file.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_file(const fs::path& file, std::string_view content) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << content;
  if (!out.flush()) throw std::runtime_error("cannot write " + file.string());
}

std::map<std::string, std::string> snapshot(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string time = std::to_string(entry.last_write_time().time_since_epoch().count());
    files[entry.path().string()] = entry.is_regular_file() ? time + " " + read_file(entry.path()) : time;
  }
  return files;
}

nlohmann::json open_manifest(const fs::path& checkpoint) {
  nlohmann::json manifest = nlohmann::json::parse(read_file(checkpoint / "manifest.json"));
  manifest.erase("digest");
  return manifest;
}

void seal_manifest(const fs::path& checkpoint, const nlohmann::json& manifest) {
  const std::string hashed = "\"," + manifest.dump(1).substr(1) + "\n";
  write_file(checkpoint / "manifest.json", std::string(digest_prefix) + to_hex(hash_text(hashed)) + hashed);
}

void replace_file(const fs::path& checkpoint, const std::string& name, const std::string& content) {
  write_file(checkpoint / name, content);
  nlohmann::json manifest = open_manifest(checkpoint);
  for (nlohmann::json& file : manifest.at("files")) {
    if (file.at("name") != name) continue;
    constexpr std::size_t block = 4u << 20;
    std::string hashes;
    for (std::size_t at = 0; at < content.size(); at += block) {
      hashes += to_hex(hash_text(std::string_view(content).substr(at, block)));
    }
    file["bytes"] = content.size();
    file["block_hashes"] = hashes;
  }
  seal_manifest(checkpoint, manifest);
}

std::string safetensors(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + data;
}

}  // namespace scaletrain
