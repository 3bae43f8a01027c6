// Two bytes that say how long the token file is (little endian), then its index. Accepted: documents follow each other
// up to the last token, and every token can be read or is refused.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "base/error.h"
#include "data/token_file.h"
#include "fuzz/target.h"

namespace scaletrain {
namespace {

// Removed at the end of the process.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("scaletrain-fuzz-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path file(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

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

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace scaletrain;
  static const Folder folder;
  if (size < 2) return 0;
  const std::size_t token_bytes = data[0] + std::size_t{256} * data[1];
  write(folder.file("tokens.idx"), fuzz::text_of(data + 2, size - 2));
  write(folder.file("tokens.bin"), std::string(token_bytes, '\x01'));
  try {
    check_accepted(*open_token_file(folder.file("tokens.bin")));
  } catch (const InputError&) {  // refused
  }
  return 0;
}
