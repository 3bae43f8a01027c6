// scripts/gpu-bundle.sh and gpu-check.sh as they are run: the bundle is packed of stand-ins for what would be built,
// unpacked elsewhere, and checks GPUs that the host carries out. There the program is real, on a smaller model; the
// test programs and the benchmark are scripts.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>

#include "tiny_run.h"

namespace scaletrain {
namespace {

namespace fs = std::filesystem;
using Variables = std::vector<std::pair<std::string, std::string>>;

bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

fs::path write_script(const std::string& name, const std::string& text) {
  fs::create_directories((workspace() / name).parent_path());
  fs::path file = workspace().write(name, "#!/bin/bash\n" + text);
  fs::permissions(file, fs::perms::owner_all);
  return file;
}

// In front of the machine's own programs: what is built, and what a machine with a GPU has.
void write_tools() {
  write_script("tools/dpkg-query", "echo install ok installed\n");
  write_script("tools/cmake", std::string(R"(case "$*" in *--build*) ;; *) exit 0 ;; esac
mkdir -p build/release/bin
for name in test_backend test_equivalence_gpu test_golden_gpu test_gpu test_train_gpu bench_training scaletrain libscaletrain-cuda.so; do
  cp )") + FAKE_MODULE + " build/release/bin/$name\ndone\n");
  write_script("tools/nvidia-smi", "echo 'NVIDIA \"H100\" 80GB HBM3, 580.1'\n");
  write_script("tools/python3", R"([[ "$*" == *torch* ]] || exit 0
[ -z "$NO_TORCH" ] || { echo "ModuleNotFoundError: No module named 'torch'" >&2; exit 1; }
)");
}
std::string path_with_tools() {
  return (workspace() / "tools").string() + ":" + std::getenv("PATH");
}

// A checkout as far as gpu-bundle.sh needs it.
Ended pack() {
  const fs::path source = SCALETRAIN_SOURCE_FOLDER;
  const fs::path checkout = workspace() / "checkout";
  fs::create_directories(checkout / "tests/bench");
  const auto everything = fs::copy_options::recursive | fs::copy_options::skip_existing;
  fs::copy(source / "scripts", checkout / "scripts", everything);
  fs::copy(source / "tests/golden", checkout / "tests/golden", everything);
  fs::copy(source / "tests/bench/torch_training.py", checkout / "tests/bench/torch_training.py", everything);
  fs::create_directories(checkout / "build/cudnn-frontend/include");
  write_file(checkout / "build/cudnn-frontend/include/cudnn_frontend.h", "");
  return run_program({.executable = "/bin/bash",
                      .arguments = {"scripts/gpu-bundle.sh"},
                      .environment = {{"PATH", path_with_tools()}},
                      .directory = checkout});
}

// The bundle, unpacked, with programs of our own in it.
class Bundle {
 public:
  Bundle() {
    write_tools();
    packed = pack();
    const Ended unpacked =
        run_program({.executable = "/bin/tar",
                     .arguments = {"-xzf", (workspace() / "checkout/build/gpu-bundle.tar.gz").string()},
                     .directory = workspace().path()});
    REQUIRE_MESSAGE(unpacked.exit_code == 0, packed.output);
    for (const auto& entry : fs::recursive_directory_iterator(folder()))
      names.insert(fs::relative(entry.path(), folder()).string());
    fs::create_directories(folder() / "bin/real");
    fs::copy_file(SCALETRAIN_PROGRAM, folder() / "bin/real/scaletrain");
    fs::copy_file(FAKE_MODULE, folder() / "bin/real/libscaletrain-cuda.so");
    // There is no NCCL between processes on the host: what is asked of it goes through the host, with other losses
    // where the test wants that.
    write_program("scaletrain", R"(arguments=("${@/launch.transport=nccl/launch.transport=host}")
small=(--set 'model={layers: 2, hidden: 8, heads: 2, ffn_hidden: 8, context: 8, vocab: auto}')
[ "$1" = check ] || small+=(--set train.global_batch=2 --set train.micro_batch=1)
if [ -n "$NCCL_DIFFERS" ] && [[ "$*" == *transport=nccl* ]]; then small+=(--set train.optimizer.learning_rate=2e-3); fi
exec "$(dirname "$0")/real/scaletrain" "${arguments[@]}" "${small[@]}"
)");
    write_program("test_backend", R"(case "$*" in
  *nccl*)
    echo 'device_network_test.cpp:160: MESSAGE: skipped: NCCL: libnccl.so.2 is not found'
    [ -z "$NO_CASES" ] || echo '[doctest] test cases: 0 | 0 passed | 0 failed | 165 skipped'
    ;;
  *) echo 'comparing linear maps'; sleep 12345.5 & exec sleep 12345.5 ;;
esac
)");
    write_program("test_equivalence_gpu", "echo '[doctest] Status: SUCCESS!'\n");
    write_program("test_golden_gpu",
                  "[ -z \"$NO_GPU\" ] || echo 'a.h:19: MESSAGE: skipped: run.device: cuda: no GPU'\nls "
                  "\"$SCALETRAIN_GOLDEN_FOLDER\"/{gpt2,llama_tied,llama_untied}/autocast.json\n");
    write_program("test_train_gpu", R"(echo 'cuda_test.cpp:20: ERROR: CHECK( saved == "resumed" ) is NOT correct!'
echo '  values: CHECK( 1 == 2 )'
echo
echo '[doctest] Status: FAILURE!'
exit 1
)");
    write_program("bench_training", R"(while [ $# -gt 0 ]; do
  case "$1" in
    --json) file=$2 ;;
    --case) model=${2%%,*} ;;
    --torch-mode) modes+=" $2" ;;
  esac
  shift
done
if [ "$model" = llama-1.5b ]; then
  echo 'bench_training: llama-1.5b does not fit: it needs 40.6 GiB, and this GPU has 24.0 GiB' >&2
  echo 'AMD EPYC, 2 processors'  # which its buffer has held back
  exit 3
fi
if [ -n "$modes" ] && [ -n "$TORCH_FAILS" ]; then
  printf 'torch.OutOfMemoryError: CUDA out of memory. Tried "4" GiB\nbench_training: python3 has ended\n' >&2
  exit 1
fi
participant() { printf '{\n"name": "%s",\n"seconds": [\n0.25\n],\n"tokens_per_second": %s,\n"peak_share": %s\n}' "$@"; }
{
  printf '{\n"cases": [\n{\n"gpu": "%s",\n"participants": [\n' "$BENCH_GPU"
  case "$model" in gpt2-124m) participant scaletrain 400000.4 0.4125 ;; *) participant scaletrain 47999.2 0.525 ;; esac
  for mode in $modes; do echo ,; participant "PyTorch 2.11.0 $mode, autocast" "${TORCH_RATE:-39000.6}" 0; done
  printf ']\n}\n]\n}\n'
} >"$file"
)");
    fs::create_directories(workspace() / "driver");
    fs::copy_file(FAKE_MODULE, workspace() / "driver/libcuda.so.1");
    workspace().write("driver/libcublasLt.so.13", "");
  }
  static fs::path folder() { return workspace() / "gpu-bundle"; }
  static void write_program(const std::string& name, const std::string& text) {
    write_script("gpu-bundle/bin/" + name, text);
  }

  // gpu-check.sh, on a machine with these GPUs.
  Ended check(const std::string& gpus, std::vector<std::string> parts, Variables variables = {}) const {
    parts.insert(parts.begin(), (folder() / "gpu-check.sh").string());
    variables.insert(variables.end(), {{"PATH", path_with_tools()},
                                       {"SCALETRAIN_FAKE_GPU", gpus},
                                       {"LD_LIBRARY_PATH", (workspace() / "driver").string()},
                                       {"GPU_CHECK_STEPS", "4"}});
    Ended end = run_program({.executable = "/bin/bash", .arguments = parts, .environment = variables}, 200.0);
    CAPTURE(end.output);
    CHECK_FALSE(end.timed_out);
    return end;
  }
  static nlohmann::json report() { return nlohmann::json::parse(read_file(folder() / "gpu-check.json")); }
  static std::string table() { return read_file(folder() / "gpu-check.txt"); }

  Ended packed;
  std::set<std::string> names;  // of what is in the bundle, as it was unpacked
};

const Bundle& bundle() {
  static const Bundle made;
  return made;
}

}  // namespace

TEST_CASE("a_gpu_bundle_has_what_gpu_check_runs_and_is_refused_above_its_size") {
  CHECK_MESSAGE(bundle().packed.exit_code == 0, bundle().packed.output);
  for (const char* name : {"gpu-check.sh", "torch_training.py", "golden/gpt2/autocast.json", "bin/test_backend",
                           "bin/test_equivalence_gpu", "bin/test_golden_gpu", "bin/test_gpu", "bin/test_train_gpu",
                           "bin/bench_training", "bin/scaletrain", "bin/libscaletrain-cuda.so", "lib/libstdc++.so.6"})
    CHECK_MESSAGE(bundle().names.count(name) == 1, name);
  int models = 0;
  for (const auto& entry : fs::directory_iterator(workspace() / "checkout/tests/golden")) {
    if (!fs::exists(entry.path() / "expected.safetensors")) continue;
    const std::string name = "golden/" + entry.path().filename().string() + "/model.safetensors";
    CHECK_MESSAGE(bundle().names.count(name) == 1, name);
    ++models;
  }
  CHECK(models > 3);
  CHECK(bundle().names.count("lib/libc.so.6") == 0);
  const std::string glibc = read_file(Bundle::folder() / "glibc");
  CHECK(std::regex_match(glibc, std::regex("2\\.[0-9]+\n")));
  CHECK(has(bundle().packed.output, "needs glibc " + glibc));

  // What does not pack: 61 MiB.
  std::mt19937_64 random;
  std::vector<std::uint64_t> noise((std::size_t{61} << 20) / sizeof(std::uint64_t));
  std::generate(noise.begin(), noise.end(), random);
  write_file(workspace() / "checkout/tests/golden/gpt2/model.safetensors",
             {reinterpret_cast<const char*>(noise.data()), noise.size() * sizeof(std::uint64_t)});
  const Ended large = pack();
  CHECK(large.exit_code == 1);
  CHECK(
      large.says("gpu-bundle.sh: build/gpu-bundle.tar.gz is larger than 60 MiB; the largest in it, unpacked:\n"
                 "63963136 golden/gpt2/model.safetensors\n"));
}

TEST_CASE("a_machine_whose_c_library_is_older_than_a_bundles_is_told_so_first") {
  const std::string needed = read_file((bundle(), Bundle::folder() / "glibc"));
  write_file(Bundle::folder() / "glibc", "99.1\n");
  const Ended old = bundle().check("H100", {"nccl"});
  CHECK(old.exit_code == 1);
  CHECK(std::regex_match(
      old.errors,
      std::regex("gpu-check.sh: this machine has glibc 2\\.[0-9]+, and the bundle needs 99\\.1: run it in a "
                 "container of Debian 12, .* or build the bundle .*\n")));
  write_file(Bundle::folder() / "glibc", needed);
}

TEST_CASE("gpu_check_passes_the_parts_of_the_program_on_gpus_that_the_host_carries_out") {
  const Ended end = bundle().check("2 x H100", {"program", "ranks", "gpus"});
  CHECK_MESSAGE(end.exit_code == 0, end.output);
  const nlohmann::json report = Bundle::report();
  CHECK(report.at("gpu") == "NVIDIA \"H100\" 80GB HBM3, 580.1");
  for (const char* part : {"program", "ranks", "gpus"}) {
    CAPTURE(part);
    CHECK(report.at(part).at("result") == "passed");
    CHECK(report.at(part).at("reason") == "");
    CHECK(std::regex_search(Bundle::table(), std::regex(std::string("\n") + part + " +passed +[0-9]+ s")));
  }
  CHECK(has(end.output, Bundle::table()));
  const std::string told = read_file(Bundle::folder() / "gpu-check-logs/gpus.log");
  for (const char* run : {"data-nccl", "data-host", "zero-nccl", "tensor-nccl", "pipeline-nccl", "pipeline-host"})
    CHECK_MESSAGE(has(told, std::string("run ") + run + "\n"), run);
  CHECK(has(told, " of killed at step 2\n"));
}

TEST_CASE("gpu_check_says_why_a_part_of_the_program_has_failed_or_cannot_be") {
  const auto result = [](const std::string& gpus, const std::string& part, int exit_code,
                         const Variables& variables = {}) {
    const Ended end = bundle().check(gpus, {part}, variables);
    CHECK(end.exit_code == exit_code);
    const nlohmann::json told = Bundle::report().at(part);
    CHECK(has(Bundle::table(), told.at("reason").get<std::string>()));
    return told.at("result").get<std::string>() + ": " + told.at("reason").get<std::string>();
  };
  CHECK(result("H100", "gpus", 0) == "absent: there is one GPU");
  CHECK(has(result("no GPU", "gpus", 0), "run.device: cuda: the driver finds no GPU: see what nvidia-smi says"));
  const std::string failed = result("no GPU", "program", 1);
  CHECK(has(failed, "failed: run undisturbed: exit status 2: "));
  CHECK(has(failed, "run.device: cuda: the driver finds no GPU"));
  CHECK(has(failed, "gpu-check-logs/program.log)"));
  // What is skipped is not passed.
  CHECK(result("H100", "goldens", 1, {{"NO_GPU", "yes"}})
            .starts_with("failed: test_golden_gpu: skipped: run.device: cuda: no GPU ("));
  CHECK(std::regex_search(result("2 x H100", "gpus", 1, {{"NCCL_DIFFERS", "yes"}}),
                          std::regex("failed: runs data-nccl and data-host differ: step [0-9]+: [0-9.]+ [0-9.]+ ")));
}

TEST_CASE("gpu_check_kills_what_hangs_and_runs_the_parts_after_it") {
  const Ended end =
      bundle().check("H100", {"parity", "goldens", "nccl", "training", "layouts"}, {{"GPU_CHECK_SECONDS", "9"}});
  CHECK(end.exit_code == 1);
  CHECK(end.seconds < 30.0);
  CHECK(processes_with("12345.5").empty());
  const nlohmann::json report = Bundle::report();
  const auto told = [&](const char* part) {
    return report.at(part).at("result").get<std::string>() + ": " + report.at(part).at("reason").get<std::string>();
  };
  CHECK(std::regex_match(told("parity"),
                         std::regex("timed out: no end within [345] s, GPU_CHECK_SECONDS would give it more; the last "
                                    "that it "
                                    "told: comparing linear maps \\(.*/gpu-check-logs/parity.log\\)")));
  CHECK(report.at("parity").at("log") == "gpu-check-logs/parity.log");
  CHECK(told("goldens") == "passed: ");
  CHECK(told("layouts") == "passed: ");
  CHECK(told("nccl") == "absent: libnccl.so.2 is not found");
  CHECK(told("training")
            .starts_with(
                "failed: test_train_gpu: exit status 1: cuda_test.cpp:20: ERROR: CHECK( saved == \"resumed\" ) is NOT "
                "correct! values: CHECK( 1 == 2 ) ("));
  CHECK(bundle().check("H100", {"parity"}, {{"GPU_CHECK_SECONDS", "1"}}).exit_code == 1);
  // Of one second the first part has all.
  CHECK(bundle().check("H100", {"parity", "training"}, {{"GPU_CHECK_SECONDS", "1"}}).exit_code == 1);
  CHECK(Bundle::report().at("parity").at("result") == "timed out");
  CHECK(Bundle::report().at("training").at("result") == "not run: no time left");
  CHECK(std::regex_search(Bundle::table(), std::regex("\ntraining +not run: no time left +0 s")));
  // A name that no test has passes as doctest sees it.
  CHECK(bundle().check("H100", {"nccl"}, {{"NO_CASES", "yes"}}).exit_code == 1);
  CHECK(has(Bundle::report().at("nccl").at("reason"), "test_backend: it has no test of the name --test-case=nccl_of"));
  for (const char* wrong : {"0", "ten", "-5"})
    CHECK(bundle().check("H100", {"nccl"}, {{"GPU_CHECK_SECONDS", wrong}}).exit_code == 2);
}

TEST_CASE("gpu_check_holds_speeds_to_the_bars_of_the_gpu_and_beside_pytorch") {
  const auto line = [](const std::string& model) {
    std::smatch found;
    const std::string table = Bundle::table();
    REQUIRE(std::regex_search(table, found, std::regex("\n" + model + " +([^\n]*)")));
    return std::regex_replace(found[1].str(), std::regex(" +"), " ");
  };
  const Ended missed = bundle().check("H100", {"speed"}, {{"BENCH_GPU", "NVIDIA H100 80GB HBM3"}});
  CHECK(missed.exit_code == 1);
  nlohmann::json speed = Bundle::report().at("speed");
  CHECK(speed.at("result") == "failed");
  CHECK(has(speed.at("reason"), "gpt2-1558m: 47999 tokens/s, below the bar of 48000"));
  CHECK(speed.at("models").at("gpt2-124m").at("tokens_per_second") == 400000);
  CHECK(speed.at("models").at("gpt2-124m").at("peak_share") == 0.4125);
  CHECK(speed.at("models").at("gpt2-124m").at("pytorch") ==
        nlohmann::json::parse(
            R"({"samples": 32, "micro_batches": 1, "scaletrain": 400000, "eager": 39001, "compiled": 39001})"));
  CHECK(speed.at("models").at("llama-1.5b").at("result") == "skipped");
  CHECK(line("gpt2-124m") == "1 x 32 400000 41.2 % 400000, met eager 39001, compiled 39001, ours 400000; 1 x 32");
  CHECK(line("gpt2-1558m") == "4 x 16 47999 52.5 % 48000, MISSED compiled-by-block 39001, ours 47999; 8 x 2");
  CHECK(line("llama-1.5b") == "skipped: does not fit: it needs 40.6 GiB, and this GPU has 24.0 GiB");

  const Ended other = bundle().check("H100", {"speed"}, {{"BENCH_GPU", "NVIDIA H100 PCIe"}, {"NO_TORCH", "yes"}});
  CHECK_MESSAGE(other.exit_code == 0, other.output);
  speed = Bundle::report().at("speed");
  CHECK(speed.at("result") == "passed");
  CHECK_FALSE(speed.at("models").at("gpt2-124m").contains("bar"));
  CHECK(line("gpt2-1558m") == "4 x 16 47999 52.5 % none not measured: ModuleNotFoundError: No module named 'torch'");
  // PyTorch's eager steps may be faster, its compiled ones not; on GPUs that the bars are of.
  const Ended slower = bundle().check("H100", {"speed"}, {{"BENCH_GPU", "NVIDIA H200"}, {"TORCH_RATE", "400001.2"}});
  CHECK(slower.exit_code == 1);
  speed = Bundle::report().at("speed");
  CHECK(speed.at("models").at("gpt2-124m").at("result") == "failed");
  CHECK(speed.at("models").at("gpt2-124m").at("reason") ==
        "400000 tokens/s, below the 400001 of PyTorch's steps, compiled");
  CHECK(has(speed.at("reason"),
            "gpt2-1558m: 47999 tokens/s, below the bar of 48000, 47999 tokens/s, below the 400001 of PyTorch's steps, "
            "compiled-by-block"));
  CHECK(bundle().check("H100", {"speed"}, {{"BENCH_GPU", "NVIDIA A100"}, {"TORCH_RATE", "400001.2"}}).exit_code == 0);
  // PyTorch's failure is none of ours.
  const Ended torch = bundle().check("H100", {"speed"}, {{"BENCH_GPU", "NVIDIA A100"}, {"TORCH_FAILS", "yes"}});
  CHECK_MESSAGE(torch.exit_code == 0, torch.output);
  CHECK(Bundle::report().at("speed").at("models").at("gpt2-124m").at("pytorch").at("reason") ==
        "torch.OutOfMemoryError: CUDA out of memory. Tried \"4\" GiB");
  CHECK(has(line("gpt2-124m"), "not measured: torch.OutOfMemoryError: CUDA out of memory. Tried "));
  // What compiling takes is not begun.
  CHECK(bundle().check("H100", {"speed"}, {{"BENCH_GPU", "NVIDIA A100"}, {"GPU_CHECK_SECONDS", "60"}}).exit_code == 0);
  CHECK(line("gpt2-1558m") == "4 x 16 47999 52.5 % none not measured: no time left");
}

}  // namespace scaletrain
