#include "backend/cuda/nccl_network.h"

#include <cuda.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/kernels/reduction.h"
#include "backend/cuda/nccl_calls.h"
#include "backend/nccl_memory.h"
#include "base/error.h"

namespace scaletrain::cuda {

namespace {

// The first that is built for CUDA 13.
constexpr int oldest_version = NCCL_VERSION(2, 27, 0);
static_assert(sizeof(ncclUniqueId) == device_group_id_bytes);

// For the end of a group whose messages have all come, and for one that is aborted.
constexpr auto longest_end = std::chrono::seconds(5);
constexpr auto poll_interval = std::chrono::milliseconds(1);

std::string version_text(int version) {
  return fmt::format("NCCL {}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

bool is_error(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

// NCCL tells of memory as of any failure of CUDA's or the system's, and the words that it keeps are its last ones,
// often those of a failure that followed: so either who allocates has said so (src/include/alloc.h), or less is left
// than two of the largest pieces that it asks for, and a GPU that has failed does not say what is left.
bool is_short_of_memory(ncclResult_t result, std::string_view words, int device) {
  if (result != ncclUnhandledCudaError && result != ncclSystemError && result != ncclInternalError) return false;
  std::size_t available = 0;
  std::size_t all = 0;
  if (cudaSetDevice(device) != cudaSuccess || cudaMemGetInfo(&available, &all) != cudaSuccess) return false;
  constexpr std::size_t two_pieces = std::size_t{20} << 20;
  constexpr std::array<std::string_view, 4> of_who_allocates = {"out of memory", "Cannot allocate memory",
                                                                "Failed to CUDA ", "Failed to malloc "};
  return available < two_pieces || std::any_of(of_who_allocates.begin(), of_who_allocates.end(),
                                               [&](auto part) { return words.find(part) != std::string_view::npos; });
}

// What a group and the thread that aborts it share. NCCL's calls on a communicator are made one at a time.
struct Communicator {
  Communicator(const NcclCalls& calls, int its_device) : nccl(calls), device(its_device) {}

  const NcclCalls& nccl;
  const int device;
  std::mutex mutex;
  std::condition_variable changed;
  ncclComm_t comm = nullptr;  // null: aborted
  bool has_issued = false;
  bool is_connected = false;  // by the first messages: NCCL asks for no more memory
  bool is_aborting = false;
  bool has_ended = false;

  // With the lock held. std::bad_alloc where NCCL lacks the memory to connect the group.
  void require(ncclResult_t result) const {
    if (!is_error(result)) return;
    const char* const last = nccl.get_last_error(comm);  // of whatever communicator
    const std::string_view words = last == nullptr ? "" : last;
    if (!is_connected && is_short_of_memory(result, words, device)) throw std::bad_alloc();
    const std::string text =
        fmt::format("NCCL: {}{}{}", nccl.get_error_string(result), words.empty() ? "" : ": ", words);
    if (result == ncclInvalidArgument) throw BugError(text);
    if (result == ncclUnhandledCudaError) throw gpu_failure(device, text);
    throw PeerError(fmt::format("{}: {}", name_of_gpu(device), text));  // its peers or the network, as likely
  }
  void require_comm() const {
    if (comm == nullptr) throw PeerError("NCCL: the group has been aborted");
  }
  // Nothing of it is under way.
  bool is_settled() const {
    ncclResult_t state = ncclSuccess;
    require(nccl.comm_get_async_error(comm, &state));
    require(state);
    return state == ncclSuccess;
  }

  void abort() {
    ncclComm_t aborted = nullptr;
    {
      const std::lock_guard lock(mutex);
      aborted = std::exchange(comm, nullptr);
    }
    if (aborted != nullptr) nccl.comm_abort(aborted);
    const std::lock_guard lock(mutex);
    has_ended = true;
    changed.notify_all();
  }
};

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(const NcclCalls& nccl, int device, const DeviceMembership& membership)
      : device_(device),
        size_(membership.size),
        shared_(std::make_shared<Communicator>(nccl, device)),
        stream_(device, CudaStream::Priority::first) {
    SCALETRAIN_CHECK_EQ(membership.id.size(), sizeof(ncclUniqueId));
    int processors = 0;
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "a look at the GPU");
    ncclUniqueId id;
    std::memcpy(&id, membership.id.data(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = nccl_channels(processors, membership.share);
    const std::lock_guard lock(shared_->mutex);
    try {
      shared_->require(nccl.comm_init_rank_config(&shared_->comm, membership.size, id, membership.rank, &config));
    } catch (...) {  // it may have begun all the same
      if (shared_->comm != nullptr) nccl.comm_abort(std::exchange(shared_->comm, nullptr));
      throw;
    }
  }
  ~NcclGroup() override {
    if (!end_in_peace()) abort("the group has been closed");
    std::unique_lock lock(shared_->mutex);
    // Who aborts keeps what it needs, should NCCL never return.
    shared_->changed.wait_for(lock, longest_end, [this] { return shared_->has_ended; });
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  Stream& stream() override { return stream_; }

  bool is_ready() override {
    const std::lock_guard lock(shared_->mutex);
    shared_->require_comm();
    if (!shared_->is_settled()) return false;
    shared_->is_connected = shared_->has_issued;
    return true;
  }

  void issue(std::span<const DeviceMessage> messages) override {
    // Between its start and its end nothing may be thrown.
    for (const DeviceMessage& message : messages) SCALETRAIN_CHECK(message.peer >= 0 && message.peer < size_);
    use_device(device_);
    const std::lock_guard lock(shared_->mutex);
    shared_->require_comm();
    shared_->has_issued = true;
    const NcclCalls& nccl = shared_->nccl;
    shared_->require(nccl.group_start());
    ncclResult_t first = ncclSuccess;
    for (const DeviceMessage& message : messages) {
      const ncclResult_t result = issue_one(nccl, message);
      if (is_error(result) && first == ncclSuccess) first = result;
    }
    // Also behind an error: whatever the thread does next would be part of the batch.
    const ncclResult_t end = nccl.group_end();
    shared_->require(first);
    shared_->require(end);
  }

  void reduce(const DeviceReduction& reduction) override {
    use_device(device_);
    reduce_in_order(stream_.get(), reduction);
  }

  void abort(const std::string& reason) noexcept override {
    {
      const std::lock_guard lock(shared_->mutex);
      if (std::exchange(shared_->is_aborting, true)) return;
    }
    // Before what the stream waits for ends, so that nobody takes it for done.
    stream_.fail(std::make_exception_ptr(PeerError(reason)));
    try {
      std::thread([shared = shared_, device = device_] {
        cudaSetDevice(device);
        shared->abort();
      }).detach();
    } catch (const std::system_error&) {  // no thread: then by this one
      shared_->abort();
    }
  }

 private:
  ncclResult_t issue_one(const NcclCalls& nccl, const DeviceMessage& message) const {
    if (message.direction == DeviceMessage::Direction::send)
      return nccl.send(message.data, message.bytes, ncclUint8, message.peer, shared_->comm, stream_.get());
    return nccl.recv(message.data, message.bytes, ncclUint8, message.peer, shared_->comm, stream_.get());
  }

  // A network may still be sending what the GPU has given to it. False: it must be aborted. Who asks for the state, or
  // aborts, does not wait for that.
  bool end_in_peace() noexcept {
    ncclComm_t ended = nullptr;
    try {
      if (!finalize()) return false;
      const auto end = std::chrono::steady_clock::now() + longest_end;
      while (true) {
        {
          const std::lock_guard lock(shared_->mutex);
          if (shared_->is_aborting) return true;
          if (shared_->is_settled()) ended = std::exchange(shared_->comm, nullptr);
        }
        if (ended != nullptr) break;
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(poll_interval);
      }
    } catch (const std::exception&) {
      return false;
    }
    shared_->nccl.comm_destroy(ended);
    const std::lock_guard lock(shared_->mutex);
    return shared_->has_ended = true;
  }
  bool finalize() {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->is_aborting) return true;
    if (shared_->comm == nullptr || !shared_->is_settled()) return false;
    shared_->require(shared_->nccl.comm_finalize(shared_->comm));
    return true;
  }

  int device_;
  int size_;
  std::shared_ptr<Communicator> shared_;
  CudaStream stream_;
};

class NcclNetwork final : public DeviceNetwork {
 public:
  NcclNetwork(const NcclCalls& nccl, int device, int version) : nccl_(nccl), device_(device), version_(version) {}

  std::string name() const override { return version_text(version_); }
  std::string make_id() override {
    use_device(device_);
    ncclUniqueId id;
    const ncclResult_t result = nccl_.get_unique_id(&id);
    if (result != ncclSuccess) {
      const char* const last = nccl_.get_last_error(nullptr);
      const std::string_view words = last == nullptr ? "" : last;
      throw PeerError(fmt::format("{}: NCCL: {}{}{}", name_of_gpu(device_), nccl_.get_error_string(result),
                                  words.empty() ? "" : ": ", words));
    }
    return {id.internal, sizeof id.internal};
  }
  std::unique_ptr<DeviceGroup> join(const DeviceMembership& membership) override {
    use_device(device_);
    return std::make_unique<NcclGroup>(nccl_, device_, membership);
  }

 private:
  const NcclCalls& nccl_;
  int device_;
  int version_;
};

// Whether the driver loads all kernels before the first one is launched.
bool loads_kernels_ahead() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion("cuModuleGetLoadingMode", &function, 13000, cudaEnableDefault, &found),
        "a look at the driver");
  if (found != cudaDriverEntryPointSuccess) return false;
  CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
  return reinterpret_cast<decltype(&cuModuleGetLoadingMode)>(function)(&mode) == CUDA_SUCCESS &&
         mode == CU_MODULE_EAGER_LOADING;
}

}  // namespace

FoundDeviceNetwork find_nccl_network(int device, const DeviceNetworkOptions& options) {
  use_device(device);
  if (!loads_kernels_ahead())
    return {.obstacle =
                "the driver would load kernels at their first launch, which waits for peers then: unset "
                "CUDA_MODULE_LOADING, or set it to EAGER"};
  const FoundNccl found = find_nccl();
  if (found.calls == nullptr) return {.obstacle = found.obstacle};
  int version = 0;
  if (found.calls->get_version(&version) != ncclSuccess) return {.obstacle = "NCCL does not tell its version"};
  if (version < oldest_version)
    return {.obstacle = fmt::format("{} is too old: {} is the first that is used", version_text(version),
                                    version_text(oldest_version))};
  // By its whole name, not by its beginning.
  if (!options.interface.empty()) ::setenv("NCCL_SOCKET_IFNAME", ("=" + options.interface).c_str(), 1);
  return {.network = std::make_unique<NcclNetwork>(*found.calls, device, version)};
}

}  // namespace scaletrain::cuda
