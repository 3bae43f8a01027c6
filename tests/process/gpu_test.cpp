// One rank on a GPU that the host carries out.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gpu_machine.h"
#include "support/near.h"
#include "tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;

std::vector<nlohmann::json> lines_of(const fs::path& run, const std::vector<std::string>& kinds) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    nlohmann::json object = nlohmann::json::parse(line);
    if (std::count(kinds.begin(), kinds.end(), object.at("kind")) > 0) lines.push_back(std::move(object));
  }
  return lines;
}
std::vector<nlohmann::json> steps_of(const fs::path& run) {
  return lines_of(run, {"step"});
}
std::vector<nlohmann::json> openings_of(const fs::path& run) {
  return lines_of(run, {"start", "restart"});
}

}  // namespace

TEST_CASE("a_run_on_a_gpu_says_what_it_computes_on_and_resumes_to_the_bit") {
  const Ended whole = gpu_machine().train("H100", "gpu-whole");
  REQUIRE_MESSAGE(whole.exit_code == 0, whole.errors);
  CHECK(whole.says("training from step 0 on 1 GPU (NVIDIA H100 80GB HBM3), 2 micro-batches of 2, in bf16\n"));
  const std::string config = read_file(workspace() / "gpu-whole/config.yaml");
  CHECK(has(config, "  device: cuda\n"));
  CHECK(has(config, "  compute: bf16\n"));
  const Ended half = gpu_machine().train("H100", "gpu-parts", {"train.steps=3"});
  REQUIRE_MESSAGE(half.exit_code == 0, half.errors);
  const Ended rest = gpu_machine().train("H100", "gpu-parts");
  REQUIRE_MESSAGE(rest.exit_code == 0, rest.errors);
  CHECK_FALSE(rest.says("losses agree to rounding"));
  CHECK(trajectory_of(workspace() / "gpu-parts").steps == trajectory_of(workspace() / "gpu-whole").steps);

  // The share of the peak is of the data sheet's.
  const Ended check = gpu_machine().run("H100", {"check", "gpu.yaml", "--json"});
  const double flops = nlohmann::json::parse(check.output).at("flops_per_token").get<double>();
  const auto steps = steps_of(workspace() / "gpu-whole");
  REQUIRE(steps.size() == 6);
  for (const nlohmann::json& step : steps) {
    CHECK(step.at("mfu").get<double>() ==
          Near(flops * step.at("tokens_per_second").get<double>() / 989e12).epsilon(1e-9));
    CHECK(step.at("gpu_memory_in_use") == std::uint64_t{1} << 30);
  }

  // So is what the start tells of its device.
  const nlohmann::json start = openings_of(workspace() / "gpu-whole").at(0);
  CHECK(start.at("device") == "NVIDIA H100 80GB HBM3");
  CHECK(start.at("compute") == "bf16");
  CHECK(start.at("peak_flops") == 989e12);

  // On processors it goes on too, which is told; other commands compute on them anyway.
  const Ended moved = gpu_machine().train("H100", "gpu-parts", {"run.device=cpu", "train.steps=7"});
  REQUIRE_MESSAGE(moved.exit_code == 0, moved.errors);
  CHECK(moved.says("notice: this resume changes run.device: cuda in the checkpoint, cpu now\n"));
  CHECK(moved.says("notice: this resume changes precision.compute: bf16 in the checkpoint, fp32 now\n"));
  CHECK(moved.says("losses agree to rounding"));
  CHECK(moved.says(", in fp32\n"));
  const nlohmann::json restart = openings_of(workspace() / "gpu-parts").back();
  CHECK(restart.at("device") == "cpu");
  CHECK(restart.at("compute") == "fp32");
  CHECK_FALSE(restart.contains("peak_flops"));
  const Ended generated =
      gpu_machine().run("no driver", {"generate", "gpu-whole", "--prompt", "the old", "--max-tokens", "2"});
  CHECK_MESSAGE(generated.exit_code == 0, generated.errors);
}

// A factor in TF32 is off by less than 2^-10 of itself, a fourth of what bf16 may be (2^-8), whose losses stay within
// 5e-3: here within a fourth of that. And not on fp32's, as they would be if nothing came of the key.
TEST_CASE("losses_in_tf32_are_near_those_in_fp32_and_not_the_same") {
  const Ended exact = gpu_machine().train("H100", "fp32-whole", {"precision.compute=fp32"});
  REQUIRE_MESSAGE(exact.exit_code == 0, exact.errors);
  const Ended whole = gpu_machine().train("H100", "tf32-whole", {"precision.compute=tf32"});
  REQUIRE_MESSAGE(whole.exit_code == 0, whole.errors);
  CHECK(whole.says("training from step 0 on 1 GPU (NVIDIA H100 80GB HBM3), 2 micro-batches of 2, in tf32\n"));
  CHECK(has(read_file(workspace() / "tf32-whole/config.yaml"), "  compute: tf32\n"));
  const auto expected = steps_of(workspace() / "fp32-whole");
  const auto found = steps_of(workspace() / "tf32-whole");
  REQUIRE(expected.size() == 6);
  REQUIRE(found.size() == 6);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double loss = found[i].at("loss").get<double>();
    CHECK(loss == Near(expected[i].at("loss").get<double>()).epsilon(5e-3 / 4));
    CHECK(loss != expected[i].at("loss").get<double>());
  }
  const nlohmann::json start = openings_of(workspace() / "tf32-whole").at(0);
  CHECK(start.at("compute") == "tf32");
  CHECK(start.at("peak_flops") == 494e12);
  const Ended check = gpu_machine().run("H100", {"check", "gpu.yaml", "--set", "precision.compute=tf32"});
  CHECK_MESSAGE(check.exit_code == 0, check.errors);
  CHECK(has(check.output, "(494 TFLOP/s)"));

  // Resumed to the bit; from fp32 with a notice.
  for (const char* begun_in : {"tf32", "fp32"}) {
    const std::string run = std::string("tf32-from-") + begun_in;
    const Ended half =
        gpu_machine().train("H100", run, {"train.steps=3", std::string("precision.compute=") + begun_in});
    REQUIRE_MESSAGE(half.exit_code == 0, half.errors);
    const Ended rest = gpu_machine().train("H100", run, {"precision.compute=tf32"});
    REQUIRE_MESSAGE(rest.exit_code == 0, rest.errors);
    const bool is_other = std::string(begun_in) == "fp32";
    CHECK(rest.says("notice: this resume changes precision.compute: fp32 in the checkpoint, tf32 now\n") == is_other);
    CHECK(rest.says("losses agree to rounding") == is_other);
    CHECK(rest.says(", in tf32\n"));
    CHECK((trajectory_of(workspace() / run).steps == trajectory_of(workspace() / "tf32-whole").steps) != is_other);
  }
  // Other commands compute in fp32, on processors.
  const Ended generated =
      gpu_machine().run("no driver", {"generate", "tf32-whole", "--prompt", "the old", "--max-tokens", "2"});
  CHECK_MESSAGE(generated.exit_code == 0, generated.errors);
}

TEST_CASE("cuda_graphs_are_told_and_change_no_bit_of_a_run_on_a_gpu") {
  const std::string graphs = "run.cuda_graphs=true";
  const Ended without = gpu_machine().train("H100", "graphs-none");
  REQUIRE_MESSAGE(without.exit_code == 0, without.errors);
  CHECK_FALSE(without.says("CUDA graphs"));
  const auto expected = trajectory_of(workspace() / "graphs-none").steps;
  const Ended with = gpu_machine().train("H100", "graphs", {graphs});
  REQUIRE_MESSAGE(with.exit_code == 0, with.errors);
  CHECK(with.says(", in bf16, by CUDA graphs\n"));
  CHECK(trajectory_of(workspace() / "graphs").steps == expected);
  // A resume may begin with them.
  REQUIRE(gpu_machine().train("H100", "graphs-then", {"train.steps=3"}).exit_code == 0);
  const Ended rest = gpu_machine().train("H100", "graphs-then", {graphs});
  REQUIRE_MESSAGE(rest.exit_code == 0, rest.errors);
  CHECK_FALSE(rest.says("losses agree to rounding"));
  CHECK(trajectory_of(workspace() / "graphs-then").steps == expected);
}

TEST_CASE("what_is_offloaded_is_told_and_changes_no_bit_of_a_run_on_a_gpu") {
  const std::string offload = "train.optimizer.offload=host";
  const Ended without = gpu_machine().train("H100", "offload-none");
  REQUIRE_MESSAGE(without.exit_code == 0, without.errors);
  const Ended with = gpu_machine().train("H100", "offload-host", {offload});
  REQUIRE_MESSAGE(with.exit_code == 0, with.errors);
  CHECK(with.says(", in bf16, train.optimizer.offload host\n"));
  CHECK(has(read_file(workspace() / "offload-host/config.yaml"), "    offload: host\n"));
  const auto expected = trajectory_of(workspace() / "offload-none").steps;
  CHECK(trajectory_of(workspace() / "offload-host").steps == expected);
  // A resume may offload, or end it.
  for (const bool begins_so : {true, false}) {
    const std::string run = begins_so ? "offload-first" : "offload-then";
    std::vector<std::string> first = {"train.steps=3"};
    std::vector<std::string> then;
    (begins_so ? first : then).push_back(offload);
    REQUIRE(gpu_machine().train("H100", run, first).exit_code == 0);
    const Ended rest = gpu_machine().train("H100", run, then);
    REQUIRE_MESSAGE(rest.exit_code == 0, rest.errors);
    CHECK_FALSE(rest.says("losses agree to rounding"));
    CHECK(trajectory_of(workspace() / run).steps == expected);
  }
  const Ended check = gpu_machine().run("H100", {"check", "gpu.yaml", "--set", offload});
  CHECK_MESSAGE(check.exit_code == 0, check.errors);
  for (const char* told : {"train.optimizer.offload host takes ", "master weights, on the host ",
                           "optimizer state, on the host ", "staging of offloaded state ", " of host memory"})
    CHECK_MESSAGE(has(check.output, told), told);
  const Ended refused = gpu_machine().run(
      "H100", {"run", "gpu.yaml", "--set", "run.directory=refused", "--set", "run.device=cpu", "--set", offload});
  CHECK(refused.exit_code == 2);
  CHECK(refused.says("--set train.optimizer.offload=host: train.optimizer.offload: host is for GPUs, and this would "));
  CHECK_FALSE(fs::exists(workspace() / "refused"));
}

TEST_CASE("tf32_on_processors_is_refused_before_the_run_folder_is_made") {
  const std::string reason =
      "precision.compute: tf32 is for GPUs, and this would compute on processors: use fp32 there\n";
  workspace().write("tf32.yaml", std::string(gpu_config) + "precision: {compute: tf32}\n");
  const auto refused = [&](const std::string& gpu, const std::string& device, const std::string& place) {
    for (const char* command : {"run", "check"}) {
      CAPTURE(command);
      CAPTURE(device);
      const Ended end = gpu_machine().run(
          gpu, {command, "tf32.yaml", "--set", "run.directory=refused", "--set", "run.device=" + device});
      CHECK(end.exit_code == 2);
      CHECK(end.says(place + ": " + reason));
      CHECK_FALSE(fs::exists(workspace() / "refused"));
    }
  };
  refused("H100", "cpu", "--set run.device=cpu");
  refused("no driver", "auto", "--set run.device=auto");
  // A plan for GPUs is judged by them.
  const Ended planned =
      gpu_machine().run("no driver", {"check", "tf32.yaml", "--set", "run.device=cpu", "--device", "a100"});
  CHECK_MESSAGE(planned.exit_code == 0, planned.errors);
  CHECK(has(planned.output, "(156 TFLOP/s)"));
}

TEST_CASE("a_gpu_that_cannot_be_used_is_refused_before_the_run_folder_is_made") {
  const auto refused = [](const Ended& end, const std::string& reason) {
    CHECK(end.exit_code == 2);
    CHECK(end.errors == "scaletrain: gpu.yaml:1:43: run.device: cuda" + reason + "\n");
    CHECK_FALSE(fs::exists(workspace() / "refused"));
  };
  refused(gpu_machine().train("no driver", "refused"),
          ": no NVIDIA driver is installed: install one of version 580 or later, or set run.device: cpu");
  refused(gpu_machine().train("old driver", "refused"),
          ": the NVIDIA driver is made for CUDA 12.4, and 13.0 is needed: install version 580 or later, or set "
          "run.device: cpu");
  refused(gpu_machine().train("no GPU", "refused"),
          ": the driver finds no GPU: see what nvidia-smi says, or set run.device: cpu");
  refused(gpu_machine().train("new GPU", "refused"),
          ": the GPU the host is of sm_100, and this program has kernels for sm_80, sm_90: build it with "
          "-DSCALETRAIN_CUDA_ARCHITECTURES=100-real, choose another GPU by CUDA_VISIBLE_DEVICES, or set run.device: "
          "cpu");
  refused(gpu_machine().train("old GPU", "refused"),
          ": the GPU the host (sm_70) is older than sm_80, the oldest that is supported: choose another by "
          "CUDA_VISIBLE_DEVICES, or set run.device: cpu");
  refused(gpu_machine().train("", "refused", {}, "bare"),
          ": there is no " + (workspace() / "bare/libscaletrain-cuda.so").string() +
              ", so this program was built without CUDA: build it with -DSCALETRAIN_CUDA=ON where the CUDA 13 toolkit "
              "is installed, or set run.device: cpu");
}

TEST_CASE("a_gpu_that_is_lost_in_mid_run_uses_up_restarts_and_the_run_goes_on_when_it_is_back") {
  const std::vector<std::string> settings = {"train.steps=60", "supervise.max_restarts=1"};
  const Ended whole = gpu_machine().train("H100", "gpu-never-lost", settings);
  REQUIRE_MESSAGE(whole.exit_code == 0, whole.errors);
  const fs::path run = workspace() / "gpu-lost";
  const fs::path module = GpuMachine::module_file("lossy");
  const fs::path away = workspace() / "module-away.so";
  Program agent(gpu_machine().training("H100", run.string(), settings, "lossy"));
  REQUIRE_MESSAGE(wait_until([&] { return newest_step(run) >= 4 || !agent.running(); }), agent.errors());
  REQUIRE(agent.running());
  fs::rename(module, away);
  for (const pid_t worker : children_of(agent.pid())) ::kill(worker, SIGKILL);
  const Ended lost = agent.wait();
  CHECK(lost.exit_code == 4);
  CHECK(lost.says("restart 1 of 1, from "));
  CHECK(lost.says(": the GPU of "));
  CHECK(lost.says(" cannot be used any more: there is no " + module.string() + ", so this program"));
  CHECK(lost.says("all 1 restarts since the furthest checkpoint are used up (supervise.max_restarts)"));
  CHECK_FALSE(lost.says("run.device: cuda: "));
  fs::rename(away, module);
  const Ended back = run_program(gpu_machine().training("H100", run.string(), settings, "lossy"));
  CHECK_MESSAGE(back.exit_code == 0, back.errors);
  CHECK(trajectory_of(run).steps == trajectory_of(workspace() / "gpu-never-lost").steps);
}

TEST_CASE("auto_is_a_gpu_where_one_rank_can_use_it_and_else_the_processors") {
  const auto device_of = [](const std::string& run) {
    const std::string config = read_file(workspace() / run / "config.yaml");
    return has(config, "  device: cuda\n") ? "cuda" : has(config, "  device: cpu\n") ? "cpu" : "neither";
  };
  const std::string setting = "run.device=auto";
  const Ended there = gpu_machine().train("H100", "auto-gpu", {setting, "train.steps=1"});
  REQUIRE_MESSAGE(there.exit_code == 0, there.errors);
  CHECK(there.says("notice: run.device: auto is cuda here: NVIDIA H100 80GB HBM3\n"));
  CHECK(there.says("on 1 GPU (NVIDIA H100 80GB HBM3), 2 micro-batches of 2, in bf16\n"));
  CHECK(std::string(device_of("auto-gpu")) == "cuda");

  int number = 0;
  const auto on_processors = [&](const std::string& gpu, const std::string& program) {
    const std::string run = "auto-cpu-" + std::to_string(++number);
    const Ended end = gpu_machine().train(gpu, run, {setting, "train.steps=1"}, program);
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    CHECK(end.says(", in fp32\n"));
    CHECK(std::string(device_of(run)) == "cpu");
    const std::size_t at = end.errors.find("run.device");
    return at == std::string::npos ? "" : end.errors.substr(at, end.errors.find('\n', at) - at);
  };
  CHECK(on_processors("no driver", "bin").empty());
  CHECK(on_processors("no driver", "bare").empty());
  // Else somebody may take it for a GPU that is used.
  const auto told = [&on_processors](const std::string& gpu, const std::string& program, const std::string& reason) {
    CHECK(on_processors(gpu, program) == "run.device: auto is cpu here: " + reason + ", or set run.device: cpu");
  };
  told("", "bare",
       "there is no " + GpuMachine::module_file("bare").string() +
           ", so this program was built without CUDA: build it with -DSCALETRAIN_CUDA=ON where the CUDA 13 toolkit is "
           "installed");
  told("no GPU", "bin", "the driver finds no GPU: see what nvidia-smi says");
  told("hidden GPU", "bin", "CUDA_VISIBLE_DEVICES is '-1', which leaves no GPU to see: unset it");
  told("old driver", "bin",
       "the NVIDIA driver is made for CUDA 12.4, and 13.0 is needed: install version 580 or later");
}

TEST_CASE("gpus_that_one_rank_leaves_idle_are_told") {
  const std::string notice =
      "notice: 1 of 8 visible GPUs is used, the first: more replicas (parallel.data) would use the others\n";
  for (const char* device : {"cuda", "auto"}) {
    CAPTURE(device);
    const std::string setting = std::string("run.device=") + device;
    const Ended end = gpu_machine().train("8 GPUs", std::string("idle-") + device, {setting, "train.steps=1"});
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    CHECK(end.says(notice));
    CHECK(gpu_machine().run("8 GPUs", {"check", "gpu.yaml", "--set", setting}).says(notice));
  }
  CHECK_FALSE(gpu_machine().run("H100", {"check", "gpu.yaml"}).says("visible GPUs"));
}

TEST_CASE("a_resume_that_auto_moves_between_a_gpu_and_the_processors_says_so") {
  const auto go_on = [](const std::string& gpu, int steps) {
    Ended end = gpu_machine().train(gpu, "auto-moved", {"run.device=auto", "train.steps=" + std::to_string(steps)});
    CHECK_MESSAGE(end.exit_code == 0, end.errors);
    return end;
  };
  CHECK_FALSE(go_on("H100", 1).says("this resume changes"));
  CHECK(go_on("no driver", 2).says("notice: this resume changes run.device: cuda in the checkpoint, cpu now\n"));
  CHECK_FALSE(go_on("no driver", 3).says("this resume changes run.device"));
  CHECK(go_on("H100", 4).says("notice: this resume changes run.device: cpu in the checkpoint, cuda now\n"));
}

TEST_CASE("check_judges_a_plan_by_the_gpu_of_this_machine") {
  const Ended fits = gpu_machine().run("H100", {"check", "gpu.yaml"});
  CHECK_MESSAGE(fits.exit_code == 0, fits.errors);
  CHECK(fits.output.starts_with("fits          the rank needs 592 MiB"));
  CHECK(has(fits.output, "NVIDIA H100 80GB HBM3 has 80.0 GiB"));
  CHECK(has(fits.output, "(989 TFLOP/s)"));
  CHECK(has(fits.output, "kernel workspace             32.0 MiB\n"));
  CHECK(has(fits.output, "CUDA and its kernels          560 MiB\n"));
  CHECK(has(fits.output, "pinned staging"));
  CHECK_FALSE(has(fits.output, "packed weights"));
  const Ended small = gpu_machine().run("small GPU", {"check", "gpu.yaml"});
  CHECK(small.exit_code == 2);
  CHECK(small.output.starts_with("DOES NOT FIT"));
  CHECK(small.says("the host has 2.00 MiB"));
  CHECK(small.says("; run.device: cpu would compute on this machine's processors\n"));
  const Ended missing = gpu_machine().run("no GPU", {"check", "gpu.yaml"});
  CHECK(missing.exit_code == 2);
  CHECK(has(missing.output, "kernel workspace             32.0 MiB\n"));
  CHECK(
      missing.says("gpu.yaml:1:43: run.device: cuda: the driver finds no GPU: see what nvidia-smi says, or set "
                   "run.device: cpu\n"));
  // Judged for others, this machine need not have one.
  for (const char* option : {"--device=h100", "--device-memory=80GiB"})
    CHECK(gpu_machine().run("no GPU", {"check", "gpu.yaml", option}).exit_code == 0);
}

TEST_CASE("check_plans_memory_for_a_library_s_attention_on_gpus_that_it_computes_on") {
  const auto scratch = [](const std::string& gpu, const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"check", "gpu.yaml", "--json"};
    for (const char* setting : {"model.hidden=128", "model.context=256"})
      arguments.insert(arguments.end(), {"--set", setting});
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Ended end = gpu_machine().run(gpu, arguments);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    const auto stages = nlohmann::json::parse(end.output).at("stages");
    return stages.at(0).at("memory_per_rank").at("items").at("scratch").get<std::int64_t>();
  };
  // Of 2 samples with 2 heads: 256 x 256 halves and 256 numbers each, and 128 numbers.
  constexpr std::int64_t of_library = 4 * (4 * (256 * 128 + 256) + 128);
  const std::int64_t without = scratch("no GPU", {"--device=a100"});
  CHECK(scratch("no GPU", {"--device=h100"}) == without + of_library);
  CHECK(scratch("no GPU", {"--device-memory=80GiB"}) == without + of_library);
  CHECK(scratch("H100", {}) == without + of_library);
  CHECK(scratch("no GPU", {"--device=h100", "--set", "precision.compute=fp32"}) ==
        scratch("no GPU", {"--device=a100", "--set", "precision.compute=fp32"}));
}

TEST_CASE("variables_by_which_cuda_s_libraries_would_compute_something_else_are_refused_before_anything_runs") {
  for (const char* command : {"check", "run"}) {
    const auto refused = [&](const std::string& variable, const std::string& precision) {
      Launch launch = gpu_machine().launch(
          "H100", {command, "gpu.yaml", "--set", "run.directory=never", "--set", "precision.compute=" + precision});
      launch.environment.emplace_back(variable, "0");
      Ended end = run_program(launch);
      CHECK_FALSE(fs::exists(workspace() / "never"));
      return end;
    };
    const std::string of_attention = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";
    const Ended attention = refused(of_attention, "bf16");
    CHECK_MESSAGE(attention.exit_code == 2, attention.errors);
    CHECK(attention.says("gpu.yaml:1:43: run.device: cuda: " + of_attention +
                         " is set, by which cuDNN computes attention in other ways: unset it\n"));
    const Ended products = refused("NVIDIA_TF32_OVERRIDE", "tf32");
    CHECK_MESSAGE(products.exit_code == 2, products.errors);
    CHECK(
        products.says("precision.compute: tf32: NVIDIA_TF32_OVERRIDE is '0', which cuBLAS obeys instead: unset it, or "
                      "set precision.compute: fp32\n"));
  }
  Launch other = gpu_machine().launch("H100", {"check", "gpu.yaml", "--set", "precision.compute=fp32"});
  other.environment.emplace_back("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", "0");
  other.environment.emplace_back("NVIDIA_TF32_OVERRIDE", "0");
  CHECK(run_program(other).exit_code == 0);
}

TEST_CASE("check_counts_an_offloaded_update_by_a_ranks_part_of_the_link_of_its_gpu") {
  const auto update = [](const std::string& gpu, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"check", "gpu.yaml", "--json", "--set", "train.optimizer.offload=host"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended end = gpu_machine().run(gpu, arguments);
    REQUIRE_MESSAGE(end.exit_code == 0, end.errors);
    return nlohmann::json::parse(end.output).at("time").at("offloaded_update");
  };
  CHECK(update("H100", {}).at("assumed_bytes_per_second") == 50e9);
  CHECK(update("2 x H100", {"--set", "parallel.data=2"}).at("assumed_bytes_per_second") == 50e9);
  CHECK(update("H100", {"--set", "parallel.data=2"}).at("assumed_bytes_per_second") == 25e9);
  CHECK(update("no GPU", {"--device=a100"}).at("assumed_bytes_per_second") == 25e9);
  // Of one that is not known, by a peak that the config gives.
  CHECK(update("1 GPUs", {"--set", "log.peak_tflops=100"}).at("seconds") == nullptr);
}

TEST_CASE("memory_that_a_gpu_lacks_is_told_beside_the_plan") {
  const Ended small = gpu_machine().train("small GPU", "no-room");
  CHECK(small.exit_code == 2);
  CHECK(small.says("gpu.yaml:8:16: train.micro_batch: this run needs 592 MiB"));
  CHECK(small.says(" of the GPU's memory, and the host has 2.00 MiB:\n  master weights "));
  CHECK(small.says(
      "\nWhat helps: a smaller train.micro_batch, model.context or model; train.recompute: selective or full; "
      "run.device: cpu, which has "));
  CHECK_FALSE(fs::exists(workspace() / "no-room"));
  // What is set already helps no more.
  const auto told = [](const std::vector<std::string>& settings) {
    const Ended end = gpu_machine().train("small GPU", "no-room", settings);
    CHECK(end.exit_code == 2);
    const std::size_t at = end.errors.find("What helps: ");
    return at == std::string::npos ? "" : end.errors.substr(at, end.errors.find(", which has ", at) - at);
  };
  CHECK(told({"run.device=auto", "train.micro_batch=1", "train.recompute=full"}) ==
        "What helps: a smaller model.context or model; run.device: cpu");
  CHECK(told({"train.recompute=selective", "precision.compute=fp32"}) ==
        "What helps: a smaller train.micro_batch, model.context or model; train.recompute: full (it is selective); "
        "precision.compute: bf16 (it is fp32); run.device: cpu");
  // Offload helps a model whose state does not pass through the GPU at once, where the host has room for it. Of 80
  // billion parameters it takes 900 GiB.
  const auto refusal_of_large = [](const std::string& gpu, std::vector<std::string> settings) {
    settings.insert(settings.end(), {"model={layers: 100, hidden: 8192, heads: 64, context: 16}", "train.micro_batch=1",
                                     "checkpoint.background=false"});
    const Ended end = gpu_machine().train(gpu, "no-room", settings);
    CHECK(end.exit_code == 2);
    return end.errors;
  };
  const std::string remedy = "; train.recompute: selective or full; train.optimizer.offload: host; run.device: cpu";
  const std::string offload = "train.optimizer.offload=host";
  CHECK(has(refusal_of_large("H100", {}), remedy));
  CHECK_FALSE(has(refusal_of_large("H100", {offload}), "offload: host; "));
  const std::string large = refusal_of_large("8 GPUs", {offload, "parallel.tensor=8"});
  CHECK(has(large, "train.optimizer.offload: this run needs "));
  CHECK(has(large, "What helps: train.optimizer.offload: none, which takes the GPU's; a smaller model"));
  const Ended full = gpu_machine().train("full GPU", "full");
  CHECK(full.exit_code == 3);
  CHECK(full.says("out of memory while allocating what the plan needs:\n  master weights "));
  CHECK(full.says("  kernel workspace                 32.0 MiB\n"));
  CHECK(
      full.says("Reduce train.micro_batch, model.context or the model; the GPU (the host) has 80.0 GiB, of which 80.0 "
                "GiB were in use before the first of these (by other processes, and by CUDA in this one); worker "));
}

}  // namespace scaletrain
