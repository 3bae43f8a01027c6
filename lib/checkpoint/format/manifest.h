// What manifest.json of a checkpoint says: everything but the tensors' bytes. See DESIGN section 6 for the rules.
//
// A value type. parse_manifest checks all that can be checked without the files: digest, types, ranges, confined file
// names, boxes that tile each tensor exactly once, checksums that cover each file. Whatever is wrong is an InputError
// that names the file and the member; nothing is allocated by a size that a file claims.
//
// Where the tensors have more than most_pieces_in_manifest pieces, they lie in a file beside the manifest, pieces.list
// (format version 2), and so do the entries of the files with their checksums. The manifest then says where in it the
// list of the files and that of each tensor lie, and what their hashes are: of the millions of pieces of a checkpoint
// of 65,536 ranks each rank reads those of its tensors. read_manifest() fills in the files.
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
inline constexpr std::int64_t listed_format_version = 2;  // pieces.list
inline constexpr std::uint64_t checksum_block_bytes = 4ull << 20;
// Format version 1, of up to most_pieces_in_manifest pieces: some 5 MB, and 16 characters for each 4 MiB of the files.
inline constexpr std::uint64_t manifest_limit_bytes = 512ull << 20;
// One list of pieces.list: that of the files of 65,536 ranks of a 405b model has 13 MiB. Who reads one takes it in
// whole.
inline constexpr std::uint64_t list_limit_bytes = 512ull << 20;
// Some 5 MB of text.
inline constexpr std::uint64_t most_pieces_in_manifest = 20'000;
inline constexpr const char* piece_list_name = "pieces.list";

// Part of a tensor: `box` of it lies under `key` in `file`.
struct TensorPiece {
  std::string file;
  std::string key;
  Box box;
};

// Where in pieces.list a list lies.
struct ListSection {
  std::uint64_t first = 0;  // byte
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;  // of pieces or files
  std::uint64_t hash = 0;   // XXH3-64 of those bytes
};

struct ManifestTensor {
  std::string name;  // the ParamTable's; optimizer states: "NAME/exp_avg"
  std::string role;  // "trained", "frozen", "state", "slot"
  DType dtype = DType::f32;
  Shape shape;  // global
  std::vector<TensorPiece> pieces;
  std::optional<ListSection> listed{};  // then `pieces` is empty

  std::uint64_t num_pieces() const { return listed ? listed->count : pieces.size(); }
};

struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> block_hashes;  // XXH3-64 of each 4 MiB block, the last one shorter
};

// What the adapters of a checkpoint are for: a Hugging Face folder, known by its content wherever it lies.
struct BaseModel {
  std::string path;           // where it was
  std::uint64_t content = 0;  // HuggingFaceModel::content()
  bool operator==(const BaseModel&) const = default;
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
  std::optional<BaseModel> base{};  // of a checkpoint that holds adapters alone
  std::vector<ManifestTensor> tensors;
  std::vector<ManifestFile> files;
  std::optional<ListSection> listed_files{};  // then parse_manifest() leaves `files` empty; see decode_files()

  const ManifestTensor* find(const std::string& name) const;
  std::uint64_t list_bytes() const;  // the size of pieces.list; 0: there is none
};

std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, const std::string& where);
// Of a checkpoint's folder, with the files that pieces.list has. The other files are not looked at.
Manifest read_manifest(const std::filesystem::path& folder);

// Moves the pieces of all tensors out of the manifest; returns what pieces.list is to hold. The files stay, for
// decode_pieces(); manifest_text() leaves them out.
std::string list_pieces(Manifest& manifest);
// What parse_manifest checks of a file's name. InputError.
void check_file_name(const std::string& name, const std::string& where);
// What parse_manifest checks of the pieces of one tensor.
void check_pieces(const ManifestTensor& tensor, const std::vector<TensorPiece>& pieces, const std::string& where);

}  // namespace scaletrain
