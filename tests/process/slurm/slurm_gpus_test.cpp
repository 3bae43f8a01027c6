// Jobs that ask SLURM for GPUs. Which of them a job has is SLURM's word (the testbed's nodes have two each); the
// program sees those of a machine with four, which the host carries out, as far as SLURM leaves them to it.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "process/gpu_machine.h"
#include "slurm_scenes.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* machine = "4 x H100";
const Settings four_samples = {"parallel.data=auto", "train.micro_batch=1"};
const Settings elastic_samples = with(four_samples, {"supervise.elastic={min_data: 2}"});
const Environment step_each = {{"SCALETRAIN_ELASTIC", "1"}};

Job gpu_job(const std::string& run, const Settings& options, const Settings& settings,
            const std::string& gpus = machine, const Environment& environment = {}) {
  return {run, options, gpu_machine().training(gpus, layout_folder(run).string(), settings), environment};
}

// All at once: most of their time is SLURM's. On nodes that nobody loses.
struct GpuJobs {
  Job together = gpu_job("slurm-gpus", with(on_nodes(14, 15), {"--gpus-per-node=2"}), four_samples);
  // Agents that come and go have a step each: none may ask for all GPUs of the job.
  Job apart = gpu_job("slurm-gpus-apart", with(on_nodes(12, 13), {"--gpus=4", "--gpus-per-node=2", "--no-kill"}),
                      elastic_samples, machine, step_each);
  Job single = gpu_job("slurm-gpus-single", with(on_nodes(14, 15), {"--gpus-per-node=1", "--no-kill"}), elastic_samples,
                       machine, step_each);
  Job uncounted = gpu_job("slurm-gpus-uncounted", with(on_nodes(14, 15), {"--gpus=2", "--no-kill"}), elastic_samples,
                          machine, step_each);
  // Where nothing hides the GPUs of others, and where cgroups do.
  Job unasked = gpu_job("slurm-gpus-unasked", on_nodes(12, 12), {"train.steps=1"});
  Job without = gpu_job("slurm-gpus-without", on_nodes(13, 13), {"train.steps=1"}, "no GPU");

  GpuJobs() { wait_for_ends({&together, &apart, &single, &uncounted, &unasked, &without}, 180.0); }
};
const GpuJobs& jobs() {
  static const GpuJobs all;
  return all;
}

// The same ranks on one machine, without SLURM.
const Trajectory& trajectory_without_slurm(int ranks) {
  static std::map<int, Trajectory> all;
  if (!all.contains(ranks)) {
    const std::string run = "gpus-of-one-host-" + std::to_string(ranks);
    const Ended end = gpu_machine().train(std::to_string(ranks) + " x H100", run, four_samples);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    REQUIRE(has(end.errors, "on " + std::to_string(ranks) + " ranks"));
    all[ranks] = trajectory_of(workspace() / run);
  }
  return all.at(ranks);
}

void check_ranks(const Job& job, int ranks) {
  REQUIRE_MESSAGE(job.property("JobState") == "COMPLETED", job.output());
  CHECK_MESSAGE(has(job.output(), "on " + std::to_string(ranks) + " ranks"), job.output());
  CHECK_MESSAGE(has(job.output(), "a GPU (NVIDIA H100 80GB HBM3) per rank"), job.output());
  CHECK_FALSE(has(job.output(), "share"));
  CHECK_FALSE(has(job.output(), "visible GPUs"));
  CHECK_FALSE(has(job.output(), "SLURM has given"));
  const Trajectory found = trajectory_of(job.folder());
  CHECK(found.steps == trajectory_without_slurm(ranks).steps);
  CHECK(found.last_step() == 6);
}

// What the log of a rank says that it computes on.
std::string gpu_of(const fs::path& run, int rank) {
  std::string log = read_file(run / "logs" / ("rank-0000" + std::to_string(rank) + ".log"));
  const std::string words = "rank " + std::to_string(rank) + " computes on ";
  const std::size_t at = log.find(words);
  if (at == std::string::npos) return log;
  return log.substr(at + words.size(), std::string("GPU 1").size());
}

}  // namespace

TEST_CASE("a_job_that_asks_for_gpus_has_a_rank_on_each_and_the_losses_of_one_host") {
  if (!is_there()) return;
  check_ranks(jobs().together, 4);
  CHECK(gpu_of(jobs().together.folder(), 1) == "GPU 1");
  CHECK(gpu_of(jobs().together.folder(), 2) == "GPU 0");
  CHECK(gpu_of(jobs().together.folder(), 3) == "GPU 1");
}

TEST_CASE("agents_with_a_step_each_see_the_gpus_that_the_job_has_on_their_node") {
  if (!is_there()) return;
  check_ranks(jobs().apart, 4);
  check_ranks(jobs().single, 2);
  CHECK(gpu_of(jobs().single.folder(), 1) == "GPU 0");
  const Job& uncounted = jobs().uncounted;
  CHECK_MESSAGE(uncounted.property("ExitCode") == "2:0", uncounted.output());
  CHECK_MESSAGE(has(uncounted.output(), "submit with --gpus-per-node in place of --gpus"), uncounted.output());
}

TEST_CASE("a_job_without_gpus_is_told_to_ask_slurm_for_them") {
  if (!is_there()) return;
  const std::string remedy = "SLURM has given this job no GPU: submit it with --gpus-per-node";
  const Job& without = jobs().without;
  CHECK_MESSAGE(without.property("JobState") == "FAILED", without.output());
  CHECK(without.property("ExitCode") == "2:0");
  CHECK_MESSAGE(has(without.output(), "run.device: cuda: " + remedy + " (the driver finds no GPU: see what nvidia-smi"),
                without.output());
  const Job& unasked = jobs().unasked;
  CHECK_MESSAGE(unasked.property("JobState") == "COMPLETED", unasked.output());
  CHECK_MESSAGE(has(unasked.output(), "notice: " + remedy + ", if SLURM counts GPUs here; "), unasked.output());
}

TEST_CASE("tasks_that_srun_gives_a_gpu_each_train_on_them") {
  if (!is_there()) return;
  const std::string run = "slurm-gpus-tasks";
  Launch launch = gpu_machine().training(machine, layout_folder(run).string(),
                                         {"run.device=auto", "parallel.data=auto", "train.steps=2"});
  const std::vector<std::string> own = std::exchange(
      launch.arguments,
      {"srun", "--nodes=1", "--nodelist=n13", "--ntasks=2", "--gpus-per-task=1", launch.executable.string()});
  launch.arguments.insert(launch.arguments.end(), own.begin(), own.end());
  launch.executable = "/usr/bin/env";
  launch.environment.push_back(testbed().variable());
  const Ended end = run_program(launch, 120.0);
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  CHECK_MESSAGE(end.says("run.device: auto is cuda here"), end.errors);
  CHECK_FALSE(end.says("share"));
  CHECK(gpu_of(layout_folder(run), 1) == "GPU 0");  // of those that it sees
  std::ifstream in(layout_folder(run) / "metrics.jsonl");
  std::string opening;
  std::getline(in, opening);
  CHECK(nlohmann::json::parse(opening).at("gpus") == 2);
}

}  // namespace scaletrain
