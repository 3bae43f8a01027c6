#include "checkpoint/merge_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace scaletrain {

namespace {

// A tensor of the checkpoint, all of it.
std::vector<float> read_whole(const Checkpoint& checkpoint, const std::string& name, const Shape& shape) {
  std::vector<float> values(static_cast<std::size_t>(shape.num_elements()));
  Box box;
  box.first.assign(static_cast<std::size_t>(shape.num_dims()), 0);
  box.extent.assign(shape.begin(), shape.end());
  checkpoint.read(name, box, View(values.data(), DType::f32, shape));
  return values;
}

// weight[O,I] += scale · up[O,r] · down[r,I]
void add_product(const std::vector<float>& up, const std::vector<float>& down, float scale, std::vector<float>& weight,
                 const Shape& shape, std::int64_t rank) {
  const auto inputs = static_cast<std::size_t>(shape[1]);
  std::vector<float> row(inputs);
  for (std::int64_t output = 0; output < shape[0]; ++output) {
    std::fill(row.begin(), row.end(), 0.0F);
    for (std::int64_t k = 0; k < rank; ++k) {
      const float factor = up[static_cast<std::size_t>(output * rank + k)];
      const float* const from = down.data() + static_cast<std::size_t>(k) * inputs;
      for (std::size_t i = 0; i < inputs; ++i) row[i] += factor * from[i];
    }
    float* const to = weight.data() + static_cast<std::size_t>(output) * inputs;
    for (std::size_t i = 0; i < inputs; ++i) to[i] += scale * row[i];
  }
}

// The values of a parameter of the store, changed on the host.
class Editor {
 public:
  Editor(ParamStore& store, Stream& stream) : store_(store), stream_(stream) {}

  template <class Edit>
  void edit(const std::string& name, Edit edit) {
    const View master = store_.master(name);
    SCALETRAIN_CHECK(master);
    const Buffer pinned = store_.backend().allocate_pinned(master.num_bytes());
    const View there = pinned.view(0, master.dtype(), master.shape());
    const auto count = static_cast<std::size_t>(master.num_elements());
    values_.resize(count);
    store_.backend().copy(stream_, master, there);
    stream_.synchronize();
    convert_floats(there.dtype(), there.data(), DType::f32, values_.data(), count);
    edit(values_);
    convert_floats(DType::f32, values_.data(), there.dtype(), there.data(), count);
    store_.backend().copy(stream_, there, master);
    stream_.synchronize();
  }

 private:
  ParamStore& store_;
  Stream& stream_;
  std::vector<float> values_;
};

}  // namespace

void check_adapters(const Manifest& manifest, const ParamTable& base, const LoraConfig& config,
                    const std::string& where) {
  if (!manifest.base)
    throw InputError(fmt::format("{}: its config has finetune.lora, but its manifest names no base model", where));
  const ParamTable table = with_adapters(base, make_lora_spec(base, config));
  for (const Parameter& parameter : table.parameters()) {
    if (!parameter.is_adapter) continue;
    const ManifestTensor* const tensor = manifest.find(parameter.name);
    if (tensor == nullptr)
      throw InputError(fmt::format("{}: the manifest lists no tensor {}", where, quoted(parameter.name)));
    if (!(tensor->shape == parameter.shape))
      throw InputError(fmt::format("{}: tensor {} is {} in the manifest, but {} by its config", where,
                                   quoted(parameter.name), to_text(tensor->shape), to_text(parameter.shape)));
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    const Parameter* const parameter = table.find(tensor.name);
    if (tensor.role != "slot" && (parameter == nullptr || !parameter->is_adapter))
      throw InputError(fmt::format("{}: the manifest's config has no adapter with a tensor {}", where,
                                   quoted(std::string_view(tensor.name))));
  }
}

void merge_adapters(const Checkpoint& checkpoint, const LoraConfig& config, ParamStore& store, Stream& stream) {
  const ParamTable& base = store.table();
  const LoraSpec lora = make_lora_spec(base, config);
  const auto scale = static_cast<float>(lora.scale);
  const std::vector<LoraMap> maps = lora_maps(base);
  Editor editor(store, stream);
  for (const ParamUnit& unit : base.units()) {
    for (const LoraMap& map : maps) {
      const Parameter* const first = base.find(unit.name + "." + map.parts.front() + ".weight");
      const bool is_chosen = std::find(lora.maps.begin(), lora.maps.end(), map.name) != lora.maps.end();
      if (first == nullptr || !is_chosen) continue;  // not a block, or a map without an adapter
      const std::vector<float> down =
          read_whole(checkpoint, unit.name + "." + map.name + ".lora_a", {lora.rank, first->shape[1]});
      for (const std::string& part : map.parts) {
        const std::string prefix = unit.name + "." + part;
        const Shape shape = base.find(prefix + ".weight")->shape;
        const std::vector<float> up = read_whole(checkpoint, prefix + ".lora_b", {shape[0], lora.rank});
        editor.edit(prefix + ".weight",
                    [&](std::vector<float>& weight) { add_product(up, down, scale, weight, shape, lora.rank); });
      }
    }
  }
  store.values_changed(stream);
}

}  // namespace scaletrain
