#include "checkpoint/hugging_face/hugging_face_tensors.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/numbers/checked.h"

namespace scaletrain {

namespace {

Shape file_shape(const Parameter& parameter, std::int64_t outputs) {
  if (parameter.shape.num_dims() == 1) return {outputs};
  SCALETRAIN_CHECK_EQ(parameter.shape.num_dims(), 2);
  return parameter.hugging_face_transposed ? Shape{parameter.shape[1], outputs} : Shape{outputs, parameter.shape[1]};
}

std::vector<HuggingFaceTensor> tensors_of(const ParamTable& table, bool adapters) {
  std::vector<HuggingFaceTensor> tensors;
  std::map<std::string_view, std::size_t> by_name;
  int index = 0;
  for (const Parameter& parameter : table.parameters()) {
    const int index_in_table = index++;
    if (parameter.tied_to || parameter.hugging_face_name.empty() || parameter.is_adapter != adapters) continue;
    const auto [place, is_new] = by_name.emplace(parameter.hugging_face_name, tensors.size());
    if (is_new) {
      tensors.push_back({.name = parameter.hugging_face_name,
                         .shape = {},
                         .is_transposed = parameter.hugging_face_transposed,
                         .parts = {}});
    }
    HuggingFaceTensor& tensor = tensors[place->second];
    SCALETRAIN_CHECK_EQ(tensor.is_transposed, parameter.hugging_face_transposed);
    std::int64_t outputs = 0;
    if (!is_new) outputs = tensor.shape[tensor.is_transposed && parameter.shape.num_dims() == 2 ? 1 : 0];
    tensor.parts.push_back({.parameter = index_in_table, .offset = outputs});
    tensor.shape = file_shape(parameter, checked_add(outputs, parameter.shape[0]));
  }
  // A bias has nothing to transpose.
  for (HuggingFaceTensor& tensor : tensors) tensor.is_transposed &= tensor.shape.num_dims() == 2;
  return tensors;
}

}  // namespace

std::vector<HuggingFaceTensor> hugging_face_tensors(const ParamTable& table) {
  return tensors_of(table, false);
}

std::vector<HuggingFaceTensor> peft_tensors(const ParamTable& table) {
  return tensors_of(table, true);
}

Box hugging_face_box(const HuggingFaceTensor& tensor, const HuggingFacePart& part, const Box& row_box) {
  Box box = row_box;
  if (tensor.is_transposed) {
    std::swap(box.first[0], box.first[1]);
    std::swap(box.extent[0], box.extent[1]);
  }
  box.first[tensor.is_transposed ? 1 : 0] += part.offset;
  return box;
}

std::string full_hugging_face_name(std::string_view stored) {
  for (const std::string_view gpt2 : {"wte.", "wpe.", "h.", "ln_f."}) {
    if (stored.starts_with(gpt2)) return "transformer." + std::string(stored);
  }
  for (const std::string_view llama : {"embed_tokens.", "layers.", "norm."}) {
    if (stored.starts_with(llama)) return "model." + std::string(stored);
  }
  return std::string(stored);
}

void transpose(const float* source, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* target) {
  // Tiles, so that both sides stay in the first cache.
  constexpr std::int64_t tile = 32;
  for (std::int64_t row_tile = 0; row_tile < rows; row_tile += tile) {
    for (std::int64_t column_tile = 0; column_tile < columns; column_tile += tile) {
      const std::int64_t row_end = std::min(rows, row_tile + tile);
      const std::int64_t column_end = std::min(columns, column_tile + tile);
      for (std::int64_t row = row_tile; row < row_end; ++row) {
        for (std::int64_t column = column_tile; column < column_end; ++column) {
          target[column * rows + row] = source[row * stride + column];
        }
      }
    }
  }
}

}  // namespace scaletrain
