// A backend whose memory the host cannot touch: its addresses are reserved pages without access, so that a host that
// reads or writes there dies at the place, and its values lie elsewhere, where only operations, copies and transfers
// find them (fenced_communicator.h). It also refuses what no device can do: an operation on memory of the host, and a
// copy from or to memory that is not pinned, for which the host would have to wait.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <utility>

#include "backend/backend.h"
#include "support/operation_views.h"

namespace scaletrain {

// All memory that fenced backends of this process have given out. Thread-safe.
class FencedMemory {
 public:
  static FencedMemory& of_process() {
    static FencedMemory all;
    return all;
  }

  Buffer allocate(std::size_t bytes) {
    if (bytes == 0) return Buffer(nullptr, 0, Space::device, {});
    // The fence, then the values; a page more on each side keeps what is beyond an end from being another's.
    const std::size_t half = align_up(bytes, page) + page;
    void* const both = ::mmap(nullptr, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (both == MAP_FAILED) throw std::bad_alloc();
    auto* const fence = static_cast<std::byte*>(both);
    if (::mprotect(fence + half, half - page, PROT_READ | PROT_WRITE) != 0) {
      ::munmap(both, 2 * half);
      throw std::bad_alloc();
    }
    const std::unique_lock lock(mutex_);
    pieces_[fence] = {bytes, fence + half};
    return Buffer(fence, bytes, Space::device, [this, half](std::byte* data, std::size_t) {
      {
        const std::unique_lock ending(mutex_);
        pieces_.erase(data);
      }
      ::munmap(data, 2 * half);
    });
  }

  // Memory that another backend calls a device's, and where the host finds its values: there too, or elsewhere.
  void adopt(std::byte* data, std::size_t bytes, std::byte* values) {
    const std::unique_lock lock(mutex_);
    pieces_[data] = {bytes, values};
  }
  void give_up(const std::byte* data) {
    const std::unique_lock lock(mutex_);
    pieces_.erase(data);
  }

  // Where the values of device memory lie; a view of the host's memory as it is. Memory that nobody was given, or that
  // has been given back, is a bug.
  View values(const View& view) const {
    if (view.space() != Space::device) return view;
    return {const_cast<void*>(address_of(view)), view.dtype(), view.shape()};
  }
  ConstView values(const ConstView& view) const {
    if (view.space() != Space::device) return view;
    return {address_of(view), view.dtype(), view.shape()};
  }

 private:
  static constexpr std::size_t page = 4096;
  struct Piece {
    std::size_t bytes = 0;
    std::byte* values = nullptr;
  };

  const void* address_of(const ConstView& view) const {
    if (view.data() == nullptr || view.num_elements() == 0) return view.data();
    const auto* const data = static_cast<const std::byte*>(view.data());
    const std::shared_lock lock(mutex_);
    auto next = pieces_.upper_bound(data);
    SCALETRAIN_CHECK(next != pieces_.begin() && "an address of a fenced device");
    --next;
    const auto offset = static_cast<std::size_t>(data - next->first);
    SCALETRAIN_CHECK_LE(offset + view.num_bytes(), next->second.bytes);
    return next->second.values + offset;
  }

  mutable std::shared_mutex mutex_;
  std::map<const std::byte*, Piece> pieces_;  // by the address of the fence
};

class FencedBackend final : public Backend {
 public:
  explicit FencedBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  DType compute_type() const override { return inner_->compute_type(); }
  std::string description() const override { return inner_->description() + ", fenced"; }
  int num_threads() const override { return inner_->num_threads(); }
  std::unique_ptr<Stream> make_stream() override { return inner_->make_stream(); }
  Space space() const override { return Space::device; }
  Buffer allocate(std::size_t bytes) override { return FencedMemory::of_process().allocate(bytes); }
  Buffer allocate_pinned(std::size_t bytes) override {
    const auto memory = std::make_shared<const Buffer>(bytes);
    pinned_ += bytes;
    most_pinned_ = std::max(most_pinned_, pinned_.load());
    return Buffer(memory->data(), bytes, Space::pinned,
                  [memory, this](std::byte*, std::size_t size) { pinned_ -= size; });
  }
  // Bytes, at one time. By the thread that allocates.
  std::size_t most_pinned() const { return most_pinned_; }
  std::size_t workspace_bytes() const override { return inner_->workspace_bytes(); }
  // The backends inside read values as they are.
  std::size_t packed_bytes(const Shape&) const override { return 0; }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView, Region) override { return nullptr; }

 private:
  void launch(Stream& stream, const Operation& op) override {
    Operation reached = op;
    for_each_view(reached, [](auto& view) { view = FencedMemory::of_process().values(view); });
    inner_->run(stream, reached);
  }
  void transfer(Stream& stream, const ConstView& from, const View& to) override {
    SCALETRAIN_CHECK(from.space() != Space::host && "copied from memory that is not pinned");
    SCALETRAIN_CHECK(to.space() != Space::host && "copied to memory that is not pinned");
    const FencedMemory& memory = FencedMemory::of_process();
    inner_->copy(stream, memory.values(from), memory.values(to));
  }

  std::unique_ptr<Backend> inner_;
  std::atomic<std::size_t> pinned_{0};
  std::size_t most_pinned_ = 0;
};

}  // namespace scaletrain
