#include "nn/adapters.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "nn/unit_ops.h"

namespace scaletrain {

namespace {

std::string up_of(const AdaptedMap& map) {
  return map.name + ".lora_b";
}

// Columns [first, first + columns) of some rows of a matrix, as Scale has them.
View columns_of(const View& matrix, std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t columns) {
  const std::size_t offset = static_cast<std::size_t>(row * matrix.shape()[1] + first) * size_of(matrix.dtype());
  return {static_cast<std::byte*>(matrix.data()) + offset, matrix.dtype(), {rows, columns}, matrix.space()};
}
ConstView columns_of(const ConstView& matrix, std::int64_t row, std::int64_t rows, std::int64_t first,
                     std::int64_t columns) {
  const std::size_t offset = static_cast<std::size_t>(row * matrix.shape()[1] + first) * size_of(matrix.dtype());
  return {static_cast<const std::byte*>(matrix.data()) + offset, matrix.dtype(), {rows, columns}, matrix.space()};
}

// Of a weight [O,I], which is as it is where these are all of its rows.
Weight rows_of(const Weight& weight, std::int64_t first, std::int64_t count) {
  if (!weight.values || weight.values.shape()[0] == count) return weight;
  return {.values = weight.values.rows(first, count)};
}

// visit(first row, rows) for all rows, as many at a time as the scratch takes.
template <class Visit>
void for_some_rows(const LayerAdapters& of, std::int64_t rows, Visit visit) {
  const std::int64_t most = of.rows.shape()[0];
  for (std::int64_t row = 0; row < rows; row += most) visit(row, std::min(most, rows - row));
}

}  // namespace

const LayerAdapters* AdapterTensors::find(std::string_view layer) const {
  const auto found =
      std::find_if(layers.begin(), layers.end(), [&](const LayerAdapters& of) { return of.layer->name == layer; });
  return found == layers.end() ? nullptr : &*found;
}

AdapterTensors carve_adapters(const AdapterRegions& regions, std::span<const AdaptedLayer> layers, const LoraSpec& lora,
                              const ScratchRows& scratch_rows, std::int64_t rows, DType compute) {
  AdapterTensors tensors;
  if (layers.empty()) return tensors;
  std::int64_t widest = 0;
  std::int64_t most_maps = 0;
  for (const AdaptedLayer& layer : layers) {
    widest = std::max(widest, layer.inputs);
    most_maps = std::max(most_maps, std::ssize(layer.maps));
    for (const AdaptedMap& map : layer.maps) {
      if (!layer.is_whole()) widest = std::max(widest, map.outputs);
    }
  }
  const std::int64_t at_once = std::max(scratch_rows.adapter_rows, scratch_rows.adapter_budget / widest);
  const View some_rows = regions.scratch.allocate(compute, {std::min(rows, at_once), widest});
  const View joint = most_maps > 1 ? regions.scratch.allocate(compute, {rows, most_maps * lora.rank}) : View();
  for (const AdaptedLayer& layer : layers) {
    const std::int64_t maps = std::ssize(layer.maps);
    LayerAdapters of{.layer = &layer, .hidden = {}, .d_hidden = {}, .joint = {}, .rows = some_rows};
    for (std::int64_t map = 0; map < maps; ++map)
      of.hidden.push_back(regions.hidden.allocate(compute, {rows, lora.rank}));
    of.d_hidden = regions.d_hidden.allocate(compute, {rows, maps * lora.rank});
    if (maps > 1) of.joint = part(joint, 0, {rows, maps * lora.rank});
    tensors.layers.push_back(std::move(of));
  }
  return tensors;
}

void UnitOps::scale_columns(ConstView input, std::int64_t input_stride, View output, std::int64_t output_stride,
                            double factor) const {
  run(Scale{.input = input,
            .output = output,
            .factor = factor,
            .input_stride = input_stride,
            .output_stride = output_stride});
}

DropoutMask UnitOps::adapter_dropped(const AdaptedMap& map) const {
  return dropped(map.name + ".lora_a", spec_.lora.dropout);
}

void UnitOps::drop_inputs(const AdaptedLayer& layer, const DropoutMask& mask, std::int64_t first_row, ConstView input,
                          ConstView addend, View output) const {
  run(Dropout{.input = input,
              .addend = addend,
              .output = output,
              .mask = mask,
              .sample_rows = batch_->shape.tokens,
              .first_row = first_row,
              .columns = layer.whole_inputs,
              .first_column = layer.first_input});
}

// Contiguous: where several maps share the matrix, in the joint scratch.
View UnitOps::d_hidden_of(const LayerAdapters& of, std::size_t map, std::int64_t row, std::int64_t rows) const {
  const std::int64_t rank = spec_.lora.rank;
  if (of.hidden.size() == 1) return of.d_hidden.rows(row, rows);
  const View place = part(of.joint, 0, {rows, rank});
  scale_columns(columns_of(of.d_hidden, row, rows, static_cast<std::int64_t>(map) * rank, rank), of.d_hidden.shape()[1],
                place, rank, 1.0);
  return place;
}

void UnitOps::adapter_hidden(std::string_view layer, ConstView input) const {
  const LayerAdapters* const of = adapters_ == nullptr ? nullptr : adapters_->find(layer);
  if (of == nullptr) return;
  const std::int64_t rank = spec_.lora.rank;
  const std::int64_t rows = of->d_hidden.shape()[0];
  if (drops_adapter_inputs()) {
    for (std::size_t i = 0; i < of->hidden.size(); ++i) {
      const Weight down = rows_of(weights_.find(of->layer->down()), static_cast<std::int64_t>(i) * rank, rank);
      const DropoutMask mask = adapter_dropped(of->layer->maps[i]);
      for_some_rows(*of, rows, [&](std::int64_t row, std::int64_t some) {
        const View kept = part(of->rows, 0, {some, of->layer->inputs});
        const View hidden = of->hidden[i].rows(row, some);
        drop_inputs(*of->layer, mask, row, input.rows(row, some), {}, kept);
        run(LinearForward{.weight = down, .bias = {}, .input = kept, .addend = {}, .output = hidden});
      });
      scale_columns(of->hidden[i], rank, of->hidden[i], rank, spec_.lora.scale);
    }
    return;
  }
  const bool several = of->hidden.size() > 1;
  const View product = several ? of->joint : of->hidden.front();
  run(LinearForward{
      .weight = weights_.find(of->layer->down()), .bias = {}, .input = input, .addend = {}, .output = product});
  for (std::size_t i = 0; i < of->hidden.size(); ++i)
    scale_columns(columns_of(product, 0, rows, static_cast<std::int64_t>(i) * rank, rank), product.shape()[1],
                  of->hidden[i], rank, spec_.lora.scale);
}

ConstView UnitOps::adapter_forward(std::string_view layer, ConstView input, ConstView addend, View output) const {
  const LayerAdapters* const of = adapters_ == nullptr ? nullptr : adapters_->find(layer);
  if (of == nullptr) return addend;
  adapter_hidden(layer, input);
  const std::vector<AdaptedMap>& maps = of->layer->maps;
  if (of->layer->is_whole()) {
    run(LinearForward{.weight = weights_.find(up_of(maps.front())),
                      .bias = {},
                      .input = of->hidden.front(),
                      .addend = addend,
                      .output = output});
    return output;
  }
  SCALETRAIN_CHECK(!addend);
  const std::int64_t stride = of->layer->outputs;
  std::int64_t covered = 0;
  for (const AdaptedMap& map : maps) covered += map.outputs;
  if (covered < stride) run(Fill{.output = output});
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const Weight up = weights_.find(up_of(maps[i]));
    for_some_rows(*of, output.shape()[0], [&](std::int64_t row, std::int64_t rows) {
      const View product = part(of->rows, 0, {rows, maps[i].outputs});
      run(LinearForward{
          .weight = up, .bias = {}, .input = of->hidden[i].rows(row, rows), .addend = {}, .output = product});
      scale_columns(product, maps[i].outputs, columns_of(output, row, rows, maps[i].first, maps[i].outputs), stride,
                    1.0);
    });
  }
  return output;
}

void UnitOps::adapter_backward(std::string_view layer, ConstView d_output) const {
  const LayerAdapters* const of = adapters_ == nullptr ? nullptr : adapters_->find(layer);
  if (of == nullptr) return;
  const std::int64_t rank = spec_.lora.rank;
  const std::int64_t all = of->d_hidden.shape()[1];
  const std::vector<AdaptedMap>& maps = of->layer->maps;
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const Weight up = weights_.find(up_of(maps[i]));
    const std::int64_t at = static_cast<std::int64_t>(i) * rank;
    if (maps.size() == 1 && of->layer->is_whole()) {
      run(LinearBackwardInput{.weight = up, .d_output = d_output, .d_input = of->d_hidden});
      scale_columns(of->d_hidden, all, of->d_hidden, all, spec_.lora.scale);
      continue;
    }
    for_some_rows(*of, d_output.shape()[0], [&](std::int64_t row, std::int64_t rows) {
      const View own = part(of->rows, 0, {rows, maps[i].outputs});
      const View place = maps.size() == 1 ? of->d_hidden.rows(row, rows) : part(of->joint, 0, {rows, rank});
      scale_columns(columns_of(d_output, row, rows, maps[i].first, maps[i].outputs), of->layer->outputs, own,
                    maps[i].outputs, 1.0);
      run(LinearBackwardInput{.weight = up, .d_output = own, .d_input = place});
      scale_columns(place, rank, columns_of(of->d_hidden, row, rows, at, rank), all, spec_.lora.scale);
    });
  }
}

void UnitOps::add_adapter_input_gradient(std::string_view layer, View d_input) const {
  const LayerAdapters* const of = adapters_ == nullptr ? nullptr : adapters_->find(layer);
  if (of == nullptr) return;
  const Weight down = weights_.find(of->layer->down());
  if (drops_adapter_inputs()) {
    const std::int64_t rank = spec_.lora.rank;
    for (std::size_t i = 0; i < of->hidden.size(); ++i) {
      const Weight own = rows_of(down, static_cast<std::int64_t>(i) * rank, rank);
      const DropoutMask mask = adapter_dropped(of->layer->maps[i]);
      for_some_rows(*of, d_input.shape()[0], [&](std::int64_t row, std::int64_t rows) {
        const View product = part(of->rows, 0, {rows, d_input.shape()[1]});
        const View target = d_input.rows(row, rows);
        run(LinearBackwardInput{.weight = own, .d_output = d_hidden_of(*of, i, row, rows), .d_input = product});
        drop_inputs(*of->layer, mask, row, product, target, target);
      });
    }
    return;
  }
  for_some_rows(*of, d_input.shape()[0], [&](std::int64_t row, std::int64_t rows) {
    const View product = part(of->rows, 0, {rows, d_input.shape()[1]});
    const View target = d_input.rows(row, rows);
    run(LinearBackwardInput{.weight = down, .d_output = of->d_hidden.rows(row, rows), .d_input = product});
    run(Add{.a = target, .b = product, .output = target});
  });
}

void UnitOps::adapter_backward_weight(std::string_view layer, ConstView input, ConstView d_output) const {
  const LayerAdapters* const of = adapters_ == nullptr ? nullptr : adapters_->find(layer);
  if (of == nullptr) return;
  const View d_down = gradients().find(of->layer->down());
  if (drops_adapter_inputs() && d_down) {
    const std::int64_t rank = spec_.lora.rank;
    for (std::size_t i = 0; i < of->hidden.size(); ++i) {
      const DropoutMask mask = adapter_dropped(of->layer->maps[i]);
      for_some_rows(*of, input.shape()[0], [&](std::int64_t row, std::int64_t rows) {
        const View kept = part(of->rows, 0, {rows, of->layer->inputs});
        drop_inputs(*of->layer, mask, row, input.rows(row, rows), {}, kept);
        linear_backward_weight(kept, d_hidden_of(*of, i, row, rows),
                               d_down.rows(static_cast<std::int64_t>(i) * rank, rank), {});
      });
    }
  } else {
    linear_backward_weight(input, of->d_hidden, d_down, {});
  }
  const std::vector<AdaptedMap>& maps = of->layer->maps;
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const View d_up = gradients().find(up_of(maps[i]));
    if (of->layer->is_whole()) {
      linear_backward_weight(of->hidden[i], d_output, d_up, {});
      continue;
    }
    for_some_rows(*of, d_output.shape()[0], [&](std::int64_t row, std::int64_t rows) {
      const View own = part(of->rows, 0, {rows, maps[i].outputs});
      scale_columns(columns_of(d_output, row, rows, maps[i].first, maps[i].outputs), of->layer->outputs, own,
                    maps[i].outputs, 1.0);
      linear_backward_weight(of->hidden[i].rows(row, rows), own, d_up, {});
    });
  }
}

}  // namespace scaletrain
