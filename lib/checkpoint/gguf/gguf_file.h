// A GGUF file, version 3: metadata, the tensors' descriptions, then their bytes, each at a multiple of 32. Written in
// one pass; complete or not there at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/gguf/gguf_blocks.h"
#include "tensor/shape.h"

namespace scaletrain {

// Keys and typed values, in the order in which they are added.
class GgufMetadata {
 public:
  void add(std::string_view key, std::string_view text);
  void add(std::string_view key, std::uint32_t value);
  void add(std::string_view key, float value);
  void add_flag(std::string_view key, bool value);
  void add(std::string_view key, std::span<const std::string> texts);
  void add(std::string_view key, std::span<const std::int32_t> values);
  void add(std::string_view key, std::span<const float> values);

  std::uint64_t size() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view key, std::uint32_t type);
  void begin_array(std::string_view key, std::uint32_t type, std::size_t size);

  std::uint64_t count_ = 0;
  std::string bytes_;
};

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::f32;
  Shape shape;  // rows last, as everywhere here; the format has them the other way round
};

class GgufWriter {
 public:
  // Writes all that comes before the tensors' bytes, to a hidden file beside `path`.
  GgufWriter(std::filesystem::path path, const GgufMetadata& metadata, std::vector<GgufTensor> tensors);
  ~GgufWriter();  // removes it unless it was finished
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // The tensors' bytes, in their order, each in as many pieces as one likes.
  void write(std::span<const std::byte> bytes);
  // All have been written: gives the file its name.
  void finish();

 private:
  void pad();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::vector<GgufTensor> tensors_;
  std::size_t tensor_ = 0;     // that is being written
  std::uint64_t written_ = 0;  // of it
  bool is_finished_ = false;
  FileWriter file_;
};

}  // namespace scaletrain
