// What one thread's multiply-add instructions reach with all operands in registers: the ceiling of any kernel.
#pragma once

namespace scaletrain {

// FLOP/s by this thread's processor time, the best of some bursts; 0 where the processor lacks the instruction.
double fma_ceiling();   // f32 multiply-adds of the widest vectors that there are
double bf16_ceiling();  // TDPBF16PS on whole tiles, or VDPBF16PS on vectors of 512 bits

}  // namespace scaletrain
