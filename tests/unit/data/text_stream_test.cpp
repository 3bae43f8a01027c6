// Text that is compressed, and what of it cannot be read.
#include "data/tokens/text_stream.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "packed_text.h"
#include "support/resident_memory.h"
#include "support/temp_folder.h"
#include "support/text.h"

using namespace scaletrain;
using namespace scaletrain::test;

namespace {

struct Packing {
  const char* ending;
  Compression compression;
  std::function<std::string(const std::string&)> pack;
};
const std::vector<Packing>& packings() {
  static const std::vector<Packing> all = {{".gz", Compression::gzip, gzipped}, {".zst", Compression::zstd, zstandard}};
  return all;
}

std::string text_of(const std::filesystem::path& file, Compression compression, std::size_t piece = 1u << 20) {
  TextStream stream(file, compression);
  std::string text;
  std::string buffer(piece, '\0');
  while (const std::size_t size = stream.read(buffer)) text.append(buffer, 0, size);
  return text;
}

std::string some_text(std::size_t size) {
  std::string text;
  for (std::size_t i = 0; text.size() < size; ++i)
    text += std::to_string(i * 2654435761u % 99991) + (i % 7 ? " " : "\n");
  text.resize(size);
  return text;
}

}  // namespace

TEST_CASE("compressed text is read by any size of piece, several members or frames as one text") {
  const TempFolder folder;
  for (const Packing& packing : packings()) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{1'500'001}}) {
      const std::string text = some_text(size);
      const auto file = folder.write(std::string("t") + packing.ending, packing.pack(text));
      CHECK(compression_of(file) == packing.compression);
      for (const std::size_t piece : {std::size_t{1}, std::size_t{977}, std::size_t{1} << 20})
        if (piece > 1 || size < 5000) CHECK((text_of(file, packing.compression, piece) == text));
    }
    const std::string members = packing.pack("one ") + packing.pack("") + packing.pack("two ") + packing.pack("three");
    CHECK(text_of(folder.write("m", members), packing.compression, 5) == "one two three");
  }
}

TEST_CASE("compressed text that ends early is refused with file and byte, wherever it ends") {
  const TempFolder folder;
  for (const Packing& packing : packings()) {
    const std::string whole = packing.pack(some_text(701));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const auto file = folder.write("t", whole.substr(0, size));
      const std::string problem = message_of<InputError>([&] { text_of(file, packing.compression, 64); });
      CHECK(problem.starts_with(file.string() + ": at byte "));
      CHECK((contains(problem, "it is truncated") || contains(problem, "begins like this")));
    }
    const std::string second = whole + whole.substr(0, whole.size() / 2);
    CHECK(contains(message_of<InputError>([&] { text_of(folder.write("t", second), packing.compression); }),
                   "at byte " + std::to_string(second.size()) + " of the compressed file: it ends within a"));
  }
}

TEST_CASE("a byte of compressed text that is another never gives other text") {
  const TempFolder folder;
  const std::string text = some_text(703);
  for (const Packing& packing : packings()) {
    const std::string whole = packing.pack(text);
    int refused = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
      const auto file = folder.write("t", damaged);
      std::string read;
      const std::string problem = message_of<InputError>([&] { read = text_of(file, packing.compression); });
      // Of gzip's header a time, a flag or a system may change and mean nothing.
      CHECK((!problem.empty() || read == text));
      refused += problem.empty() ? 0 : 1;
    }
    CHECK(refused > static_cast<int>(whole.size()) - 10);
  }
}

TEST_CASE("what is not compressed as its name says, and what follows the last member, is refused") {
  const TempFolder folder;
  for (const Packing& packing : packings()) {
    const auto plain = folder.write("t", "plain text, and enough of it");
    CHECK(contains(message_of<InputError>([&] { text_of(plain, packing.compression); }),
                   "at byte 0 of the compressed file: no "));
    const std::string whole = packing.pack("text");
    const auto behind = folder.write("t", whole + "something else");
    CHECK(contains(message_of<InputError>([&] { text_of(behind, packing.compression); }),
                   "at byte " + std::to_string(whole.size()) + " of the compressed file: what follows the last"));
  }
}

TEST_CASE("text goes on at any offset, and beyond its end is refused") {
  const TempFolder folder;
  const std::string text = some_text(3001);
  std::vector<Packing> all = packings();
  all.push_back({"", Compression::none, [](const std::string& plain) { return plain; }});
  for (const Packing& packing : all) {
    const auto file = folder.write("t", packing.pack(text));
    for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{2999}, std::size_t{3001}}) {
      TextStream stream(file, packing.compression);
      stream.skip_to(offset);
      std::string rest(4000, '\0');
      rest.resize(stream.read(rest));
      CHECK((rest == text.substr(offset)));
    }
    TextStream stream(file, packing.compression);
    CHECK(contains(message_of<InputError>([&] { stream.skip_to(3002); }), "3002 are expected"));
  }
}

TEST_CASE("a text a thousand times as large as its file takes no memory") {
  const TempFolder folder;
  std::string packed;
  const std::string member = gzipped(std::string(16u << 20, 'x'));
  for (int i = 0; i < 16; ++i) packed += member;
  const auto file = folder.write("t.gz", packed);
  const std::uint64_t before = resident_memory();
  TextStream stream(file, Compression::gzip);
  std::string piece(1u << 20, '\0');
  std::uint64_t size = 0;
  while (const std::size_t read = stream.read(piece)) size += read;
  CHECK(size == 256u << 20);
  CHECK(stream.file_position() == packed.size());
  CHECK(resident_memory() < before + (64u << 20));
}
