// Attention as a library computes it, cuDNN where it is found: what it is asked for, and nothing else of it.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tensor/dtype.h"

namespace scaletrain::cuda {

// Causal attention of every token of a batch on itself and those before it, in halves: everything that a choice of
// kernels depends on. Strides are elements between tokens, of batches that follow each other.
struct AttentionKind {
  bool is_backward = false;
  DType type = DType::bf16;
  std::int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, head_size = 0;
  double scale = 1.0;
  std::int64_t query_stride = 0, key_stride = 0, value_stride = 0, output_stride = 0;
  std::int64_t d_output_stride = 0, d_query_stride = 0, d_key_stride = 0, d_value_stride = 0;  // of the backward

  friend auto operator<=>(const AttentionKind&, const AttentionKind&) = default;
};

// Aligned to 16 bytes, log_sum_exp to 4. The forward writes output and log_sum_exp (of base e), the backward reads
// them.
struct AttentionOperands {
  const void *query = nullptr, *key = nullptr, *value = nullptr;
  void* output = nullptr;
  float* log_sum_exp = nullptr;  // [batch, heads, tokens]
  const void* d_output = nullptr;
  void *d_query = nullptr, *d_key = nullptr, *d_value = nullptr;
};

// Of one GPU; by one thread at a time. Only kernels that give the same bits every time are eligible.
class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  AttentionLibrary(const AttentionLibrary&) = delete;
  AttentionLibrary& operator=(const AttentionLibrary&) = delete;

  // "cuDNN 9.14.0": the bits of results depend on it.
  virtual std::string name() const = 0;
  // What run() needs, of memory aligned to 256 bytes; nothing: there are no kernels for the kind. The first time that a
  // kind is asked for, its kernels are chosen and compiled, which takes up to seconds.
  virtual std::optional<std::size_t> workspace_bytes(const AttentionKind& kind) = 0;
  // Issues it, of a kind that there are kernels for. PeerError, std::bad_alloc; so in workspace_bytes().
  virtual void run(cudaStream_t stream, const AttentionKind& kind, const AttentionOperands& operands,
                   std::byte* workspace) = 0;

 protected:
  AttentionLibrary() = default;
};

// Of the current GPU; null: there is none on this machine, or the module was built without its headers. std::bad_alloc
std::unique_ptr<AttentionLibrary> find_attention_library();

}  // namespace scaletrain::cuda
