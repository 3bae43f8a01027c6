// The safetensors format: 8 bytes of header length (little endian), a JSON header {name: {dtype, shape, data_offsets}},
// then the tensors' bytes without gaps. Files come from anywhere: the header is bounded, parsed strictly and checked in
// full before anything is allocated by a size it claims. Every error is an InputError naming the file and, where there
// is one, the tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/view.h"

namespace scaletrain {

// The limit of the format's own implementation.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  // Nothing for element types of the format that this program does not compute with ("BOOL", "F8_E4M3"); type_name has
  // the name.
  std::optional<DType> dtype;
  std::string type_name;
  Shape shape;
  std::uint64_t offset = 0;  // of the first byte, in the file
  std::uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  std::uint64_t data_offset = 0;  // where the tensors begin, in the file

  const SafetensorsEntry* find(const std::string& name) const;
};

// Reads bytes [offset, offset + out.size()) of a file.
using ByteSource = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

// `file_bytes`: the file's size; `where`: its name in messages.
SafetensorsHeader read_safetensors_header(const ByteSource& source, std::uint64_t file_bytes, const std::string& where);

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// What was written: for the manifest.
struct WrittenFile {
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> block_hashes;  // XXH3-64 of each 4 MiB block
};

// Appends to a new file and hashes its 4 MiB blocks on the way, each of which is gathered and then written past the
// system's page cache (FileWriter::Caching::none). Memory: one block; std::bad_alloc.
class HashingWriter {
 public:
  explicit HashingWriter(std::filesystem::path path);
  ~HashingWriter();
  HashingWriter(const HashingWriter&) = delete;
  HashingWriter& operator=(const HashingWriter&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  WrittenFile finish();  // synced and closed

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Streams tensors of known shapes into a new file.
class SafetensorsWriter {
 public:
  // Writes the header. Names must be distinct and none "__metadata__".
  SafetensorsWriter(std::filesystem::path path, const std::vector<SafetensorsTensor>& tensors,
                    const std::map<std::string, std::string>& metadata);
  // The tensors' bytes in the order given to the constructor, in pieces of any size.
  void write(std::span<const std::byte> bytes);
  // All announced bytes must have been written.
  WrittenFile finish();

 private:
  HashingWriter writer_;
  std::uint64_t remaining_ = 0;
};

// The header's text with its length in front, padded with spaces to a multiple of 8.
std::string safetensors_header_text(const std::vector<SafetensorsTensor>& tensors,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace scaletrain
