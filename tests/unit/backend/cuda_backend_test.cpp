// The backend of GPUs on a runtime that runs on the host (tests/support/cuda/fake_runtime.cpp), whose streams run late.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "backend/cuda/architectures.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/pinned_memory.h"
#include "base/error.h"
#include "support/cuda/fake_runtime.h"
#include "support/cuda/module_of_machine.h"
#include "support/eventually.h"
#include "support/forwarding_backend.h"
#include "support/ranks/fenced_backend.h"
#include "support/resident_memory.h"
#include "support/sanitizers.h"
#include "support/temp_folder.h"

using namespace scaletrain;

namespace {

constexpr std::int64_t count = 1000;

View floats(const Buffer& buffer) {
  return buffer.view(0, DType::f32, Shape{count});
}

std::vector<float> held(const Buffer& pinned) {
  std::vector<float> values(count);
  std::memcpy(values.data(), pinned.data(), count * sizeof(float));
  return values;
}

// One of a device, one of its host.
struct Memory {
  explicit Memory(Backend& backend)
      : device(backend.allocate(count * sizeof(float))), pinned(backend.allocate_pinned(count * sizeof(float))) {}
  Buffer device, pinned;
};

void check_events(Backend& backend) {
  const auto makes = backend.make_stream();
  const auto reads = backend.make_stream();
  Memory memory(backend);
  for (int round = 1; round <= 20; ++round) {
    for (int turn = 0; turn < 10; ++turn) backend.run(*makes, Fill{.output = floats(memory.device), .value = -1.0});
    backend.run(*makes, Fill{.output = floats(memory.device), .value = static_cast<double>(round)});
    reads->after(makes->record());
    backend.copy(*reads, floats(memory.device), floats(memory.pinned));
    const Event copied = reads->record();
    makes->after(copied);
    copied.wait();
    CHECK(copied.is_done());
    CHECK(held(memory.pinned) == std::vector<float>(count, static_cast<float>(round)));
  }
}

void check_functions_that_throw(Backend& backend) {
  const auto stream = backend.make_stream();
  std::atomic<int> called{0};
  stream->call([&] { ++called; });
  stream->call([] { throw PeerError("gone"); });
  stream->call([&] { ++called; });
  const Event behind = stream->record();
  CHECK_THROWS_WITH_AS(behind.wait(), "gone", PeerError);
  CHECK_THROWS_WITH_AS(stream->synchronize(), "gone", PeerError);
  CHECK(called == 1);
  stream->call([&] { ++called; });
  stream->synchronize();
  CHECK(called == 2);
}

void check_functions_that_wait(Backend& backend) {
  const auto first = backend.make_stream();
  const auto second = backend.make_stream();
  std::promise<void> of_first;
  std::promise<void> of_second;
  first->call([&] {
    of_first.set_value();
    of_second.get_future().wait();
  });
  second->call([&] {
    of_second.set_value();
    of_first.get_future().wait();
  });
  first->synchronize();
  second->synchronize();
}

// Into and out of memory that is pinned in pieces, over their ends; all of it is zero before.
void check_copies_over_pieces(Backend& backend) {
  constexpr std::size_t mebi = std::size_t{1} << 20;
  constexpr std::size_t bytes = 2 * cuda::pinned_piece_bytes + 5;
  const auto stream = backend.make_stream();
  const Buffer from = backend.allocate_pinned(bytes);
  const Buffer to = backend.allocate_pinned(bytes);
  const Buffer device = backend.allocate(2 * mebi);
  const Shape shape{static_cast<std::int64_t>(2 * mebi / size_of(DType::i32))};
  for (const std::size_t end : {cuda::pinned_piece_bytes, 2 * cuda::pinned_piece_bytes - mebi + 4}) {
    const std::size_t first = end - mebi;
    for (const Buffer* memory : {&from, &to})
      for (std::size_t byte = first; byte < first + 2 * mebi; byte += 509)
        REQUIRE(memory->data()[byte] == std::byte{0});
    for (std::size_t byte = 0; byte < 2 * mebi; ++byte)
      from.data()[first + byte] = static_cast<std::byte>(byte * 2654435761U >> 13);
    const View there = device.view(0, DType::i32, shape);
    backend.copy(*stream, from.view(first, DType::i32, shape), there);
    backend.copy(*stream, there, to.view(first, DType::i32, shape));
    stream->synchronize();
    CHECK(std::memcmp(from.data() + first, to.data() + first, 2 * mebi) == 0);
  }
  CHECK(to.data()[bytes - 1] == std::byte{0});
}

// A GPU in halves whose products take this long, whatever their size, and that gives out no more memory at once.
class ProductsOfKnownTime final : public ForwardingBackend {
 public:
  static constexpr double seconds = 0.04;  // so long that a busy machine does not add as much
  explicit ProductsOfKnownTime(std::size_t most)
      : ForwardingBackend(make_cuda_backend({.compute = DType::bf16})), most_(most) {}
  Buffer allocate(std::size_t bytes) override {
    if (bytes > most_) throw std::bad_alloc();
    return inner().allocate(bytes);
  }

  std::set<std::int64_t> sizes;
  bool is_filled = true;  // factors, with numbers

 private:
  void launch(Stream& stream, const Operation& op) override {
    const auto* const product = std::get_if<LinearForward>(&op);
    REQUIRE(product != nullptr);
    sizes.insert(product->output.shape()[0]);
    for (const ConstView& factor : {product->weight.values, product->input}) {
      const ConstView values = FencedMemory::of_process().values(factor);
      const auto* const halves = static_cast<const std::uint16_t*>(values.data());
      const auto zeros = std::count(halves, halves + values.num_elements(), 0);
      is_filled = is_filled && zeros < values.num_elements() / 100;
    }
    stream.call([] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
  }

  std::size_t most_;
};

// What the user of a run would be told of a failure of a peer.
template <class Act>
std::string run_and_tell(const Act& act, Stream& stream, const Event& event, const Memory& memory) {
  try {
    act(stream, event, memory);
    return "";
  } catch (const PeerError& error) {
    return error.what();
  }
}

// An event may outlive its stream.
void check_events_left_over(Backend& backend) {
  Event left;
  {
    const auto stream = backend.make_stream();
    stream->call([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    left = stream->record();
  }
  CHECK(left.is_done());
  left.wait();
}

}  // namespace

TEST_CASE("memory_of_a_gpu_is_zero_and_copies_follow_the_stream_they_are_issued_to") {
  const auto backend = make_cuda_backend({});
  CHECK(backend->space() == Space::device);
  CHECK(backend->description().find("the host (sm_80, driver 13.0") != std::string::npos);
  const auto stream = backend->make_stream();
  Memory first(*backend);
  Memory second(*backend);
  backend->copy(*stream, floats(first.device), floats(first.pinned));
  stream->synchronize();
  CHECK(held(first.pinned) == std::vector<float>(count, 0.0F));
  backend->run(*stream, Fill{.output = floats(first.device), .value = 3.0});
  backend->copy(*stream, floats(first.device), floats(second.device));
  backend->copy(*stream, floats(second.device), floats(second.pinned));
  stream->synchronize();
  CHECK(held(second.pinned) == std::vector<float>(count, 3.0F));
}

// What an address is to the host, asked of the kernel instead of tried.
TEST_CASE("memory_of_a_gpu_that_the_host_takes_for_its_own_is_beyond_its_reach") {
  if (is_sanitized) return;  // which watch its ends instead
  const auto backend = make_cuda_backend({});
  const auto stream = backend->make_stream();
  Memory memory(*backend);
  backend->run(*stream, Fill{.output = floats(memory.device), .value = 3.0});
  stream->synchronize();
  int pipe[2] = {};
  REQUIRE(::pipe(pipe) == 0);
  const auto reach = [&](const std::byte* data) { return ::write(pipe[1], data, sizeof(float)); };
  CHECK(reach(memory.device.data()) == -1);
  CHECK(errno == EFAULT);
  CHECK(reach(memory.device.data() + memory.device.size() - sizeof(float)) == -1);
  CHECK(reach(memory.pinned.data()) == sizeof(float));
  bool is_in_reach = true;
  stream->call([&] { is_in_reach = reach(memory.device.data()) != -1; });  // who runs for a stream is the host too
  stream->synchronize();
  CHECK_FALSE(is_in_reach);
  const ConstView values = FencedMemory::of_process().values(floats(memory.device));
  CHECK(static_cast<const float*>(values.data())[count - 1] == 3.0F);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_CASE("memory_of_the_host_that_is_pinned_slowly_is_seen_to_get_further") {
  WorkCount work{0};
  const auto backend = make_cuda_backend({.work = &work});
  std::vector<std::pair<std::size_t, std::uint64_t>> locked;  // bytes, and the work that was done before
  fake_runtime::on_pinning([&](std::size_t bytes) {
    locked.emplace_back(bytes, work.load());
    std::this_thread::sleep_for(std::chrono::duration<double>(1e-10 * static_cast<double>(bytes)));  // 9 GiB/s
    return true;
  });
  constexpr std::size_t bytes = 3 * cuda::pinned_piece_bytes + 5;
  Buffer memory = backend->allocate_pinned(bytes);
  fake_runtime::on_pinning({});
  CHECK(memory.size() == bytes);
  CHECK(memory.space() == Space::pinned);
  // As much as 1 GiB in a second is pinned in an eighth of the shortest heartbeat, which is one.
  std::size_t all = 0;
  for (std::size_t i = 0; i < locked.size(); ++i) {
    CHECK(locked[i].first <= std::size_t{1} << 27);
    CHECK(locked[i].second == i);
    all += locked[i].first;
  }
  CHECK(work == locked.size());
  CHECK(all >= bytes);
  CHECK(fake_runtime::registered_bytes() == all);
  memory = Buffer();
  CHECK(fake_runtime::registered_bytes() == 0);
  CHECK(work == 2 * locked.size());  // nor may it hang when it ends
}

// What remains to be done for a page that is there is little.
TEST_CASE("memory_is_touched_before_it_is_pinned_by_several_threads_ahead_of_who_pins_it") {
  constexpr std::size_t bytes = 3 * cuda::pinned_piece_bytes + 5;
  constexpr std::size_t little = std::size_t{16} << 20;
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    const auto backend = make_cuda_backend({.threads = threads});
    const std::uint64_t before = resident_memory();
    std::size_t pinned = 0;
    fake_runtime::on_pinning([&](std::size_t piece) {
      const bool is_first = pinned == 0;
      pinned += piece;
      const auto is_there = [&](std::size_t wanted) { return resident_memory() + little > before + wanted; };
      if (is_sanitized) return true;  // whose own memory is resident too
      CHECK(is_there(pinned));
      // Others go on while this thread pins.
      if (is_first && threads > 1) CHECK(eventually([&] { return is_there(bytes); }));
      if (is_first && threads == 1) CHECK_FALSE(is_there(pinned + 2 * little));
      return true;
    });
    const Buffer memory = backend->allocate_pinned(bytes);
    fake_runtime::on_pinning({});
    CHECK(pinned >= bytes);
    const auto* const begin = memory.data();
    CHECK(std::all_of(begin, begin + bytes, [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST_CASE("memory_that_cannot_all_be_pinned_is_given_back") {
  const auto backend = make_cuda_backend({.threads = 2});
  int left = 2;
  fake_runtime::on_pinning([&left](std::size_t) { return left-- > 0; });
  CHECK_THROWS_AS(backend->allocate_pinned(3 * cuda::pinned_piece_bytes), std::bad_alloc);
  CHECK(fake_runtime::registered_bytes() == 0);
  left = 0;
  CHECK_THROWS_AS(backend->allocate_pinned(16), std::bad_alloc);
  fake_runtime::on_pinning({});
}

TEST_CASE("copies_reach_over_the_ends_of_what_is_pinned_in_pieces") {
  check_copies_over_pieces(*make_cuda_backend({}));
}

TEST_CASE("a_gpu_whose_products_are_in_tf32_says_so_and_computes_in_f32") {
  const std::string description = make_cuda_backend({.tf32 = true})->description();
  CHECK_MESSAGE(description.ends_with(", products in tf32)"), description);
  CHECK(make_cuda_backend({})->description().find("tf32") == std::string::npos);
  CHECK_THROWS_AS(make_cuda_backend({.compute = DType::bf16, .tf32 = true}), BugError);
}

TEST_CASE("what_a_gpus_stream_is_given_behind_anothers_event_finds_what_that_one_made") {
  check_events(*make_cuda_backend({}));
}

TEST_CASE("a_function_of_a_gpus_stream_that_throws_is_told_once_and_nothing_behind_it_is_called") {
  check_functions_that_throw(*make_cuda_backend({}));
}

TEST_CASE("functions_of_a_gpus_streams_may_wait_for_each_other") {
  check_functions_that_wait(*make_cuda_backend({}));
}

TEST_CASE("an_event_of_a_gpu_may_outlive_its_stream") {
  check_events_left_over(*make_cuda_backend({}));
}

TEST_CASE("the_gpu_of_this_machine_keeps_the_order_of_its_streams_and_of_the_hosts_functions") {
  const auto module = module_of_machine();
  if (!module) return;
  const auto backend = module->make_backend({});
  check_events(*backend);
  check_functions_that_throw(*backend);
  check_functions_that_wait(*backend);
  check_events_left_over(*backend);
  check_copies_over_pieces(*backend);
}

TEST_CASE("a_function_of_a_gpus_stream_may_not_use_the_gpu") {
  const auto backend = make_cuda_backend({});
  const auto stream = backend->make_stream();
  stream->call([&] { stream->synchronize(); });
  CHECK_THROWS_AS(stream->synchronize(), BugError);
}

TEST_CASE("a_kernel_that_traps_ends_the_rank_by_an_error_of_the_gpu") {
  const auto backend = make_cuda_backend({});
  const auto stream = backend->make_stream();
  const Buffer table = backend->allocate(4 * 8 * sizeof(float));
  const Buffer ids = backend->allocate_pinned(sizeof(std::int32_t));
  const Buffer ids_of_device = backend->allocate(sizeof(std::int32_t));
  const Buffer output = backend->allocate(8 * sizeof(float));
  const std::int32_t nowhere = 4;
  std::memcpy(ids.data(), &nowhere, sizeof nowhere);
  backend->copy(*stream, ids.view(0, DType::i32, Shape{1}), ids_of_device.view(0, DType::i32, Shape{1}));
  backend->run(*stream, EmbeddingForward{.table = table.view(0, DType::f32, Shape{4, 8}),
                                         .position_table = {},
                                         .ids = ids_of_device.view(0, DType::i32, Shape{1}),
                                         .positions = {},
                                         .output = output.view(0, DType::f32, Shape{1, 8})});
  char host[256] = {};
  REQUIRE(::gethostname(host, sizeof host - 1) == 0);
  const std::string text = "GPU 0 (the host at fa4e:1b:00.0) of " + std::string(host) +
                           ": what a stream was given failed: unspecified launch failure (cudaErrorLaunchFailure); the "
                           "kernel's log (dmesg, Xid) and nvidia-smi -q may say why";
  CHECK_THROWS_WITH_AS(stream->synchronize(), text.c_str(), PeerError);
}

TEST_CASE("whatever_a_gpu_fails_in_its_error_names_it_its_host_and_what_failed") {
  const TempFolder folder;
  const std::filesystem::path failure = folder.path() / "failure";
  ::setenv("SCALETRAIN_FAKE_FAILURE", (failure.string() + ":0").c_str(), 1);
  const auto backend = make_cuda_backend({.graphs = true});
  char host[256] = {};
  REQUIRE(::gethostname(host, sizeof host - 1) == 0);
  const std::string name = "GPU 0 (the host at fa4e:1b:00.0) of " + std::string(host) + ": ";
  const std::string more = "; the kernel's log (dmesg, Xid) and nvidia-smi -q may say why";
  const std::string launch_failure = " failed: unspecified launch failure (cudaErrorLaunchFailure)";
  const auto check_failure_in = [&](const char* what, const std::string& words, auto&& act) {
    CAPTURE(what);
    const auto stream = backend->make_stream();
    const auto other = backend->make_stream();
    Memory memory(*backend);
    const Event event = other->record();
    const std::string none = run_and_tell(act, *stream, event, memory);
    CHECK(none == "");
    std::ofstream(failure) << what;
    const std::string told = run_and_tell(act, *stream, event, memory);
    std::filesystem::remove(failure);
    CHECK(told == name + words + more);
  };
  const auto fill = [&](Stream& stream, const Event&, const Memory& memory) {
    backend->run(stream, Fill{.output = floats(memory.device), .value = 1.0});
  };
  const auto multiply = [&](Stream& stream, const Event&, const Memory& memory) {
    const auto part = [&](std::size_t from) {
      return memory.device.view(from * sizeof(float), DType::f32, Shape{16, 16});
    };
    backend->run(stream,
                 LinearForward{
                     .weight = {.values = part(0)}, .bias = {}, .input = part(256), .addend = {}, .output = part(512)});
  };
  check_failure_in("copies", "a copy" + launch_failure, [&](Stream& stream, const Event&, const Memory& memory) {
    backend->copy(stream, floats(memory.pinned), floats(memory.device));
  });
  check_failure_in("kernels", "the launch of a kernel" + launch_failure, fill);
  check_failure_in(
      "products",
      "cuBLASLt: a product failed: the function failed to launch on the GPU (CUBLAS_STATUS_EXECUTION_FAILED)",
      multiply);
  check_failure_in("events", "the wait of a stream" + launch_failure,
                   [](Stream& stream, const Event& event, const Memory&) { stream.after(event); });
  check_failure_in("events", "an event" + launch_failure,
                   [](Stream& stream, const Event&, const Memory&) { stream.record().wait(); });
  check_failure_in("waits", "what a stream was given" + launch_failure,
                   [](Stream&, const Event& event, const Memory&) { event.wait(); });
  check_failure_in("waits", "what a stream was given" + launch_failure,
                   [](Stream& stream, const Event&, const Memory&) { stream.synchronize(); });
  check_failure_in("calls", "a call of the host" + launch_failure,
                   [](Stream& stream, const Event&, const Memory&) { stream.call([] {}); });
  check_failure_in("waits for values", "the wait of a stream for the host failed: error 719",
                   [](Stream& stream, const Event&, const Memory&) { stream.call([] {}); });
  ::unsetenv("SCALETRAIN_FAKE_FAILURE");
}

TEST_CASE("the_peak_of_a_gpu_is_of_the_largest_product_that_there_is_time_and_memory_for_by_the_clock") {
  constexpr auto operands = [](std::int64_t size) { return static_cast<std::size_t>(3 * size * size) * 2; };
  const auto peak = [](std::int64_t size) {
    const auto side = static_cast<double>(size);
    return 2.0 * side * side * side / ProductsOfKnownTime::seconds;
  };
  {
    ProductsOfKnownTime backend(operands(2048));
    const auto stream = backend.make_stream();
    const double found = calibrate_matmul(backend, *stream, 100.0);
    CHECK(found <= peak(2048));
    CHECK(found > 0.3 * peak(2048));
    CHECK(backend.sizes == std::set<std::int64_t>{512, 1024, 2048});
    CHECK(backend.is_filled);
  }
  {
    ProductsOfKnownTime backend(operands(2048));
    const auto stream = backend.make_stream();
    const double found = calibrate_matmul(backend, *stream, 10 * ProductsOfKnownTime::seconds);
    CHECK(found <= peak(512));
    CHECK(backend.sizes == std::set<std::int64_t>{512});
  }
  ProductsOfKnownTime backend(operands(512) - 1);
  const auto stream = backend.make_stream();
  CHECK_THROWS_AS(calibrate_matmul(backend, *stream, 1.0), std::bad_alloc);
}

TEST_CASE("a_gpu_that_is_not_there_is_refused") {
  CHECK_THROWS_WITH_AS(
      make_cuda_backend({.device = 1}),
      "CUDA: the choice of a GPU failed: invalid device ordinal (cudaErrorInvalidDevice); the kernel's "
      "log (dmesg, Xid) and nvidia-smi -q may say why",
      PeerError);
}

TEST_CASE("kernels_run_on_later_gpus_of_a_major_number_and_by_ptx_on_all_that_are_later") {
  using cuda::is_compiled_for;
  for (const int sm : {80, 86, 89, 90, 100, 103, 120}) CHECK(is_compiled_for("80-real,90-real,100", sm));
  CHECK(is_compiled_for("90-real", 90));
  for (const int sm : {80, 89, 100, 120}) CHECK_FALSE(is_compiled_for("90-real", sm));
  CHECK_FALSE(is_compiled_for("86-real", 80));
  CHECK(is_compiled_for("86", 90));
  CHECK(is_compiled_for("80-virtual", 100));
  CHECK_FALSE(is_compiled_for("90-virtual", 80));
  // What is compiled for one capability alone.
  CHECK(is_compiled_for("90a", 90));
  CHECK_FALSE(is_compiled_for("100a", 103));
  CHECK_FALSE(is_compiled_for("90a", 100));
  CHECK(is_compiled_for("100f", 103));
  CHECK_FALSE(is_compiled_for("100f", 120));
  CHECK(is_compiled_for("native", 75));
  CHECK_FALSE(is_compiled_for("", 90));
  CHECK(cuda::architectures_text("80-real,90a-real,100") == "sm_80, sm_90a, sm_100");
}
