// For processors other than x86-64: the portable kernels only.
#include <fmt/format.h>

#include "backend/cpu/instruction_sets.h"
#include "base/error.h"

namespace scaletrain::cpu {

const Kernels& choose_kernels(std::string_view name) {
  if (name == "auto" || name == "portable") return kernels_portable();
  if (name == "avx2" || name == "avx512")
    throw UserError(fmt::format("instruction set {}: this processor does not have it; use auto", name));
  throw UserError(fmt::format("instruction set \"{}\" is unknown: expected auto, portable, avx2 or avx512", name));
}

std::string_view instructions_of(const Kernels&) {
  return {};
}

}  // namespace scaletrain::cpu
