#include "backend/cuda/nccl_calls.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

namespace scaletrain::cuda {

namespace {

constexpr const char* library_name = "libnccl.so.2";

}  // namespace

LoadedNccl load_nccl(const char* file) {
  void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {.obstacle = fmt::format("{} is not found ({})", file, ::dlerror())};
  NcclCalls calls;
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr && missing == nullptr) missing = name;
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
  if (missing != nullptr) return {.obstacle = fmt::format("{} is too old: it has no {}", file, missing)};
  return {.calls = calls};
}

FoundNccl find_nccl() {
  static const LoadedNccl loaded = load_nccl(library_name);
  return {.calls = loaded.calls ? &*loaded.calls : nullptr, .obstacle = loaded.obstacle};
}

}  // namespace scaletrain::cuda
