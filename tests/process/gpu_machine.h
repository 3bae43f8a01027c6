// A machine with GPUs for process tests: the program with a module beside it whose GPUs the host carries out
// (tests/support/cuda), as the variable SCALETRAIN_FAKE_GPU says.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tiny_run.h"

namespace scaletrain {

inline constexpr std::string_view gpu_config = R"(run: {name: tiny, directory: run, device: cuda}
model: {layers: 1, hidden: 16, heads: 2, context: 16}
data:
  train: [{path: train.txt}]
train:
  steps: 6
  global_batch: 4
  micro_batch: 2
  lr_schedule: {type: constant, warmup: 1}
checkpoint: {every: 3}
)";

// A folder with the program, the module and a stand-in for the driver's library, which is only looked for.
class GpuMachine {
 public:
  GpuMachine() {
    for (const char* folder : {"bin", "bare", "lossy", "driver", "no-driver"})
      std::filesystem::create_directories(workspace() / folder);
    for (const char* folder : {"bin", "bare", "lossy"})
      std::filesystem::copy_file(SCALETRAIN_PROGRAM, workspace() / folder / "scaletrain",
                                 std::filesystem::copy_options::overwrite_existing);
    for (const char* folder : {"bin", "lossy"})
      std::filesystem::copy_file(FAKE_MODULE, module_file(folder), std::filesystem::copy_options::overwrite_existing);
    std::filesystem::copy_file(FAKE_MODULE, workspace() / "driver/libcuda.so.1",
                               std::filesystem::copy_options::overwrite_existing);
    workspace().write("no-driver/libcuda.so.1", "");  // which no loader takes: that of this machine is not found
    workspace().write("gpu.yaml", gpu_config);
  }

  static std::filesystem::path module_file(const std::string& program) {
    return workspace() / program / "libscaletrain-cuda.so";
  }

  // Of the program in "bin"; in "bare", which has no module; or in "lossy", whose module may be taken away.
  Launch launch(const std::string& gpu, std::vector<std::string> arguments, const std::string& program = "bin") const {
    Launch launch = workspace().launch(std::move(arguments));
    launch.executable = workspace() / program / "scaletrain";
    const bool is_hidden = gpu == "hidden GPU";
    launch.environment.emplace_back("SCALETRAIN_FAKE_GPU", is_hidden ? "no GPU" : gpu);
    if (is_hidden) launch.environment.emplace_back("CUDA_VISIBLE_DEVICES", "-1");
    launch.environment.emplace_back("LD_LIBRARY_PATH",
                                    (workspace() / (gpu == "no driver" ? "no-driver" : "driver")).string());
    return launch;
  }
  Launch training(const std::string& gpu, const std::string& directory, const std::vector<std::string>& settings = {},
                  const std::string& program = "bin") const {
    std::vector<std::string> arguments = {"run", "gpu.yaml", "--set", "run.directory=" + directory};
    for (const std::string& setting : settings) {
      arguments.emplace_back("--set");
      arguments.push_back(setting);
    }
    return launch(gpu, std::move(arguments), program);
  }
  Ended run(const std::string& gpu, std::vector<std::string> arguments) const {
    return run_program(launch(gpu, std::move(arguments)));
  }
  Ended train(const std::string& gpu, const std::string& directory, const std::vector<std::string>& settings = {},
              const std::string& program = "bin") const {
    return run_program(training(gpu, directory, settings, program));
  }
};

inline const GpuMachine& gpu_machine() {
  static const GpuMachine made;
  return made;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace scaletrain
