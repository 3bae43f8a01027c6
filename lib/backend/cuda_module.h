// NVIDIA GPUs, by a module that is loaded when one is asked for: so one build of the program runs on machines with and
// without a driver, and nothing but the module is linked to CUDA.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "backend/backend.h"

namespace scaletrain {

struct CudaOptions {
  int device = 0;              // among those that CUDA_VISIBLE_DEVICES leaves
  DType compute = DType::f32;  // f32 | bf16 | f16
};

inline constexpr const char* cuda_module_name = "libscaletrain-cuda.so";

// What a module tells the program. The text is of the headers that both were built from: where it differs, nothing else
// of the module may be called.
struct CudaModuleEntry {
  const char* interface;
  // How many GPUs are visible; where none can be used, 0 and why, with what would help.
  int (*count_devices)(std::string& obstacle);
  std::unique_ptr<Backend> (*make_backend)(const CudaOptions& options);
};
// Loaded for good: the driver's threads outlive its last use.
class CudaModule {
 public:
  // UserError in one sentence with its remedy: there is no such file, it cannot be loaded, is none of ours or of
  // another version; there is no driver, one too old, or no GPU that this process may see.
  explicit CudaModule(const std::filesystem::path& file);

  int num_devices() const { return num_devices_; }
  // UserError for a GPU that is too old; PeerError naming the GPU where it or its driver fails.
  std::unique_ptr<Backend> make_backend(const CudaOptions& options) const { return entry_->make_backend(options); }

 private:
  const CudaModuleEntry* entry_ = nullptr;
  int num_devices_ = 0;
};

}  // namespace scaletrain

extern "C" const scaletrain::CudaModuleEntry* scaletrain_cuda_module();  // in the module alone
