// The pieces of one tensor as bytes. Where a manifest has many, they lie in a file beside it, a list for each tensor
// one after the other, so that whoever reads a checkpoint takes in no more of them than the tensors that it needs.
//
// A list is a sequence of numbers, 7 bits a byte, the lowest first: for each piece the index of its file in the
// manifest's, what follows the tensor's name in its key (length, then bytes), and for each dim the first element and
// the extent. The manifest holds where a list lies, how many pieces it has, and its hash.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"

namespace scaletrain {

// file_index: by name. The key of each piece begins with the tensor's name.
std::string encode_pieces(const ManifestTensor& tensor, const std::map<std::string, std::uint64_t>& file_index);

// The pieces of a tensor of the manifest whose list this is, checked as parse_manifest checks those that it finds in
// the manifest itself: the hash, files of the manifest, boxes that tile the tensor. InputError beginning with `where`.
// Nothing is allocated by the count of pieces before it was compared with the bytes there are.
std::vector<TensorPiece> decode_pieces(std::string_view bytes, const ManifestTensor& tensor, const Manifest& manifest,
                                       const std::string& where);

}  // namespace scaletrain
