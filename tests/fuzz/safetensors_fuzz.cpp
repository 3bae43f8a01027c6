// A whole file. Accepted: the tensors lie in the file one after the other, without gap, overlap or rest.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "checkpoint/format/safetensors.h"
#include "fuzz/target.h"

namespace scaletrain {
namespace {

void check_accepted(const SafetensorsHeader& header, std::uint64_t file_bytes) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, entry] : header.entries) {
    SCALETRAIN_CHECK(name == entry.name);
    entries.push_back(entry);
  }
  // Of two that begin at the same byte one is empty.
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  std::uint64_t end = header.data_offset;
  for (const SafetensorsEntry& entry : entries) {
    SCALETRAIN_CHECK_EQ(entry.offset, end);
    end += entry.bytes;
  }
  SCALETRAIN_CHECK_EQ(end, file_bytes);
}

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace scaletrain;
  const ByteSource source = [&](std::uint64_t offset, std::span<std::byte> out) {
    SCALETRAIN_CHECK(offset <= size && out.size() <= size - offset);
    if (!out.empty()) std::memcpy(out.data(), data + offset, out.size());
  };
  try {
    check_accepted(read_safetensors_header(source, size, "input"), size);
  } catch (const InputError&) {  // refused
  }
  return 0;
}
