// A text in gzip or Zstandard, as the input's first byte says: 0 gzip, else Zstandard. Accepted: it is read to its end,
// the same in large pieces and in small ones. A few KiB may unpack to megabytes: what is beyond the first is not read.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tokens/text_stream.h"
#include "fuzz/target.h"

namespace scaletrain {
namespace {

// The reader takes files: one in the memory of the host, written anew for each input.
class InputFile {
 public:
  InputFile() {
    std::string name = "/dev/shm/scaletrain-fuzz-XXXXXX";
    SCALETRAIN_CHECK(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  ~InputFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::filesystem::path path() const { return folder_ / "input"; }

 private:
  std::filesystem::path folder_;
};

const InputFile& input_file() {
  static const InputFile file;
  return file;
}

// Nothing: it was refused.
std::optional<std::string> unpacked(Compression compression, std::size_t piece_bytes) {
  constexpr std::size_t most = 1u << 20;
  std::string text;
  try {
    TextStream stream(input_file().path(), compression);
    std::vector<char> piece(piece_bytes);
    while (text.size() < most) {
      const std::size_t size = stream.read(piece);
      SCALETRAIN_CHECK_LE(size, piece.size());
      if (size == 0) return text;
      text.append(piece.data(), size);
    }
    text.resize(most);
    return text;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

void read(std::string_view input) {
  if (input.empty()) return;
  std::ofstream(input_file().path(), std::ios::binary) << input.substr(1);
  const Compression compression = input.front() == 0 ? Compression::gzip : Compression::zstd;
  const std::optional<std::string> text = unpacked(compression, 1u << 16);
  SCALETRAIN_CHECK(text == unpacked(compression, 4097));
}

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  scaletrain::read(scaletrain::fuzz::text_of(data, size));
  return 0;
}
