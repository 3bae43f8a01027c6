#include "amx_emulator.h"

#if defined(__x86_64__)

#include <ucontext.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace scaletrain {

namespace {

struct TileRegister {
  int rows = 0;
  int row_bytes = 0;
  std::array<std::array<std::uint8_t, 64>, 16> data{};
};
using Tiles = std::array<TileRegister, 8>;
Tiles& tiles() {
  static thread_local Tiles all;
  return all;
}

// A VEX instruction of three prefix bytes.
struct Instruction {
  int prefix = 0;  // 0: none, 1: 66, 2: F3, 3: F2
  int opcode = 0;
  int mode = 0;                    // of ModRM; 3: registers
  int reg = 0;                     // its first register
  int rm = 0;                      // its second one
  int third = 0;                   // the register that the prefix names
  std::uint8_t* memory = nullptr;  // base and displacement
  std::int64_t stride = 0;         // the scaled index
  std::int64_t length = 0;
};

std::int64_t general_register(const ucontext_t& context, int number) {
  static constexpr std::array<int, 16> places = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                                 REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                                 REG_R12, REG_R13, REG_R14, REG_R15};
  return context.uc_mcontext.gregs[places[static_cast<std::size_t>(number)]];
}

bool decode(const ucontext_t& context, Instruction& out) {
  const auto* const code = reinterpret_cast<const std::uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84) != 0) return false;
  const int index_high = (code[1] & 0x40) != 0 ? 0 : 8;
  const int base_high = (code[1] & 0x20) != 0 ? 0 : 8;
  out.prefix = code[2] & 3;
  out.third = 15 - (code[2] >> 3 & 15);
  out.opcode = code[3];
  out.mode = code[4] >> 6;
  out.reg = code[4] >> 3 & 7;
  out.rm = code[4] & 7;
  std::int64_t at = 5;
  if (out.mode != 3) {
    std::int64_t address = 0;
    int base = out.rm;
    if (out.rm == 4) {
      const int sib = code[at++];
      base = sib & 7;
      const int index = (sib >> 3 & 7) + index_high;
      if (index != 4) out.stride = general_register(context, index) << (sib >> 6);
    }
    const bool has_no_base = out.mode == 0 && base == 5;
    if (!has_no_base) address = general_register(context, base + base_high);
    if (out.mode == 1) {
      address += static_cast<std::int8_t>(code[at++]);
    } else if (out.mode == 2 || has_no_base) {
      std::int32_t displacement = 0;
      std::memcpy(&displacement, code + at, sizeof displacement);
      address += displacement;
      at += 4;
      if (has_no_base && out.rm == 5) address += reinterpret_cast<std::int64_t>(code + at);
    }
    out.memory = reinterpret_cast<std::uint8_t*>(address);
  }
  out.length = at;
  return true;
}

void configure(const std::uint8_t* shapes) {
  tiles() = {};
  if (shapes == nullptr || shapes[0] == 0) return;
  for (std::size_t tile = 0; tile < 8; ++tile) {
    std::uint16_t row_bytes = 0;
    std::memcpy(&row_bytes, shapes + 16 + 2 * tile, sizeof row_bytes);
    tiles()[tile].row_bytes = row_bytes;
    tiles()[tile].rows = shapes[48 + tile];
  }
}

std::uint32_t word(const std::array<std::uint8_t, 64>& row, std::size_t index) {
  std::uint32_t value = 0;
  std::memcpy(&value, &row[4 * index], sizeof value);
  return value;
}
float flushed(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0F, value) : value;
}
float float_of(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return flushed(value);
}

// to += a · b: products of even and of odd elements, which floats hold, are summed for themselves first.
bool multiply(TileRegister& to, const TileRegister& a, const TileRegister& b) {
  if (to.rows != a.rows || to.row_bytes != b.row_bytes || a.row_bytes != 4 * b.rows || to.rows == 0) return false;
  for (std::size_t m = 0; m < static_cast<std::size_t>(to.rows); ++m) {
    std::array<float, 16> even{};
    std::array<float, 16> odd{};
    for (std::size_t k = 0; k < static_cast<std::size_t>(b.rows); ++k) {
      const std::uint32_t left = word(a.data[m], k);
      for (std::size_t n = 0; n < even.size(); ++n) {
        const std::uint32_t right = word(b.data[k], n);
        even[n] = flushed(even[n] + float_of(left << 16) * float_of(right << 16));
        odd[n] = flushed(odd[n] + float_of(left & 0xffff0000U) * float_of(right & 0xffff0000U));
      }
    }
    for (std::size_t n = 0; n < static_cast<std::size_t>(to.row_bytes) / 4; ++n) {
      const float sum = flushed(float_of(word(to.data[m], n)) + flushed(even[n] + odd[n]));
      std::memcpy(&to.data[m][4 * n], &sum, sizeof sum);
    }
  }
  return true;
}

bool carry_out(const Instruction& i) {
  TileRegister& tile = tiles()[static_cast<std::size_t>(i.reg)];
  if (i.opcode == 0x49 && i.prefix == 0) {  // LDTILECFG, TILERELEASE
    configure(i.mode == 3 ? nullptr : i.memory);
    return true;
  }
  if (i.opcode == 0x49 && i.prefix == 3 && i.mode == 3) {  // TILEZERO
    for (auto& row : tile.data) row.fill(0);
    return tile.rows > 0;
  }
  if (i.opcode == 0x4b && i.mode != 3 && (i.prefix == 3 || i.prefix == 2)) {  // TILELOADD, TILESTORED
    for (auto& row : tile.data)
      if (i.prefix == 3) row.fill(0);
    for (int row = 0; row < tile.rows; ++row) {
      std::uint8_t* const memory = i.memory + row * i.stride;
      auto& values = tile.data[static_cast<std::size_t>(row)];
      if (i.prefix == 3)
        std::memcpy(values.data(), memory, static_cast<std::size_t>(tile.row_bytes));
      else
        std::memcpy(memory, values.data(), static_cast<std::size_t>(tile.row_bytes));
    }
    return tile.rows > 0;
  }
  if (i.opcode == 0x5c && i.prefix == 2 && i.mode == 3)  // TDPBF16PS
    return multiply(tile, tiles()[static_cast<std::size_t>(i.rm)], tiles()[static_cast<std::size_t>(i.third)]);
  return false;
}

// What it cannot carry out ends the process, as it would have without it.
void on_refused(int, siginfo_t*, void* context) {
  auto& interrupted = *static_cast<ucontext_t*>(context);
  Instruction instruction;
  if (decode(interrupted, instruction) && carry_out(instruction))
    interrupted.uc_mcontext.gregs[REG_RIP] += instruction.length;
  else
    ::signal(SIGILL, SIG_DFL);
}

}  // namespace

AmxEmulator::AmxEmulator() {
  struct sigaction action {};
  action.sa_sigaction = on_refused;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGILL, &action, &before_);
}

AmxEmulator::~AmxEmulator() {
  ::sigaction(SIGILL, &before_, nullptr);
}

}  // namespace scaletrain

#endif
