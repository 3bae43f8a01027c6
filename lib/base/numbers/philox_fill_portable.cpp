// For any processor.
#define SCALETRAIN_ISA portable
#define SCALETRAIN_LANES 2
#define SCALETRAIN_SUPPORTED true
#include "base/numbers/philox_fill.inc"
