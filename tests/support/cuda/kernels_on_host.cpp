#include "support/cuda/kernels_on_host.h"

#include <variant>

#include "backend/cuda/fused_attention.h"
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/products.h"
#include "backend/host_backend.h"
#include "tensor/buffer.h"

namespace scaletrain {

namespace {

template <class S>
class KernelsOnHost final : public HostBackend {
 public:
  explicit KernelsOnHost(const CudaOptions& options, std::unique_ptr<cuda::AttentionLibrary> library = nullptr)
      : compute_type_(options.compute), workspace_(cuda::workspace_bytes + alignment), products_(options) {
    if (library) attention_ = std::make_unique<cuda::FusedAttention>(std::move(library));
  }

  DType compute_type() const override { return compute_type_; }
  std::string description() const override { return "cuda, on the host"; }
  int num_threads() const override { return 1; }
  std::int64_t row_alignment() const override { return 64; }
  AttentionWorkspace attention_workspace() const override {
    return attention_ ? cuda_attention_workspace : AttentionWorkspace{.most = 0};
  }
  std::size_t workspace_bytes() const override { return workspace_.size(); }
  std::size_t packed_bytes(const Shape&) const override { return 0; }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView, Region) override { return nullptr; }

 private:
  void launch(Stream&, const Operation& op) override {
    const cuda::Issue issue{.workspace = workspace(), .products = &products_, .attention = attention_.get()};
    std::visit([&](const auto& descriptor) { cuda::compute<S>(issue, descriptor); }, op);
  }

  std::byte* workspace() const {
    return reinterpret_cast<std::byte*>(align_up(reinterpret_cast<std::uintptr_t>(workspace_.data()), alignment));
  }

  static constexpr std::size_t alignment = 256;

  DType compute_type_;
  Buffer workspace_;
  cuda::Products products_;
  std::unique_ptr<cuda::FusedAttention> attention_;
};

}  // namespace

std::unique_ptr<Backend> make_kernels_on_host(const CudaOptions& options) {
  if (options.compute == DType::f32) return std::make_unique<KernelsOnHost<float>>(options);
  if (options.compute == DType::bf16) return std::make_unique<KernelsOnHost<__nv_bfloat16>>(options);
  return std::make_unique<KernelsOnHost<__half>>(options);
}
std::unique_ptr<Backend> make_kernels_with_library_on_host(DType compute) {
  const CudaOptions options{.compute = compute};
  auto library = cuda::find_attention_library();
  if (compute == DType::bf16) return std::make_unique<KernelsOnHost<__nv_bfloat16>>(options, std::move(library));
  return std::make_unique<KernelsOnHost<__half>>(options, std::move(library));
}

}  // namespace scaletrain
