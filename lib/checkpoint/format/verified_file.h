// Reads of a file whose blocks are hashed before a byte of them is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/file.h"
#include "checkpoint/format/manifest.h"
#include "tensor/buffer.h"

namespace scaletrain {

// Holds one block (4 MiB); reads in ascending order take each block from the disk once. Not thread-safe. The
// ManifestFile must outlive it.
class VerifiedFile {
 public:
  // Another size than the manifest's is an InputError.
  VerifiedFile(std::filesystem::path path, const ManifestFile& expected);
  // Damaged blocks are InputErrors naming the file and the block's offset.
  void read_at(std::uint64_t offset, std::span<std::byte> out);
  void verify_all();

 private:
  std::span<const std::byte> load(std::uint64_t block);

  FileReader file_;
  const ManifestFile& expected_;
  Buffer buffer_;
  std::uint64_t loaded_ = UINT64_MAX;
};

}  // namespace scaletrain
