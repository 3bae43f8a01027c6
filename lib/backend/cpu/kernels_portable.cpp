// For any processor: vectors of four lanes, no fused multiply-add.
#define SCALETRAIN_ISA portable
#define SCALETRAIN_LANES 4
#include "backend/cpu/kernels_body.inc"
