// A cpu backend of bf16 whose products are those of AMX, on processors that lack it (but have AVX-512 bf16): under an
// emulator.
#pragma once

#if defined(__x86_64__)

#include "amx_emulator.h"
#include "panels_backend.h"

namespace scaletrain {

class EmulatedTilesBackend final : private AmxEmulator, public PanelsBackend {
 public:
  explicit EmulatedTilesBackend(int threads) : PanelsBackend(threads, cpu::bf16_panels_amx(), cpu::shared_pack_bytes) {}
};

}  // namespace scaletrain

#endif
