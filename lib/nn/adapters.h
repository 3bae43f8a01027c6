// What adapters (lora.h) add to the maps of a block, as operations and memory: N rows, r features an adapter, R of all
// adapters of one layer. Internal to nn.
//
// Forward: hidden = scale · x·Aᵀ, and hidden·Bᵀ is the addend of the map's own product, so that the sum is rounded
// once. Backward: d_hidden = scale · dy·B; then A gets d_hiddenᵀ·x, B dyᵀ·hidden, and d_hidden·A is added to the
// gradient of x. The forward keeps hidden. A split backward keeps d_hidden for its weight pass, which so reads no
// weight.
//
// With several adapters in a layer of fused maps each has some columns of the layer's output. Those, and what is added
// to gradients of inputs, pass through scratch some rows at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "nn/lora.h"
#include "nn/unit.h"
#include "store/param_store.h"
#include "tensor/buffer.h"

namespace scaletrain {

// Of one layer.
struct LayerAdapters {
  const AdaptedLayer* layer = nullptr;
  std::vector<View> hidden;  // [N,r] of each adapter
  View d_hidden;             // [N,R]
  View joint;                // scratch [N,R] of several adapters
  View rows;                 // scratch [some rows, the most columns that pass through it]
};

// Of one micro-batch in one block.
struct AdapterTensors {
  std::vector<LayerAdapters> layers;

  const LayerAdapters* find(std::string_view layer) const;  // null: it has none
};

struct AdapterRegions {
  RegionAllocator& hidden;    // from the forward to the weight pass
  RegionAllocator& d_hidden;  // from the backward to the weight pass
  RegionAllocator& scratch;   // within one call
};
// layers must outlive the tensors. Nothing for none.
AdapterTensors carve_adapters(const AdapterRegions& regions, std::span<const AdaptedLayer> layers, const LoraSpec& lora,
                              const ScratchRows& scratch_rows, std::int64_t rows, DType compute);

}  // namespace scaletrain
