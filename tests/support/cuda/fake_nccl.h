// NCCL as far as the module asks it, among the ranks of one process on the runtime that the host carries out
// (fake_nccl.cpp): what a test may say of it, and hear.
#pragma once

#include <cstdint>
#include <string>

namespace scaletrain::fake_nccl {

// There is none until a test says so, and none again when the object ends: a process whose ranks are processes has
// nothing here that they could share.
class Installed {
 public:
  explicit Installed(int version = 22809);
  ~Installed();
  Installed(const Installed&) = delete;
  Installed& operator=(const Installed&) = delete;
};

// The first of NCCL's documented rules that was broken since the last call; empty: none.
std::string take_problem();
// Messages that have arrived so far.
std::uint64_t arrived_messages();
// From now on the communicators of this GPU tell of an asynchronous error, of the network or of CUDA; negative: none
// does.
enum class Failure { network, cuda };
void break_gpu(int device, Failure failure = Failure::network);
// How many groups have come together one behind the other at most: each behind those that its members were in when they
// began to join it.
int longest_chain_of_joins();
// Whether an abort returns only when this is false again; the GPU's work ends all the same.
void hold_aborts(bool held);

}  // namespace scaletrain::fake_nccl
