// NVIDIA GPUs, by a module that is loaded when one is asked for: so one build of the program runs on machines with and
// without a driver, and nothing but the module is linked to CUDA.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "base/error.h"

namespace scaletrain {

struct CudaOptions {
  int device = 0;              // among those that CUDA_VISIBLE_DEVICES leaves
  DType compute = DType::f32;  // f32 | bf16 | f16
  bool tf32 = false;           // of f32: factors of products, attention apart, come to TF32 first
  bool graphs = false;         // of streams that are prepared: operations that come again are launched as CUDA graphs
  int threads = 1;  // of the host, which the rank may use for a moment: those that touch memory before it is pinned
  // Counts the pieces in which memory of the host is pinned. Null: nobody watches. Must outlive the backend and what it
  // has allocated.
  WorkCount* work = nullptr;
};

inline constexpr const char* cuda_module_name = "libscaletrain-cuda.so";
// Where the program's module is: beside the executable of this process.
std::filesystem::path cuda_module_path();

// Of the GPUs that it has kernels for the oldest, by compute capability: Ampere.
inline constexpr int cuda_oldest_sm = 80;
// workspace_bytes() of its backend without making one, for plans: what cuBLASLt's kernels of sm_90 ask for.
inline constexpr std::size_t cuda_workspace_bytes = std::size_t{32} << 20;
// row_alignment(), the same way: of halves, a line of the cache.
inline constexpr std::int64_t cuda_row_alignment = 64;
// attention_workspace() of Hopper GPUs in halves, where cuDNN is found, and which shapes cuDNN makes forwards of too.
// Its deterministic backward asked for so much of 17 shapes on an H100 (9.19), of one with an odd length for 4 % less.
// There it took 0.33 to 0.88 of the time of our own kernels at once, and about as long in parts of 48k rows with heads
// of 64. Shorter sequences and other heads have not been seen to gain.
inline constexpr AttentionWorkspace cuda_attention_workspace = {.keeps_scores = true,
                                                                .most = std::int64_t{5} << 26,
                                                                .least_rows = std::int64_t{48} << 10,
                                                                .least_queries = 128,
                                                                .least_head_size = 64,
                                                                .most_head_size = 128,
                                                                .head_size_multiple = 8};
// The same of a GPU of this compute capability, as far as that tells; 0: of one that is not known, the most there is.
constexpr AttentionWorkspace cuda_attention_workspace_of(int sm) {
  return sm == 0 || sm / 10 == 9 ? cuda_attention_workspace : AttentionWorkspace{.most = 0};
}

// What CUDA takes of a GPU's memory for a process that computes on it, for plans: its context and the code of kernels,
// those in use or, behind load_kernels_ahead(), all of CUDA's libraries. 548 and 942 MiB of an H100, driver 580.
constexpr std::size_t cuda_process_bytes(bool kernels_ahead) {
  return std::size_t{kernels_ahead ? 960U : 560U} << 20;
}

// How many GPUs are visible; where none can be used, 0 and why, with what would help.
struct CudaCount {
  int devices = 0;
  std::string obstacle{};
  bool is_absent = false;  // there is no driver, or no GPU for this process: nothing is wrong with what is there
};

// What a module tells the program. The text is of the headers that both were built from: where it differs, nothing else
// of the module may be called.
struct CudaModuleEntry {
  const char* interface;
  CudaCount (*count_devices)();
  DeviceFacts (*look_at_device)(int device);
  std::unique_ptr<Backend> (*make_backend)(const CudaOptions& options);
};

// UserError where a variable of the environment would have CUDA's libraries compute something else than is asked for.
void refuse_cuda_environment(DType compute, bool tf32);

// What every UserError of a module begins with: the key that asks for one.
inline constexpr std::string_view cuda_key = "run.device: cuda: ";

// This machine has no GPU for this process, or this program no module.
class NoGpuError : public UserError {
 public:
  using UserError::UserError;
};

// Loaded for good: the driver's threads outlive its last use.
class CudaModule {
 public:
  // UserError in one sentence with its remedy: there is no such file, no driver or no GPU that this process may see
  // (NoGpuError); the file cannot be loaded, is none of ours or of another version; the driver is too old.
  explicit CudaModule(const std::filesystem::path& file);

  int num_devices() const { return num_devices_; }
  // Without using it. UserError for a GPU that is too old or that there are no kernels for.
  DeviceFacts look_at_device(int device) const { return entry_->look_at_device(device); }
  // UserError for a GPU that is too old or that there are no kernels for, and of refuse_cuda_environment(); PeerError
  // naming the GPU where it or its driver fails.
  std::unique_ptr<Backend> make_backend(const CudaOptions& options) const {
    refuse_cuda_environment(options.compute, options.tf32);
    return entry_->make_backend(options);
  }

 private:
  const CudaModuleEntry* entry_ = nullptr;
  int num_devices_ = 0;
};

// Such an error's words without the key, for texts in which nobody has asked for a GPU by it.
std::string_view reason_without_key(const UserError& error);

// Has the driver load all kernels of this process at its start instead of each at its first launch, unless the
// environment says otherwise: a load may wait for everything that the GPU has under way, and that for a peer. Before
// the first CudaModule.
void load_kernels_ahead();

// Whether there is a driver of NVIDIA's, of whatever version: quick, where to load a module is not.
bool has_nvidia_driver();

}  // namespace scaletrain

extern "C" const scaletrain::CudaModuleEntry* scaletrain_cuda_module();  // in the module alone
