// For x86-64: kernels for AVX2 and AVX-512 are in the program, the processor decides.
#include "backend/cpu/instruction_sets.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace scaletrain::cpu {

namespace {

// Not every compiler's builtin knows this one, which uses the registers of AVX.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// The builtin also asks whether the operating system saves the registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && has_avx2();
}

bool has_avx512_bf16() {
  return __builtin_cpu_supports("avx512bf16") && has_avx512();
}

// The kernel gives a process the registers of tiles on request, where there are some; from then on all its threads have
// them.
bool has_amx() {
  constexpr long request_permission = 0x1023;  // of arch_prctl: ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;
  constexpr unsigned tiles_and_bf16 = (1U << 24) | (1U << 22);
  static const bool has = [] {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return has_avx512_bf16() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
           (edx & tiles_and_bf16) == tiles_and_bf16 && ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return has;
}

struct Bf16Set {
  bool (*supported)();
  const PanelKernels<Bf16>& kernels;
};
// Best first.
const std::array<Bf16Set, 2>& bf16_sets() {
  static const std::array<Bf16Set, 2> sets = {{{has_amx, bf16_panels_amx()}, {has_avx512_bf16, bf16_panels_avx512}}};
  return sets;
}

struct InstructionSet {
  std::string_view name;
  std::string_view instructions;
  bool (*supported)();
  const Kernels& kernels;
};

// Best first.
constexpr InstructionSet instruction_sets[] = {
    {"avx512", "avx512f, avx512dq, avx512bw, avx512vl, avx2, fma, f16c", has_avx512, kernels_avx512},
    {"avx2", "avx2, fma, f16c", has_avx2, kernels_avx2},
    {"portable", "", [] { return true; }, kernels_portable},
};

}  // namespace

const PanelKernels<Bf16>& bf16_panels_amx() {
  static const PanelKernels<Bf16> table = [] {
    PanelKernels<Bf16> kernels = bf16_panels_avx512;
    kernels.name = "amx_bf16";
    kernels.title = "AMX";
    kernels.product = bf16_tiles_amx.product;
    kernels.pack_a = bf16_tiles_amx.pack_a;
    kernels.pack_a_rows = bf16_tiles_amx.pack_a_rows;
    kernels.packs_tiles = 1;
    return kernels;
  }();
  return table;
}

const PanelKernels<Bf16>* choose_bf16(std::string_view name) {
  for (const Bf16Set& set : bf16_sets())
    if ((name == "auto" || name == set.kernels.name) && set.supported()) return &set.kernels;
  return nullptr;
}

const PanelKernels<float>* choose_f32_panels(std::string_view name) {
  const Kernels& chosen = choose_kernels(name);
  if (&chosen == &kernels_avx512) return &f32_panels_avx512;
  return &chosen == &kernels_avx2 ? &f32_panels_avx2 : nullptr;
}

const Kernels& choose_kernels(std::string_view name) {
  for (const Bf16Set& set : bf16_sets()) {
    if (name != set.kernels.name) continue;
    if (!set.supported()) throw missing_instruction_set(name);
    return kernels_avx512;
  }
  for (const InstructionSet& set : instruction_sets) {
    if (name != "auto" && name != set.name) continue;
    if (set.supported()) return set.kernels;
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
