#include "tensor/view.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <sstream>

using namespace scaletrain;

TEST_CASE("a_shape_knows_its_dims_and_elements") {
  const Shape shape{2, 3, 5};
  CHECK(shape.num_dims() == 3);
  CHECK(shape[0] == 2);
  CHECK(shape[2] == 5);
  CHECK(shape.num_elements() == 30);
  CHECK(Shape{}.num_elements() == 1);
  CHECK(Shape{7, 0, 3}.num_elements() == 0);
  CHECK(to_text(Shape{768, 2304}) == "[768, 2304]");
  CHECK(to_text(Shape{}) == "[]");
  std::ostringstream text;
  text << Shape{4};
  CHECK(text.str() == "[4]");
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  CHECK(product == 30);
}

TEST_CASE("shapes_are_equal_when_their_dims_are") {
  CHECK(Shape{2, 3} == Shape{2, 3});
  CHECK_FALSE(Shape{2, 3} == Shape{3, 2});
  CHECK_FALSE(Shape{6} == Shape{2, 3});
  CHECK_FALSE(Shape{6} == Shape{6, 1});
  Shape built;
  built.append(2);
  built.append(3);
  CHECK(built == Shape{2, 3});
}

TEST_CASE("impossible_shapes_are_bugs") {
  CHECK_THROWS_AS((Shape{-1}), BugError);
  CHECK_THROWS_AS((Shape{1, 2, 3, 4, 5}), BugError);
  CHECK_THROWS_AS((Shape{std::int64_t{1} << 32, std::int64_t{1} << 31}), BugError);
  CHECK((Shape{std::int64_t{1} << 31, std::int64_t{1} << 31}).num_elements() == std::int64_t{1} << 62);
  const Shape shape{2, 3};
  CHECK_THROWS_AS(shape[2], BugError);
  CHECK_THROWS_AS(shape[-1], BugError);
}

TEST_CASE("a_view_gives_its_elements_only_as_its_own_type") {
  std::array<float, 6> memory{0, 1, 2, 3, 4, 5};
  const View view(memory.data(), DType::f32, Shape{2, 3});
  CHECK(view.as<float>()[4] == 4.0f);
  CHECK(view.num_bytes() == 24);
  CHECK_THROWS_AS(view.as<double>(), BugError);
  CHECK_THROWS_AS(view.as<std::int32_t>(), BugError);
  const ConstView constant = view;
  CHECK(constant.as<float>() == memory.data());
  CHECK(constant.shape() == view.shape());
  CHECK_THROWS_AS(constant.as<double>(), BugError);
}

TEST_CASE("the_host_reads_and_writes_its_own_memory_alone") {
  std::array<float, 6> memory{0, 1, 2, 3, 4, 5};
  const auto view_in = [&memory](Space space) { return View(memory.data(), DType::f32, Shape{2, 3}, space); };
  for (const Space space : {Space::host, Space::pinned}) {
    CHECK(view_in(space).as<float>()[4] == 4.0f);
    CHECK(ConstView(view_in(space)).as<float>()[4] == 4.0f);
    CHECK(static_cast<void*>(view_in(space).bytes()) == memory.data());
    CHECK(static_cast<const void*>(ConstView(view_in(space)).bytes()) == memory.data());
  }
  const View view = view_in(Space::device);
  CHECK_THROWS_AS(view.as<float>(), BugError);
  CHECK_THROWS_AS(view.bytes(), BugError);
  CHECK_THROWS_AS(ConstView(view).as<float>(), BugError);
  CHECK_THROWS_AS(ConstView(view).bytes(), BugError);
  CHECK(view.data() == memory.data());  // an address is no access
}

TEST_CASE("an_absent_view_is_false") {
  std::int32_t number = 7;
  CHECK_FALSE(static_cast<bool>(View()));
  CHECK_FALSE(static_cast<bool>(ConstView()));
  CHECK(static_cast<bool>(View(&number, DType::i32, Shape{1})));
  CHECK(static_cast<bool>(ConstView(&number, DType::i32, Shape{1})));
}

TEST_CASE("rows_and_reshape_name_the_same_memory") {
  std::array<std::uint16_t, 24> memory{};
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::uint16_t>(i);
  const View view(memory.data(), DType::u16, Shape{4, 2, 3});
  const View middle = view.rows(1, 2);
  CHECK(middle.shape() == Shape{2, 2, 3});
  CHECK(middle.as<std::uint16_t>()[0] == 6);
  CHECK(ConstView(view).rows(3, 1).as<std::uint16_t>()[5] == 23);
  CHECK(view.rows(4, 0).num_elements() == 0);
  const View flat = view.reshape(Shape{24});
  CHECK(flat.as<std::uint16_t>() == memory.data());
  CHECK(flat.rows(23, 1).as<std::uint16_t>()[0] == 23);
  CHECK(ConstView(view).reshape(Shape{8, 3}).shape() == Shape{8, 3});
  CHECK_THROWS_AS(view.rows(3, 2), BugError);
  CHECK_THROWS_AS(view.rows(-1, 1), BugError);
  CHECK_THROWS_AS(view.rows(0, -1), BugError);
  CHECK_THROWS_AS(view.reshape(Shape{5, 5}), BugError);
  CHECK_THROWS_AS(ConstView(view).reshape(Shape{23}), BugError);
  CHECK_THROWS_AS(View(memory.data(), DType::u16, Shape{}).rows(0, 1), BugError);
}
