// A token file without an index beside it: this program's own format, whose checksums, which no fuzzer guesses, are put
// in, or llm.c's. Accepted: documents follow each other up to the last token, and every token can be read or is
// refused.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "base/error.h"
#include "data/cache_format.h"
#include "data/token_file.h"
#include "fuzz/target.h"

namespace scaletrain {
namespace {

// Removed at the end of the process.
class File {
 public:
  File() : path_(std::filesystem::temp_directory_path() / ("scaletrain-fuzz-" + std::to_string(::getpid()) + ".bin")) {}
  ~File() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  void write(std::string_view bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void check_accepted(const TokenFile& file) {
  std::int64_t end = 0;
  for (std::int64_t document = 0; document < file.num_documents(); ++document) {
    SCALETRAIN_CHECK(file.document_end(document) >= end);
    end = file.document_end(document);
  }
  SCALETRAIN_CHECK_EQ(end, file.num_tokens());
  std::array<std::int32_t, 64> tokens{};
  for (std::int64_t first = 0; first < file.num_tokens(); first += std::ssize(tokens)) {
    const auto count = static_cast<std::size_t>(std::min(std::ssize(tokens), file.num_tokens() - first));
    file.read(first, std::span(tokens).first(count), 50257);
  }
}

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

void open(const File& file, std::string_view bytes) {
  file.write(bytes);
  try {
    check_accepted(*open_token_file(file.path()));
  } catch (const InputError&) {  // refused
  }
}

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace scaletrain;
  static const File file;
  const std::string_view text = fuzz::text_of(data, size);
  open(file, text);
  open(file, with_checksums(text));
  return 0;
}
