#include "ceiling.h"

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "backend/cpu/instruction_sets.h"

namespace scaletrain {

namespace {

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

#if defined(__x86_64__)

// As many sums as hide the latency of an instruction of which two are begun in each cycle. Of AVX2's 16 registers not
// all can be sums: what the instruction reads must not change.
constexpr int chains = 16;
constexpr int chains_256 = 12;
constexpr std::int64_t rounds = 400'000;

#define TWELVE_TIMES(step) \
  step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) step(11)
#define SIXTEEN_TIMES(step) TWELVE_TIMES(step) step(12) step(13) step(14) step(15)

// Assembly, because compilers move vectors that a loop keeps in registers to memory and back.
#define VDPBF16PS(n) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #n "\n"
#define VFMADD_512(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n"
#define VFMADD_256(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n"

__attribute__((target("avx512f"))) void bf16_rounds(std::int64_t count) {
  asm volatile("1:\n" SIXTEEN_TIMES(VDPBF16PS) "dec %0\n jnz 1b\n"
               : "+r"(count)
               :
               : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11",
                 "zmm12", "zmm13", "zmm14", "zmm15", "cc");
}

__attribute__((target("avx512f"))) void fma_rounds_512(std::int64_t count) {
  asm volatile("1:\n" SIXTEEN_TIMES(VFMADD_512) "dec %0\n jnz 1b\n"
               : "+r"(count)
               :
               : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11",
                 "zmm12", "zmm13", "zmm14", "zmm15", "cc");
}

__attribute__((target("avx2,fma"))) void fma_rounds_256(std::int64_t count) {
  asm volatile("1:\n" TWELVE_TIMES(VFMADD_256) "dec %0\n jnz 1b\n"
               : "+r"(count)
               :
               : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                 "cc");
}

// Four sums of 16 x 16 elements by turns hide the instruction's latency.
#define FOUR_TDPBF16PS                 \
  "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n" \
  "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n" \
  "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n" \
  "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n"

void tile_rounds(std::int64_t count) {
  struct Shapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  const Shapes shapes;
  asm volatile(
      "ldtilecfg %1\n"
      "1:\n" FOUR_TDPBF16PS FOUR_TDPBF16PS FOUR_TDPBF16PS FOUR_TDPBF16PS
      "dec %0\n jnz 1b\n"
      "tilerelease\n"
      : "+r"(count)
      : "m"(shapes)
      : "cc");
}

// Asked of the backend, which also asks the kernel for the tiles' registers.
bool has_tiles() {
  const cpu::PanelKernels<Bf16>* const kernels = cpu::choose_bf16("auto");
  return kernels == &cpu::bf16_panels_amx();
}

double best_rate(void (*run)(std::int64_t), double flops_of_an_instruction, int instructions = chains) {
  double best = 1e30;
  for (int burst = 0; burst < 20; ++burst) {
    const double start = thread_seconds();
    run(rounds);
    best = std::min(best, thread_seconds() - start);
  }
  return flops_of_an_instruction * instructions * static_cast<double>(rounds) / best;
}

#endif

}  // namespace

double fma_ceiling() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return best_rate(fma_rounds_512, 32);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return best_rate(fma_rounds_256, 16, chains_256);
#endif
  return 0;
}

double bf16_ceiling() {
#if defined(__x86_64__)
  if (has_tiles()) return best_rate(tile_rounds, 2.0 * 16 * 16 * 32);
  if (__builtin_cpu_supports("avx512bf16")) return best_rate(bf16_rounds, 64);
#endif
  return 0;
}

}  // namespace scaletrain
