#include "backend/cuda/nccl_calls.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace scaletrain::cuda {

namespace {

constexpr const char* library_name = "libnccl.so.2";

FoundNccl load() {
  void* const library = ::dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {.obstacle = fmt::format("{} is not found ({})", library_name, ::dlerror())};
  static NcclCalls calls;
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  find(calls.get_version, "ncclGetVersion");
  find(calls.get_unique_id, "ncclGetUniqueId");
  find(calls.comm_init_rank_config, "ncclCommInitRankConfig");
  find(calls.comm_get_async_error, "ncclCommGetAsyncError");
  find(calls.comm_finalize, "ncclCommFinalize");
  find(calls.comm_destroy, "ncclCommDestroy");
  find(calls.comm_abort, "ncclCommAbort");
  find(calls.get_error_string, "ncclGetErrorString");
  find(calls.get_last_error, "ncclGetLastError");
  find(calls.send, "ncclSend");
  find(calls.recv, "ncclRecv");
  find(calls.group_start, "ncclGroupStart");
  find(calls.group_end, "ncclGroupEnd");
  if (missing != nullptr) return {.obstacle = fmt::format("{} is too old: it has no {}", library_name, missing)};
  return {.calls = &calls};
}

}  // namespace

FoundNccl find_nccl() {
  static const FoundNccl found = load();
  return found;
}

}  // namespace scaletrain::cuda
