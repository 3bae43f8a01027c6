// A device that executes operations. One interface, one place that checks descriptors and dispatches (backend.cpp), one
// folder of kernels per device: reference/ (naive loops, the oracle of all tests), cpu/ (vectorised, threaded).
//
// Work is issued to a Stream and runs in order on it; memory named by a descriptor must stay valid until the stream has
// run it. On the host's backends the call returns when the work is done. Every view of a descriptor is of the device's
// memory (space()); copy() takes values there and back. A Backend may be used by one thread at a time
// (kernels use the backend's own pool inside), but for copies: those of a device with memory of its own, their streams
// and pinned memory may be made by other threads beside it. All kernels are deterministic: same inputs, same threads,
// same processor: same bits; and where a descriptor says so, for any number of threads.
//
// A descriptor whose shapes or types do not fit is a bug (BugError).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "backend/device_network.h"
#include "backend/operations.h"
#include "base/process/work_count.h"
#include "tensor/buffer.h"
#include "tensor/stream.h"

namespace scaletrain {

// A device with memory of its own: a GPU.
struct DeviceFacts {
  std::string name;           // by its maker: "NVIDIA H100 80GB HBM3"
  std::uint64_t memory = 0;   // bytes, of all that use it
  std::string id{};           // of this very device, whatever number a process sees it by
  int sm = 0;                 // of NVIDIA's, its compute capability: 90 is 9.0
  std::string bus_address{};  // by which the kernel knows it on the PCI bus: "0000:1b:00.0"
};

class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // The type of activations and compute-form weights: f32, bf16 or f16, or f64 for the f64 reference.
  virtual DType compute_type() const = 0;
  // What the bits of a result depend on: kind, instruction set, threads, versions of libraries. Part of a run's
  // fingerprint.
  virtual std::string description() const = 0;
  virtual int num_threads() const = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  // Allocates what operations that are issued to the stream need, so that none of them has to.
  virtual void prepare(Stream& /*stream*/) {}
  // Of the memory that kernels read and write. Space::host where the device is the host's processor: such a backend's
  // memory is the host's too, and nothing needs to be copied to be read there.
  virtual Space space() const = 0;
  // Kernels are fastest where rows are a multiple of so many elements; 1: they make nothing of it. What rows may be
  // padded to is in operations.h.
  virtual std::int64_t row_alignment() const { return 1; }
  // What the backward of attention has use of; without change that of a processor.
  virtual AttentionWorkspace attention_workspace() const { return {}; }
  // Nothing where the device is the host's processor.
  virtual std::optional<DeviceFacts> device() const { return std::nullopt; }
  // Bytes of such a device's memory that are in use, by any process; 0 where the memory is the host's.
  virtual std::uint64_t device_memory_in_use() const { return 0; }
  // Zero-filled memory of the device. std::bad_alloc when there is not enough.
  virtual Buffer allocate(std::size_t bytes) = 0;
  // Zero-filled memory of the host, pinned where the device has memory of its own. std::bad_alloc as above.
  virtual Buffer allocate_pinned(std::size_t bytes) = 0;
  // What moves values between such devices without their hosts. The backend must outlive it.
  virtual FoundDeviceNetwork find_network(const DeviceNetworkOptions& /*options*/) {
    return {.obstacle = "its ranks compute on processors"};
  }
  // Upper bound of the memory that kernels hold for themselves, allocated at construction or first use: part of the
  // memory plan.
  virtual std::size_t workspace_bytes() const = 0;
  // The bytes of the packed form of a weight [O,I]; 0: kernels read the values as they are.
  virtual std::size_t packed_bytes(const Shape& weight) const = 0;
  // The packed form of a weight [O,I] in memory of at least packed_bytes, which it does not own; nothing where that is
  // 0. Operations that get it along with the values are faster; results are the same bits without it.
  virtual std::unique_ptr<PackedWeight> pack(Stream& stream, ConstView values, Region memory) = 0;

  // Checks an operation's descriptor and issues it.
  void run(Stream& stream, const Operation& op);
  // Issues a copy between any two spaces: as many elements of the same type, which do not overlap. From and to memory
  // that is not pinned it may hold up the host.
  void copy(Stream& stream, ConstView from, View to);

 protected:
  Backend() = default;

 private:
  // The device's kernels. The descriptor has been checked; no view is empty that the operation requires, and sizes may
  // be zero.
  virtual void launch(Stream& stream, const Operation& op) = 0;
  // The same of a copy; there is at least one element.
  virtual void transfer(Stream& stream, const ConstView& from, const View& to) = 0;
};

// The oracle: naive loops, one thread. compute: any floating type; elements are stored in it, and computed with in f64.
std::unique_ptr<Backend> make_reference_backend(DType compute);

struct CpuOptions {
  int threads = 0;  // 0: the processors this process may run on
  // auto | portable | avx2 | avx512 | avx512_bf16 | amx_bf16; one the processor lacks is a UserError
  std::string instruction_set = "auto";
  // Counts the pieces that operations are cut into (of 128 KiB, or tiles of a product), so that one over gigabytes is
  // seen to get further. Null: nobody watches. Must outlive the backend.
  WorkCount* work = nullptr;
  DType compute = DType::f32;  // f32 | bf16 | f16
};

// The processor's own: kernels on a pool of threads that the backend owns. Matrix products of f32 are oneDNN's, those
// of bf16 our own where the processor has AMX or AVX-512 bf16; otherwise halves are stored as such and multiplied as
// f32.
std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);

// What a cpu backend computes with on this processor, for people: "avx2 (avx2, fma); matrix products by oneDNN with
// avx2".
std::string cpu_kernels_text();

// How it computes in a type, for people: "fp32", "bf16, products by AVX-512 bf16", "bf16, products in fp32".
std::string cpu_precision_text(DType compute);

// Bound of workspace_bytes() of a cpu backend without making one, for plans.
std::size_t cpu_workspace_bytes(int threads, DType compute);
// packed_bytes() of a cpu backend of this processor, the same way.
std::size_t cpu_packed_bytes(const Shape& weight, DType compute);

// The ceiling that "share of the matmul peak" divides by, in FLOP/s: a matrix product on all of the backend's threads,
// the best of short bursts within `seconds`, by the processor time of this process. So other processes do not lower it;
// other threads of this one do while they work, but for the best burst. Of a device with memory of its own: by the
// clock.
double calibrate_matmul(Backend& backend, Stream& stream, double seconds);

}  // namespace scaletrain
