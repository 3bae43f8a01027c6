// What a figure stands beside: on which processor and when it was measured.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <string>

namespace scaletrain {

// "AMD EPYC, 2 processors, 23 GiB, AVX-512 bf16, no AMX".
inline std::string machine_text() {
  std::string name = "unknown processor";
  std::string flags;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.rfind("model name", 0) == 0) name = line.substr(colon + 2);
    if (line.rfind("flags", 0) == 0) flags = line.substr(colon + 1) + " ";
  }
  const auto has = [&](const char* flag) { return flags.find(fmt::format(" {} ", flag)) != std::string::npos; };
  const double gibibytes =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 30);
  return fmt::format("{}, {} processors, {:.0f} GiB, {}, {}", name, ::sysconf(_SC_NPROCESSORS_ONLN), gibibytes,
                     has("avx512_bf16") ? "AVX-512 bf16" : (has("avx512f") ? "AVX-512" : "no AVX-512"),
                     has("amx_bf16") ? "AMX" : "no AMX");
}

// Of today, in UTC: "2026-11-23".
inline std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
  return text.data();
}

}  // namespace scaletrain
