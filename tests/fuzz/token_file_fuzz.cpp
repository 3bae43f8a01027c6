// A token file without an index beside it: this program's own format, whose checksums, which no fuzzer guesses, are put
// in, or llm.c's. Accepted: see token_reads.h.
#include <algorithm>
#include <cstring>
#include <string>

#include "data/tokens/cache_format.h"
#include "fuzz/target.h"
#include "fuzz/token_reads.h"
#include "support/temp_folder.h"

namespace scaletrain {
namespace {

// As the own format, if there is room for its header; what does not fit keeps its checksums.
std::string with_checksums(std::string_view input) {
  std::string bytes(input);
  CacheHeader header;
  if (bytes.size() < sizeof header) return bytes;
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::string_view body = std::string_view(bytes).substr(sizeof header);
  const bool fits = (header.token_bytes == 2 || header.token_bytes == 4) &&
                    header.num_tokens <= body.size() / header.token_bytes && header.num_documents <= body.size() / 8;
  if (fits) {
    header.tokens_hash = hash_text(body.substr(0, header.num_tokens * header.token_bytes));
    const std::uint64_t documents = cache_documents_begin(header.num_tokens, header.token_bytes) - sizeof header;
    header.documents_hash = hash_text(body.substr(std::min<std::uint64_t>(documents, body.size())));
  }
  header.header_hash = cache_header_hash(header);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace scaletrain;
  static const TempFolder folder;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::open_tokens(folder.write("tokens.bin", text));
  fuzz::open_tokens(folder.write("tokens.bin", with_checksums(text)));
  return 0;
}
