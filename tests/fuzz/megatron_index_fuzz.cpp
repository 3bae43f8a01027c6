// Two bytes that say how long the token file is (little endian), then its index. Accepted: see token_reads.h.
#include <string>

#include "fuzz/target.h"
#include "fuzz/token_reads.h"
#include "support/temp_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace scaletrain;
  static const TempFolder folder;
  if (size < 2) return 0;
  const std::size_t token_bytes = data[0] + std::size_t{256} * data[1];
  folder.write("tokens.idx", fuzz::text_of(data + 2, size - 2));
  fuzz::open_tokens(folder.write("tokens.bin", std::string(token_bytes, '\x01')));
  return 0;
}
