// The lists of a tensor's pieces and of the files that lie beside a manifest. The first byte says how many pieces there
// are said to be; the hash, which no fuzzer guesses, is made right. Accepted: the boxes cover the tensor, and what is
// written back is read as the same.
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/format/piece_list.h"
#include "fuzz/target.h"

namespace scaletrain {
namespace {

Manifest manifest_of(std::string_view list, std::uint64_t count) {
  Manifest manifest;
  manifest.tokenizer_files = {"vocab.json"};
  for (const char* name : {"m-0.safetensors", "m-1.safetensors", "vocab.json"})
    manifest.files.push_back({.name = name, .bytes = 1, .block_hashes = {1}});
  ManifestTensor& tensor = manifest.tensors.emplace_back();
  tensor.name = "w";
  tensor.role = "trained";
  tensor.shape = {4, 300};
  tensor.listed = ListSection{.first = 0, .bytes = list.size(), .count = count, .hash = hash_text(list)};
  return manifest;
}

void decode(std::string_view list, std::uint64_t count) {
  Manifest manifest = manifest_of(list, count);
  try {
    manifest.tensors[0].pieces = decode_pieces(list, manifest.tensors[0], manifest, "input");
  } catch (const InputError&) {  // refused
    return;
  }
  std::int64_t elements = 0;
  for (const TensorPiece& piece : manifest.tensors[0].pieces) elements += piece.box.num_elements();
  SCALETRAIN_CHECK_EQ(elements, manifest.tensors[0].shape.num_elements());
  const std::string again = encode_pieces(manifest.tensors[0], index_of_files(manifest.files));
  const Manifest second = manifest_of(again, count);
  const auto pieces = decode_pieces(again, second.tensors[0], second, "written");
  for (std::size_t i = 0; i < pieces.size(); ++i) SCALETRAIN_CHECK(pieces[i].box == manifest.tensors[0].pieces[i].box);
}

// The list of files: names stay in the folder, and what is written back is the same, but for numbers that were longer
// than they need be.
void read_files(std::string_view list, std::uint64_t count) {
  const auto manifest_with = [count](std::string_view bytes) {
    Manifest manifest;
    manifest.tokenizer_files = {"v"};
    manifest.listed_files = ListSection{.first = 0, .bytes = bytes.size(), .count = count, .hash = hash_text(bytes)};
    return manifest;
  };
  Manifest manifest = manifest_with(list);
  try {
    decode_files(list, manifest, "input");
  } catch (const InputError&) {  // refused
    return;
  }
  SCALETRAIN_CHECK_EQ(manifest.files.size(), count);
  for (const ManifestFile& file : manifest.files)
    SCALETRAIN_CHECK(file.name.find('/') == std::string::npos && file.name.front() != '.');
  const std::string again = encode_files(manifest.files);
  SCALETRAIN_CHECK(again.size() <= list.size());
  Manifest second = manifest_with(again);
  decode_files(again, second, "written");
  for (std::size_t i = 0; i < second.files.size(); ++i)
    SCALETRAIN_CHECK(second.files[i].name == manifest.files[i].name &&
                     second.files[i].block_hashes == manifest.files[i].block_hashes);
}

}  // namespace
}  // namespace scaletrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = scaletrain::fuzz::text_of(data, size);
  if (text.empty()) return 0;
  scaletrain::decode(text.substr(1), static_cast<std::uint8_t>(text.front()));
  scaletrain::decode(text.substr(1), UINT64_MAX);
  scaletrain::read_files(text.substr(1), static_cast<std::uint8_t>(text.front()));
  return 0;
}
