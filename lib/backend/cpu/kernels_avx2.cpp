// For processors with AVX2 and FMA: Intel since 2013, AMD since 2017.
#define SCALETRAIN_ISA avx2
#define SCALETRAIN_LANES 8
#include "backend/cpu/kernels_body.inc"
