// NCCL as it is found when a group of GPUs is made: its functions, and no more of them than are called. nccl_calls.cpp
// loads them; tests have others (tests/support/cuda/fake_nccl.cpp).
#pragma once

#include <nccl.h>

#include <optional>
#include <string>

namespace scaletrain::cuda {

struct NcclCalls {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
};

// Nothing, and why.
struct LoadedNccl {
  std::optional<NcclCalls> calls{};
  std::string obstacle{};
};
// For good, as its threads outlive its last use. A name without a folder is looked for as the system does.
LoadedNccl load_nccl(const char* file);

// Null, and why.
struct FoundNccl {
  const NcclCalls* calls = nullptr;
  std::string obstacle{};
};
FoundNccl find_nccl();

}  // namespace scaletrain::cuda
