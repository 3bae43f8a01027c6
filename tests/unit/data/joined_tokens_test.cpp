// The files of a source are one stream of tokens, cut at the ends of files and documents.
#include "data/tokens/joined_tokens.h"

#include <doctest/doctest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "support/temp_folder.h"
#include "token_files.h"

using namespace scaletrain;
using namespace scaletrain::test;

namespace {

constexpr std::int64_t joined_vocab = 300;
constexpr std::int32_t joined_end_token = 9;

// Three files: two documents and an empty one; no index, end tokens at its second and fifth place; one document.
struct Joined {
  Joined() {
    folder.write("a.bin", packed<std::uint16_t>({10, 11, 12, 20, 21}));
    folder.write("a.idx", megatron_index({{3}, {}, {2}}, 8, 2));
    folder.write("b.bin", llmc_file({30, 9, 40, 41, 9, 50}, false));
    folder.write("c.bin", packed<std::uint16_t>({60, 61, 62, 63}));
    folder.write("c.idx", megatron_index({{4}}, 8, 2));
    std::vector<std::unique_ptr<TokenFile>> files;
    for (const char* name : {"a.bin", "b.bin", "c.bin"}) files.push_back(open_token_file(folder / name));
    tokens = std::make_unique<JoinedTokens>(std::move(files));
  }
  TempFolder folder;
  std::unique_ptr<JoinedTokens> tokens;
};

const std::vector<std::int32_t> joined_values = {10, 11, 12, 20, 21, 30, 9, 40, 41, 9, 50, 60, 61, 62, 63};

}  // namespace

TEST_CASE("files laid end to end have the documents of all, in order") {
  const Joined joined;
  CHECK(joined.tokens->num_tokens() == 15);
  REQUIRE(joined.tokens->num_documents() == 5);
  std::vector<std::int64_t> ends;
  for (std::int64_t d = 0; d < 5; ++d) ends.push_back(joined.tokens->document_end(d));
  CHECK(ends == std::vector<std::int64_t>{3, 3, 5, 11, 15});
  REQUIRE(joined.tokens->first_without_index() != nullptr);
  CHECK(joined.tokens->first_without_index()->path().filename() == "b.bin");
}

TEST_CASE("any range is read across the ends of files") {
  const Joined joined;
  for (std::int64_t begin = 0; begin < 15; ++begin) {
    for (std::int64_t end = begin; end <= 15; ++end) {
      std::vector<std::int32_t> out(static_cast<std::size_t>(end - begin));
      joined.tokens->read(begin, out, joined_vocab);
      CHECK(out == std::vector<std::int32_t>(joined_values.begin() + begin, joined_values.begin() + end));
    }
  }
  std::vector<std::int32_t> out(2);
  CHECK_THROWS_WITH_AS(joined.tokens->read(10, out, 60), doctest::Contains("c.bin: token 0"), InputError);
}

TEST_CASE("the pieces of any range fill it, and end where a document, a file or the range does") {
  const Joined joined;
  for (const bool has_end_token : {true, false}) {
    const std::vector<std::int64_t> ends =
        has_end_token ? std::vector<std::int64_t>{3, 5, 7, 10, 11, 15} : std::vector<std::int64_t>{3, 5, 11, 15};
    for (std::int64_t begin = 0; begin < 15; ++begin) {
      for (std::int64_t end = begin; end <= 15; ++end) {
        std::vector<std::int64_t> expected;
        for (const std::int64_t stop : ends)
          if (stop > begin && stop < end) expected.push_back(stop);
        if (begin < end) expected.push_back(end);
        std::vector<std::int64_t> found;
        std::int64_t place = begin;
        const auto pieces = joined.tokens->pieces_between(
            begin, end, has_end_token ? std::optional(joined_end_token) : std::nullopt, joined_vocab);
        for (const JoinedTokens::Piece& piece : pieces) {
          CHECK(piece.token == place);
          CHECK(piece.length > 0);
          found.push_back(place = piece.token + piece.length);
        }
        CHECK(found == expected);
      }
    }
  }
}
