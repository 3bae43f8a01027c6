#include "tensor/buffer.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

using namespace scaletrain;

namespace {

// The allocations of an imagined layer.
void allocate_all(RegionAllocator& allocator) {
  allocator.allocate(DType::f32, Shape{3, 5});
  allocator.allocate(DType::u8, Shape{1});
  allocator.allocate(DType::f64, Shape{0, 9});
  allocator.allocate(DType::bf16, Shape{65});
}

}  // namespace

TEST_CASE("a_buffer_is_aligned_and_filled_with_zeros") {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{4097}, std::size_t{5} << 20}) {
    const Buffer buffer(bytes);
    CHECK(buffer.size() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % buffer_alignment == 0);
    std::size_t others = 0;
    for (std::size_t i = 0; i < bytes; ++i) others += buffer.data()[i] != std::byte{0} ? 1 : 0;
    CHECK(others == 0);
    buffer.data()[bytes - 1] = std::byte{1};
  }
  CHECK(Buffer().data() == nullptr);
  CHECK(Buffer(0).size() == 0);
}

TEST_CASE("moving_a_buffer_hands_over_its_memory") {
  Buffer first(100);
  first.data()[99] = std::byte{42};
  const std::byte* address = first.data();
  Buffer second(std::move(first));
  CHECK(second.data() == address);
  CHECK(second.size() == 100);
  CHECK(first.data() == nullptr);  // NOLINT(bugprone-use-after-move): an empty buffer is what a move leaves
  CHECK(first.size() == 0);
  Buffer third(7);
  third = std::move(second);
  CHECK(third.data()[99] == std::byte{42});
  CHECK(third.size() == 100);
}

TEST_CASE("a_buffer_that_cannot_be_had_is_bad_alloc") {
  CHECK_THROWS_AS(Buffer(std::size_t{1} << 62), std::bad_alloc);
}

TEST_CASE("memory_of_any_space_is_given_back_once_to_whom_it_came_from") {
  std::array<std::byte, 64> memory{};
  std::vector<std::pair<std::byte*, std::size_t>> freed;
  const auto free = [&freed](std::byte* data, std::size_t size) { freed.emplace_back(data, size); };
  {
    Buffer first(memory.data(), memory.size(), Space::device, free);
    Buffer second(std::move(first));
    CHECK(second.space() == Space::device);
    CHECK(second.region().space == Space::device);
    Buffer third(16);
    third = std::move(second);
    CHECK(third.space() == Space::device);
    CHECK(second.space() == Space::host);  // NOLINT(bugprone-use-after-move): the two have changed places
    CHECK(freed.empty());
  }
  CHECK(freed == std::vector<std::pair<std::byte*, std::size_t>>{{memory.data(), memory.size()}});
  CHECK(Buffer(1).space() == Space::host);
}

TEST_CASE("everything_cut_from_a_buffer_is_of_its_space") {
  std::array<std::byte, 256> memory{};
  const auto keep = [](std::byte*, std::size_t) {};
  for (const Space space : {Space::host, Space::pinned, Space::device}) {
    const Buffer buffer(memory.data(), memory.size(), space, keep);
    const View view = buffer.view(0, DType::f32, Shape{4, 4});
    CHECK(view.space() == space);
    CHECK(view.rows(1, 2).space() == space);
    CHECK(view.reshape(Shape{16}).space() == space);
    CHECK(ConstView(view).rows(1, 2).space() == space);
    CHECK(ConstView(view).reshape(Shape{16}).space() == space);
    RegionAllocator allocator(buffer.region());
    CHECK(allocator.allocate(DType::f32, Shape{4}).space() == space);
  }
}

TEST_CASE("views_of_a_buffer_stay_inside_and_aligned_to_their_elements") {
  const Buffer buffer(64);
  CHECK(buffer.view(32, DType::f32, Shape{2, 4}).data() == buffer.data() + 32);
  CHECK(buffer.view(64, DType::f64, Shape{0}).num_elements() == 0);
  CHECK_THROWS_AS(buffer.view(36, DType::f32, Shape{2, 4}), BugError);
  CHECK_THROWS_AS(buffer.view(2, DType::f32, Shape{1}), BugError);
  CHECK_THROWS_AS(buffer.view(SIZE_MAX - 7, DType::f64, Shape{2}), BugError);
}

TEST_CASE("a_region_is_handed_out_in_aligned_pieces_that_do_not_overlap") {
  const Buffer buffer(256);
  RegionAllocator allocator(Region{buffer.data(), buffer.size()});
  const View first = allocator.allocate(DType::f32, Shape{3, 5});
  const View second = allocator.allocate(DType::u8, Shape{1});
  const View third = allocator.allocate(DType::f64, Shape{16});
  CHECK(first.data() == buffer.data());
  CHECK(second.data() == buffer.data() + 64);
  CHECK(third.data() == buffer.data() + 128);
  CHECK(third.shape() == Shape{16});
  CHECK(allocator.used() == 256);
  CHECK_THROWS_AS(allocator.allocate(DType::u8, Shape{1}), BugError);
}

TEST_CASE("counting_gives_exactly_what_the_real_allocations_use") {
  RegionAllocator counting = RegionAllocator::counting();
  allocate_all(counting);
  CHECK(counting.counts_only());
  CHECK(counting.used() == 64 + 64 + 0 + 192);
  CHECK_FALSE(static_cast<bool>(counting.allocate(DType::f32, Shape{2})));

  RegionAllocator sized = RegionAllocator::counting();
  allocate_all(sized);
  const Buffer buffer(sized.used());
  RegionAllocator real(Region{buffer.data(), buffer.size()});
  CHECK_FALSE(real.counts_only());
  CHECK_NOTHROW(allocate_all(real));
  CHECK(real.used() == buffer.size());
}

TEST_CASE("align_up_rounds_to_whole_lines") {
  CHECK(align_up(0) == 0);
  CHECK(align_up(1) == 64);
  CHECK(align_up(64) == 64);
  CHECK(align_up(65) == 128);
  CHECK(align_up(9, 8) == 16);
}
