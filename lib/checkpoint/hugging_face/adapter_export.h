// A checkpoint's adapters as a folder of peft's: adapter_config.json, which names the base model's folder as it is
// found from anywhere, and adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <vector>

#include "checkpoint/hugging_face/hugging_face.h"
#include "checkpoint/load.h"
#include "config/config.h"
#include "nn/model_spec.h"
#include "tensor/dtype.h"

namespace scaletrain {

struct AdapterExport {
  std::filesystem::path folder;  // must not exist, or be empty
  ModelSpec model;               // of the base
  LoraConfig lora;
  DType dtype = DType::f32;           // f32 | bf16 | f16
  std::vector<ExportedFile> files{};  // beside them: the tokenizer's
};

// Complete or not at all. InputError for a checkpoint without these adapters, and for a value that is not finite in
// that type.
void export_adapter(const Checkpoint& checkpoint, const AdapterExport& request);

}  // namespace scaletrain
