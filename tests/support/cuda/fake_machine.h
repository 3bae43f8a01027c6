// The GPUs of the machine that fake_runtime.cpp stands for, as SCALETRAIN_FAKE_GPU says: nothing, one GPU; "old GPU",
// "new GPU", "small GPU", "narrow GPU", "full GPU", "H100", one too; "8 GPUs", "2 x H100", "H100 + old GPU"; "no
// driver", "old driver", "no GPU", "broken".
//
// While SCALETRAIN_FAKE_LOSS is the path of a file, the machine's last GPU is gone. SCALETRAIN_FAKE_FAILURE is a file's
// path and a number: while there is such a file, that GPU fails in whatever it is asked to run, or wait for, or in what
// the file names alone: copies, kernels, graphs, products, events, waits, calls (of the host's functions) or waits for
// values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace scaletrain::fake_machine {

// SCALETRAIN_FAKE_GPU.
std::string wanted_of_environment();
// What GPU of this number is.
std::string wanted_gpu(int gpu);
// The numbers of those that CUDA_VISIBLE_DEVICES shows.
std::vector<int> visible_gpus();
int number_of_gpus();

std::size_t memory_of_gpu(int gpu);
// device: its place among the visible ones.
std::size_t free_memory_of(int device);
// Others have all memory of all GPUs.
bool is_full();
bool has_failed(int device, std::string_view what);

}  // namespace scaletrain::fake_machine
