#include "backend/cuda/cuda_backend.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "backend/cuda/architectures.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/fused_attention.h"
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/nccl_network.h"
#include "backend/cuda/pinned_memory.h"
#include "backend/cuda/products.h"
#include "base/error.h"

namespace scaletrain {

namespace {

using cuda::check;
using cuda::CudaStream;

std::string bus_address_of(const cudaDeviceProp& properties) {
  return fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
}

// Of one that kernels are compiled for. UserError for others.
cudaDeviceProp properties_of(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "a look at the GPU");
  if (properties.major < cuda_oldest_sm / 10)
    throw UserError(
        fmt::format("run.device: cuda: the GPU {} (sm_{}{}) is older than sm_{}, the oldest that is supported: "
                    "choose another by CUDA_VISIBLE_DEVICES, or set run.device: cpu",
                    properties.name, properties.major, properties.minor, cuda_oldest_sm));
  const int sm = 10 * properties.major + properties.minor;
  if (!cuda::is_compiled_for(SCALETRAIN_COMPILED_FOR, sm))
    throw UserError(
        fmt::format("run.device: cuda: the GPU {} is of sm_{}, and this program has kernels for {}: build it with "
                    "-DSCALETRAIN_CUDA_ARCHITECTURES={}-real, choose another GPU by CUDA_VISIBLE_DEVICES, or set "
                    "run.device: cpu",
                    properties.name, sm, cuda::architectures_text(SCALETRAIN_COMPILED_FOR), sm));
  cuda::name_device(device, fmt::format("{} at {}", properties.name, bus_address_of(properties)));
  return properties;
}

DeviceFacts facts_of(const cudaDeviceProp& properties) {
  std::string id;
  for (const char byte : properties.uuid.bytes) id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return {.name = properties.name,
          .memory = properties.totalGlobalMem,
          .id = std::move(id),
          .sm = 10 * properties.major + properties.minor,
          .bus_address = bus_address_of(properties)};
}

// Where a library has been measured to be faster than our own kernels, which halves alone have in tensor cores: Hopper.
std::unique_ptr<cuda::FusedAttention> fused_attention(const cudaDeviceProp& properties, DType compute) {
  constexpr int hopper = 9;
  if (properties.major != hopper || compute == DType::f32) return nullptr;
  auto library = cuda::find_attention_library();
  return library ? std::make_unique<cuda::FusedAttention>(std::move(library)) : nullptr;
}

std::string description_of(const cudaDeviceProp& properties, const CudaOptions& options,
                           const cuda::FusedAttention* attention) {
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "a look at the driver");
  return fmt::format(
      "cuda {} (sm_{}{}, driver {}.{}, cuBLASLt {}{})", properties.name, properties.major, properties.minor,
      driver / 1000, driver % 1000 / 10, cublasLtGetVersion(),
      (attention != nullptr ? ", " + attention->library_name() : "") + (options.tf32 ? ", products in tf32" : ""));
}

template <class S>
class CudaBackend final : public Backend, cuda::OperationIssuer {
 public:
  explicit CudaBackend(const CudaOptions& options) : CudaBackend(options, properties_of(options.device)) {}

  DType compute_type() const override { return compute_type_; }
  std::string description() const override { return description_; }
  int num_threads() const override { return 1; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(device_); }
  void prepare(Stream& stream) override {
    auto& prepared = dynamic_cast<CudaStream&>(stream);
    prepared.workspace();
    if (uses_graphs_) prepared.use_graphs(*this);
  }
  Space space() const override { return Space::device; }
  std::int64_t row_alignment() const override { return cuda_row_alignment; }
  AttentionWorkspace attention_workspace() const override {
    return attention_ ? cuda_attention_workspace : AttentionWorkspace{.most = 0};
  }
  std::optional<DeviceFacts> device() const override { return facts_; }
  std::uint64_t device_memory_in_use() const override {
    cuda::use_device(device_);
    std::size_t available = 0;
    std::size_t all = 0;
    check(cudaMemGetInfo(&available, &all), "a look at the memory of the GPU");
    return all - available;
  }
  FoundDeviceNetwork find_network(const DeviceNetworkOptions& options) override {
    return cuda::find_nccl_network(device_, options);
  }

  Buffer allocate(std::size_t bytes) override {
    Buffer buffer = cuda::allocate_on_device(device_, bytes);
    if (bytes == 0) return buffer;
    check(cudaMemsetAsync(buffer.data(), 0, bytes, filling_.get()), "the filling of memory");
    filling_.synchronize();
    return buffer;
  }
  Buffer allocate_pinned(std::size_t bytes) override { return cuda::allocate_pinned(device_, bytes, threads_, work_); }

  // Of the one stream that runs operations; each other one that does has as much again.
  std::size_t workspace_bytes() const override { return cuda_workspace_bytes; }
  std::size_t packed_bytes(const Shape& /*weight*/) const override { return 0; }
  std::unique_ptr<PackedWeight> pack(Stream& /*stream*/, ConstView /*values*/, Region /*memory*/) override {
    return nullptr;
  }

 private:
  CudaBackend(const CudaOptions& options, const cudaDeviceProp& properties)
      : device_(options.device),
        compute_type_(options.compute),
        uses_graphs_(options.graphs),
        facts_(facts_of(properties)),
        attention_(fused_attention(properties, options.compute)),
        description_(description_of(properties, options, attention_.get())),
        threads_(options.threads),
        work_(options.work),
        products_(options),
        filling_(options.device) {}

  void launch(Stream& stream, const Operation& op) override { dynamic_cast<CudaStream&>(stream).run(*this, op); }
  void issue(cudaStream_t stream, std::byte* workspace, const Operation& op) override {
    const cuda::Issue issue{
        .stream = stream, .workspace = workspace, .products = &products_, .attention = attention_.get()};
    std::visit([&](const auto& descriptor) { cuda::compute<S>(issue, descriptor); }, op);
  }
  void transfer(Stream& stream, const ConstView& from, const View& to) override {
    cuda::use_device(device_);
    cuda::copy(dynamic_cast<CudaStream&>(stream).get(), from, to);
  }

  int device_;
  DType compute_type_;
  bool uses_graphs_;
  DeviceFacts facts_;
  std::unique_ptr<cuda::FusedAttention> attention_;
  std::string description_;
  int threads_;
  WorkCount* work_;
  cuda::Products products_;
  CudaStream filling_;
};

}  // namespace

DeviceFacts look_at_cuda_device(int device) {
  return facts_of(properties_of(device));
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  cuda::use_device(options.device);
  switch (options.compute) {
    case DType::f32:
      return std::make_unique<CudaBackend<float>>(options);
    case DType::bf16:
      return std::make_unique<CudaBackend<__nv_bfloat16>>(options);
    case DType::f16:
      return std::make_unique<CudaBackend<__half>>(options);
    default:
      throw BugError("no GPU computes in " + std::string(to_text(options.compute)));
  }
}

}  // namespace scaletrain
