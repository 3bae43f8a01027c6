// The pieces of one tensor, and the files of a checkpoint, as bytes. Where a manifest has many pieces, they lie in a
// file beside it, first the files and then a list for each tensor, so that whoever reads a checkpoint takes in no more
// pieces than those of the tensors that it needs.
//
// The list of files is for each of them its name (length, then bytes), its size, and 8 bytes, the lowest first, for the
// hash of each of its blocks.
//
// A list is a sequence of numbers, 7 bits a byte, the lowest first: for each piece the index of its file in the
// manifest's, what follows the tensor's name in its key (length, then bytes), and for each dim the first element and
// the extent. The manifest holds where a list lies, how many pieces it has, and its hash.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/format/manifest.h"

namespace scaletrain {

// By name. Views of the names.
using FileIndex = std::unordered_map<std::string_view, std::uint64_t>;
FileIndex index_of_files(const std::vector<ManifestFile>& files);

std::string encode_files(const std::vector<ManifestFile>& files);

// Fills manifest.files, whose list this is, checked as parse_manifest checks those that it finds in the manifest
// itself. InputError beginning with `where`. Nothing is allocated by a size that was not compared with the bytes there
// are.
void decode_files(std::string_view bytes, Manifest& manifest, const std::string& where);

// The key of each piece begins with the tensor's name.
std::string encode_pieces(const ManifestTensor& tensor, const FileIndex& file_index);

// The pieces of a tensor of the manifest whose list this is, checked as parse_manifest checks those that it finds in
// the manifest itself: the hash, files of the manifest, boxes that tile the tensor. InputError beginning with `where`.
// Nothing is allocated by the count of pieces before it was compared with the bytes there are.
std::vector<TensorPiece> decode_pieces(std::string_view bytes, const ManifestTensor& tensor, const Manifest& manifest,
                                       const std::string& where);

}  // namespace scaletrain
