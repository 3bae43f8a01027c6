// Groups of GPUs by NCCL: of one rank, which is what one GPU can show, as the host carries it out and on this
// machine's. More ranks are in tests/multirank/nccl_test.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <type_traits>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "base/error.h"
#include "support/cuda/fake_nccl.h"
#include "support/cuda/module_of_machine.h"
#include "support/eventually.h"
#include "tensor/halves.h"

using namespace scaletrain;

namespace {

// Values in memory of the device, through memory that the group's stream reaches.
template <class T>
class OnDevice {
 public:
  OnDevice(Backend& backend, Stream& stream, const std::vector<T>& values)
      : backend_(backend),
        stream_(stream),
        device_(backend.allocate(values.size() * sizeof(T))),
        pinned_(backend.allocate_pinned(values.size() * sizeof(T))),
        shape_{static_cast<std::int64_t>(values.size())} {
    std::memcpy(pinned_.data(), values.data(), pinned_.size());
    backend_.copy(stream_, pinned_.view(0, dtype_of<T>(), shape_), device_.view(0, dtype_of<T>(), shape_));
  }
  std::byte* data() const { return device_.data(); }
  std::vector<T> read() {
    backend_.copy(stream_, device_.view(0, dtype_of<T>(), shape_), pinned_.view(0, dtype_of<T>(), shape_));
    stream_.synchronize();
    std::vector<T> values(pinned_.size() / sizeof(T));
    std::memcpy(values.data(), pinned_.data(), pinned_.size());
    return values;
  }

 private:
  Backend& backend_;
  Stream& stream_;
  Buffer device_, pinned_;
  Shape shape_;
};

void check_messages(Backend& backend, DeviceGroup& group) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1003}, std::size_t{9} << 20}) {
    std::vector<std::uint8_t> values(bytes);
    for (std::size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::uint8_t>(i * 7 % 251);
    OnDevice<std::uint8_t> from(backend, group.stream(), values);
    OnDevice<std::uint8_t> to(backend, group.stream(), std::vector<std::uint8_t>(bytes));
    const std::vector<DeviceMessage> messages = {{DeviceMessage::Direction::send, 0, from.data(), bytes},
                                                 {DeviceMessage::Direction::receive, 0, to.data(), bytes}};
    group.issue(messages);
    CHECK(eventually([&] { return group.is_ready(); }));
    CHECK(to.read() == values);
  }
}

// Of three operands, of which the one in the middle is the rank's own: sums that another order would change.
template <class T>
void check_reductions(Backend& backend, DeviceGroup& group, double large) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{5}, std::size_t{5003}}) {
    const std::size_t stride = (count * sizeof(T) + 63) / 64 * 64;
    const std::size_t padded = stride / sizeof(T);
    std::vector<T> others(2 * padded);
    for (std::size_t i = 0; i < count; ++i) {
      others[i] = static_cast<T>(large);
      others[padded + i] = static_cast<T>(-large);
    }
    OnDevice<T> staged(backend, group.stream(), others);
    for (const auto op : {DeviceReduction::Operator::sum, DeviceReduction::Operator::maximum}) {
      OnDevice<T> own(backend, group.stream(), std::vector<T>(count, static_cast<T>(1)));
      group.reduce({.op = op,
                    .dtype = dtype_of<T>(),
                    .count = static_cast<std::int64_t>(count),
                    .operands = 3,
                    .own = 1,
                    .own_data = own.data(),
                    .others = staged.data(),
                    .stride = stride,
                    .output = own.data()});
      using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
      const Wide first = static_cast<Wide>(static_cast<T>(large));
      const Wide sum = (first + Wide(1)) + Wide(-first);
      const double expected =
          op == DeviceReduction::Operator::sum ? static_cast<double>(sum) : static_cast<double>(first);
      for (const T value : own.read()) {
        if (static_cast<double>(value) == expected) continue;
        FAIL_CHECK(std::string(to_text(dtype_of<T>()))
                   << ", " << count << " elements: " << static_cast<double>(value) << " is not " << expected);
        break;
      }
    }
  }
}

void check_group_of_one(Backend& backend, DeviceNetwork& network) {
  const auto group = network.join({.id = network.make_id(), .size = 1, .rank = 0});
  REQUIRE(eventually([&] { return group->is_ready(); }));
  check_messages(backend, *group);
  check_reductions<float>(backend, *group, 1e8);
  check_reductions<double>(backend, *group, 1e17);
  check_reductions<std::int64_t>(backend, *group, 1e9);
  check_reductions<Bf16>(backend, *group, 512.0);
  check_reductions<F16>(backend, *group, 4096.0);

  const auto waits = backend.make_stream();
  group->abort("given up");
  group->abort("given up again");
  waits->after(group->stream().record());
  CHECK_THROWS_WITH_AS(group->stream().synchronize(), "given up", PeerError);
  CHECK_THROWS_WITH_AS(waits->synchronize(), "given up", PeerError);
  CHECK_THROWS_WITH_AS(waits->record().wait(), "given up", PeerError);
  // Another group has nothing to do with it.
  const auto next = network.join({.id = network.make_id(), .size = 1, .rank = 0});
  REQUIRE(eventually([&] { return next->is_ready(); }));
  check_messages(backend, *next);
}

}  // namespace

TEST_CASE("a_group_of_one_gpu_sends_to_itself_sums_in_the_order_of_the_ranks_and_is_aborted") {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  {
    const fake_nccl::Installed nccl;
    const auto backend = make_cuda_backend({});
    const FoundDeviceNetwork found = backend->find_network({});
    REQUIRE(found.network);
    CHECK(found.network->name() == "NCCL 2.28.9");
    check_group_of_one(*backend, *found.network);
    CHECK(fake_nccl::take_problem().empty());
  }
  ::unsetenv("CUDA_MODULE_LOADING");
}

TEST_CASE("nccl_takes_the_interface_of_the_host_by_its_whole_name") {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const fake_nccl::Installed nccl;
  REQUIRE(make_cuda_backend({})->find_network({.interface = "ib0"}).network);
  CHECK(std::string(std::getenv("NCCL_SOCKET_IFNAME")) == "=ib0");
  ::unsetenv("NCCL_SOCKET_IFNAME");
  ::unsetenv("CUDA_MODULE_LOADING");
}

// By itself, since the driver is told at its start how to load kernels.
TEST_CASE("nccl_of_this_machine_serves_a_group_of_its_gpu") {
  load_kernels_ahead();
  const auto module = module_of_machine();
  if (!module) return;
  const auto backend = module->make_backend({});
  const FoundDeviceNetwork found = backend->find_network({});
  if (!found.network) {
    MESSAGE("skipped: NCCL: " << found.obstacle);
    return;
  }
  MESSAGE("by " << found.network->name());
  check_group_of_one(*backend, *found.network);
}
