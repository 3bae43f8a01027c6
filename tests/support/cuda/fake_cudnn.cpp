// An attention library on the host, behind the rules that cuDNN has for its operands: attention by the definition, with
// probabilities and their gradients rounded to halves as kernels of tensor cores round them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "backend/cuda/attention_library.h"
#include "base/error.h"
#include "cuda_language.h"
#include "support/cuda/kernels_on_host.h"

namespace scaletrain::cuda {

namespace {

float read(DType type, const void* values, std::int64_t at) {
  return type == DType::bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(values)[at])
                             : __half2float(static_cast<const __half*>(values)[at]);
}
void write(DType type, void* values, std::int64_t at, float value) {
  if (type == DType::bf16)
    static_cast<__nv_bfloat16*>(values)[at] = __float2bfloat16_rn(value);
  else
    static_cast<__half*>(values)[at] = __float2half_rn(value);
}
float rounded(DType type, float value) {
  std::uint16_t place = 0;
  write(type, &place, 0, value);
  return read(type, &place, 0);
}

// One head of queries of a batch; d_key and d_value are sums over the heads that share theirs.
struct HeadOfBatch {
  const AttentionKind& kind;
  const AttentionOperands& of;
  std::int64_t batch, head;

  std::int64_t kv_head() const { return head / (kind.heads / kind.kv_heads); }
  std::int64_t at(std::int64_t stride, std::int64_t of_head, std::int64_t token) const {
    return (batch * kind.tokens + token) * stride + of_head * kind.head_size;
  }
  std::vector<float> row(const void* values, std::int64_t stride, std::int64_t of_head, std::int64_t token) const {
    std::vector<float> result;
    for (std::int64_t d = 0; d < kind.head_size; ++d)
      result.push_back(read(kind.type, values, at(stride, of_head, token) + d));
    return result;
  }
  void store(void* values, std::int64_t stride, std::int64_t of_head, std::int64_t token,
             const std::vector<float>& row) const {
    for (std::int64_t d = 0; d < kind.head_size; ++d)
      write(kind.type, values, at(stride, of_head, token) + d, row[static_cast<std::size_t>(d)]);
  }
  float& log_sum(std::int64_t token) const { return of.log_sum_exp[(batch * kind.heads + head) * kind.tokens + token]; }
};

float product(const std::vector<float>& a, const std::vector<float>& b) {
  float sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}
void add(std::vector<float>& sum, float factor, const std::vector<float>& row) {
  for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += factor * row[d];
}

void attend(const HeadOfBatch& head) {
  const AttentionKind& kind = head.kind;
  const auto size = static_cast<std::size_t>(kind.head_size);
  for (std::int64_t t = 0; t < kind.tokens; ++t) {
    const std::vector<float> query = head.row(head.of.query, kind.query_stride, head.head, t);
    std::vector<float> scores;
    for (std::int64_t s = 0; s <= t; ++s)
      scores.push_back(static_cast<float>(kind.scale) *
                       product(query, head.row(head.of.key, kind.key_stride, head.kv_head(), s)));
    const float most = *std::max_element(scores.begin(), scores.end());
    float total = 0;
    std::vector<float> output(size);
    for (std::int64_t s = 0; s <= t; ++s) {
      const float weight = std::exp(scores[static_cast<std::size_t>(s)] - most);
      total += weight;
      add(output, rounded(kind.type, weight), head.row(head.of.value, kind.value_stride, head.kv_head(), s));
    }
    for (float& value : output) value /= total;
    head.store(head.of.output, kind.output_stride, head.head, t, output);
    head.log_sum(t) = most + std::log(total);
  }
}

void differentiate(const HeadOfBatch& head, std::vector<std::vector<float>>& d_key,
                   std::vector<std::vector<float>>& d_value) {
  const AttentionKind& kind = head.kind;
  const auto scale = static_cast<float>(kind.scale);
  for (std::int64_t t = 0; t < kind.tokens; ++t) {
    const std::vector<float> query = head.row(head.of.query, kind.query_stride, head.head, t);
    const std::vector<float> d_output = head.row(head.of.d_output, kind.d_output_stride, head.head, t);
    const float delta = product(d_output, head.row(head.of.output, kind.output_stride, head.head, t));
    std::vector<float> d_query(query.size());
    for (std::int64_t s = 0; s <= t; ++s) {
      const std::vector<float> key = head.row(head.of.key, kind.key_stride, head.kv_head(), s);
      const std::vector<float> value = head.row(head.of.value, kind.value_stride, head.kv_head(), s);
      const float weight = std::exp(scale * product(query, key) - head.log_sum(t));
      const float d_score = rounded(kind.type, weight * (product(d_output, value) - delta));
      add(d_value[static_cast<std::size_t>(s)], rounded(kind.type, weight), d_output);
      add(d_key[static_cast<std::size_t>(s)], scale * d_score, query);
      add(d_query, scale * d_score, key);
    }
    head.store(head.of.d_query, kind.d_query_stride, head.head, t, d_query);
  }
}

void compute(const AttentionKind& kind, const AttentionOperands& of) {
  for (std::int64_t batch = 0; batch < kind.batch; ++batch) {
    if (!kind.is_backward) {
      for (std::int64_t head = 0; head < kind.heads; ++head) attend({kind, of, batch, head});
      continue;
    }
    const std::int64_t group = kind.heads / kind.kv_heads;
    for (std::int64_t kv_head = 0; kv_head < kind.kv_heads; ++kv_head) {
      std::vector<std::vector<float>> d_key(static_cast<std::size_t>(kind.tokens),
                                            std::vector<float>(static_cast<std::size_t>(kind.head_size)));
      std::vector<std::vector<float>> d_value = d_key;
      for (std::int64_t i = 0; i < group; ++i) differentiate({kind, of, batch, kv_head * group + i}, d_key, d_value);
      const HeadOfBatch any{kind, of, batch, kv_head * group};
      for (std::int64_t s = 0; s < kind.tokens; ++s) {
        any.store(of.d_key, kind.d_key_stride, kv_head, s, d_key[static_cast<std::size_t>(s)]);
        any.store(of.d_value, kind.d_value_stride, kv_head, s, d_value[static_cast<std::size_t>(s)]);
      }
    }
  }
}

// As many bytes as cuDNN was seen to take on an H100 (9.19).
std::size_t workspace_of_backward(const AttentionKind& kind) {
  const std::int64_t heads = kind.batch * kind.heads;
  const std::int64_t padded = (kind.tokens + 127) / 128 * 128;
  const std::int64_t shared = kind.heads > kind.kv_heads ? 4 * heads * kind.tokens * kind.head_size : 0;
  return static_cast<std::size_t>(heads * padded * padded * 2 + heads * kind.tokens * 4 + shared + 256);
}

std::atomic<int> runs = 0;

class FakeCudnn final : public AttentionLibrary {
 public:
  std::string name() const override { return "cuDNN 9.99.0"; }
  std::optional<std::size_t> workspace_bytes(const AttentionKind& kind) override {
    check(kind);
    asked_.insert(kind);
    if (kind.head_size == 72) return std::nullopt;  // it has no kernels for everything
    return kind.is_backward ? workspace_of_backward(kind) : 256;
  }
  void run(cudaStream_t stream, const AttentionKind& kind, const AttentionOperands& of, std::byte* workspace) override {
    SCALETRAIN_CHECK(asked_.count(kind) == 1);
    for (const void* const operand : {of.query, of.key, of.value, static_cast<const void*>(of.output)}) check(operand);
    if (kind.is_backward)
      for (const void* const operand : {of.d_output, static_cast<const void*>(of.d_query),
                                        static_cast<const void*>(of.d_key), static_cast<const void*>(of.d_value)})
        check(operand);
    SCALETRAIN_CHECK(of.log_sum_exp != nullptr);
    SCALETRAIN_CHECK(reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0);
    const std::size_t bytes = *workspace_bytes(kind);
    ++runs;
    run_in_turn(stream, [=] {
      std::memset(workspace, 0xff, bytes);
      compute(kind, of);
    });
  }

 private:
  static void check(const AttentionKind& kind) {
    SCALETRAIN_CHECK(kind.type == DType::bf16 || kind.type == DType::f16);
    SCALETRAIN_CHECK(kind.batch > 0 && kind.tokens > 1 && kind.kv_heads > 0 && kind.heads % kind.kv_heads == 0);
    SCALETRAIN_CHECK(kind.head_size % 8 == 0 && kind.head_size <= 128);
    for (const std::int64_t stride :
         {kind.query_stride, kind.key_stride, kind.value_stride, kind.output_stride, kind.d_output_stride,
          kind.d_query_stride, kind.d_key_stride, kind.d_value_stride})
      SCALETRAIN_CHECK(stride % 8 == 0);
  }
  static void check(const void* operand) {
    SCALETRAIN_CHECK(operand != nullptr && reinterpret_cast<std::uintptr_t>(operand) % 16 == 0);
  }

  std::set<AttentionKind> asked_;
};

}  // namespace

std::unique_ptr<AttentionLibrary> find_attention_library() {
  return std::make_unique<FakeCudnn>();
}

}  // namespace scaletrain::cuda

int scaletrain::attention_runs_of_library() {
  return cuda::runs;
}
