// How the tensors of a Hugging Face file are made of parameters of the parameter table. GPT-2 keeps query, key and
// value in one tensor, and linear weights as [in, out]; parameters that name the same tensor follow each other along
// its output dim.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/param_table.h"

namespace scaletrain {

struct HuggingFacePart {
  int parameter = 0;        // of the ParamTable
  std::int64_t offset = 0;  // of its first output in the tensor
};

struct HuggingFaceTensor {
  std::string name;
  Shape shape;  // as in the file
  bool is_transposed = false;
  std::vector<HuggingFacePart> parts;
};

// In the table's order. Tied copies are left out, and adapters.
std::vector<HuggingFaceTensor> hugging_face_tensors(const ParamTable& table);
// Those of adapters, as peft has them in adapter_model.safetensors.
std::vector<HuggingFaceTensor> peft_tensors(const ParamTable& table);

// The part of the file's tensor that a box of a parameter stands for.
Box hugging_face_box(const HuggingFaceTensor& tensor, const HuggingFacePart& part, const Box& row_box);

// Base models are stored without the "transformer." or "model." in front: the name with it.
std::string full_hugging_face_name(std::string_view stored);

// Copies the transpose of source [rows, columns], whose rows lie `stride` elements apart, to target [columns, rows].
void transpose(const float* source, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* target);

}  // namespace scaletrain
