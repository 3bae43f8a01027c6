// Preloaded into a program under test (LD_PRELOAD): in the process whose main thread is named SLOW_PROCESS, each small
// matrix product takes SLOW_MILLISECONDS more, for SLOW_SECONDS from the first one on. Large products are the
// calibration's, before the first step.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <ctime>

#include "process/process_name.h"

namespace {

constexpr long small_dimension = 256;

double now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double setting(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0.0 : std::strtod(text, nullptr);
}

// Asked at each call, for a process gets its name after its first products might be computed.
bool is_meant() {
  const char* const wanted = std::getenv("SLOW_PROCESS");
  return wanted != nullptr && is_process_named(wanted);
}

void wait_a_little() {
  static std::atomic<double> begin{0.0};
  double first = 0.0;
  const double time = now();
  begin.compare_exchange_strong(first, time);
  if (time - begin.load() >= setting("SLOW_SECONDS")) return;
  const double seconds = 1e-3 * setting("SLOW_MILLISECONDS");
  timespec pause{};
  pause.tv_nsec = static_cast<long>(seconds * 1e9);
  ::nanosleep(&pause, nullptr);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int dnnl_sgemm(char transa, char transb, long m, long n, long k,
                                                                 float alpha, const float* a, long lda, const float* b,
                                                                 long ldb, float beta, float* c, long ldc) {
  using Function =
      int (*)(char, char, long, long, long, float, const float*, long, const float*, long, float, float*, long);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "dnnl_sgemm"));
  if (m <= small_dimension && n <= small_dimension && is_meant()) wait_a_little();
  return real(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
