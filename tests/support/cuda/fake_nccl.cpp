// A recording NCCL: ranks are threads of one process, each on a GPU of its own (fake_runtime.cpp). A send completes
// when its receive is there, so what needs buffering hangs here. Communicators are non-blocking, as the module asks for
// them: what is issued reaches its stream when the state has been looked at twice. What NCCL's documentation forbids is
// noted, and ends the communicator with an error.
#include "support/cuda/fake_nccl.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/nccl_calls.h"
#include "cuda_language.h"
#include "support/cuda/fake_runtime.h"

namespace scaletrain::fake_nccl {

namespace {

constexpr int looks_until_issued = 2;

struct Message {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
  bool is_done = false;
};
using MessageRef = std::shared_ptr<Message>;

struct Call {
  bool is_send = false;
  void* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  cudaStream_t stream = nullptr;
};

struct Clique;

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int device = 0;
  int blocks = 1;
  ncclResult_t error = ncclSuccess;
  bool is_aborted = false;
  bool is_finalized = false;
  bool is_gone = false;            // destroyed or aborted: no more calls
  int looks = looks_until_issued;  // at a call that has not reached its stream
  std::vector<Call> waiting{};
  int running = 0;           // kernels
  std::size_t memory = 0;    // of the GPU's, that it has taken
  std::set<int> sends_to{};  // peers that are connected
  std::set<int> receives_from{};
};

struct Clique {
  std::vector<Comm*> members;
  int joins = 0;  // one behind the other, itself included
  // By sender and receiver: who is there first waits for the other.
  std::map<std::pair<int, int>, std::deque<MessageRef>> sends{}, receives{};

  bool is_complete() const { return std::count(members.begin(), members.end(), nullptr) == 0; }
};

// All of it, under one lock.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_installed = false;
  int version = 0;
  std::uint64_t next_id = 1;
  std::map<std::string, std::shared_ptr<Clique>> cliques{};
  std::deque<Comm> comms{};  // for good
  std::string problem{};
  std::string last_words{};  // of whatever communicator
  std::uint64_t arrived = 0;
  int broken = -1;
  Failure failure = Failure::network;
  bool holds_aborts = false;
  bool holds_ends = false;
  int held_messages = -1;  // of this GPU
  int held_looks = -1;
  int looks_that_wait = 0;
  std::map<int, int> blocks{};  // that run, by GPU
  std::map<int, int> joins{};   // one behind the other, by GPU
};
World& world() {
  static World all;
  return all;
}

ncclResult_t refuse(const std::string& rule, ncclResult_t result = ncclInvalidUsage) {
  if (world().problem.empty()) world().problem = rule;
  return result;
}
ncclResult_t refuse(Comm& comm, const std::string& rule) {
  return comm.error = refuse(rule);
}

Comm& of(ncclComm_t comm) {
  return *reinterpret_cast<Comm*>(comm);
}

// Calls since the start of the group, of the thread.
thread_local int group_depth = 0;
thread_local std::vector<std::pair<Comm*, Call>> grouped;

bool is_in_progress(const Comm& comm) {
  return !comm.clique->is_complete() || !comm.waiting.empty() || (comm.is_finalized && world().holds_ends);
}

// The least that a driver gives out.
constexpr std::size_t piece = std::size_t{2} << 20;
// As NCCL takes it: tables of each channel and of the communicator.
bool take_memory(Comm& comm, std::size_t pieces_of_channel, std::size_t more) {
  const std::size_t bytes = (static_cast<std::size_t>(comm.blocks) * pieces_of_channel + more) * piece;
  if (!fake_runtime::take_memory(comm.device, bytes)) return false;
  comm.memory += bytes;
  return true;
}
// For each channel buffers of 9.2 MiB where it receives, a page where it sends.
bool connect(Comm& comm) {
  bool is_connected = true;
  for (const Call& call : comm.waiting) {
    if (call.peer == comm.rank) continue;
    if (call.is_send && comm.sends_to.insert(call.peer).second) is_connected = is_connected && take_memory(comm, 1, 0);
    if (!call.is_send && comm.receives_from.insert(call.peer).second)
      is_connected = is_connected && take_memory(comm, 5, 0);
  }
  return is_connected;
}
void give_memory(Comm& comm) {
  fake_runtime::give_memory(comm.device, std::exchange(comm.memory, 0));
}

std::string may_be_used(const Comm& comm) {
  if (comm.is_gone) return "a communicator is used after its end";
  if (comm.is_finalized) return "a communicator is used after it was finalized";
  if (is_in_progress(comm)) return "a communicator is used while a call of it is in progress";
  return {};
}

// The kernel of one group: with the lock held, but while it waits. Ends when all has come, or when it is aborted.
void carry_out(Comm& comm, const std::vector<Call>& calls) {
  World& all = world();
  std::unique_lock lock(all.mutex);
  int& blocks = all.blocks[comm.device];
  blocks += comm.blocks;
  ++comm.running;
  int processors = 0;
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, comm.device);
  if (blocks > processors) refuse(comm, "kernels that wait for peers do not fit beside each other");
  Clique& clique = *comm.clique;
  std::vector<MessageRef> own;
  for (const Call& call : calls) {
    const std::pair pair = call.is_send ? std::pair(comm.rank, call.peer) : std::pair(call.peer, comm.rank);
    auto& others = call.is_send ? clique.receives[pair] : clique.sends[pair];
    if (others.empty()) {
      own.push_back(std::make_shared<Message>());
      (call.is_send ? clique.sends[pair] : clique.receives[pair]).push_back(own.back());
    } else {
      own.push_back(others.front());
      others.pop_front();
      if (own.back()->bytes != call.bytes) refuse(comm, "a send meets a receive of another size");
    }
    Message& message = *own.back();
    message.bytes = call.bytes;
    if (call.is_send)
      message.from = call.data;
    else
      message.to = call.data;
    if (message.from == nullptr || message.to == nullptr || comm.error != ncclSuccess) continue;
    if (message.bytes > 0) std::memmove(message.to, message.from, message.bytes);
    message.is_done = true;
    ++all.arrived;
  }
  all.changed.notify_all();
  all.changed.wait(lock, [&] {
    return comm.is_aborted ||
           std::all_of(own.begin(), own.end(), [](const MessageRef& message) { return message->is_done; });
  });
  // Nobody reads or writes what is this rank's when its kernel has ended.
  for (auto* const queues : {&clique.sends, &clique.receives})
    for (auto& [pair, queue] : *queues)
      std::erase_if(queue, [&](const MessageRef& message) {
        return std::find(own.begin(), own.end(), message) != own.end() && !message->is_done;
      });
  all.blocks[comm.device] -= comm.blocks;
  --comm.running;
  all.changed.notify_all();
}

ncclResult_t get_version(int* version) {
  *version = world().version;
  return ncclSuccess;
}
// In a process whose NCCL finds no way out: each rank listens where NCCL_SOCKET_IFNAME says.
bool is_without_interface() {
  const char* const wanted = std::getenv("SCALETRAIN_FAKE_NCCL");
  return wanted != nullptr && std::string_view(wanted) == "no interface";
}
ncclResult_t get_unique_id(ncclUniqueId* id) {
  const std::lock_guard lock(world().mutex);
  *id = {};
  const std::uint64_t number = world().next_id++;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t comm_init_rank_config(ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const std::lock_guard lock(world().mutex);
  if (is_without_interface()) {
    const char* const name = std::getenv("NCCL_SOCKET_IFNAME");
    world().last_words = "Bootstrap : no socket interface found: " + std::string(name == nullptr ? "any" : name);
    return ncclInvalidUsage;
  }
  const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
  if (config->magic != initial.magic || config->size != sizeof *config) return refuse("a config without its beginning");
  if (config->blocking != 0) return refuse("a communicator that blocks");
  if (size < 1 || rank < 0 || rank >= size) return refuse("a rank that is none", ncclInvalidArgument);
  auto& clique = world().cliques[std::string(id.internal, sizeof id.internal)];
  if (!clique) {
    clique = std::make_shared<Clique>();
    clique->members.resize(static_cast<std::size_t>(size));
  }
  if (std::ssize(clique->members) != size) return refuse("ranks of one id disagree about how many they are");
  Comm*& member = clique->members[static_cast<std::size_t>(rank)];
  if (member != nullptr) return refuse("a rank joins twice, or meets an id that has been used");
  Comm& comm = world().comms.emplace_back();
  comm.clique = clique;
  comm.rank = rank;
  // What messages take is rounded up (ncclTopoComputeP2pChannels).
  comm.blocks = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(1, config->maxCTAs))));
  cudaGetDevice(&comm.device);
  member = &comm;
  *made = reinterpret_cast<ncclComm_t>(&comm);
  if (!take_memory(comm, 4, 3)) {
    comm.error = ncclUnhandledCudaError;
    world().last_words = "Failed to CUDA calloc 2097152 bytes";
  }
  clique->joins = std::max(clique->joins, world().joins[comm.device] + 1);
  if (clique->is_complete()) {
    for (const Comm* one : clique->members)
      world().joins[one->device] = std::max(world().joins[one->device], clique->joins);
    std::set<int> devices;
    for (const Comm* one : clique->members) devices.insert(one->device);
    if (std::ssize(devices) != size)
      for (Comm* one : clique->members) refuse(*one, "two ranks of a communicator are on one GPU");
  }
  return ncclInProgress;
}

ncclResult_t comm_get_async_error(ncclComm_t handle, ncclResult_t* state) {
  Comm& comm = of(handle);
  std::unique_lock lock(world().mutex);
  ++world().looks_that_wait;
  world().changed.wait(lock, [&] { return comm.device != world().held_looks; });
  --world().looks_that_wait;
  if (comm.is_gone) return refuse("a communicator is used after its end");
  if (comm.device == world().broken && world().failure == Failure::network) comm.error = ncclRemoteError;
  if (comm.device == world().broken && world().failure == Failure::cuda) {
    comm.error = ncclUnhandledCudaError;
    world().last_words = "Cuda failure 'unspecified launch failure'";
  }
  const bool is_given = comm.error == ncclSuccess && !comm.waiting.empty() && comm.device != world().held_messages;
  if (is_given && comm.looks == 1 && !connect(comm)) {
    // Whoever asks the thread that allocates hears no more than that it has hung up.
    comm.error = ncclInternalError;
    world().last_words = "[Proxy Service 0] Failed to execute operation Setup from rank 0, retcode 1";
  }
  if (is_given && comm.error == ncclSuccess && --comm.looks <= 0) {
    const cudaStream_t stream = comm.waiting.front().stream;
    cuda::run_in_turn(stream, [&comm, calls = std::exchange(comm.waiting, {})] { carry_out(comm, calls); });
  }
  *state = comm.error != ncclSuccess ? comm.error : is_in_progress(comm) ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t comm_finalize(ncclComm_t handle) {
  const std::lock_guard lock(world().mutex);
  Comm& comm = of(handle);
  if (const std::string rule = may_be_used(comm); !rule.empty()) return refuse(comm, rule);
  comm.is_finalized = true;
  return ncclInProgress;
}
ncclResult_t comm_destroy(ncclComm_t handle) {
  std::unique_lock lock(world().mutex);
  Comm& comm = of(handle);
  if (comm.is_gone) return refuse("a communicator is used after its end");
  if (!comm.is_finalized) refuse("a communicator is destroyed that was not finalized");
  world().changed.wait(lock, [&] { return comm.running == 0; });
  comm.is_gone = true;
  give_memory(comm);
  return ncclSuccess;
}
ncclResult_t comm_abort(ncclComm_t handle) {
  std::unique_lock lock(world().mutex);
  Comm& comm = of(handle);
  if (comm.is_gone) return refuse("a communicator is used after its end");
  comm.is_gone = true;
  comm.is_aborted = true;
  comm.waiting.clear();
  world().changed.notify_all();
  world().changed.wait(lock, [&] { return comm.running == 0 && !world().holds_aborts; });
  give_memory(comm);
  return ncclSuccess;
}

const char* get_error_string(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    default:
      return "another error";
  }
}
const char* get_last_error(ncclComm_t) {
  static thread_local std::string words;
  const std::lock_guard lock(world().mutex);
  words = world().last_words;
  return words.c_str();
}

ncclResult_t add_call(ncclComm_t handle, ncclDataType_t type, const Call& call) {
  const std::lock_guard lock(world().mutex);
  Comm& comm = of(handle);
  if (const std::string rule = may_be_used(comm); !rule.empty()) return refuse(comm, rule);
  if (group_depth == 0) return refuse(comm, "a message outside a group");
  if (type != ncclUint8) return refuse(comm, "a message of another type than bytes");
  if (call.data == nullptr || call.bytes == 0) return refuse(comm, "a message of nothing");
  if (call.peer < 0 || call.peer >= std::ssize(comm.clique->members)) return refuse(comm, "a peer that is none");
  if (!grouped.empty() && (grouped.front().first != &comm || grouped.front().second.stream != call.stream))
    return refuse(comm, "a group of several communicators or streams");
  grouped.emplace_back(&comm, call);
  return ncclSuccess;
}
ncclResult_t send(const void* data, std::size_t bytes, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add_call(comm, type,
                  {.is_send = true, .data = const_cast<void*>(data), .bytes = bytes, .peer = peer, .stream = stream});
}
ncclResult_t recv(void* data, std::size_t bytes, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add_call(comm, type, {.is_send = false, .data = data, .bytes = bytes, .peer = peer, .stream = stream});
}

ncclResult_t group_start() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t group_end() {
  const std::lock_guard lock(world().mutex);
  if (group_depth == 0) return refuse("the end of a group without its start");
  if (--group_depth > 0) return ncclSuccess;
  const auto calls = std::exchange(grouped, {});
  if (calls.empty()) return ncclSuccess;
  Comm& comm = *calls.front().first;
  for (const auto& one : calls) comm.waiting.push_back(one.second);
  comm.looks = looks_until_issued;
  return ncclInProgress;
}

constexpr cuda::NcclCalls calls = {.get_version = get_version,
                                   .get_unique_id = get_unique_id,
                                   .comm_init_rank_config = comm_init_rank_config,
                                   .comm_get_async_error = comm_get_async_error,
                                   .comm_finalize = comm_finalize,
                                   .comm_destroy = comm_destroy,
                                   .comm_abort = comm_abort,
                                   .get_error_string = get_error_string,
                                   .get_last_error = get_last_error,
                                   .send = send,
                                   .recv = recv,
                                   .group_start = group_start,
                                   .group_end = group_end};

}  // namespace

Installed::Installed(int version) {
  const std::lock_guard lock(world().mutex);
  world().is_installed = true;
  world().version = version;
  world().problem.clear();
  world().last_words.clear();
  world().joins.clear();
}
Installed::~Installed() {
  const std::lock_guard lock(world().mutex);
  world().is_installed = false;
}

std::string take_problem() {
  const std::lock_guard lock(world().mutex);
  return std::exchange(world().problem, {});
}
std::uint64_t arrived_messages() {
  const std::lock_guard lock(world().mutex);
  return world().arrived;
}
void break_gpu(int device, Failure failure) {
  const std::lock_guard lock(world().mutex);
  world().broken = device;
  world().failure = failure;
}
void hold_messages(int device) {
  const std::lock_guard lock(world().mutex);
  world().held_messages = device;
}
int held_messages() {
  const std::lock_guard lock(world().mutex);
  return static_cast<int>(std::count_if(world().comms.begin(), world().comms.end(), [](const Comm& comm) {
    return comm.device == world().held_messages && !comm.waiting.empty();
  }));
}
void hold_looks(int device) {
  const std::lock_guard lock(world().mutex);
  world().held_looks = device;
  world().changed.notify_all();
}
int held_looks() {
  const std::lock_guard lock(world().mutex);
  return world().looks_that_wait;
}
void hold_ends(bool held) {
  const std::lock_guard lock(world().mutex);
  world().holds_ends = held;
}
int ending_communicators() {
  const std::lock_guard lock(world().mutex);
  return static_cast<int>(std::count_if(world().comms.begin(), world().comms.end(),
                                        [](const Comm& comm) { return comm.is_finalized && !comm.is_gone; }));
}
int longest_chain_of_joins() {
  const std::lock_guard lock(world().mutex);
  int longest = 0;
  for (const auto& [device, joins] : world().joins) longest = std::max(longest, joins);
  return longest;
}
void hold_aborts(bool held) {
  const std::lock_guard lock(world().mutex);
  world().holds_aborts = held;
  world().changed.notify_all();
}

}  // namespace scaletrain::fake_nccl

namespace scaletrain::cuda {

FoundNccl find_nccl() {
  const std::lock_guard lock(fake_nccl::world().mutex);
  if (fake_nccl::is_without_interface())
    fake_nccl::world().version = 22809;
  else if (!fake_nccl::world().is_installed)
    return {.obstacle = "libnccl.so.2 is not found"};
  return {.calls = &fake_nccl::calls};
}

}  // namespace scaletrain::cuda
