// What cuDNN tells of its errors, and a run's user is told: by the frontend that the module is compiled with, over a
// library that fails where it is told to (cudnn_of_tests.cpp).
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string>

#include "backend/cuda/attention_library.h"
#include "backend/cuda/cuda_error.h"
#include "base/error.h"

using namespace scaletrain;

namespace {

// Of cudnn.h, whose header may define what the frontend's does.
constexpr int execution_failed = 5000;
constexpr int no_memory_on_device = 4004;
constexpr int not_supported = 3000;

// The library stands for libcudnn.so.9, by the name that it has within, and for the CUDA runtime that the frontend
// loads.
void (*library_fails())(const char*, int) {
  ::setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", CUDNN_OF_TESTS, 1);
  void* const library = ::dlopen(CUDNN_OF_TESTS, RTLD_NOW);
  REQUIRE_MESSAGE(library != nullptr, ::dlerror());
  return reinterpret_cast<void (*)(const char*, int)>(::dlsym(library, "cudnn_of_tests_fails"));
}

cuda::AttentionKind kind_of(std::int64_t tokens) {
  return {.type = DType::bf16,
          .batch = 1,
          .tokens = tokens,
          .heads = 2,
          .kv_heads = 2,
          .head_size = 64,
          .query_stride = 128,
          .key_stride = 128,
          .value_stride = 128,
          .output_stride = 128};
}

// What attention of so many tokens ends with, by a library of its own.
std::string told_of(std::int64_t tokens) {
  alignas(256) static std::byte memory[1024];
  try {
    const auto library = cuda::find_attention_library();
    if (!library) return "no library";
    const cuda::AttentionKind kind = kind_of(tokens);
    if (!library->workspace_bytes(kind)) return "no kernels";
    library->run(nullptr, kind,
                 {.query = memory,
                  .key = memory,
                  .value = memory,
                  .output = memory,
                  .log_sum_exp = reinterpret_cast<float*>(memory)},
                 memory);
    return "done";
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const PeerError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE(
    "what cuDNN fails in is told with the GPU, memory that it lacks as any other, and what it has no kernels for") {
  const auto fails = library_fails();
  cuda::use_device(0);
  cuda::name_device(0, "a GPU");
  char host[256] = {};
  REQUIRE(::gethostname(host, sizeof host - 1) == 0);
  const std::string before = "GPU 0 (a GPU) of " + std::string(host) + ": cuDNN: ";
  const std::string after = "; the kernel's log (dmesg, Xid) and nvidia-smi -q may say why";
  CHECK(told_of(128) == "done");
  for (const char* call :
       {"cudnnBackendCreateDescriptor", "cudnnBackendFinalize", "cudnnSetStream", "cudnnBackendExecute"}) {
    CAPTURE(call);
    fails(call, no_memory_on_device);
    CHECK(told_of(128) == "out of memory");
    fails(call, execution_failed);
    const std::string told = told_of(128);
    CAPTURE(told);
    CHECK(told.starts_with(before));
    CHECK(told.ends_with(after));
    CHECK(told.find("CUDNN_STATUS_EXECUTION_FAILED") != std::string::npos);
    fails("", 0);
  }
  fails("cudnnCreate", no_memory_on_device);
  CHECK(told_of(128) == "out of memory");
  fails("cudnnBackendFinalize", not_supported);
  CHECK(told_of(128) == "no kernels");
  fails("", 0);
}
