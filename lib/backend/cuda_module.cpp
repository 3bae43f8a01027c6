#include "backend/cuda_module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace scaletrain {

namespace {

constexpr std::string_view instead = "or set run.device: cpu";

template <class Error = UserError>
[[noreturn]] void refuse(const std::string& what, std::string_view remedy) {
  throw Error(fmt::format("{}{}: {}, {}", cuda_key, what, remedy, instead));
}

const CudaModuleEntry& load(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error))
    refuse<NoGpuError>(fmt::format("there is no {}, so this program was built without CUDA", file.string()),
                       "build it with -DSCALETRAIN_CUDA=ON where the CUDA 13 toolkit is installed");
  // A name without a folder would be looked for elsewhere.
  void* const module = ::dlopen(std::filesystem::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    refuse(fmt::format("{} cannot be loaded ({})", file.string(), ::dlerror()),
           "install the libraries of CUDA 13 that it names");
  void* const symbol = ::dlsym(module, "scaletrain_cuda_module");
  const auto function = reinterpret_cast<decltype(&scaletrain_cuda_module)>(symbol);
  if (function == nullptr)
    refuse(fmt::format("{} is no module of scaletrain", file.string()), "build and install both together");
  const CudaModuleEntry& entry = *function();
  if (std::string_view(entry.interface) != SCALETRAIN_INTERFACE)
    refuse(fmt::format("{} belongs to another version of this program", file.string()),
           "build and install both together");
  return entry;
}

}  // namespace

CudaModule::CudaModule(const std::filesystem::path& file) : entry_(&load(file)) {
  const CudaCount count = entry_->count_devices();
  num_devices_ = count.devices;
  if (num_devices_ > 0) return;
  const std::string text = fmt::format("{}{}, {}", cuda_key, count.obstacle, instead);
  if (count.is_absent) throw NoGpuError(text);
  throw UserError(text);
}

std::filesystem::path cuda_module_path() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / cuda_module_name;
}

std::string_view reason_without_key(const UserError& error) {
  std::string_view reason = error.what();
  if (reason.starts_with(cuda_key)) reason.remove_prefix(cuda_key.size());
  return reason;
}

void refuse_cuda_environment(DType compute, bool tf32) {
  constexpr const char* of_products = "NVIDIA_TF32_OVERRIDE";
  if (const char* const value = std::getenv(of_products); tf32 && value != nullptr)
    throw UserError(fmt::format(
        "precision.compute: tf32: {} is '{}', which cuBLAS obeys instead: unset it, or set precision.compute: fp32",
        of_products, value));
  // Other kernels, with other bits and another workspace than the plan's.
  constexpr const char* of_attention = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";
  if ((compute == DType::bf16 || compute == DType::f16) && std::getenv(of_attention) != nullptr)
    throw UserError(
        fmt::format("{}{} is set, by which cuDNN computes attention in other ways: unset it", cuda_key, of_attention));
}

void load_kernels_ahead() {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

bool has_nvidia_driver() {
  // As the CUDA runtime looks for it. It stays, since a module will want it.
  return ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
}

}  // namespace scaletrain
