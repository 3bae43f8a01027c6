#include "backend/cpu/sgemm.h"

#include <dnnl.h>
#include <dnnl_debug.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <new>
#include <string_view>

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

// The first product makes the code of all kernels, in 6 MiB, and oneDNN does not survive that a part of them is refused
// (SIGSEGV, under a limit on the address space). So it is asked for room first, and the code is made at once, by a
// product that nobody needs. Another thread may still take that room in between; this happens once, before a rank
// trains. std::bad_alloc where there is none; then the next call tries again.
bool make_kernels() {
  constexpr std::size_t enough = std::size_t{16} << 20;
  void* const room = ::mmap(nullptr, enough, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  ::munmap(room, enough);
  constexpr dnnl_dim_t size = 16;
  const std::array<float, size * size> factor{};
  std::array<float, size * size> product{};
  const dnnl_status_t status = dnnl_sgemm('N', 'N', size, size, size, 1.0F, factor.data(), size, factor.data(), size,
                                          0.0F, product.data(), size);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  SCALETRAIN_CHECK_EQ(status, dnnl_success);
  return true;
}

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
  static const bool has_kernels = make_kernels();
  SCALETRAIN_CHECK(has_kernels);
  const dnnl_status_t status = dnnl_sgemm(p.a.transposed ? 'T' : 'N', p.b.transposed ? 'T' : 'N', p.m, p.n, p.k,
                                          p.alpha, p.a.data, p.a.stride, p.b.data, p.b.stride, p.beta, p.c, p.c_stride);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  SCALETRAIN_CHECK_EQ(static_cast<int>(status), static_cast<int>(dnnl_success));
}

std::string sgemm_instructions() {
  std::string name = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());
  constexpr std::string_view kind = "cpu_isa_";
  if (name.starts_with(kind)) name.erase(0, kind.size());
  return name;
}

std::string sgemm_description() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{} {}", version->major, version->minor, version->patch, sgemm_instructions());
}

}  // namespace scaletrain::cpu
