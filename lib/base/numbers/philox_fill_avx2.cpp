// For processors with AVX2.
#define SCALETRAIN_ISA avx2
#define SCALETRAIN_LANES 4
#define SCALETRAIN_SUPPORTED (__builtin_cpu_supports("avx2"))
#include "base/numbers/philox_fill.inc"
