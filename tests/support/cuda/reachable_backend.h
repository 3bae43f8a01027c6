// A backend of a GPU whose operands lie in memory that the host reaches too, so that what compares them needs to know
// nothing of devices: pinned memory, which kernels read over the bus, slowly and rightly. What lies elsewhere on the
// host (a number on the stack) is there for the time of an operation.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/forwarding_backend.h"
#include "support/operation_views.h"

namespace scaletrain {

class ReachableBackend final : public ForwardingBackend {
 public:
  explicit ReachableBackend(std::unique_ptr<Backend> gpu) : ForwardingBackend(std::move(gpu)) {}
  Space space() const override { return Space::host; }
  Buffer allocate(std::size_t bytes) override {
    const auto pinned = std::make_shared<Buffer>(inner().allocate_pinned(bytes));
    pinned_[pinned->data()] = bytes;
    return {pinned->data(), bytes, Space::host, [this, pinned](std::byte* data, std::size_t) { pinned_.erase(data); }};
  }

 private:
  // What lies where no GPU reaches, and where it is meanwhile.
  struct Stay {
    std::byte* home;
    Buffer pinned;
    bool comes_back;
  };

  bool is_pinned(const void* data) const {
    const auto* const address = static_cast<const std::byte*>(data);
    auto next = pinned_.upper_bound(address);
    return next != pinned_.begin() && address < std::prev(next)->first + std::prev(next)->second;
  }

  template <class AnyView>
  void move(AnyView& view, std::vector<Stay>& stays) {
    if (!view) return;
    if (view.num_elements() == 0 || is_pinned(view.data())) {
      view = AnyView(view.data(), view.dtype(), view.shape(), Space::device);
      return;
    }
    Buffer pinned = inner().allocate_pinned(view.num_bytes());
    std::memcpy(pinned.data(), view.data(), view.num_bytes());
    auto* const home = static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(view.data())));
    view = AnyView(pinned.data(), view.dtype(), view.shape(), Space::device);
    stays.push_back({home, std::move(pinned), std::is_same_v<AnyView, View>});
  }

  void launch(Stream& stream, const Operation& op) override {
    Operation on_device = op;
    std::vector<Stay> stays;
    for_each_view(on_device, [&](auto& view) { move(view, stays); });
    inner().run(stream, on_device);
    if (stays.empty()) return;
    stream.synchronize();
    for (const Stay& stay : stays)
      if (stay.comes_back) std::memcpy(stay.home, stay.pinned.data(), stay.pinned.size());
  }

  std::map<const std::byte*, std::size_t> pinned_;
};

}  // namespace scaletrain
