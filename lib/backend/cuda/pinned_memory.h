// Pinned memory of the host, of any size: the system pins it page by page, and what a rank offloads or copies for a
// checkpoint may be a hundred GiB. So it is pinned in pieces, each of which counts as work done; and before that
// several threads touch it, since most of the time is that of filling new pages with zeros.
//
// A piece ends at an address that is a multiple of pinned_piece_bytes, whatever memory it is of: so copies, which are
// cut there, need no list of pieces. CUDA wants what it copies to be registered as a whole, and does not say that two
// neighbours count as one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "base/process/work_count.h"
#include "tensor/buffer.h"

namespace scaletrain::cuda {

inline constexpr std::size_t pinned_piece_bytes = std::size_t{128} << 20;

// Zero-filled, of the NUMA nodes of the processors that the calling thread may run on, where the system has its way;
// `threads` of them are used, if there are threads to be had. Any thread. std::bad_alloc; otherwise as check() has it.
// The count, if there is one, must outlive the memory, whose end counts too.
Buffer allocate_pinned(int device, std::size_t bytes, int threads, WorkCount* work);

// Between any two spaces, of the calling thread's device.
void copy(cudaStream_t stream, const ConstView& from, const View& to);

}  // namespace scaletrain::cuda
