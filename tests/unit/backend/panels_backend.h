// A cpu backend of bf16 whose products are those of the panel kernels it is given, on processors for which others would
// be chosen.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "backend/cpu/attention.h"
#include "backend/cpu/instruction_sets.h"
#include "backend/cpu/matmul.h"
#include "backend/host_backend.h"
#include "tensor/buffer.h"

namespace scaletrain {

class PanelsBackend : public HostBackend {
 public:
  // shared_bytes: what threads have to pack for each other; little makes stripes of features and rounds of rows.
  PanelsBackend(int threads, const cpu::PanelKernels<Bf16>& panels, std::size_t shared_bytes)
      : panels_(panels),
        rest_(make_cpu_backend({.threads = threads, .compute = DType::bf16})),
        pool_(threads),
        shared_(shared_bytes),
        scratch_(static_cast<std::size_t>(threads) * cpu::tile_scratch_bytes<Bf16>()),
        engine_{cpu::choose_kernels("auto"),
                cpu::choose_kernels("auto").bf16,
                &panels,
                scratch_.data(),
                shared_.data(),
                shared_.size()} {}

  DType compute_type() const override { return DType::bf16; }
  std::string description() const override { return std::string("cpu ") + panels_.name + ", as panels"; }
  int num_threads() const override { return pool_.size(); }
  std::size_t workspace_bytes() const override { return rest_->workspace_bytes() + shared_.size() + scratch_.size(); }
  std::size_t packed_bytes(const Shape& weight) const override { return cpu::PackedBf16::bytes(weight); }
  std::unique_ptr<PackedWeight> pack(Stream&, ConstView values, Region memory) override {
    auto packed = std::make_unique<cpu::PackedBf16>(values.shape(), memory.data);
    cpu::pack_weight(pool_, panels_, values, *packed);
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
  void compute(const MatrixProduct& op) { cpu::matrix_product(pool_, engine_, op); }
  void compute(const AttentionForward& op) { cpu::attention_forward(pool_, engine_, op); }
  void compute(const AttentionBackward& op) { cpu::attention_backward(pool_, engine_, op); }

  void launch(Stream&, const Operation& op) override {
    std::visit([this](const auto& descriptor) { compute(descriptor); }, op);
  }

  const cpu::PanelKernels<Bf16>& panels_;
  std::unique_ptr<Backend> rest_;
  HostStream stream_;
  ThreadPool pool_;
  Buffer shared_;
  Buffer scratch_;
  cpu::Engine<Bf16> engine_;
};

// Panel kernels of bf16 in plain loops, for any processor: what cuts products into tiles and packs their operands is
// held to the layouts of panel_kernels.h where no instructions for them are.
const cpu::PanelKernels<Bf16>& plain_bf16_panels();
// The same where rows are packed as tiles.
const cpu::PanelKernels<Bf16>& plain_bf16_tiles();

}  // namespace scaletrain
