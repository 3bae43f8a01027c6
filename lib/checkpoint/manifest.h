// What manifest.json of a checkpoint says: everything but the tensors' bytes. See DESIGN section 6 for the rules.
//
// A value type. parse_manifest checks all that can be checked without the files: digest, types, ranges, confined file
// names, boxes that tile each tensor exactly once, checksums that cover each file. Whatever is wrong is an InputError
// that names the file and the member; nothing is allocated by a size that a file claims.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/param_table.h"

namespace scaletrain {

inline constexpr std::int64_t checkpoint_format_version = 1;
inline constexpr std::uint64_t checksum_block_bytes = 4ull << 20;
// A model of 400 billion parameters on 16,384 ranks has about a million pieces of some 200 bytes.
inline constexpr std::uint64_t manifest_limit_bytes = 512ull << 20;

// Part of a tensor: `box` of it lies under `key` in `file`.
struct TensorPiece {
  std::string file;
  std::string key;
  Box box;
};

struct ManifestTensor {
  std::string name;  // the ParamTable's; optimizer slots: "NAME/exp_avg"
  std::string role;  // "trained", "frozen", "state", "slot"
  DType dtype = DType::f32;
  Shape shape;  // global
  std::vector<TensorPiece> pieces;
};

struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> block_hashes;  // XXH3-64 of each 4 MiB block, the last one shorter
};

struct Manifest {
  std::int64_t format_version = checkpoint_format_version;
  std::string save_id;         // random, repeated in every file's metadata
  std::string parent_save_id;  // empty for a run's first
  std::int64_t generation = 0;
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  std::string config;                        // resolved YAML
  std::vector<std::string> tokenizer_files;  // beside the manifest
  std::string history;                       // JSON text of the data layer's consumption history
  std::string fingerprint;                   // what bit-identity depends on
  // Scalars by name, integers and floats as text that reads back to the same bits: optimizer step, policy counters,
  // seeds, early stop.
  std::map<std::string, std::string> scalars;
  std::vector<ManifestTensor> tensors;
  std::vector<ManifestFile> files;

  const ManifestTensor* find(const std::string& name) const;
};

std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, const std::string& where);
// Of a checkpoint's folder. The other files are not looked at.
Manifest read_manifest(const std::filesystem::path& folder);

}  // namespace scaletrain
