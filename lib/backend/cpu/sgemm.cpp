#include "backend/cpu/sgemm.h"

#include <dnnl.h>
#include <fmt/format.h>

#include <new>

#include "base/error.h"

// Of libgomp, which oneDNN shares its work with. Declared here because Clang ships no omp.h of it.
extern "C" {
void omp_set_num_threads(int count);
int omp_get_max_threads(void);
}

namespace scaletrain::cpu {

namespace {

// oneDNN as distributions build it starts a team of OpenMP threads in every product. The backend divides products among
// its own threads instead, so each call must stay on its thread: OpenMP's thread count is a property of the calling
// thread.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneOpenMpThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  int before_;
};

}  // namespace

void sgemm(const Sgemm& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {  // an empty sum, which oneDNN refuses
    for (std::int64_t row = 0; row < p.m; ++row)
      for (std::int64_t column = 0; column < p.n; ++column) {
        float& c = p.c[row * p.c_stride + column];
        c = p.beta == 0.0F ? 0.0F : p.beta * c;
      }
    return;
  }
  const OneOpenMpThread one;
  const dnnl_status_t status = dnnl_sgemm(p.a.transposed ? 'T' : 'N', p.b.transposed ? 'T' : 'N', p.m, p.n, p.k,
                                          p.alpha, p.a.data, p.a.stride, p.b.data, p.b.stride, p.beta, p.c, p.c_stride);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  SCALETRAIN_CHECK_EQ(static_cast<int>(status), static_cast<int>(dnnl_success));
}

std::string sgemm_description() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{} isa {:#x}", version->major, version->minor, version->patch,
                     static_cast<unsigned>(dnnl_get_effective_cpu_isa()));
}

}  // namespace scaletrain::cpu
