// Which kernels the processor at hand can run.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "backend/cpu/kernels.h"
#include "backend/cpu/panel_kernels.h"
#include "base/error.h"

namespace scaletrain::cpu {

// name: auto (the best one) | portable | avx2 | avx512 | avx512_bf16 | amx_bf16. UserError for another name, or a set
// that the processor or this build lacks. The last two are avx512 with products of bf16.
const Kernels& choose_kernels(std::string_view name);

// The products of panels that belong to the set, or null. `auto`: the fastest that the processor has.
const PanelKernels<Bf16>* choose_bf16(std::string_view name);
const PanelKernels<float>* choose_f32_panels(std::string_view name);

// Those of AMX, which may be named on any x86-64.
const PanelKernels<Bf16>& bf16_panels_amx();

inline UserError missing_instruction_set(std::string_view name) {
  return UserError(fmt::format("instruction set {}: this processor does not have it; use auto", name));
}
inline UserError unknown_instruction_set(std::string_view name) {
  return UserError(fmt::format(
      "instruction set \"{}\" is unknown: expected auto, portable, avx2, avx512, avx512_bf16 or amx_bf16", name));
}

// What the processor must have for them, by the names that processors are described with: "avx2, fma". Empty: nothing.
std::string_view instructions_of(const Kernels& kernels);

}  // namespace scaletrain::cpu
