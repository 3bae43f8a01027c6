// The instructions on tiles (AMX, with bf16 products) for processors that lack them: while an object of this class
// lives, one that the processor refuses is carried out by a signal handler, after its description in Intel's Software
// Developer's Manual. Slow: microseconds for each. Where the processor has them it does nothing.
#pragma once

#if defined(__x86_64__)

#include <signal.h>

namespace scaletrain {

// One at a time, or one inside the life of another.
class AmxEmulator {
 public:
  AmxEmulator();
  ~AmxEmulator();
  AmxEmulator(const AmxEmulator&) = delete;
  AmxEmulator& operator=(const AmxEmulator&) = delete;

 private:
  struct sigaction before_ {};
};

}  // namespace scaletrain

#endif
