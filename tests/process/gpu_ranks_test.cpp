// Several ranks on GPUs that the host carries out.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "gpu_machine.h"
#include "ranks.h"
#include "support/own_mounts.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

// As the layouts on processors are compared: in single precision.
Settings with(Settings more) {
  Settings all = {"model.layers=2", "precision.compute=fp32", "train.steps=10"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

const Trajectory& one_gpu() {
  static const Trajectory trajectory = [] {
    const Ended end = gpu_machine().train("H100", "one-gpu", with({}));
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    return trajectory_of(workspace() / "one-gpu");
  }();
  return trajectory;
}

void check_losses_of_one_gpu(const std::string& run) {
  check_same_losses(run, one_gpu(), 1e-5);
}

std::string rank_log(const std::string& run, int rank) {
  return read_file(workspace() / run / "logs" / ("rank-0000" + std::to_string(rank) + ".log"));
}

nlohmann::json opening_of(const std::string& run) {
  std::ifstream in(workspace() / run / "metrics.jsonl");
  std::string line;
  std::getline(in, line);
  return nlohmann::json::parse(line);
}

const std::string sharing =
    "notice: 2 ranks share 1 GPU (NVIDIA H100 80GB HBM3): each has a part of its time and its memory, and all together "
    "are not faster than one rank on each GPU\n";
// Ranks that are processes have no NCCL here: they could not meet in what stands for it.
const std::string staging =
    "ranks on GPUs exchange through the host's memory, which is slower than from GPU to GPU: NCCL is not used (rank 0: "
    "libnccl.so.2 is not found); set launch.transport: host to hear no more of it\n";

using Variables = std::vector<std::pair<std::string, std::string>>;

// Both with the same settings; variables: a launcher's for this rank.
std::string train_two(const std::string& run, const std::string& gpus, const Settings& settings, int exit_code,
                      const std::function<Variables(const std::string& rank)>& variables) {
  std::vector<std::unique_ptr<Program>> ranks;
  for (const std::string rank : {"0", "1"}) {
    Launch launch = gpu_machine().training(gpus, run, settings);
    for (const auto& [name, value] : variables(rank)) launch.environment.emplace_back(name, value);
    ranks.push_back(std::make_unique<Program>(launch));
  }
  std::string errors;
  for (const auto& rank : ranks) {
    CHECK_MESSAGE(rank->wait().exit_code == exit_code, rank->errors());
    errors += rank->errors();
  }
  return errors;
}

// Processors that a thread may run on, ascending.
std::vector<int> affinity_of(pid_t thread) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<int> processors;
  if (::sched_getaffinity(thread, sizeof mask, &mask) != 0) return processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &mask)) processors.push_back(processor);
  return processors;
}

Variables torchrun(const std::string& rank) {
  return {{"RANK", rank}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", rank}, {"LOCAL_WORLD_SIZE", "2"}};
}

}  // namespace

TEST_CASE("ranks_on_gpus_train_to_the_losses_of_one_and_resume_on_other_layouts") {
  const Ended replicas = gpu_machine().train("2 x H100", "gpus-data", with({"parallel.data=2", "train.steps=5"}));
  REQUIRE_MESSAGE(replicas.exit_code == 0, replicas.errors);
  CHECK(replicas.says("zero 1, 1 micro-batch of 2, a GPU (NVIDIA H100 80GB HBM3) per rank, in fp32\n"));
  CHECK(replicas.says(staging));
  CHECK_FALSE(replicas.says("share"));
  CHECK_FALSE(replicas.says("visible GPUs"));
  CHECK(has(rank_log("gpus-data", 1), "rank 1 computes on GPU 1 (NVIDIA H100 80GB HBM3)"));
  CHECK(opening_of("gpus-data").at("gpus") == 2);
  // On as many stages, then on one rank.
  const Ended stages =
      gpu_machine().train("2 x H100", "gpus-data", with({"parallel.data=1", "parallel.pipeline=2", "train.steps=8"}));
  REQUIRE_MESSAGE(stages.exit_code == 0, stages.errors);
  const Ended one = gpu_machine().train("H100", "gpus-data", with({"parallel.data=1"}));
  REQUIRE_MESSAGE(one.exit_code == 0, one.errors);
  check_losses_of_one_gpu("gpus-data");

  for (const char* degrees : {"{data: 2, zero: 3}", "{tensor: 2}", "{pipeline: 2}"}) {
    CAPTURE(degrees);
    const std::string run = std::string("gpus-") + degrees[1];
    const Ended end = gpu_machine().train("H100", run, with({std::string("parallel=") + degrees}));
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    CHECK(end.says(sharing));
    CHECK(end.says(", sharing 1 GPU (NVIDIA H100 80GB HBM3), in fp32\n"));
    CHECK(opening_of(run).at("gpus") == 1);
    check_losses_of_one_gpu(run);
    fs::remove_all(workspace() / run);
  }
}

TEST_CASE("ranks_that_are_to_exchange_by_nccl_alone_are_refused_where_they_cannot") {
  const auto refusal = [](const std::string& gpus) {
    const Ended end =
        gpu_machine().train(gpus, "gpus-nccl", with({"parallel.data=2", "train.steps=1", "launch.transport=nccl"}));
    CHECK(end.exit_code == 2);
    return end.errors;
  };
  CHECK(has(refusal("H100"),
            "launch.transport: nccl is between GPUs that each have one rank, and 2 ranks would share 1 "
            "GPU: set auto"));
  CHECK(has(refusal("2 x H100"),
            "launch.transport: nccl: the data group of ranks 0, 1 cannot exchange so (rank 0: "
            "libnccl.so.2 is not found): see to that, or set launch.transport: auto"));
  const Ended staged =
      gpu_machine().train("2 x H100", "gpus-host", with({"parallel.data=2", "train.steps=1", "launch.transport=host"}));
  REQUIRE_MESSAGE(staged.exit_code == 0, staged.errors);
  CHECK_FALSE(staged.says("NCCL"));
}

TEST_CASE("ranks_that_exchange_by_nccl_do_so_over_the_interface_that_launch_names") {
  Launch launch = gpu_machine().training(
      "2 x H100", "gpus-interface",
      with({"parallel.data=2", "launch.interface=lo", "train.steps=1", "supervise.max_restarts=0"}));
  launch.environment.emplace_back("SCALETRAIN_FAKE_NCCL", "no interface");
  const Ended end = run_program(launch);
  CHECK(end.exit_code == 4);
  CHECK_MESSAGE(end.says(": NCCL: invalid usage: Bootstrap : no socket interface found: =lo"), end.errors);
  CHECK(end.says(" (NVIDIA H100 80GB HBM3 at fa4e:1"));  // of whichever rank is heard first
}

TEST_CASE("replicas_that_are_left_to_the_gpus_are_one_on_each") {
  const Settings automatic = {"parallel.data=auto", "train.steps=1"};
  const Ended end = gpu_machine().train("2 x H100", "gpus-auto", automatic);
  REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(end.says("on 2 ranks: data 2 x tensor 1 x pipeline 1"));
  const auto planned = [](const std::string& gpu, const std::vector<std::string>& settings) {
    std::vector<std::string> arguments = {"check", "gpu.yaml",      "--json", "--set", "parallel.data=auto",
                                          "--set", "model.layers=2"};
    for (const std::string& setting : settings) {
      arguments.emplace_back("--set");
      arguments.push_back(setting);
    }
    const Ended check = gpu_machine().run(gpu, arguments);
    CHECK_MESSAGE(check.exit_code == 0, check.errors);
    return nlohmann::json::parse(check.output.substr(check.output.find('{'))).at("world").get<int>();
  };
  CHECK(planned("4 x H100", {}) == 4);
  CHECK(planned("4 x H100", {"run.device=auto"}) == 4);
  CHECK(planned("4 x H100", {"run.device=cpu"}) == 1);
  // Whole replicas, of which one may have to share.
  CHECK(planned("3 x H100", {"parallel.tensor=2"}) == 2);
  CHECK(planned("H100", {"parallel.pipeline=2"}) == 2);
  const Ended idle = gpu_machine().run("3 x H100", {"check", "gpu.yaml", "--set", "parallel.data=2"});
  CHECK(idle.says("notice: 2 of 3 visible GPUs are used, the first 2: more replicas (parallel.data) would use the"));
}

TEST_CASE("auto_is_gpus_where_each_rank_has_one_and_else_the_processors") {
  const Ended there =
      gpu_machine().train("2 x H100", "gpus-chosen", {"run.device=auto", "parallel.tensor=2", "train.steps=1"});
  REQUIRE_MESSAGE(there.exit_code == 0, there.errors);
  CHECK(there.says("notice: run.device: auto is cuda here: 2 GPUs (NVIDIA H100 80GB HBM3)\n"));
  CHECK(there.says("a GPU (NVIDIA H100 80GB HBM3) per rank, in bf16\n"));
  const Ended shared =
      gpu_machine().train("H100", "gpus-not-chosen", {"run.device=auto", "parallel.tensor=2", "train.steps=1"});
  REQUIRE_MESSAGE(shared.exit_code == 0, shared.errors);
  CHECK(
      shared.says("notice: run.device: auto is cpu here: the 2 ranks would have to share 1 GPU (NVIDIA H100 80GB "
                  "HBM3), which run.device: cuda has them do; one rank has it for itself: --set parallel.tensor=1\n"));
  CHECK(shared.says("1 thread per rank, in fp32\n"));
}

TEST_CASE("the_memory_of_ranks_that_share_a_gpu_is_judged_together") {
  const Ended one = gpu_machine().train("narrow GPU", "gpus-narrow", {"train.steps=1"});
  REQUIRE_MESSAGE(one.exit_code == 0, one.errors);
  const Ended two = gpu_machine().train("narrow GPU", "gpus-too-narrow", {"parallel.data=2", "parallel.zero=0"});
  CHECK(two.exit_code == 2);
  CHECK(two.says("train.micro_batch: the 2 ranks that share a GPU need 1.16 GiB of its memory, "));
  CHECK(two.says("and the host has 610 MiB:\neach of the 2 ranks:\n  master weights "));
  CHECK(
      two.says("What helps: one rank on each GPU; a smaller train.micro_batch, model.context or model; "
               "parallel.zero: 3 (it is 0); train.recompute: selective or full; run.device: cpu, which has "));
  CHECK_FALSE(fs::exists(workspace() / "gpus-too-narrow"));
  const Ended check = gpu_machine().run("narrow GPU", {"check", "gpu.yaml", "--set", "parallel.data=2"});
  CHECK(check.exit_code == 2);
  CHECK(check.output.starts_with("DOES NOT FIT"));
  CHECK_FALSE(has(check.output, "parallel.tensor: "));
  CHECK(check.says(" MiB, its part of the host, which 2 ranks share, has 305 MiB: 287 MiB too much"));
  CHECK(check.says("; one rank on each GPU would have all of its memory; run.device: cpu would compute on this"));
}

TEST_CASE("ranks_that_a_launcher_has_started_take_the_gpus_that_they_see") {
  const auto train = [](const std::string& run, bool has_own_gpu, const std::string& gpus) {
    return train_two(run, gpus, {"parallel.data=auto", "train.steps=2"}, 0, [&](const std::string& rank) {
      Variables variables = torchrun(rank);
      if (has_own_gpu) variables.emplace_back("CUDA_VISIBLE_DEVICES", rank);
      return variables;
    });
  };
  for (const bool has_own_gpu : {false, true}) {
    CAPTURE(has_own_gpu);
    const std::string run = has_own_gpu ? "gpus-own" : "gpus-all";
    const std::string errors = train(run, has_own_gpu, "2 x H100");
    CHECK_FALSE(has(errors, " share "));
    CHECK(opening_of(run).at("gpus") == 2);
    CHECK(has(rank_log(run, 1), has_own_gpu ? "rank 1 computes on GPU 0 " : "rank 1 computes on GPU 1 "));
  }
  CHECK(has(train("gpus-one", false, "H100"), sharing));
  CHECK(opening_of("gpus-one").at("gpus") == 1);
}

TEST_CASE("auto_is_gpus_for_ranks_of_a_launcher_that_says_that_each_has_one") {
  const auto start = [](const std::string& gpus, const std::function<Variables(const std::string&)>& variables) {
    return train_two("gpus-launched", gpus, {"run.device=auto", "parallel.data=auto", "train.steps=1"}, 0, variables);
  };
  const auto slurm = [](const std::string& rank, const Variables& more) {
    Variables variables = {{"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NUM_TASKS", "2"},      {"SLURM_PROCID", rank},
                           {"SLURM_LOCALID", rank},       {"SLURM_STEP_TASKS_PER_NODE", "2"}, {"SLURM_NODEID", "0"},
                           {"SLURM_STEP_NUM_NODES", "1"}, {"CUDA_VISIBLE_DEVICES", rank}};
    variables.insert(variables.end(), more.begin(), more.end());
    return variables;
  };
  for (const Variables& own : {Variables{{"SLURM_NTASKS_PER_GPU", "1"}},
                               {{"SLURM_GPU_BIND", "single:1"}, {"SLURM_GPUS_ON_NODE", "2"}},
                               {{"SLURMD_TRES_BIND", "gpu:per_task:1"}, {"SLURM_GPUS_ON_NODE", "2"}}}) {
    CAPTURE(own.front().first);
    const std::string errors = start("2 x H100", [&](const std::string& rank) { return slurm(rank, own); });
    CHECK(has(errors, "notice: run.device: auto is cuda here: NVIDIA H100 80GB HBM3\n"));
    fs::remove_all(workspace() / "gpus-launched");
  }
  // Two tasks on a GPU; and more than there are GPUs for, which SLURM then gives the first one to.
  for (const Variables& shared : {Variables{{"SLURM_NTASKS_PER_GPU", "2"}},
                                  {{"SLURMD_TRES_BIND", "gpu:per_task:1"}, {"SLURM_GPUS_ON_NODE", "1"}}}) {
    CAPTURE(shared.front().first);
    CHECK(
        has(start("2 x H100", [&](const std::string& rank) { return slurm(rank, shared); }),
            "notice: run.device: auto is cpu here: 2 ranks are on this host, and this one sees 1 GPU (NVIDIA H100 80GB "
            "HBM3); set run.device: cuda if each is given a GPU of its own, or if they are to share\n"));
    fs::remove_all(workspace() / "gpus-launched");
  }
  const auto uncounted = [](const std::string& rank) { return Variables{{"PMI_RANK", rank}, {"PMI_SIZE", "2"}}; };
  CHECK(
      has(start("H100", uncounted),
          "notice: run.device: auto is cpu here: MPI (PMI) does not say how many of the ranks are on this host, which "
          "has 1 GPU (NVIDIA H100 80GB HBM3); set run.device: cuda if there is one for each\n"));
}

TEST_CASE("ranks_of_a_launcher_are_refused_for_their_gpus_before_anything_is_made") {
  CHECK(has(train_two("gpus-launched-old", "old GPU", {"parallel.data=auto"}, 2, torchrun), "is older than sm_80"));
  CHECK_FALSE(fs::exists(workspace() / "gpus-launched-old"));
  CHECK(has(train_two("gpus-launched-narrow", "narrow GPU",
                      {"parallel.data=auto", "model.hidden=512", "model.layers=2"}, 2, torchrun),
            "and the host has 610 MiB"));
  CHECK_FALSE(fs::exists(workspace() / "gpus-launched-narrow"));
}

TEST_CASE("check_judges_every_gpu_that_the_ranks_are_on") {
  const auto check = [](const std::string& gpus, const std::string& replicas) {
    return gpu_machine().run(gpus, {"check", "gpu.yaml", "--set", "parallel.data=" + replicas, "--set",
                                    "model.hidden=512", "--set", "model.layers=2"});
  };
  CHECK(check("H100 + old GPU", "1").exit_code == 0);
  const Ended old = check("H100 + old GPU", "2");
  CHECK(old.exit_code == 2);
  CHECK(old.says("is older than sm_80"));
  CHECK(check("H100 + narrow GPU", "1").exit_code == 0);
  const Ended narrow = check("H100 + narrow GPU", "2");
  CHECK(narrow.exit_code == 2);
  CHECK(narrow.output.starts_with("DOES NOT FIT"));
}

TEST_CASE("a_gpu_that_is_gone_when_the_ranks_are_restarted_does_not_make_them_share") {
  const fs::path loss = workspace() / "gpu-gone";
  const fs::path run = workspace() / "gpus-gone";
  const auto start = [&] {
    Launch launch = gpu_machine().training("2 x H100", run.string(),
                                           {"parallel.data=2", "train.steps=60", "supervise.max_restarts=1"});
    launch.environment.emplace_back("SCALETRAIN_FAKE_LOSS", loss.string());
    return std::make_unique<Program>(launch);
  };
  const auto agent = start();
  REQUIRE_MESSAGE(wait_until([&] { return newest_step(run) >= 4 || !agent->running(); }), agent->errors());
  REQUIRE(agent->running());
  write_file(loss, "");
  for (const pid_t worker : children_of(agent->pid())) ::kill(worker, SIGKILL);
  const Ended& ended = agent->wait();
  CHECK(ended.exit_code == 4);
  CHECK(ended.says("1 of the 2 GPUs of "));
  CHECK(ended.says(" that the run was started on is left: start it again to go on with those"));
  const Ended shared = [&] {
    const auto again = start();
    return again->wait();
  }();
  CHECK_MESSAGE(shared.exit_code == 0, shared.errors);
  CHECK(shared.says(sharing));
}

TEST_CASE("nodes_have_a_rank_on_each_gpu_and_are_refused_where_they_differ") {
  const auto start = [](const std::string& run, const std::vector<std::string>& gpus, const std::string& device) {
    std::vector<std::unique_ptr<Program>> nodes;
    for (std::size_t node = 0; node < gpus.size(); ++node) {
      Launch launch = gpu_machine().training(
          gpus[node], run, {"run.device=" + device, "parallel.data=auto", "train.micro_batch=1", "train.steps=1"});
      launch.environment.emplace_back("SCALETRAIN_NODE", std::to_string(node));
      launch.environment.emplace_back("SCALETRAIN_NODES", std::to_string(gpus.size()));
      nodes.push_back(std::make_unique<Program>(launch));
    }
    std::vector<Ended> ends;
    ends.reserve(nodes.size());
    for (const auto& node : nodes) ends.push_back(node->wait());
    return ends;
  };
  const std::vector<Ended> alike = start("gpus-nodes", {"2 x H100", "2 x H100"}, "auto");
  for (const Ended& end : alike) CHECK_MESSAGE(end.exit_code == 0, end.errors);
  CHECK(alike[0].says("on 4 ranks: data 4 x tensor 1 x pipeline 1"));
  CHECK(has(rank_log("gpus-nodes", 3), "rank 3 computes on GPU 1 "));
  const std::vector<Ended> fewer = start("gpus-nodes-differ", {"2 x H100", "H100"}, "cuda");
  for (const Ended& end : fewer) CHECK(end.exit_code == 2);
  CHECK(
      fewer[1].says("launch.ranks_per_node: 1 here, launch.ranks_per_node: 2 there; start all nodes with the same "
                    "config and the same --set (launch.ranks_per_node: auto is a rank on each GPU of a node: where "
                    "nodes have other numbers of them, set it or parallel.data)\n"));
  const std::vector<Ended> more = start("gpus-nodes-differ", {"H100", "2 x H100"}, "cuda");
  for (const Ended& end : more) CHECK(end.exit_code == 2);
  CHECK(more[1].says("launch.ranks_per_node: 2 here, launch.ranks_per_node: 1 there; "));
  const std::vector<Ended> none = start("gpus-nodes-differ", {"2 x H100", "no GPU"}, "auto");
  for (const Ended& end : none) CHECK(end.exit_code == 2);
  CHECK(
      none[1].says("run.device: cpu here, run.device: cuda there; start all nodes with the same config and the same "
                   "--set (run.device: auto is what each finds: set it, or see why one finds other GPUs)\n"));
}

TEST_CASE("ranks_run_all_their_threads_on_the_processors_near_their_gpus") {
  const std::vector<int> all = affinity_of(::getpid());
  const fs::path devices = "/sys/bus/pci/devices";
  if (all.size() < 2 || !fs::exists(devices) || !mount_memory(devices, 0, "size=1m")) {
    MESSAGE("skipped: one processor, no PCI bus, or no right to show another one");
    return;
  }
  // Of two nodes, each GPU near the other half of the processors than its rank's number would have it.
  const std::vector<int> upper(all.begin() + std::ssize(all) / 2, all.end());
  const std::vector<int> lower(all.begin(), all.begin() + std::ssize(all) / 2);
  const auto has = [&devices](const std::string& gpu, const std::string& node, const std::vector<int>& near) {
    fs::create_directories(devices / gpu);
    std::string list;
    for (const int processor : near) list += (list.empty() ? "" : ",") + std::to_string(processor);
    write_file(devices / gpu / "numa_node", node + "\n");
    write_file(devices / gpu / "local_cpulist", list + "\n");
  };
  has("fa4e:1b:00.0", "1", upper);
  has("fa4e:1c:00.0", "0", lower);
  const auto check = [&](const std::string& gpus, int ranks) {
    const std::string run = "gpus-near-" + std::to_string(ranks);
    const fs::path folder = workspace() / run;
    Program agent(gpu_machine().training(gpus, folder.string(),
                                         {"parallel.data=" + std::to_string(ranks), "train.steps=100000"}));
    REQUIRE_MESSAGE(wait_until([&] { return newest_step(folder) >= 2 || !agent.running(); }), agent.errors());
    REQUIRE_MESSAGE(agent.running(), agent.errors());
    const std::vector<pid_t> workers = workers_by_rank(agent, static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      int threads = 0;
      for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(workers.at(rank)) + "/task")) {
        CHECK(affinity_of(std::stoi(task.path().filename())) == (rank == 0 ? upper : lower));
        ++threads;
      }
      CHECK(threads > 3);  // the main one, its signals, the channel, and those of streams
    }
    CHECK(affinity_of(agent.pid()) == all);
    agent.signal(SIGTERM);
    CHECK(agent.wait().exit_code == 75);
    CHECK(agent.wait().says("host threads run near their GPU: "));
  };
  check("2 x H100", 2);
  check("H100", 1);
  fs::remove_all(devices / "fa4e:1b:00.0");
  const Ended unknown = gpu_machine().train("H100", "gpus-near-none", {"train.steps=1"});
  CHECK_MESSAGE(unknown.exit_code == 0, unknown.errors);
  CHECK_FALSE(unknown.says("near their GPU"));
  ::umount(devices.c_str());
}

TEST_CASE("a_gpu_that_fails_ends_its_rank_and_the_run_goes_on_or_ends_with_code_4") {
  const Settings settings = {"parallel.data=2", "parallel.zero=3", "train.steps=60", "supervise.max_restarts=1"};
  const fs::path failure = workspace() / "gpu-1-fails";
  const auto start = [&](const std::string& run) {
    Launch launch = gpu_machine().training("2 x H100", (workspace() / run).string(), settings);
    launch.environment.emplace_back("SCALETRAIN_FAKE_FAILURE", failure.string() + ":1");
    return std::make_unique<Program>(launch);
  };
  const auto agent = start("gpus-failed");
  REQUIRE_MESSAGE(wait_until([&] { return newest_step(workspace() / "gpus-failed") >= 4 || !agent->running(); }),
                  agent->errors());
  REQUIRE(agent->running());
  write_file(failure, "");
  const Ended& failed = agent->wait();
  CHECK_FALSE(failed.timed_out);
  CHECK(failed.exit_code == 4);
  CHECK(failed.says("restart 1 of 1, from "));
  CHECK(failed.says("rank 1"));
  CHECK(failed.says("GPU 1 (NVIDIA H100 80GB HBM3 at fa4e:1c:00.0) of "));
  // In whatever it was asked for first: unit/backend/cuda_backend_test knows the words of each.
  CHECK(failed.says(" failed: "));
  CHECK(failed.says("; the kernel's log (dmesg, Xid) and nvidia-smi -q may say why"));
  CHECK(failed.says("all 1 restarts since the furthest checkpoint are used up (supervise.max_restarts)"));
  check_no_process_left((workspace() / "gpus-failed").string());
  fs::remove(failure);
  const auto back = start("gpus-failed");
  CHECK_MESSAGE(back->wait().exit_code == 0, back->errors());
  CHECK(trajectory_of(workspace() / "gpus-failed").last_step() == 60);
}

}  // namespace scaletrain
