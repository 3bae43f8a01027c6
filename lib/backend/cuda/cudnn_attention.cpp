// cuDNN, by the graphs of its frontend: its library is loaded when it is asked for, so that the module runs without it.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "backend/cuda/attention_library.h"
#include "backend/cuda/cuda_error.h"
#include "base/error.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace scaletrain::cuda {

namespace {

namespace frontend = cudnn_frontend;
using frontend::graph::Tensor_attributes;

// Deterministic backwards of causal attention are in from here on; 9.14 and 9.19 are those that have been measured.
constexpr std::size_t oldest_version = 90'500;

enum Operand : std::int64_t { query = 1, key, value, output, log_sum_exp, d_output, d_query, d_key, d_value };

// Of [batch, heads, tokens, head_size], as we have heads.
Tensor_attributes heads_of(const AttentionKind& kind, Operand operand, std::int64_t heads, std::int64_t stride) {
  return Tensor_attributes()
      .set_uid(operand)
      .set_dim({kind.batch, heads, kind.tokens, kind.head_size})
      .set_stride({kind.tokens * stride, kind.head_size, stride, 1});
}
Tensor_attributes log_sum_of(const AttentionKind& kind) {
  return Tensor_attributes()
      .set_uid(log_sum_exp)
      .set_data_type(frontend::DataType_t::FLOAT)
      .set_dim({kind.batch, kind.heads, kind.tokens, 1})
      .set_stride({kind.heads * kind.tokens, kind.tokens, 1, 1});
}
void make_result(const std::shared_ptr<Tensor_attributes>& result, const Tensor_attributes& as) {
  result->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
}

struct Plan {
  std::shared_ptr<frontend::graph::Graph> graph;  // null: there are no kernels
  std::size_t workspace = 0;
};

// What cuDNN tells comes as words alone, with the name of its status or of CUDA's error in them.
bool is_short_of_memory(std::string_view words) {
  constexpr std::array<std::string_view, 4> of_memory = {"ALLOC_FAILED", "ALLOCATION_FAILED", "MemoryAllocation",
                                                         "out of memory"};
  return std::any_of(of_memory.begin(), of_memory.end(),
                     [&](auto part) { return words.find(part) != std::string_view::npos; });
}

[[noreturn]] void fail(const std::string& words) {
  if (is_short_of_memory(words)) throw std::bad_alloc();
  throw gpu_failure("cuDNN: " + words);
}
void check(cudnnStatus_t status, std::string_view what) {
  if (status != CUDNN_STATUS_SUCCESS)
    fail(fmt::format("{} failed: {}", what, frontend::detail::get_error_string(status)));
}

// The frontend throws where a symbol is not found; our own errors pass.
template <class Body>
auto with_errors_of_library(Body&& body) {
  try {
    return body();
  } catch (const PeerError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

// Whether it went well; false where that is not supported, which is so every time. An error for all else, which might
// go well another time, and give other bits then.
bool succeeds(frontend::error_t status) {
  if (status.is_good()) return true;
  using Code = frontend::error_code_t;
  const std::string message = status.get_message();
  if (is_short_of_memory(message)) throw std::bad_alloc();
  if (status.get_code() == Code::GRAPH_NOT_SUPPORTED || status.get_code() == Code::UNSUPPORTED_GRAPH_FORMAT ||
      status.get_code() == Code::HEURISTIC_QUERY_FAILED || message.find("NOT_SUPPORTED") != std::string::npos)
    return false;
  fail(fmt::format("the choice of a kernel for attention failed: {}", message));
}

Plan make_plan(cudnnHandle_t handle, const AttentionKind& kind) {
  auto graph = std::make_shared<frontend::graph::Graph>();
  graph->set_io_data_type(kind.type == DType::bf16 ? frontend::DataType_t::BFLOAT16 : frontend::DataType_t::HALF)
      .set_intermediate_data_type(frontend::DataType_t::FLOAT)
      .set_compute_data_type(frontend::DataType_t::FLOAT);
  const auto q = graph->tensor(heads_of(kind, query, kind.heads, kind.query_stride));
  const auto k = graph->tensor(heads_of(kind, key, kind.kv_heads, kind.key_stride));
  const auto v = graph->tensor(heads_of(kind, value, kind.kv_heads, kind.value_stride));
  const auto scale = static_cast<float>(kind.scale);
  const Tensor_attributes of_output = heads_of(kind, output, kind.heads, kind.output_stride);
  if (kind.is_backward) {
    const auto of_result = graph->tensor(heads_of(kind, d_output, kind.heads, kind.d_output_stride));
    const auto [dq, dk, dv] =
        graph->sdpa_backward(q, k, v, graph->tensor(of_output), of_result, graph->tensor(log_sum_of(kind)),
                             frontend::graph::SDPA_backward_attributes()
                                 .set_attn_scale(scale)
                                 .set_causal_mask(true)
                                 .set_deterministic_algorithm(true));
    make_result(dq, heads_of(kind, d_query, kind.heads, kind.d_query_stride));
    make_result(dk, heads_of(kind, d_key, kind.kv_heads, kind.d_key_stride));
    make_result(dv, heads_of(kind, d_value, kind.kv_heads, kind.d_value_stride));
  } else {
    const auto [made, statistics] = graph->sdpa(
        q, k, v,
        frontend::graph::SDPA_attributes().set_generate_stats(true).set_attn_scale(scale).set_causal_mask(true));
    make_result(made, of_output);
    make_result(statistics, log_sum_of(kind));
    statistics->set_data_type(frontend::DataType_t::FLOAT);
  }
  const bool is_supported = succeeds(graph->validate()) && succeeds(graph->build_operation_graph(handle)) &&
                            succeeds(graph->create_execution_plans({frontend::HeurMode_t::A})) &&
                            succeeds(graph->check_support()) && succeeds(graph->build_plans());
  std::int64_t workspace = 0;
  if (!is_supported || !succeeds(graph->get_workspace_size(workspace))) return {};
  return {std::move(graph), static_cast<std::size_t>(workspace)};
}

class CudnnAttention final : public AttentionLibrary {
 public:
  CudnnAttention(cudnnHandle_t handle, std::size_t version) : handle_(handle), version_(version) {}
  ~CudnnAttention() override {
    plans_.clear();
    frontend::detail::destroy_handle(handle_);
  }

  std::string name() const override {
    return fmt::format("cuDNN {}.{}.{}", version_ / 10'000, version_ / 100 % 100, version_ % 100);
  }
  std::optional<std::size_t> workspace_bytes(const AttentionKind& kind) override {
    const Plan& plan = plan_of(kind);
    return plan.graph ? std::optional(plan.workspace) : std::nullopt;
  }
  void run(cudaStream_t stream, const AttentionKind& kind, const AttentionOperands& operands,
           std::byte* workspace) override {
    const Plan& plan = plan_of(kind);
    SCALETRAIN_CHECK(plan.graph != nullptr);
    std::unordered_map<std::int64_t, void*> places = {{query, const_cast<void*>(operands.query)},
                                                      {key, const_cast<void*>(operands.key)},
                                                      {value, const_cast<void*>(operands.value)},
                                                      {output, operands.output},
                                                      {log_sum_exp, operands.log_sum_exp}};
    if (kind.is_backward)
      places.insert({{d_output, const_cast<void*>(operands.d_output)},
                     {d_query, operands.d_query},
                     {d_key, operands.d_key},
                     {d_value, operands.d_value}});
    with_errors_of_library([&] {
      check(frontend::detail::set_stream(handle_, stream), "the choice of a stream");
      auto status = plan.graph->execute(handle_, places, workspace);
      if (!status.is_good()) fail(fmt::format("attention failed: {}", status.get_message()));
    });
  }

 private:
  const Plan& plan_of(const AttentionKind& kind) {
    const auto known = plans_.find(kind);
    if (known != plans_.end()) return known->second;
    return plans_.emplace(kind, with_errors_of_library([&] { return make_plan(handle_, kind); })).first->second;
  }

  cudnnHandle_t handle_;
  std::size_t version_;
  std::map<AttentionKind, Plan> plans_;
};

}  // namespace

std::unique_ptr<AttentionLibrary> find_attention_library() {
  // For good, as the driver's threads outlive its last use.
  frontend::cudnn_dlhandle = ::dlopen("libcudnn.so.9", RTLD_NOW);
  if (frontend::cudnn_dlhandle == nullptr) return nullptr;
  try {
    const std::size_t version = frontend::detail::get_backend_version();
    if (version < oldest_version) return nullptr;
    cudnnHandle_t handle = nullptr;
    const cudnnStatus_t status = frontend::detail::create_handle(&handle);
    if (status != CUDNN_STATUS_SUCCESS) {
      if (is_short_of_memory(frontend::detail::get_error_string(status))) throw std::bad_alloc();
      return nullptr;
    }
    return std::make_unique<CudnnAttention>(handle, version);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {  // a library that it needs is not there
    return nullptr;
  }
}

}  // namespace scaletrain::cuda
