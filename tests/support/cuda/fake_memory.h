// The memory of the GPUs that the host carries out (fake_runtime.cpp), which the host reaches only while a GPU runs
// something: where it takes that memory for its own, and no stream runs, it dies at the place. Not under sanitizers:
// there it is the heap's, whose ends they watch.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace scaletrain::cuda {

class FakeMemory {
 public:
  static FakeMemory& of_process();

  // Null: there is no more. Aligned to 256.
  std::byte* allocate(std::size_t bytes);
  void free(std::byte* memory);  // what allocate() gave
  // Where the values are that lie there, for who may read them at any time.
  std::byte* values_of(std::byte* memory) const;

  // While one lives a GPU runs something.
  class Running {
   public:
    Running() { of_process().begin(); }
    ~Running() { of_process().end(); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
  };

 private:
  FakeMemory();
  void begin();
  void end();
  void open(bool is_open);  // with the lock held

  std::mutex mutex_;
  std::byte* memory_ = nullptr;  // null: of the heap
  std::byte* values_ = nullptr;
  std::map<std::size_t, std::size_t> pieces_;  // beginnings and ends, in whole pages
  int running_ = 0;
  bool is_open_ = false;
};

}  // namespace scaletrain::cuda
