// A cpu backend of bf16 whose products are those of AMX, on processors that lack it (but have AVX-512 bf16): under an
// emulator.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "amx_emulator.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/instruction_sets.h"
#include "backend/cpu/matmul.h"
#include "backend/host_backend.h"
#include "tensor/buffer.h"

namespace scaletrain {

class TilesBackend final : public HostBackend {
 public:
  explicit TilesBackend(int threads)
      : rest_(make_cpu_backend({.threads = threads, .compute = DType::bf16})),
        pool_(threads),
        scratch_(static_cast<std::size_t>(threads) * cpu::tile_scratch_bytes<Bf16>()),
        engine_{cpu::choose_kernels("auto"), cpu::choose_kernels("auto").bf16, &cpu::bf16_panels_amx(),
                scratch_.data()} {}

  DType compute_type() const override { return DType::bf16; }
  std::string description() const override { return "cpu amx_bf16, emulated"; }
  int num_threads() const override { return pool_.size(); }
  std::size_t workspace_bytes() const override { return rest_->workspace_bytes() + scratch_.size(); }
  std::size_t packed_bytes(const Shape& weight) const override { return cpu::PackedBf16::bytes(weight); }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView values, Region memory) override {
    auto packed = std::make_unique<cpu::PackedBf16>(values.shape(), memory.data);
    cpu::pack_weight(pool_, *engine_.panels, values, *packed);
    return packed;
  }

 private:
  template <class Descriptor>
  void compute(const Descriptor& op) {
    rest_->run(stream_, op);
  }
  void compute(const LinearForward& op) { cpu::linear_forward(pool_, engine_, op); }
  void compute(const LinearBackwardInput& op) { cpu::linear_backward_input(pool_, engine_, op); }
  void compute(const LinearBackwardWeight& op) { cpu::linear_backward_weight(pool_, engine_, op); }
  void compute(const AttentionForward& op) { cpu::attention_forward(pool_, engine_, op); }
  void compute(const AttentionBackward& op) { cpu::attention_backward(pool_, engine_, op); }

  void launch(Stream&, const Operation& op) override {
    std::visit([this](const auto& descriptor) { compute(descriptor); }, op);
  }

  AmxEmulator emulator_;
  std::unique_ptr<Backend> rest_;
  HostStream stream_;
  ThreadPool pool_;
  Buffer scratch_;
  cpu::Engine<Bf16> engine_;
};

}  // namespace scaletrain
