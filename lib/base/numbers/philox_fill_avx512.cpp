// For processors with AVX-512 F, DQ, BW and VL.
#define SCALETRAIN_ISA avx512
#define SCALETRAIN_LANES 8
#define SCALETRAIN_SUPPORTED                                                                                        \
  (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && \
   __builtin_cpu_supports("avx512vl"))
#include "base/numbers/philox_fill.inc"
