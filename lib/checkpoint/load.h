// Reading a checkpoint: the manifest decides, only the bytes a rank needs are read, every block they touch is verified.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/process/work_count.h"
#include "checkpoint/format/manifest.h"
#include "store/param_store.h"

namespace scaletrain {

// Which files' presence, sizes, headers and save ids are looked at when a checkpoint is opened. The others are when
// something is read from them: what each of many ranks needs of a checkpoint that somebody has opened in full before.
enum class OpenCheck { all_files, none };

// An opened checkpoint. Opening reads and checks manifest.json and what OpenCheck says, not the files' content. Every
// error is an InputError naming the file. Not thread-safe: the file read last stays open, with one block of it.
class Checkpoint {
 public:
  explicit Checkpoint(std::filesystem::path folder, OpenCheck check = OpenCheck::all_files);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const Manifest& manifest() const;
  const std::filesystem::path& path() const;

  // Reads a box of a tensor, converted to `out`'s floating type; verifies the blocks it touches.
  void read(const std::string& tensor, const Box& box, View out) const;
  // All that the store holds, under any layout and ZeRO policy: masters, and the states it has if
  // `with_optimizer_state`; tied copies get their owner's values. Files are read one after the other, each in ascending
  // order. A tensor that the manifest lacks, or another shape, is an InputError; tensors the store does not hold are
  // left alone, and what the store holds of an adapters' base is, too. work: counts the stretches that have been read,
  // of some MiB at most.
  void load(ParamStore& store, Stream& stream, bool with_optimizer_state, WorkCount* work = nullptr) const;
  // From here on read() and load() give of every parameter that has one the average that train.ema kept of it, in place
  // of its weights. UserError if the checkpoint has none, or none yet.
  void use_averages();
  // Reads every byte of every file against its checksums.
  void verify() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace scaletrain
