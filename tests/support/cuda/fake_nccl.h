// NCCL as far as the module asks it, among the ranks of one process on the runtime that the host carries out
// (fake_nccl.cpp): what a test may say of it, and hear.
#pragma once

#include <cstdint>
#include <string>

namespace scaletrain::fake_nccl {

// There is none until a test says so, and none again when the object ends: a process whose ranks are processes has
// nothing here that they could share. With the variable SCALETRAIN_FAKE_NCCL "no interface" there is one that cannot
// begin a group, in words that name the interface it was to take.
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
// While they are held nothing that a GPU's communicators are given reaches its streams; negative: nothing is held.
void hold_messages(int device);
// Communicators that have messages waiting so.
int held_messages();
// While they are held whoever asks the state of a GPU's communicators gets no answer; negative: everybody does.
void hold_looks(int device);
int held_looks();
// Whether a communicator that is finalized goes on to have messages under way until this is false again.
void hold_ends(bool held);
// Those that are finalized, and neither destroyed nor aborted.
int ending_communicators();
// Whether an abort returns only when this is false again; the GPU's work ends all the same.
void hold_aborts(bool held);

}  // namespace scaletrain::fake_nccl
