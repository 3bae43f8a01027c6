// For x86-64: kernels for AVX2 and AVX-512 are in the program, the processor decides.
#include "backend/cpu/instruction_sets.h"

namespace scaletrain::cpu {

namespace {

// The builtin also asks whether the operating system saves the registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && has_avx2();
}

struct InstructionSet {
  std::string_view name;
  std::string_view instructions;
  bool (*supported)();
  const Kernels& (*kernels)();
};

// Best first.
constexpr InstructionSet instruction_sets[] = {
    {"avx512", "avx512f, avx512dq, avx512bw, avx512vl, avx2, fma", has_avx512, kernels_avx512},
    {"avx2", "avx2, fma", has_avx2, kernels_avx2},
    {"portable", "", [] { return true; }, kernels_portable},
};

}  // namespace

const Kernels& choose_kernels(std::string_view name) {
  for (const InstructionSet& set : instruction_sets) {
    if (name != "auto" && name != set.name) continue;
    if (set.supported()) return set.kernels();
    if (name == set.name) throw missing_instruction_set(name);
  }
  throw unknown_instruction_set(name);
}

std::string_view instructions_of(const Kernels& kernels) {
  for (const InstructionSet& set : instruction_sets)
    if (set.name == kernels.name) return set.instructions;
  return {};
}

}  // namespace scaletrain::cpu
