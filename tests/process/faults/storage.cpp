#include "storage.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr double patience = 150.0;

// As few tensors as a model can have: each costs a call. Without restarts, so that a test sees what a death left.
const std::vector<std::string>& settings() {
  static const std::vector<std::string> all = {"model.layers=1",
                                               "model.hidden=16",
                                               "model.heads=2",
                                               "model.context=16",
                                               "model.norm=rmsnorm",
                                               "model.bias=false",
                                               "model.position=rope",
                                               "train.steps=" + std::to_string(fault_steps),
                                               "train.global_batch=2",
                                               "evaluate.every=0",
                                               "checkpoint.every=1",
                                               "train.lr_schedule.warmup=1",
                                               "checkpoint.keep=2",
                                               "supervise.max_restarts=0",
                                               "checkpoint.background=false"};
  return all;
}

std::vector<std::string> arguments_of(const std::string& name) {
  std::vector<std::string> arguments = workspace().training(name);
  for (const std::string& setting : settings()) {
    arguments.emplace_back("--set");
    arguments.push_back(setting);
  }
  return arguments;
}

Launch launch_of(const std::string& name) {
  Launch launch = workspace().launch(arguments_of(name));
  // The cases run side by side; a second thread would only wait for the first.
  launch.environment.emplace_back("OMP_NUM_THREADS", "1");
  return launch;
}

void add_fault(Launch& launch, const fs::path& run, const StorageFault& fault) {
  for (const std::string& setting : fault.settings) launch.arguments.insert(launch.arguments.end(), {"--set", setting});
  const fs::path folder = fault.below.empty() ? run : run / fault.below;
  const auto add = [&launch](const char* name, const std::string& value) {
    if (!value.empty()) launch.environment.emplace_back(name, value);
  };
  add("LD_PRELOAD", STORAGE_FAULTS);
  add("FAULT_FOLDER", fs::canonical(folder).string());
  add("FAULT_COMMAND", fault.command);
  add("FAULT_KINDS", fault.kinds);
  add("FAULT_ACTION", fault.action);
  add("FAULT_AT", std::to_string(fault.at));
  add("FAULT_TIMES", std::to_string(fault.times));
  add("FAULT_JOURNAL", fault.journal);
  add("FAULT_RELEASE", fault.release);
  if (fault.rank >= 0) add("FAULT_RANK", std::to_string(fault.rank));
  if (fault.once) add("FAULT_ONCE", "1");
  if (fault.no_exchange) add("FAULT_NO_EXCHANGE", "1");
  if (fault.save > 0) add("FAULT_FROM", ".saving-" + checkpoint("", fault.save).filename().string());
}

// What a run does that goes on from `step`, up to the first call on the save of `until`.
std::vector<StorageCall> traced(int step, int until, const StorageFault& fault) {
  const std::string name = "traced";
  const fs::path run = run_of_step(name, step);
  const fs::path trace = workspace() / "trace.txt";
  fs::remove(trace);
  Launch launch = launch_of(name);
  add_fault(launch, run, fault);
  launch.environment.emplace_back("FAULT_TRACE", trace.string());
  const Ended end = run_program(launch, patience);
  if (end.exit_code != 0) throw std::runtime_error("the traced run failed:\n" + end.errors);
  std::vector<StorageCall> calls = read_trace(trace, run);
  const std::string next = ".saving-" + checkpoint("", until).filename().string();
  const auto stop = std::find_if(calls.begin(), calls.end(), [&](const StorageCall& call) { return call.is_on(next); });
  calls.erase(stop, calls.end());
  return calls;
}

}  // namespace

std::vector<StorageCall> read_trace(const fs::path& trace, const fs::path& run) {
  std::vector<StorageCall> calls;
  std::istringstream in(read_file(trace));
  const std::string prefix = fs::canonical(run).string();
  for (std::string line; std::getline(in, line);) {
    StorageCall call;
    std::istringstream words(line);
    words >> call.number >> call.kind >> std::ws;
    std::getline(words, call.path);
    call.path = call.path.substr(std::min(prefix.size(), call.path.size()));
    calls.push_back(call);
  }
  return calls;
}

const fs::path& undisturbed_steps() {
  static const fs::path run = [] {
    Launch launch = launch_of("undisturbed-steps");
    launch.arguments.insert(launch.arguments.end(), {"--set", "checkpoint.keep=100"});
    const Ended end = run_program(launch, patience);
    if (end.exit_code != 0) throw std::runtime_error("the undisturbed run failed:\n" + end.errors);
    return workspace() / "undisturbed-steps";
  }();
  return run;
}

fs::path run_of_step(const std::string& name, int step) {
  if (step == 0) {
    fs::path empty = workspace() / name;
    fs::remove_all(empty);
    fs::create_directory(empty);
    return empty;
  }
  fs::path run = copy_run(undisturbed_steps(), name);
  for (int other = 1; other <= fault_steps; ++other) {
    if (other != step && other != step - 1) fs::remove_all(checkpoint(run, other));
  }
  // As they were then: steps that come later must come from this run.
  std::ifstream in(undisturbed_steps() / "metrics.jsonl");
  std::string kept;
  const std::string last = "\"kind\":\"checkpoint\",\"step\":" + std::to_string(step) + ",";
  for (std::string line; std::getline(in, line);) {
    kept += line + "\n";
    if (line.find(last) != std::string::npos) break;
  }
  write_file(run / "metrics.jsonl", kept);
  fs::remove_all(run / "logs");
  fs::create_directory(run / "logs");
  return run;
}

Ended go_on(const std::string& name) {
  return run_program(launch_of(name), patience);
}

Launch launch_with(const std::string& name, const StorageFault& fault) {
  Launch launch = launch_of(name);
  add_fault(launch, workspace() / name, fault);
  return launch;
}

Ended go_on(const std::string& name, const StorageFault& fault, const fs::path& trace) {
  Launch launch = launch_of(name);
  add_fault(launch, workspace() / name, fault);
  if (!trace.empty()) launch.environment.emplace_back("FAULT_TRACE", trace.string());
  const fs::path mark = workspace() / (name + ".struck");
  fs::remove(mark);
  launch.environment.emplace_back("FAULT_MARK", mark.string());
  Ended end = run_program(launch, patience);
  if (!fs::remove(mark) && fault.at > 0) throw std::runtime_error("no call was struck\n" + end.errors);
  return end;
}

std::vector<StorageCall> calls_of_save(int step, const std::string& kinds) {
  return traced(step - 1, step + 1, {.save = step, .kinds = kinds});
}

std::vector<StorageCall> calls_of_resume(const std::string& command, const std::string& kinds) {
  return traced(2, 3, {.kinds = kinds, .command = command});
}

std::vector<StorageCall> calls_of_save(const StorageFault& fault) {
  return traced(fault.save - 1, fault.save + 1, fault);
}

bool is_data_write(const StorageCall& call) {
  return call.kind == "write" && call.is_on(".safetensors");
}

long commit_of(const std::vector<StorageCall>& calls) {
  for (const StorageCall& call : calls) {
    if (call.kind == "rename" && call.is_on("/.saving-")) return call.number;
  }
  throw std::runtime_error("no rename of the save's folder among " + std::to_string(calls.size()) + " calls");
}

std::string left_behind(const fs::path& run, std::string_view but) {
  for (const std::string& name : hidden_names(run, ".")) {
    if (but.empty() || !name.starts_with(but)) return "left behind: " + name;
  }
  return {};
}

std::string problem_of(const fs::path& run, const std::vector<int>& steps) {
  std::string problem = problem_of_steps(run, steps);
  return problem.empty() ? left_behind(run, "") : problem;
}

std::string problem_of_steps(const fs::path& run, const std::vector<int>& steps) {
  if (trajectory_of(run).steps != trajectory_of(undisturbed_steps()).steps) return "other steps than undisturbed";
  std::vector<std::string> expected;
  expected.reserve(steps.size());
  for (const int step : steps) expected.push_back(checkpoint(run, step).filename().string());
  const std::vector<std::string> found = checkpoint_names(run);
  if (found != expected) {
    std::string text = "the checkpoints are";
    for (const std::string& name : found) text += " " + name;
    return text;
  }
  for (const int step : steps) {
    if (!verifies(checkpoint(run, step))) return "does not verify: " + checkpoint(run, step).string();
  }
  return {};
}

bool verifies(const fs::path& checkpoint) {
  return workspace().run({"checkpoint", "verify", checkpoint.string()}).exit_code == 0;
}

bool has_restart_from(const fs::path& run, int step) {
  std::ifstream in(run / "metrics.jsonl");
  std::string last;
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("{\"kind\":\"restart\"")) last = line;
  if (last.empty()) return false;
  const nlohmann::json restart = nlohmann::json::parse(last);
  return restart.at("step") == step && restart.at("checkpoint") == checkpoint(run, step).string();
}

bool has_failed_save(const fs::path& run, int step) {
  std::ifstream in(run / "metrics.jsonl");
  const std::string key = "\"kind\":\"checkpoint\",\"step\":" + std::to_string(step) + ",";
  for (std::string line; std::getline(in, line);) {
    if (line.find(key) != std::string::npos && line.find("\"failure\":") != std::string::npos) return true;
  }
  return false;
}

std::vector<std::string> sweep(const std::vector<SweepCase>& cases) {
  undisturbed_steps();
  std::vector<std::string> problems;
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  const auto work = [&](unsigned thread) {
    const std::string name = "case-" + std::to_string(thread);
    for (std::size_t i = next++; i < cases.size(); i = next++) {
      std::string problem;
      try {
        problem = cases[i].test(name);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      if (problem.empty()) continue;
      const std::lock_guard lock(mutex);
      problems.push_back(cases[i].text + ": " + problem);
    }
    fs::remove_all(workspace() / name);
  };
  std::vector<std::thread> threads;
  // Half of a short run is waiting: for a disk, for another process, for the end of a measurement that takes a set
  // time.
  const unsigned count = std::clamp(2 * std::thread::hardware_concurrency(), 2u, 8u);
  for (unsigned thread = 0; thread < count; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  std::sort(problems.begin(), problems.end());
  return problems;
}

}  // namespace scaletrain
