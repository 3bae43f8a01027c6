#include "checkpoint/format/piece_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/numbers/checked.h"
#include "base/text.h"

namespace scaletrain {

namespace {

constexpr unsigned bits_per_byte = 7;
constexpr std::uint8_t more_follows = 0x80;
constexpr std::uint64_t longest_suffix = 32;  // "@" and a number
constexpr std::uint64_t longest_name = 255;   // of a file
constexpr unsigned hash_bytes_each = 8;

void append_number(std::uint64_t value, std::string& out) {
  while (value >= more_follows) {
    out.push_back(static_cast<char>((value & 0x7f) | more_follows));
    value >>= bits_per_byte;
  }
  out.push_back(static_cast<char>(value));
}

class PieceReader {
 public:
  PieceReader(std::string_view bytes, const std::string& where) : left_(bytes), where_(where) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += bits_per_byte) {
      if (left_.empty()) refuse("it ends too early");
      const auto byte = static_cast<std::uint8_t>(left_.front());
      left_.remove_prefix(1);
      const std::uint64_t bits = byte & 0x7f;
      if ((bits << shift) >> shift != bits) break;
      value |= bits << shift;
      if ((byte & more_follows) == 0) return value;
    }
    refuse("a number does not fit 64 bits");
  }
  std::int64_t position() {
    const std::uint64_t value = number();
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      refuse("a number does not fit 63 bits");
    return static_cast<std::int64_t>(value);
  }
  std::string_view text(std::uint64_t most) {
    const std::uint64_t size = number();
    if (size > most || size > left_.size()) refuse("a key is too long");
    return take(size);
  }
  std::vector<std::uint64_t> hashes(std::uint64_t count) {
    if (count > left_.size() / hash_bytes_each) refuse("it ends too early");
    std::vector<std::uint64_t> out(count);
    for (std::uint64_t& hash : out) {
      const std::string_view bytes = take(hash_bytes_each);
      for (unsigned i = 0; i < hash_bytes_each; ++i)
        hash |= std::uint64_t{static_cast<std::uint8_t>(bytes[i])} << (8 * i);
    }
    return out;
  }
  bool at_end() const { return left_.empty(); }
  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError(fmt::format("{}: its list is damaged: {}", where_, what));
  }

 private:
  std::string_view take(std::uint64_t size) {
    const std::string_view out = left_.substr(0, size);
    left_.remove_prefix(size);
    return out;
  }

  std::string_view left_;
  const std::string& where_;
};

// By file and what follows the tensor's name in the key: numbers and a few bytes, where names would be long.
using PieceKey = std::pair<std::uint64_t, std::string_view>;

void check_keys_differ(std::vector<PieceKey> keys, const ManifestTensor& tensor, const Manifest& manifest,
                       const std::string& where) {
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return;
  throw InputError(fmt::format("{}: {} in {} is a piece twice", where, quoted(tensor.name + std::string(twice->second)),
                               quoted(manifest.files[twice->first].name)));
}

}  // namespace

FileIndex index_of_files(const std::vector<ManifestFile>& files) {
  FileIndex index;
  index.reserve(files.size());
  for (const ManifestFile& file : files) index.emplace(file.name, index.size());
  return index;
}

std::string encode_files(const std::vector<ManifestFile>& files) {
  std::string out;
  for (const ManifestFile& file : files) {
    SCALETRAIN_CHECK(file.name.size() <= longest_name);
    append_number(file.name.size(), out);
    out += file.name;
    append_number(file.bytes, out);
    for (const std::uint64_t hash : file.block_hashes)
      for (unsigned i = 0; i < hash_bytes_each; ++i) out.push_back(static_cast<char>(hash >> (8 * i)));
  }
  return out;
}

void decode_files(std::string_view bytes, Manifest& manifest, const std::string& where) {
  SCALETRAIN_CHECK(manifest.listed_files.has_value());
  const ListSection& section = *manifest.listed_files;
  PieceReader reader(bytes, where);
  if (bytes.size() != section.bytes || hash_text(bytes) != section.hash)
    reader.refuse("its hash does not match the manifest");
  // The name's length, a character and the size: a byte each at least.
  constexpr std::uint64_t least_bytes = 3;
  if (section.count == 0 || section.count > bytes.size() / least_bytes)
    reader.refuse(fmt::format("{} bytes cannot be {} files", bytes.size(), section.count));
  std::vector<ManifestFile> files(section.count);
  for (ManifestFile& file : files) {
    file.name = reader.text(longest_name);
    check_file_name(file.name, where);
    file.bytes = reader.number();
    file.block_hashes = reader.hashes(ceil_div(file.bytes, checksum_block_bytes));
  }
  if (!reader.at_end()) reader.refuse("bytes follow its last file");
  const FileIndex index = index_of_files(files);
  if (index.size() != files.size()) reader.refuse("a file is listed twice");
  for (const std::string& name : manifest.tokenizer_files)
    if (!index.contains(name))
      reader.refuse(fmt::format("the tokenizer file {} is missing in it", quoted(std::as_const(name))));
  manifest.files = std::move(files);
}

std::string encode_pieces(const ManifestTensor& tensor, const FileIndex& file_index) {
  std::string out;
  for (const TensorPiece& piece : tensor.pieces) {
    const auto file = file_index.find(piece.file);
    SCALETRAIN_CHECK(file != file_index.end());
    SCALETRAIN_CHECK(piece.key.starts_with(tensor.name));
    append_number(file->second, out);
    const std::string_view suffix = std::string_view(piece.key).substr(tensor.name.size());
    SCALETRAIN_CHECK(suffix.size() <= longest_suffix);
    append_number(suffix.size(), out);
    out += suffix;
    for (std::size_t dim = 0; dim < piece.box.first.size(); ++dim) {
      append_number(static_cast<std::uint64_t>(piece.box.first[dim]), out);
      append_number(static_cast<std::uint64_t>(piece.box.extent[dim]), out);
    }
  }
  return out;
}

std::vector<TensorPiece> decode_pieces(std::string_view bytes, const ManifestTensor& tensor, const Manifest& manifest,
                                       const std::string& where) {
  SCALETRAIN_CHECK(tensor.listed.has_value());
  PieceReader reader(bytes, where);
  if (bytes.size() != tensor.listed->bytes || hash_text(bytes) != tensor.listed->hash)
    reader.refuse("its hash does not match the manifest");
  const std::uint64_t count = tensor.listed->count;
  const std::vector<ManifestFile>& files = manifest.files;
  const auto num_dims = static_cast<std::size_t>(tensor.shape.num_dims());
  // File, length of the key and two numbers a dim: a byte each at least.
  if (count == 0 || count > bytes.size() / (2 + 2 * num_dims))
    reader.refuse(fmt::format("{} bytes cannot be {} pieces", bytes.size(), count));
  const std::vector<std::string>& tokenizers = manifest.tokenizer_files;
  std::vector<TensorPiece> pieces;
  pieces.reserve(count);
  std::vector<PieceKey> keys;
  keys.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t file = reader.number();
    if (file >= files.size()) reader.refuse(fmt::format("file {} of {}", file, files.size()));
    if (std::find(tokenizers.begin(), tokenizers.end(), files[file].name) != tokenizers.end())
      reader.refuse(fmt::format("{} is a file of the tokenizer", quoted(std::as_const(files[file].name))));
    TensorPiece piece{.file = files[file].name, .key = tensor.name, .box = {}};
    const std::string_view suffix = reader.text(longest_suffix);
    keys.emplace_back(file, suffix);
    piece.key += suffix;
    piece.box.first.reserve(num_dims);
    piece.box.extent.reserve(num_dims);
    for (std::size_t dim = 0; dim < num_dims; ++dim) {
      const std::int64_t whole = tensor.shape[static_cast<int>(dim)];
      const std::int64_t first = reader.position();
      const std::int64_t extent = reader.position();
      if (first > whole || extent > whole - first)
        reader.refuse(fmt::format("a piece lies outside the shape {}", to_text(tensor.shape)));
      piece.box.first.push_back(first);
      piece.box.extent.push_back(extent);
    }
    pieces.push_back(std::move(piece));
  }
  if (!reader.at_end()) reader.refuse("bytes follow its last piece");
  check_keys_differ(std::move(keys), tensor, manifest, where);
  check_pieces(tensor, pieces, where);
  return pieces;
}

}  // namespace scaletrain
