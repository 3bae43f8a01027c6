// For processors other than x86-64: the portable kernels only.
#include "backend/cpu/instruction_sets.h"

namespace scaletrain::cpu {

const Kernels& choose_kernels(std::string_view name) {
  if (name == "auto" || name == "portable") return kernels_portable;
  if (name == "avx2" || name == "avx512" || name == "avx512_bf16" || name == "amx_bf16")
    throw missing_instruction_set(name);
  throw unknown_instruction_set(name);
}

const PanelKernels<Bf16>* choose_bf16(std::string_view) {
  return nullptr;
}
const PanelKernels<float>* choose_f32_panels(std::string_view) {
  return nullptr;
}

std::string_view instructions_of(const Kernels&) {
  return {};
}

}  // namespace scaletrain::cpu
