#include "checkpoint/format/verified_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace scaletrain {

VerifiedFile::VerifiedFile(std::filesystem::path path, const ManifestFile& expected)
    : file_(std::move(path)), expected_(expected) {
  if (file_.size() != expected.bytes) {
    throw InputError(
        fmt::format("{}: {} bytes, the manifest says {}", file_.path().string(), file_.size(), expected.bytes));
  }
  buffer_ = Buffer(static_cast<std::size_t>(std::min(checksum_block_bytes, expected.bytes)));
}

std::span<const std::byte> VerifiedFile::load(std::uint64_t block) {
  const std::uint64_t offset = block * checksum_block_bytes;
  const auto size = static_cast<std::size_t>(std::min(checksum_block_bytes, expected_.bytes - offset));
  const std::span<std::byte> bytes(buffer_.data(), size);
  if (loaded_ != block) {
    loaded_ = UINT64_MAX;
    file_.read_at(offset, bytes);
    if (hash_bytes(bytes) != expected_.block_hashes[static_cast<std::size_t>(block)]) {
      throw InputError(fmt::format("{}: damaged: the checksum of the {} bytes at offset {} does not match the manifest",
                                   file_.path().string(), size, offset));
    }
    loaded_ = block;
  }
  return bytes;
}

void VerifiedFile::read_at(std::uint64_t offset, std::span<std::byte> out) {
  if (offset > expected_.bytes || out.size() > expected_.bytes - offset) {
    throw InputError(fmt::format("{}: {} bytes at offset {} are beyond its end at {}", file_.path().string(),
                                 out.size(), offset, expected_.bytes));
  }
  while (!out.empty()) {
    const auto block = load(offset / checksum_block_bytes);
    const auto piece = block.subspan(static_cast<std::size_t>(offset % checksum_block_bytes));
    const std::size_t size = std::min(piece.size(), out.size());
    std::memcpy(out.data(), piece.data(), size);
    out = out.subspan(size);
    offset += size;
  }
}

void VerifiedFile::verify_all() {
  for (std::uint64_t block = 0; block < expected_.block_hashes.size(); ++block) load(block);
}

}  // namespace scaletrain
