// A backend of a GPU whose operands lie in pinned memory, which the host reaches too: what compares them needs to know
// nothing of devices. Kernels read it over the bus, slowly and rightly.
#pragma once

#include <memory>
#include <utility>

#include "support/forwarding_backend.h"
#include "support/operation_views.h"

namespace scaletrain {

class ReachableBackend final : public ForwardingBackend {
 public:
  explicit ReachableBackend(std::unique_ptr<Backend> gpu) : ForwardingBackend(std::move(gpu)) {}
  Space space() const override { return Space::host; }
  Buffer allocate(std::size_t bytes) override { return inner().allocate_pinned(bytes); }

 private:
  static void relabel(View& view) {
    if (view) view = View(view.data(), view.dtype(), view.shape(), Space::device);
  }
  static void relabel(ConstView& view) {
    if (view) view = ConstView(view.data(), view.dtype(), view.shape(), Space::device);
  }
  void launch(Stream& stream, const Operation& op) override {
    Operation on_device = op;
    for_each_view(on_device, [](auto& view) { relabel(view); });
    inner().run(stream, on_device);
  }
};

}  // namespace scaletrain
