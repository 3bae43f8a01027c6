// For processors with AVX-512 F, BW, DQ and VL: Intel servers since 2017, AMD since 2022.
#define SCALETRAIN_ISA avx512
#define SCALETRAIN_LANES 16
#include "backend/cpu/kernels_body.inc"
