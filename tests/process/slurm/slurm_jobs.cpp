#include "slurm_jobs.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace scaletrain {

namespace fs = std::filesystem;

namespace {

// The agent of a job that has this variable ("SLURM_NODEID=1") in its environment; -1: there is none.
pid_t agent_with(const Job& job, const std::string& variable) {
  for (const pid_t pid : processes_with(job.folder().string())) {
    const fs::path process = fs::path("/proc") / std::to_string(pid);
    std::string name;
    std::ifstream comm(process / "comm");
    std::getline(comm, name);
    if (name != "scaletrain") continue;  // a worker: "scaletrain r0"
    std::ifstream in(process / "environ");
    for (std::string found; std::getline(in, found, '\0');)
      if (found == variable) return pid;
  }
  return -1;
}

}  // namespace

Ended testbed_script(std::vector<std::string> arguments) {
  return run_program({.executable = slurm_scripts / "testbed.sh", .arguments = std::move(arguments)}, 300.0);
}

Testbed::Testbed() {
  if (!is_root()) return;
  // Not below workspace(): what runs with that path in its command line counts as a process of a run. It ends with
  // this program, also with one that is killed.
  const Ended start =
      testbed_script({"start", folder_.path().string(), std::to_string(node_count), std::to_string(::getpid())});
  if (start.exit_code != 0) problem_ = "the testbed did not start: " + start.errors;
}

Testbed::~Testbed() {
  if (is_root()) testbed_script({"stop", folder_.path().string()});
}

bool Testbed::is_root() {
  return ::geteuid() == 0;
}

const Testbed& testbed() {
  static const Testbed bed;
  return bed;
}

std::string ask(const std::string& program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program);
  Launch launch{.executable = "/usr/bin/env", .arguments = std::move(arguments)};
  launch.environment.push_back(testbed().variable());
  return run_program(launch, 120.0).output;
}

Job::Job(const std::string& run, const Settings& options, const Settings& settings, const Environment& environment)
    : Job(run, options, layout_launch(run, settings), environment) {}

Job::Job(const std::string& run, const Settings& options, const Launch& training, const Environment& environment)
    : folder_(layout_folder(run)) {
  Launch launch = training;
  std::vector<std::string> arguments = {"sbatch", "--parsable", "--output=" + log().string()};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.push_back((slurm_scripts / "train.sbatch").string());
  arguments.insert(arguments.end(), training.arguments.begin() + 1, training.arguments.end());  // without `run`
  launch.executable = "/usr/bin/env";
  launch.arguments = std::move(arguments);
  launch.environment.emplace_back("SCALETRAIN", training.executable.string());
  launch.environment.insert(launch.environment.end(), environment.begin(), environment.end());
  launch.environment.push_back(testbed().variable());
  const Ended end = run_program(launch, 120.0);
  if (end.exit_code != 0) throw std::runtime_error("sbatch " + run + ": " + end.errors);
  id_ = end.output.substr(0, end.output.find_first_of(";\n"));
}

Job::~Job() {
  ask("scancel", {id_});
}

std::string Job::output() const {
  return fs::exists(log()) ? read_file(log()) : std::string();
}

std::string Job::property(const std::string& name) const {
  std::string text;
  comes_true([&] { return !(text = ask("scontrol", {"show", "job", "--oneliner", id_})).empty(); }, 60.0);
  const std::size_t at = text.find(" " + name + "=");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 2;
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

std::vector<std::string> Job::nodes() const {
  std::istringstream lines(ask("scontrol", {"show", "hostnames", property("NodeList")}));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) names.push_back(line);
  return names;
}

bool Job::wait_for_step(long step, double seconds) const {
  return comes_true([&] { return newest_step(folder_) >= step; }, seconds);
}
bool Job::wait_for_text(const std::string& text, double seconds) const {
  return comes_true([&] { return output().find(text) != std::string::npos; }, seconds);
}
bool Job::wait_for_end(double seconds) const {
  return comes_true([&] { return is_over(); }, seconds);
}
bool Job::wait_for_start(double seconds) const {
  return comes_true([&] { return state() == "RUNNING"; }, seconds);
}
bool Job::is_over() const {
  const std::vector<std::string> ends = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"};
  return std::find(ends.begin(), ends.end(), state()) != ends.end();
}

// SLURM lets two minutes pass before a job that was put back may start again; here it need not wait.
std::string Job::state() const {
  std::string found = property("JobState");
  if (found == "PENDING" && property("Reason") == "BeginTime")
    ask("scontrol", {"update", "JobId=" + id_, "StartTime=now"});
  return found;
}

void wait_for_ends(const std::vector<const Job*>& jobs, double seconds) {
  comes_true(
      [&] { return std::count_if(jobs.begin(), jobs.end(), [](const Job* job) { return !job->is_over(); }) == 0; },
      seconds);
}

std::vector<std::pair<long, long>> starts_of(const Job& job) {
  std::vector<std::pair<long, long>> starts;
  std::istringstream lines(read_file(job.folder() / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object() && record.contains("layout"))
      starts.emplace_back(record.value("step", 0L), record["layout"]["data"].get<long>());
  }
  return starts;
}

std::vector<long> replicas_of_starts(const Job& job) {
  std::vector<long> replicas;
  for (const auto& start : starts_of(job)) replicas.push_back(start.second);
  return replicas;
}

void kill_agent(const Job& job, const std::string& variable) {
  const pid_t agent = agent_with(job, variable);
  if (agent <= 0) throw std::runtime_error(job.folder().string() + ": no agent with " + variable);
  ::kill(agent, SIGKILL);
}

Settings on_nodes(int first, int last) {
  Settings options = {"--nodes=" + std::to_string(last - first + 1), "--nodelist="};
  for (int node = first; node <= last; ++node) options.back() += (node > first ? ",n" : "n") + std::to_string(node);
  return options;
}
Settings count_of_nodes(int count, int first, int last) {
  Settings options = {"--nodes=" + std::to_string(count), "--exclude="};
  for (int node = 0; node < node_count; ++node)
    if (node < first || node > last)
      options.back() += (options.back().back() == '=' ? "n" : ",n") + std::to_string(node);
  return options;
}
Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

}  // namespace scaletrain
