// Reading a checkpoint: the manifest decides, only the bytes a rank needs are read, every block they touch is verified.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "parallel/param_store.h"

namespace scaletrain {

// An opened checkpoint. Opening reads and checks manifest.json, the files' sizes, headers and save ids, not their
// content. Every error is an InputError naming the file. Not thread-safe: the file read last stays open, with one block
// of it.
class Checkpoint {
 public:
  explicit Checkpoint(std::filesystem::path folder);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const Manifest& manifest() const;
  const std::filesystem::path& path() const;

  // Reads a box of a tensor, converted to `out`'s floating type; verifies the blocks it touches.
  void read(const std::string& tensor, const Box& box, View out) const;
  // All that the store holds: masters, and the slots it has if `with_slots`. A tensor that the manifest lacks, or
  // another shape, is an InputError; tensors the store does not hold are left alone.
  void load(ParamStore& store, bool with_slots) const;
  // Reads every byte of every file against its checksums.
  void verify() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
