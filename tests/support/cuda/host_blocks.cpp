// Blocks of threads as fibers of one thread of the host.
#include <dlfcn.h>
#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "cuda_language.h"
#include "support/cuda/launched_kernels.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SCALETRAIN_TELLS_SANITIZER 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SCALETRAIN_TELLS_SANITIZER 1
#endif
#ifdef SCALETRAIN_TELLS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

namespace scaletrain::cuda {

namespace {

constexpr unsigned warp_threads = 32;
constexpr std::size_t stack_bytes = 64 << 10;

// What the lanes of a warp, or the threads of a block, meet at. All must have come before any goes on.
struct Meeting {
  unsigned arrived = 0;
  std::uint64_t number = 0;                 // of meetings that have taken place
  std::uint64_t values[warp_threads] = {};  // of a warp's lanes, as they were when the last one came
  std::uint64_t coming[warp_threads] = {};
};

struct Thread {
  HostThread place;
  bool has_ended = false;
  const char* waits = nullptr;  // what it waits at, for people
};

#ifdef SCALETRAIN_TELLS_SANITIZER
// The library's own. The sanitizer's, which stands before it, takes a jump for one that leaves frames for good, and
// forgets where these end; of the switch it is told (resume()).
void jump(std::jmp_buf place) {
  using Jump = void (*)(std::jmp_buf, int);
  static const auto library_jump =
      reinterpret_cast<Jump>(::dlsym(::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "_longjmp"));
  library_jump(place, 1);
}
#else
void jump(std::jmp_buf place) {
  _longjmp(place, 1);
}
#endif

// A place in a stack that execution can go back to. swapcontext() would do, but asks the kernel about signals each
// time, and has the address sanitizer clear the whole stack's shadow; jumps do not.
class Context {
 public:
  // A stack of its own, which begins with a function.
  void begin_on(std::vector<std::byte>& stack, void (*function)()) {
    ::getcontext(&context_);
    context_.uc_stack.ss_sp = stack.data();
    context_.uc_stack.ss_size = stack.size();
    ::makecontext(&context_, function, 0);
  }
  // Leaves this one, where it is, for another.
  void go_to(Context& other) {
    if (_setjmp(place_) != 0) return;
    has_place_ = true;
    if (other.has_place_) jump(other.place_);
    ::setcontext(&other.context_);
  }

 private:
  ucontext_t context_{};
  std::jmp_buf place_{};
  bool has_place_ = false;
};

// Runs one thread after the other, until one has to wait: another fiber then takes the threads that have not begun.
struct Fiber {
  Context context;
  std::vector<std::byte> stack;
  Thread* thread = nullptr;  // that it is in the middle of
  // What the thread waits for: that this meeting's number is another.
  const Meeting* meeting = nullptr;
  std::uint64_t number = 0;
#ifdef SCALETRAIN_TELLS_SANITIZER
  void* fake_stack = nullptr;
#endif
};

std::string place_of(const HostThread& thread) {
  return "thread " + std::to_string(thread.thread_index.x) + " of block (" + std::to_string(thread.block_index.x) +
         ", " + std::to_string(thread.block_index.y) + ", " + std::to_string(thread.block_index.z) + ")";
}

// How a launch is carried out, of what a GPU may do.
struct Way {
  bool backwards = false;
  bool copies_at_once = false;
};

// How often each kernel has been launched.
std::mutex launches_mutex;
std::map<const void*, std::uint64_t>& launches() {
  static std::map<const void*, std::uint64_t> all;
  return all;
}

// Of the next launch of a kernel: two of them differ in both, four make every pair. So whatever else is launched
// between them, every kernel meets each.
Way next_way(const void* kernel) {
  const std::lock_guard lock(launches_mutex);
  const std::uint64_t number = launches()[kernel]++;
  return {.backwards = number % 2 == 1, .copies_at_once = (number ^ number / 2) % 2 == 1};
}

// One block under way. Its fibers are kept from block to block.
class Block {
 public:
  void run(const LaunchShape& shape, uint3 index, const std::function<void()>& kernel, const Way& way) {
    kernel_ = &kernel;
    // Exactly as many bytes as were asked for, from the heap: what lies beyond them is not this block's.
    const std::unique_ptr<std::byte[]> shared(new std::byte[shape.shared_bytes]);
    std::memset(shared.get(), 0xff, shape.shared_bytes);
    threads_.assign(shape.threads, {});
    for (unsigned i = 0; i < shape.threads; ++i) {  // in the order in which they begin
      const unsigned t = way.backwards ? shape.threads - 1 - i : i;
      threads_[i].place = {{t, 0, 0}, index, dim3(shape.threads), shape.blocks, shared.get(), {}, way.copies_at_once};
    }
    warps_.assign(shape.threads / warp_threads, {});
    block_ = {};
    begun_ = 0;
    ended_ = 0;
    try {
      run_threads();
    } catch (...) {
      fibers_.clear();  // in the middle of threads that nobody will go on with
      throw;
    }
  }

  const HostThread& current() const { return current_->thread->place; }
  HostThread& current() { return current_->thread->place; }

  void meet_block() {
    const std::uint64_t number = block_.number;
    if (++block_.arrived < threads_.size()) return wait("a barrier of the block", block_, number);
    block_.arrived = 0;
    ++block_.number;
    moved_ = true;
  }

  const std::uint64_t* meet_warp(unsigned mask, std::uint64_t value, const char* what,
                                 void (*work)(WarpAddresses) = nullptr) {
    const unsigned thread = current().thread_index.x;
    if (mask != 0xffffffffU) throw BugError(place_of(current()) + ": " + what + " of a part of a warp");
    Meeting& warp = warps_[thread / warp_threads];
    warp.coming[thread % warp_threads] = value;
    const std::uint64_t number = warp.number;
    if (++warp.arrived < warp_threads) {
      wait(what, warp, number);
    } else {
      warp.arrived = 0;
      ++warp.number;
      std::copy_n(warp.coming, warp_threads, warp.values);
      if (work != nullptr) work(warp.values);
      moved_ = true;
    }
    return warp.values;
  }

 private:
  static void enter();

  void run_threads() {
    while (ended_ < threads_.size()) {
      moved_ = false;
      for (std::size_t i = 0; i < fibers_.size(); ++i)
        if (fibers_[i]->thread != nullptr && fibers_[i]->meeting->number != fibers_[i]->number) resume(*fibers_[i]);
      while (begun_ < threads_.size()) resume(idle_fiber());
      if (!moved_ && ended_ < threads_.size()) throw BugError("a block of a kernel is stuck: " + stuck_text());
    }
  }

  Fiber& idle_fiber() {
    for (const auto& fiber : fibers_)
      if (fiber->thread == nullptr) return *fiber;
    Fiber& fiber = *fibers_.emplace_back(std::make_unique<Fiber>());
    fiber.stack.resize(stack_bytes);
    fiber.context.begin_on(fiber.stack, enter);
    return fiber;
  }

  // Until the meeting after that number of them has taken place.
  void wait(const char* what, const Meeting& meeting, std::uint64_t number) {
    Fiber& fiber = *current_;
    fiber.thread->waits = what;
    fiber.meeting = &meeting;
    fiber.number = number;
    leave(fiber);
    fiber.thread->waits = nullptr;
    moved_ = true;
  }

  // Into a fiber, from the scheduler; and back.
  void resume(Fiber& fiber) {
    current_ = &fiber;
#ifdef SCALETRAIN_TELLS_SANITIZER
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.data(), fiber.stack.size());
#endif
    scheduler_.go_to(fiber.context);
#ifdef SCALETRAIN_TELLS_SANITIZER
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  void leave(Fiber& fiber) {
#ifdef SCALETRAIN_TELLS_SANITIZER
    __sanitizer_start_switch_fiber(&fiber.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
#endif
    fiber.context.go_to(scheduler_);
    arrive(fiber);
  }
  void arrive([[maybe_unused]] Fiber& fiber) {
#ifdef SCALETRAIN_TELLS_SANITIZER
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
  }

  std::string stuck_text() const {
    const Thread* waiting = nullptr;
    std::string others;
    for (const Thread& thread : threads_) {
      if (thread.waits != nullptr && waiting == nullptr)
        waiting = &thread;
      else if (thread.waits != nullptr && std::string(thread.waits) != waiting->waits && others.empty())
        others = ", " + place_of(thread.place) + " at " + thread.waits;
    }
    for (const Thread& thread : threads_)
      if (thread.has_ended) {
        others += "; " + place_of(thread.place) + " has ended";
        break;
      }
    return place_of(waiting->place) + " waits at " + waiting->waits + others;
  }

  const std::function<void()>* kernel_ = nullptr;
  std::vector<Thread> threads_;  // in the order in which they begin
  std::size_t begun_ = 0;
  std::size_t ended_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Meeting> warps_;
  Meeting block_;
  Fiber* current_ = nullptr;
  Context scheduler_;
  bool moved_ = false;  // somebody has got further since the scheduler's round began
  std::exception_ptr error_;
#ifdef SCALETRAIN_TELLS_SANITIZER
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
#endif
};

constinit thread_local Block* block_under_way = nullptr;

void Block::enter() {
  Block& block = *block_under_way;
  Fiber& fiber = *block.current_;
  block.arrive(fiber);
  for (;;) {
    while (block.begun_ < block.threads_.size() && !block.error_) {
      fiber.thread = &block.threads_[block.begun_++];
      try {
        (*block.kernel_)();
      } catch (...) {
        block.error_ = std::current_exception();
      }
      fiber.thread->has_ended = true;
      ++block.ended_;
      block.moved_ = true;
      fiber.thread = nullptr;
    }
    block.leave(fiber);
  }
}

}  // namespace

HostThread& this_thread() {
  return block_under_way->current();
}

void meet_block() {
  block_under_way->meet_block();
}

void meet_warp(unsigned mask) {
  block_under_way->meet_warp(mask, 0, "a barrier of the warp");
}

std::uint64_t meet_shuffle(unsigned mask, std::uint64_t value, unsigned from_lane) {
  return block_under_way->meet_warp(mask, value, "a shuffle")[from_lane];
}

unsigned meet_ballot(unsigned mask, bool vote) {
  const std::uint64_t* const votes = block_under_way->meet_warp(mask, vote ? 1 : 0, "a vote");
  unsigned all = 0;
  for (unsigned lane = 0; lane < warp_threads; ++lane) all |= votes[lane] != 0 ? 1U << lane : 0U;
  return all;
}

void meet_for(const char* what, void* address, void (*work)(WarpAddresses)) {
  block_under_way->meet_warp(0xffffffffU, reinterpret_cast<std::uintptr_t>(address), what, work);
}

std::vector<const void*> kernels_that_ran() {
  std::vector<const void*> all;
  const std::lock_guard lock(launches_mutex);
  for (const auto& [kernel, number] : launches()) all.push_back(kernel);
  return all;
}

void run_blocks(const LaunchShape& shape, const void* kernel, const std::function<void()>& body) {
  static thread_local Block block;  // whose fibers are kept
  block_under_way = &block;
  const Way way = next_way(kernel);
  SCALETRAIN_CHECK(shape.threads > 0 && shape.threads <= 1024 && shape.threads % warp_threads == 0);
  SCALETRAIN_CHECK(shape.shared_bytes <= most_shared_bytes);
  SCALETRAIN_CHECK(shape.blocks.x > 0 && shape.blocks.y > 0 && shape.blocks.z > 0);
  SCALETRAIN_CHECK(shape.blocks.x <= 0x7fffffffU && shape.blocks.y <= 65535 && shape.blocks.z <= 65535);
  const std::uint64_t blocks = std::uint64_t{shape.blocks.x} * shape.blocks.y * shape.blocks.z;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t at = way.backwards ? blocks - 1 - i : i;
    const uint3 index{static_cast<unsigned>(at % shape.blocks.x),
                      static_cast<unsigned>(at / shape.blocks.x % shape.blocks.y),
                      static_cast<unsigned>(at / shape.blocks.x / shape.blocks.y)};
    block.run(shape, index, body, way);
  }
}

}  // namespace scaletrain::cuda
