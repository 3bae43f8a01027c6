#include "data/tokens/token_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "support/refused_files.h"
#include "support/temp_folder.h"
#include "token_files.h"

using namespace scaletrain;
using namespace scaletrain::test;

namespace {

std::vector<std::int32_t> all_tokens(const TokenFile& file, std::int64_t vocab = 1 << 30) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.num_tokens()));
  file.read(0, tokens, vocab);
  return tokens;
}

std::vector<std::int64_t> ends_of(const DocumentIndex& index) {
  std::vector<std::int64_t> ends;
  for (std::int64_t d = 0; d < index.num_documents(); ++d) ends.push_back(index.document_end(d));
  return ends;
}

const std::vector<int> kTokens = {10, 11, 12, 20, 21, 30, 31, 32, 33};
const std::vector<std::vector<int>> kDocuments = {{2, 1}, {2}, {}, {0, 4}};

// Opening either works, and then every token and document is readable, or is an InputError.
bool opens(const std::filesystem::path& path) {
  try {
    const auto file = open_token_file(path);
    all_tokens(*file);
    ends_of(*file);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace

TEST_CASE("megatron files of every integer type read back, with their documents") {
  const TempFolder folder;
  const auto check = [&](std::uint8_t code, int width, const std::string& bin) {
    CAPTURE(int{code});
    folder.write("t.bin", bin);
    folder.write("t.idx", megatron_index(kDocuments, code, width));
    for (const char* name : {"t.bin", "t.idx", "t"}) {
      const auto file = open_token_file(folder / name);
      CHECK(file->format() == "Megatron token file");
      CHECK(all_tokens(*file) == std::vector<std::int32_t>(kTokens.begin(), kTokens.end()));
      CHECK(ends_of(*file) == std::vector<std::int64_t>{3, 5, 5, 9});
      CHECK_FALSE(file->one_document());
    }
  };
  check(1, 1, packed<std::uint8_t>(kTokens));
  check(2, 1, packed<std::int8_t>(kTokens));
  check(3, 2, packed<std::int16_t>(kTokens));
  check(4, 4, packed<std::int32_t>(kTokens));
  check(5, 8, packed<std::int64_t>(kTokens));
  check(8, 2, packed<std::uint16_t>(kTokens));
}

TEST_CASE("the document of a token is the one that holds it, empty ones aside") {
  const TempFolder folder;
  folder.write("t.bin", packed<std::uint16_t>(kTokens));
  folder.write("t.idx", megatron_index(kDocuments, 8, 2));
  const auto file = open_token_file(folder / "t.bin");
  const std::vector<std::int64_t> expected = {0, 0, 0, 1, 1, 3, 3, 3, 3};
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(document_of(*file, static_cast<std::int64_t>(i)) == expected[i]);
}

TEST_CASE("llm.c files of both versions read back") {
  const TempFolder folder;
  const std::vector<int> large = {0, 1, 65535, 7};
  const auto narrow_file = open_token_file(folder.write("a.bin", llmc_file(large, false)));
  CHECK(all_tokens(*narrow_file) == std::vector<std::int32_t>{0, 1, 65535, 7});
  const std::vector<int> larger = {128255, 3, 65536};
  const auto wide_file = open_token_file(folder.write("b.bin", llmc_file(larger, true)));
  CHECK(all_tokens(*wide_file) == std::vector<std::int32_t>{128255, 3, 65536});
  CHECK(wide_file->one_document());
  CHECK(ends_of(*wide_file) == std::vector<std::int64_t>{3});
  CHECK(wide_file->identity() != narrow_file->identity());
}

TEST_CASE("a token outside the vocabulary is named with its file and offset") {
  const TempFolder folder;
  const auto file = open_token_file(folder.write("a.bin", llmc_file({1, 2, 300, 4}, false)));
  std::vector<std::int32_t> two(2);
  file->read(0, two, 257);
  CHECK(two == std::vector<std::int32_t>{1, 2});
  CHECK_THROWS_WITH_AS(file->read(1, two, 257), doctest::Contains("a.bin: token 2 (byte offset 1028) is 300"),
                       InputError);
  file->read(1, two, 301);
  folder.write("n.bin", packed<std::int32_t>({5, -1}));
  folder.write("n.idx", megatron_index({{2}}, 4, 4));
  const auto negative = open_token_file(folder / "n.bin");
  CHECK_THROWS_WITH_AS(negative->read(0, two, 257), doctest::Contains("token 1 (byte offset 4) is -1"), InputError);
}

TEST_CASE("a token file that cannot be looked at is not said to be missing") {
  const TempFolder folder;
  folder.write("closed/t.bin", packed<std::uint16_t>(kTokens));
  folder.write("closed/t.idx", megatron_index(kDocuments, 8, 2));
  {
    const ClosedFolder closed(folder / "closed");
    for (const char* name : {"t.bin", "t.idx", "t"}) {
      CAPTURE(name);
      CHECK_THROWS_WITH_AS(open_token_file(folder / "closed" / name), doctest::Contains("Permission denied"),
                           FileAccessError);
    }
  }
  CHECK(opens(folder / "closed" / "t.bin"));
  CHECK_THROWS_WITH_AS(open_token_file(folder / "closed" / "u"), doctest::Contains("u: no such file"), InputError);
}

TEST_CASE("a token file cut anywhere is an input error and nothing worse") {
  const TempFolder folder;
  const std::string bin = packed<std::uint16_t>(kTokens);
  const std::string idx = megatron_index(kDocuments, 8, 2);
  folder.write("m.bin", bin);
  for (std::size_t size = 0; size < idx.size(); ++size) {
    CAPTURE(size);
    folder.write("m.idx", idx.substr(0, size));
    CHECK_FALSE(opens(folder / "m.bin"));
  }
  folder.write("m.idx", idx);
  for (std::size_t size = 0; size < bin.size(); ++size) {
    CAPTURE(size);
    folder.write("m.bin", bin.substr(0, size));
    CHECK_FALSE(opens(folder / "m.bin"));
  }
  folder.write("m.bin", bin + "xx");
  CHECK_FALSE(opens(folder / "m.bin"));
  folder.write("m.bin", bin);
  CHECK(opens(folder / "m.bin"));
  folder.write("m.idx", idx + "x");
  CHECK_FALSE(opens(folder / "m.bin"));

  const std::string llmc = llmc_file({1, 2, 3}, true);
  for (std::size_t size = 0; size < llmc.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(opens(folder.write("l.bin", llmc.substr(0, size))));
  }
  CHECK_FALSE(opens(folder.write("l.bin", llmc + "x")));
  CHECK(opens(folder.write("l.bin", llmc)));
}

TEST_CASE("any byte of a megatron index may be anything without harm") {
  const TempFolder folder;
  folder.write("m.bin", packed<std::uint16_t>(kTokens));
  const std::string idx = megatron_index(kDocuments, 8, 2);
  for (std::size_t i = 0; i < idx.size(); ++i) {
    for (const char value : {'\x00', '\x01', '\x7f', '\x80', '\xff'}) {
      std::string changed = idx;
      if (changed[i] == value) continue;
      changed[i] = value;
      folder.write("m.idx", changed);
      opens(folder / "m.bin");
    }
  }
}

TEST_CASE("hostile headers are refused with the offset, before anything of their size is allocated") {
  const TempFolder folder;
  folder.write("m.bin", packed<std::uint16_t>(kTokens));
  const std::string good = megatron_index(kDocuments, 8, 2);
  const auto refused = [&](std::size_t offset, const std::string& bytes, const std::string& words) {
    std::string idx = good;
    idx.replace(offset, bytes.size(), bytes);
    folder.write("m.idx", idx);
    CHECK_THROWS_WITH_AS(open_token_file(folder / "m.bin"), doctest::Contains(words.c_str()), InputError);
  };
  const std::string huge(8, '\xff');
  refused(0, "X", "MMIDIDX");
  refused(9, std::string(1, 2), "index version 2");
  refused(17, std::string(1, 6), "floating point");
  refused(17, std::string(1, 9), "type code 9");
  refused(18, huge, "18446744073709551615 sequences do not fit");
  refused(26, huge, "at offset 26");
  // 2^61 sequences or entries: times 8 it wraps to a small number.
  std::string wrapping;
  put<std::uint64_t>(wrapping, std::uint64_t{1} << 61);
  refused(18, wrapping, "do not fit");
  refused(26, wrapping, "at offset 26");

  // Five sequences: lengths at 34, offsets at 54, document index (5 entries) at 94.
  std::string length;
  put<std::int32_t>(length, 1000);
  refused(38, length, "at offset 38");
  length.clear();
  put<std::int32_t>(length, -1);
  refused(34, length, "at offset 34");
  std::string overlap;
  put<std::int64_t>(overlap, 2);  // the second sequence begins within the first
  refused(62, overlap, "gaps and overlaps");
  std::string entry;
  put<std::int64_t>(entry, 6);
  refused(94 + 8, entry, "document index");
  refused(94, entry, "at offset 94");
  std::string last;
  put<std::int64_t>(last, 4);
  refused(94 + 32, last, "ends with 4");
}

TEST_CASE("a file that is cut while it is open is an input error, never a signal") {
  const TempFolder folder;
  std::vector<int> tokens(100'000, 9);
  const auto path = folder.write("a.bin", llmc_file(tokens, false));
  const auto file = open_token_file(path);
  std::filesystem::resize_file(path, 2000);
  std::vector<std::int32_t> out(1000);
  CHECK_THROWS_WITH_AS(file->read(90'000, out, 100), doctest::Contains("a.bin"), InputError);
}

TEST_CASE("what is no token file is said to be none") {
  const TempFolder folder;
  CHECK_THROWS_AS(open_token_file(folder / "absent.bin"), InputError);
  CHECK_THROWS_WITH_AS(open_token_file(folder.write("x.bin", "hello")), doctest::Contains("not a token file"),
                       InputError);
  CHECK_FALSE(looks_like_token_file(folder.write("x.txt", "hello")));
  CHECK(looks_like_token_file(folder.write("y", llmc_file({1}, false))));
  folder.write("lone.idx", megatron_index({{1}}, 8, 2));
  CHECK_THROWS_WITH_AS(open_token_file(folder / "lone.idx"), doctest::Contains("lone.bin"), InputError);
}
