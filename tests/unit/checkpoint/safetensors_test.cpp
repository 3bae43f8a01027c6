#include "checkpoint/format/safetensors.h"

#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "checkpoint_fixture.h"

using namespace scaletrain;

namespace {

std::string with_length(const std::string& header) {
  const auto length = static_cast<std::uint64_t>(header.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

SafetensorsHeader parse(const std::string& file) {
  const ByteSource source = [&](std::uint64_t offset, std::span<std::byte> out) {
    if (offset + out.size() > file.size()) throw InputError("read beyond the end");
    std::memcpy(out.data(), file.data() + offset, out.size());
  };
  return read_safetensors_header(source, file.size(), "x.safetensors");
}

// The message for a file of this header and `data_bytes` bytes of tensors.
std::string refusal(const std::string& header, std::size_t data_bytes) {
  std::string message = message_of<InputError>([&] { parse(with_length(header) + std::string(data_bytes, '\0')); });
  CHECK(contains(message, "x.safetensors"));
  return message;
}

}  // namespace

TEST_CASE("safetensors_written_tensors_are_found_with_their_bytes") {
  const TempFolder folder;
  const auto path = folder / "a.safetensors";
  const std::vector<SafetensorsTensor> tensors = {
      {"b", DType::f32, {2, 3}}, {"empty", DType::bf16, {0, 4}}, {"scalar", DType::i64, {}}, {"a", DType::f16, {5}}};
  SafetensorsWriter writer(path, tensors, {{"save_id", "abc"}});
  const std::string data =
      "0123456789abcdef01234567"
      "scalarrr"
      "0123456789";
  writer.write(std::as_bytes(std::span(data.data(), 7)));
  writer.write(std::as_bytes(std::span(data.data() + 7, data.size() - 7)));
  const WrittenFile written = writer.finish();
  const std::string file = TempFolder::read(path);
  CHECK(written.bytes == file.size());
  REQUIRE(written.block_hashes.size() == 1);
  CHECK(written.block_hashes[0] == hash_text(file));

  const SafetensorsHeader header = parse(file);
  CHECK(header.data_offset % 8 == 0);
  CHECK(header.metadata.at("save_id") == "abc");
  REQUIRE(header.entries.size() == 4);
  CHECK(file.substr(header.find("b")->offset, header.find("b")->bytes) == data.substr(0, 24));
  CHECK(file.substr(header.find("a")->offset, header.find("a")->bytes) == "0123456789");
  CHECK(header.find("scalar")->shape == Shape{});
  CHECK(header.find("scalar")->bytes == 8);
  CHECK(header.find("empty")->bytes == 0);
  CHECK(header.find("a")->dtype == DType::f16);
  CHECK(header.find("c") == nullptr);
}

TEST_CASE("safetensors_header_of_the_published_layout_is_read") {
  // Written by hand after the format's description: entries in any order, spaces at the end, a type we do not compute
  // with.
  const std::string header =
      R"({"w":{"dtype":"BF16","shape":[2,1],"data_offsets":[3,7]},"__metadata__":{"format":"pt"},)"
      R"("mask":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}     )";
  const SafetensorsHeader parsed = parse(with_length(header) + "xyz1234");
  CHECK(parsed.find("w")->offset == 8 + header.size() + 3);
  CHECK_FALSE(parsed.find("mask")->dtype.has_value());
  CHECK(parsed.metadata.at("format") == "pt");
}

TEST_CASE("safetensors_header_length_beyond_the_file_is_refused_before_allocation") {
  for (const std::uint64_t length :
       {UINT64_MAX, UINT64_MAX - 7, std::uint64_t{1} << 63, std::uint64_t{100'000'001}, std::uint64_t{9}}) {
    std::string file(16, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    CHECK(contains(message_of<InputError>([&] { parse(file); }), "header claims " + std::to_string(length)));
  }
  CHECK(contains(message_of<InputError>([&] { parse("1234567"); }), "too short"));
  CHECK(contains(message_of<InputError>([&] { parse(""); }), "too short"));
}

TEST_CASE("safetensors_header_above_100_MB_is_refused_even_in_a_file_that_long") {
  const ByteSource source = [](std::uint64_t offset, std::span<std::byte> out) {
    REQUIRE(out.size() == 8);  // nothing else may be read
    REQUIRE(offset == 0);
    const std::uint64_t length = 100'000'001;
    std::memcpy(out.data(), &length, sizeof length);
  };
  CHECK(
      contains(message_of<InputError>([&] { read_safetensors_header(source, 1ull << 40, "x"); }), "at most 100000000"));
}

TEST_CASE("safetensors_duplicate_names_are_refused") {
  CHECK(contains(
      refusal(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          1),
      "\"a\" appears twice"));
  CHECK(contains(refusal(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), "twice"));
}

TEST_CASE("safetensors_overlapping_and_holed_offsets_are_refused") {
  const auto two = [](int a, int b, int c, int d) {
    return R"({"a":{"dtype":"U8","shape":[)" + std::to_string(b - a) + R"(],"data_offsets":[)" + std::to_string(a) +
           "," + std::to_string(b) + R"(]},"b":{"dtype":"U8","shape":[)" + std::to_string(d - c) +
           R"(],"data_offsets":[)" + std::to_string(c) + "," + std::to_string(d) + "]}}";
  };
  CHECK(parse(with_length(two(0, 4, 4, 8)) + "01234567").entries.size() == 2);
  CHECK(contains(refusal(two(0, 4, 3, 8), 8), "\"b\": its bytes overlap"));
  CHECK(contains(refusal(two(0, 4, 5, 8), 8), "\"b\": 1 bytes before it"));
  CHECK(contains(refusal(two(1, 4, 4, 8), 8), "\"a\": 1 bytes before it"));
  CHECK(contains(refusal(two(0, 4, 4, 8), 9), "1 bytes after the last tensor"));
  CHECK(contains(refusal(two(0, 4, 4, 8), 7), "\"b\": data_offsets [4, 8] lie outside"));
  CHECK(contains(refusal("{}", 1), "after the last tensor"));
}

TEST_CASE("safetensors_shapes_whose_product_wraps_are_refused") {
  const auto with_shape = [](const std::string& shape, const std::string& offsets = "[0,0]") {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  CHECK(contains(refusal(with_shape("[4294967296,4294967296]"), 0), "does not fit"));
  CHECK(contains(refusal(with_shape("[4611686018427387904,4]"), 0), "does not fit"));
  CHECK(contains(refusal(with_shape("[0,9223372036854775807,9223372036854775807]"), 0), "does not fit"));
  CHECK(contains(refusal(with_shape("[9223372036854775808]"), 0), "2^63-1"));
  CHECK(contains(refusal(with_shape("[18446744073709551616]"), 0), "2^63-1"));
  CHECK(contains(refusal(with_shape("[-1]"), 0), "2^63-1"));
  CHECK(contains(refusal(with_shape("[1.0]", "[0,4]"), 4), "2^63-1"));
  CHECK(contains(refusal(with_shape("[1,1,1,1,1]", "[0,4]"), 4), "5 dims"));
  CHECK(contains(refusal(with_shape("[2]", "[0,4]"), 4), "need 8 bytes"));
  CHECK(contains(refusal(with_shape("[1]", "[4,0]"), 4), "outside"));
  CHECK(contains(refusal(with_shape("[1]", "[0,18446744073709551615]"), 4), "outside"));
}

TEST_CASE("safetensors_malformed_entries_are_refused_naming_the_tensor") {
  CHECK(
      contains(refusal(R"({"a":{"dtype":"F31","shape":[],"data_offsets":[0,4]}})", 4), "\"a\": unknown dtype \"F31\""));
  CHECK(contains(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1), "\"a\""));
  CHECK(contains(refusal(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "\"a\""));
  CHECK(contains(refusal(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1), "\"a\""));
  CHECK(contains(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1), "\"a\""));
  CHECK(contains(refusal(R"({"a":[]})", 0), "\"a\""));
  CHECK(contains(refusal(R"({"__metadata__":[]})", 0), "__metadata__"));
  CHECK(contains(refusal(R"({"__metadata__":{"a":1}})", 0), "__metadata__"));
  CHECK(contains(refusal(R"([])", 0), "begin with"));
  CHECK(contains(refusal("", 0), "begin with"));
  CHECK(contains(refusal(R"({"a":)", 0), "not valid JSON"));
  CHECK(contains(refusal("{\"a\xFF\":{}}", 0), "not valid JSON"));
  CHECK(contains(refusal(R"({} {})", 0), "not valid JSON"));
}

TEST_CASE("safetensors_deep_json_is_refused_quickly") {
  const std::string deep = R"({"a":)" + std::string(5'000'000, '[');
  CHECK(contains(refusal(deep, 0), "nested deeper"));
}

TEST_CASE("hashing_writer_hashes_each_block_whatever_the_pieces") {
  const TempFolder folder;
  std::string data(2 * checksum_block_bytes + 12345, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + i / 251);
  HashingWriter writer(folder / "a");
  for (std::size_t at = 0; at < data.size(); at += 1'000'003)
    writer.write(std::string_view(data).substr(at, 1'000'003));
  const WrittenFile written = writer.finish();
  CHECK(TempFolder::read(folder / "a") == data);
  REQUIRE(written.block_hashes.size() == 3);
  for (std::size_t block = 0; block < 3; ++block) {
    CHECK(written.block_hashes[block] ==
          hash_text(std::string_view(data).substr(block * checksum_block_bytes, checksum_block_bytes)));
  }
}
